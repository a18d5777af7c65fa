"""The process that writes the indexes of a server: it follows the logs of buses at the lowest priority, outside the process that decides.

    python -m gavel_server.index.worker

It is started by `event_index` and talks in lines of JSON. The first line of its input has the URL of the Redis, the data directory and
the archive; further ones name buses to follow. Each line of its output says how far the index of a bus goes, or what keeps it from
going on. It ends with its input, that is with its server.

The rows of an index may only come from the log that the bus has now. Before the first row is added, the log must have the index's
chain hash at its head, and each further event is chained. An index that is damaged or of another log is removed and written anew.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Final

from gavel_rules.events.hash_chain import chain

from gavel_server.archive.archives import join_archive
from gavel_server.index.database import IndexDatabase, index_path, remove
from gavel_server.log import EventLog, Head, LogCorruptError, LogError, Record
from gavel_server.log.protocol import PAGE_EVENTS_MAX, empty_head, has_event
from gavel_server.log.stores import LogStore, open_store
from gavel_server.process.children import be_killed_first, use_idle_time
from gavel_server.process.logging import log_to_stderr

POLL_SECONDS: Final = 0.2
RETRY_SECONDS: Final = 2.0
# Reads that one transaction takes in: rows are cheaper by the thousand, and readers see none before its end.
READS_PER_TRANSACTION: Final = 32


class IndexWriter:
    """Writes the index of one bus."""

    def __init__(self, log: EventLog, path: Path) -> None:
        self.log: Final = log
        self._path: Final = path
        self._database: IndexDatabase | None = None

    @property
    def head(self) -> Head:
        """The last event that the index has."""
        return empty_head(self.log.bus) if self._database is None else self._database.head

    async def open(self) -> str:
        """Open the index; return why an earlier one was removed, or "". Raises LogError, OSError, sqlite3.Error."""
        problem = ""
        try:
            self._database = IndexDatabase(self._path, self.log.bus)
            if not await self._is_of_log(self._database.head):
                problem = f"the log has another event {self.head.sequence_number}: the index is of another log"
        except sqlite3.DatabaseError as error:
            problem = str(error)
        if problem:
            self.remove()
            self._database = IndexDatabase(self._path, self.log.bus)
        return problem

    async def step(self) -> bool:
        """Add some of the events that the log has and the index has not; return whether there are more.

        Raises LogError, OSError, sqlite3.Error.
        """
        database = self._database
        if database is None:
            return False
        last = (await self.log.head()).sequence_number
        head = database.head
        records: list[Record] = []
        for _ in range(READS_PER_TRANSACTION):
            more = await self.log.read(head.sequence_number + 1, last, PAGE_EVENTS_MAX)
            for record in more:
                head = _follow(self.log.bus, head, record)
            records += more
            if not more or head.sequence_number >= last:
                break
        if records:
            database.add(records)
        elif last < head.sequence_number:
            raise LogCorruptError(f"bus {self.log.bus}: the log ends at event {last}, before the index")
        return head.sequence_number < last

    def remove(self) -> None:
        """Remove the index. Raises OSError."""
        self.close()
        remove(self._path)

    def close(self) -> None:
        """Close the index."""
        if self._database is not None:
            self._database.close()
            self._database = None

    async def _is_of_log(self, head: Head) -> bool:
        if not head.sequence_number:
            return True
        return await has_event(self.log, head)


def _follow(bus: str, head: Head, record: Record) -> Head:
    """Return the head after a record. Raises LogCorruptError."""
    if record.sequence_number != head.sequence_number + 1 or chain(head.chain_hash, record.envelope) != record.chain_hash:
        raise LogCorruptError(f"bus {bus}: event {record.sequence_number} does not follow event {head.sequence_number}")
    return Head(record.sequence_number, record.chain_hash)


class _Worker:
    """Follows the buses that the server names."""

    def __init__(self, store: LogStore, data: Path, archive: str) -> None:
        """`archive` is where the logs' old events are; "": in the logs."""
        self._store = store
        self._archive = archive
        self._data = data
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, tuple[int, asyncio.Future[None]]] = {}

    def take(self, line: bytes) -> None:
        """Take a line of input: follow a bus, or write its index anew."""
        order = json.loads(line)
        bus, rewrites = order["bus"], order.get("rewrite", False)
        if bus in self._tasks and not rewrites:
            return
        previous = self._tasks.pop(bus, None)
        if previous is not None:
            previous.cancel()
        self._tasks[bus] = asyncio.create_task(self._follow(bus, previous, rewrites=rewrites))

    async def _follow(self, bus: str, previous: asyncio.Task[None] | None, *, rewrites: bool) -> None:
        if previous is not None:
            await asyncio.wait([previous])
        while True:
            writer = None
            try:
                writer = IndexWriter(await self._open(bus), index_path(self._data, bus))
                if rewrites:
                    writer.remove()
                    rewrites = False
                removed = await writer.open()
                if removed:
                    _say(bus=bus, removed=removed)
                await self._write_forever(writer)
            except LogCorruptError as error:
                _say(bus=bus, problem=str(error))
                rewrites = True  # the log may have been emptied or restored
            except (LogError, OSError, sqlite3.Error) as error:
                _say(bus=bus, problem=str(error))
            finally:
                if writer is not None:
                    writer.close()
            await asyncio.sleep(RETRY_SECONDS)

    async def _open(self, bus: str) -> EventLog:
        """Return the log of a bus, across the seam with its archive. Raises LogError."""
        return await join_archive(await self._store.open(bus), self._archive)

    async def _write_forever(self, writer: IndexWriter) -> None:
        bus = writer.log.bus
        _say_indexed(bus, writer.head)
        while True:
            before = writer.head
            has_more = await writer.step()
            if writer.head != before:
                _say_indexed(bus, writer.head)
            if not has_more:
                grown: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting[bus] = writer.head.sequence_number, grown
                await grown

    async def poll_forever(self) -> None:
        """Wake the tasks of the buses whose logs have grown. One command reads the heads of all buses."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            waiting = dict(self._waiting)
            if not waiting:
                continue
            growth = await self._store.grown({bus: number for bus, (number, _) in waiting.items()})
            for bus in {*growth.buses, *growth.failures}:
                if self._waiting.get(bus) is not waiting[bus]:
                    continue  # its task has begun anew
                del self._waiting[bus]
                _, grown = waiting[bus]
                if grown.done():
                    continue  # its task has begun anew
                if bus in growth.failures:
                    grown.set_exception(growth.failures[bus])
                else:
                    grown.set_result(None)


def _say_indexed(bus: str, head: Head) -> None:
    _say(bus=bus, indexed=head.sequence_number, chain_hash=head.chain_hash.hex())


def _say(**line: object) -> None:
    try:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(0)  # the server was killed; the index survives that, as it survives a kill of this process


async def _run() -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    settings = json.loads(await reader.readline())
    store = open_store(settings["store"])
    worker = _Worker(store, Path(settings["data"]), settings["archive"])
    polling = asyncio.create_task(worker.poll_forever())
    while line := await reader.readline():
        worker.take(line)
    polling.cancel()


def main() -> None:
    """Run until the input ends."""
    log_to_stderr()
    use_idle_time()
    be_killed_first()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(_run())


if __name__ == "__main__":
    main()
