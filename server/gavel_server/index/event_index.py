"""The indexes of a server's buses as its reads use them: the rows that the worker process has written so far, and queries of them.

An index lags behind the log: usually by a moment, and by more while it is built. A read therefore asks it up to `head`, and scans the log
from there. It is a hint: the caller reads the events that it names from the log and filters them again.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from gavel_server.index.database import IndexReader, index_path
from gavel_server.index.event_filter import EventFilter
from gavel_server.log import EventLog, Head
from gavel_server.log.protocol import has_event
from gavel_server.process import metrics
from gavel_server.process.children import log_reader_environment

# Reads of indexes at once. They wait for the disk; the event loop does not.
READS_MAX: Final = 2
WATCH_SECONDS: Final = 0.5
PROGRESS_INTERVAL_SECONDS: Final = 5.0
# Events that the index lacks, from which on its progress is logged.
PROGRESS_EVENTS_MIN: Final = 20_000
END_SECONDS_MAX: Final = 5.0

_COMMAND: Final = (sys.executable, "-P", "-m", "gavel_server.index.worker")
_ANEW: Final = "it is written anew"

_LOG: Final = structlog.get_logger(__name__)


class BusHead(NamedTuple):
    """A bus of this server, and the last event of its log."""

    bus: str
    sequence_number: int


class EventIndex:
    """The indexes in the data directory of a server. `minimum`: events that a bus must have to be indexed."""

    def __init__(self, data: Path, store_url: str, minimum: int, archive: str = "") -> None:
        """`archive` is where the logs' old events are; "": in the logs."""
        self._data = data
        self._store_url = store_url
        self._minimum = minimum
        self._archive = archive
        self._heads: dict[str, Head] = {}
        self._readers: dict[str, IndexReader] = {}
        self._followed: set[str] = set()
        self._rewritten: set[str] = set()  # buses whose index is being written anew
        self._generations: Counter[str] = Counter()  # of the file of each bus's index
        self._process: subprocess.Popen[bytes] | None = None
        self._output: asyncio.Task[None] | None = None
        self._pool: Final = ThreadPoolExecutor(max_workers=READS_MAX, thread_name_prefix="index")
        self.problem = ""

    def head(self, bus: str) -> int:
        """Return the event up to which the index of a bus can be asked; 0: not at all."""
        head = self._heads.get(bus)
        return 0 if head is None else head.sequence_number

    async def head_in(self, log: EventLog) -> int:
        """Return `head` if the log has the event that the index has there. Otherwise let the index be written anew, and return 0.

        After a failover the log may have other events than the index. Raises LogError.
        """
        head = self._heads.get(log.bus)
        if head is None or not head.sequence_number:
            return 0
        if await has_event(log, head):
            return head.sequence_number
        if self._heads.get(log.bus) == head:
            del self._heads[log.bus]
            _LOG.warning("event_index.refused", bus=log.bus, problem=f"the log has another event {head.sequence_number}", note=_ANEW)
            self.forget(log.bus)
        return 0

    async def select(self, bus: str, event_filter: EventFilter, first: int, last: int, limit: int) -> list[int] | None:
        """Return the numbers of the first `limit` events from `first` to `last` that pass; None if the index lacks `last`.

        `last` is at most `head`. An index that cannot be read is written anew, and gives None too.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._select, bus, event_filter, first, last, limit)
        except sqlite3.Error as error:
            _LOG.error("event_index.damaged", bus=bus, problem=str(error), note="reads scan the log until it is written anew")
            if self._heads.pop(bus, None) is not None:
                self._rewrite(bus)
            self._close_reader(bus)
            return None

    def forget(self, bus: str) -> None:
        """Let the index of a bus be written anew, because the log lacks events that it may have."""
        if bus in self._followed:
            self._heads.pop(bus, None)
            self._rewrite(bus)
            self._close_reader(bus)

    def _rewrite(self, bus: str) -> None:
        self._rewritten.add(bus)
        self._order(bus=bus, rewrite=True)

    def _select(self, bus: str, event_filter: EventFilter, first: int, last: int, limit: int) -> list[int] | None:
        generation = self._generations[bus]
        reader = self._readers.pop(bus, None) or IndexReader(index_path(self._data, bus))
        try:
            return reader.select(event_filter, first, last, limit) if reader.has(last) else None
        finally:
            self._keep(bus, reader, generation)

    def _keep(self, bus: str, reader: IndexReader, generation: int) -> None:
        """Keep a connection for the next read. A second one of the same bus is closed, and one to a file that may have been replaced."""
        if self._readers.setdefault(bus, reader) is not reader:
            reader.close()
        elif self._generations[bus] != generation:
            self._close_reader(bus)

    def _close_reader(self, bus: str) -> None:
        self._generations[bus] += 1
        reader = self._readers.pop(bus, None)
        if reader is not None:
            reader.close()

    # The worker

    async def follow_forever(self, heads: Callable[[], Iterable[BusHead]]) -> None:
        """Let the worker follow every bus that is large enough, and start it again when it dies, until cancelled."""
        loop = asyncio.get_running_loop()
        next_report = loop.time() + PROGRESS_INTERVAL_SECONDS
        try:
            while True:
                known = [head for head in heads() if head.sequence_number >= self._minimum]
                if self._process is not None and self._process.poll() is not None:
                    _LOG.error("event_index.worker_died", returncode=self._process.returncode)
                    await self._end()
                for bus, _ in known:
                    if bus not in self._followed:
                        self._followed.add(bus)
                        self._order(bus=bus)
                if loop.time() >= next_report:
                    next_report = loop.time() + PROGRESS_INTERVAL_SECONDS
                    self._report(known)
                await asyncio.sleep(WATCH_SECONDS)
        finally:
            await self._end()

    def _report(self, known: Iterable[BusHead]) -> None:
        for bus, number in known:
            if number - self.head(bus) >= PROGRESS_EVENTS_MIN:
                _LOG.info("event_index.building", bus=bus, sequence_number=self.head(bus), head=number)

    def _order(self, **order: object) -> None:
        if self._process is None:
            self._start()
        try:
            self._send(order)
        except BrokenPipeError:
            return  # it has died, and is started again

    def _start(self) -> None:
        # A session of its own: Ctrl-C at a terminal reaches the server, which ends its worker.
        self._process = subprocess.Popen(  # noqa: S603 - no shell, our own arguments
            _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=log_reader_environment()
        )
        self._send({"store": self._store_url, "data": str(self._data), "archive": self._archive})
        self._output = asyncio.create_task(self._read_output(self._process))

    def _send(self, line: dict[str, object]) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()

    async def _read_output(self, process: subprocess.Popen[bytes]) -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
        while line := await reader.readline():
            self._take(json.loads(line))

    def _take(self, line: dict[str, object]) -> None:
        bus = str(line["bus"])
        if "indexed" in line:
            number = int(str(line["indexed"]))
            if bus in self._rewritten:
                self._rewritten.discard(bus)
                self._close_reader(bus)  # it may have been opened before the earlier file was removed
            self._heads[bus] = Head(number, bytes.fromhex(str(line["chain_hash"])))
            metrics.INDEX_NUMBER.labels(bus).set(number)
            self.problem = ""
            return
        self._heads.pop(bus, None)
        self._close_reader(bus)
        if "removed" in line:
            _LOG.warning("event_index.refused", bus=bus, problem=line["removed"], note=_ANEW)
        else:
            self.problem = str(line["problem"])
            _LOG.warning("event_index.not_written", bus=bus, problem=self.problem)

    async def _end(self) -> None:
        """End the worker at once. It has nothing to save, because its transactions are atomic."""
        process, self._process = self._process, None
        self._heads.clear()
        self._followed.clear()
        if self._output is not None:
            self._output.cancel()
            self._output = None
        for bus in list(self._readers):
            self._close_reader(bus)
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        process.terminate()
        await asyncio.to_thread(process.wait, END_SECONDS_MAX)
