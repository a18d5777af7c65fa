"""The snapshots of a bus of this server: it starts from one, and writes new ones beside its work.

A snapshot is taken of the state between two batches and written by a forked child, so that decisions wait only for the fork. It may be used
only if the log has the same chain hash at its number. Otherwise the reason is logged, and the next older snapshot is tried.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

import structlog
from gavel_rules.state.paged_table import StatePages
from gavel_rules.state.snapshot.decoding import StateDecoder
from gavel_rules.state.state import State

from gavel_server.bus.trace_owners import TraceOwners
from gavel_server.compile.compiler import ensure_compiled
from gavel_server.history.snapshot_files import DECODING_ERRORS, SnapshotContent, SnapshotFiles
from gavel_server.history.snapshot_pages import SnapshotPages
from gavel_server.history.snapshot_parts import SnapshotError
from gavel_server.log import EventLog, Head
from gavel_server.process import metrics
from gavel_server.process.fork import EXIT_FAILED, fork
from gavel_server.process.time_slice import TimeSlice

# Fewer events are read faster than a snapshot of them would save.
EVENTS_MIN: Final = 1_000
# The pause after a snapshot, as a multiple of its processor time: writing takes at most a tenth of a processor.
PAUSE_FACTOR: Final = 10
# The pause after a failure, such as a full disk.
RETRY_SECONDS: Final = 60.0
# A child that takes longer hangs.
WRITE_SECONDS_MAX: Final = 600.0

_LOG: Final = structlog.get_logger(__name__)


class RestoredBus(NamedTuple):
    """A state from a snapshot, with what the server knew beside it."""

    state: State
    head: Head
    incarnation: str
    trace_owners: TraceOwners


class NewestSnapshot(NamedTuple):
    """The newest snapshot that can be used."""

    sequence_number: int
    size_bytes: int
    written_at_ms: int


class BusSnapshots:
    """The snapshots of one bus. A snapshot is written after every `every` events; 0: none is written."""

    def __init__(self, files: SnapshotFiles, every: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.files: Final = files
        self.every: Final = every
        self.newest: NewestSnapshot | None = None
        self._monotonic = monotonic
        self._last_number = 0
        self._not_before = 0.0
        self._child = 0
        self._pages: SnapshotPages | None = None  # of the newest snapshot: beside the state

    async def restore(self, log: EventLog, head: Head) -> RestoredBus | None:
        """Return the bus from the newest snapshot that the log confirms, up to `head`; None: there is none. Raises LogError."""
        for number in self.files.numbers():
            try:
                restored = await self._restore(log, head, number)
            except SnapshotError as error:
                _LOG.warning("snapshot.refused", bus=self.files.bus, sequence_number=number, problem=str(error))
                continue
            self._last_number = number
            self._note_newest(number)
            _LOG.info("snapshot.read", bus=self.files.bus, sequence_number=number, head=head.sequence_number)
            return restored
        return None

    async def _restore(self, log: EventLog, head: Head, number: int) -> RestoredBus:
        position = self.files.read_position(number)
        if number > head.sequence_number:
            raise SnapshotError(f"the log ends at event {head.sequence_number}")
        record = (await log.read_many([number])).get(number)
        if record is None:
            raise SnapshotError(f"the log does not hold event {number}")
        if record.chain_hash != position.chain_hash:
            raise SnapshotError(f"the log has another event {number}: the snapshot is of another log")
        await asyncio.to_thread(self.files.check, number)
        opened = await asyncio.to_thread(self.files.open_pages, number)
        decoder = StateDecoder(log.bus, opened.pages)
        trace_owners = TraceOwners()
        time_slice = TimeSlice(1, self._monotonic)
        try:
            for part in self.files.read_parts(number):
                used = [(one.policy_id, one.version) for one in part.active_rule_sets]
                used += [(one.policy_id, one.version) for one in part.shadows]
                for policy_id, version in used:
                    await ensure_compiled(decoder.deployed(policy_id, version))
                decoder.add(part)
                trace_owners.add_rows(part.trace_owners)
                await time_slice.spend(0)
            state = decoder.finish()
        except DECODING_ERRORS as error:
            raise SnapshotError(f"this build cannot restore it: {error!r}") from error
        self._pages = opened
        return RestoredBus(state, Head(number, position.chain_hash), position.incarnation, trace_owners)

    def begin_anew(self, last: int) -> BusSnapshots:
        """Return the snapshots of a bus whose state starts over, because the log has lost events after `last`.

        Later snapshots are removed, also one that a child still writes: the log does not confirm them, and the newest are never pruned.
        """
        if self._child:
            _kill(self._child)
        for number in self.files.numbers():
            if number > last:
                self.files.remove(number)
        return BusSnapshots(self.files, self.every, self._monotonic)

    # Writing

    def is_due(self, head: Head) -> bool:
        """Return whether a snapshot should be written now."""
        return (
            self.every > 0
            and head.sequence_number - self._last_number >= self.every
            and not self._child
            and self._monotonic() >= self._not_before
        )

    async def write_in_child(self, state: State, head: Head, incarnation: str, trace_owners: TraceOwners) -> StatePages | None:
        """Write a snapshot of the state as it is now, which must hold nothing uncommitted. Failures are logged.

        Returns the paged tables of the snapshot for the state; None after a failure.
        """
        content = SnapshotContent(state, head, incarnation, trace_owners.parts())
        began = self._monotonic()
        try:
            # The child reads the rows that are in the snapshot before.
            self._child = fork(lambda: self._write(content), () if self._pages is None else (self._pages.descriptor,))
        except OSError as error:
            self._end(head, began, error.errno or EXIT_FAILED)
            return None
        pause_seconds = self._monotonic() - began
        metrics.SNAPSHOT_PAUSE.labels(self.files.bus).set(pause_seconds)
        exit_wait = asyncio.ensure_future(asyncio.to_thread(os.wait4, self._child, 0))
        try:
            await asyncio.wait([exit_wait], timeout=WRITE_SECONDS_MAX)
        finally:
            # The child hangs, or the server stops and writes a newer snapshot itself.
            if not exit_wait.done():
                _kill(self._child)
            _, status, usage = await exit_wait
            self._child = 0
        exit_status = os.waitstatus_to_exitcode(status)
        processor_seconds = usage.ru_utime + usage.ru_stime
        self._end(head, began, exit_status, processor_seconds, pause_ms=round(pause_seconds * 1000, 1))
        return None if exit_status else await self._open_pages(head.sequence_number)

    async def _open_pages(self, number: int) -> StatePages | None:
        """Return the paged tables of a snapshot that a child has written; None if somebody has removed it, which is logged."""
        try:
            self._pages = await asyncio.to_thread(self.files.open_pages, number)
        except SnapshotError as error:
            _LOG.warning("snapshot.refused", bus=self.files.bus, sequence_number=number, problem=str(error))
            return None
        return self._pages.pages

    def write_last(self, state: State, head: Head, incarnation: str, trace_owners: TraceOwners) -> None:
        """Write a snapshot on a clean stop, unless only a few events are new or a child still writes one.

        The state does not change any more.
        """
        if self._child or not self.every or head.sequence_number - self._last_number < min(self.every, EVENTS_MIN):
            return
        began = self._monotonic()
        status = 0
        try:
            self._write(SnapshotContent(state, head, incarnation, trace_owners.parts()))
        except OSError as error:
            status = error.errno or EXIT_FAILED
        except SnapshotError as error:  # of the pages that the state reads from
            _LOG.warning("snapshot.refused", bus=self.files.bus, problem=str(error))
            status = EXIT_FAILED
        self._end(head, began, status)

    def _write(self, content: SnapshotContent) -> None:
        self.files.write(content)
        self.files.prune()

    def _end(self, head: Head, start_seconds: float, status: int, processor_seconds: float = 0.0, **measures: float) -> None:
        """Note the end of an attempt. `status` is 0, an errno, EXIT_FAILED, or the negative number of the signal that ended the child."""
        seconds = self._monotonic() - start_seconds
        self._not_before = self._monotonic() + max(PAUSE_FACTOR * processor_seconds, RETRY_SECONDS if status else 0)
        if status:
            problem = os.strerror(status) if 0 < status < EXIT_FAILED else f"the child that writes it ended with status {status}"
            _LOG.error("snapshot.not_written", bus=self.files.bus, sequence_number=head.sequence_number, problem=problem)
            return
        self._last_number = head.sequence_number
        self._note_newest(head.sequence_number)
        size_bytes = self.newest.size_bytes if self.newest is not None else 0
        _LOG.info(
            "snapshot.written",
            bus=self.files.bus,
            sequence_number=head.sequence_number,
            size_bytes=size_bytes,
            seconds=round(seconds, 3),
            processor_seconds=round(processor_seconds, 3),
            **measures,
        )

    def _note_newest(self, number: int) -> None:
        try:
            status = self.files.path(number).stat()
        except OSError:
            return  # somebody has removed it
        self.newest = NewestSnapshot(number, status.st_size, int(status.st_mtime * 1000))
        metrics.SNAPSHOT_NUMBER.labels(self.files.bus).set(number)


def _kill(child: int) -> None:
    """Kill a child, unless it has ended and the thread that waits for it has already collected it."""
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
