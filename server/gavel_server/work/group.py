"""One group of consumers of a work queue: its streams on this server.

One task reads for all streams of the group, so that idle streams cost nothing and items are shared out evenly. It keeps the items of living
streams, takes over those that a killed server or a silent consumer has left, and parks those that were delivered too often. Any number of
servers may serve one group: the log store gives each item to one of them.

Streams of one group may have callers of different rights. Each item goes to a stream that selects it and whose caller may work on it
(`permissions`). An item that no stream here takes, or that finds no room, is given back without counting a delivery. The streams of other
servers can take it, and the items behind it are read on. A stream takes the items that it had no room for as soon as it has room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

import structlog
from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope

from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError
from gavel_server.log import LogError, Record
from gavel_server.log.work.protocol import QueueName, WorkEntry
from gavel_server.process.time_slice import TimeSlice
from gavel_server.work.limits import (
    FAILURE_PAUSE_SECONDS,
    HEARTBEATS,
    MEMBER_SILENCE_MS_MAX,
    MEMBER_SWEEP_SECONDS,
    READ_ITEMS_MAX,
    SILENCE_MS_MAX,
    SWEEP_ITEMS_MAX,
    SWEEP_SECONDS,
    UNWANTED_ITEMS_MAX,
)
from gavel_server.work.permissions import Traits, traits_of
from gavel_server.work.stream import DELIVERIES_MAX_REASON, Item, WorkStream

_LOG: Final = structlog.get_logger(__name__)


class WorkGroup:
    """The streams of a group. Add streams with `join`, and run `run` in a task while there are any."""

    def __init__(self, sequencer: Sequencer, queue: QueueName, name: str) -> None:
        self.queue: Final = queue
        self.name: Final = name
        self._sequencer = sequencer
        self._work = sequencer.log.work
        self._streams: list[WorkStream] = []
        self.changed: Final = asyncio.Event()
        # Items that were given back because no stream here takes them.
        self._unwanted: dict[int, Traits] = {}
        # Streams that may take some of them.
        self._joined: list[WorkStream] = []
        self._grants_digest = ""
        self._cursor = 0
        self._next_sweep = self._next_heartbeat = self._next_member_sweep = 0.0
        self._problem = ""
        # Held during a step.
        self._step_lock = asyncio.Lock()
        self._is_stopped = False

    @property
    def streams(self) -> int:
        """How many streams the group has."""
        return len(self._streams)

    def join(self, stream: WorkStream) -> None:
        """Read for another stream. Its consumer is a member of the group."""
        self._streams.append(stream)
        self._joined.append(stream)
        self.sweep_now()

    def remove(self, stream: WorkStream) -> None:
        """Read no more for a stream. A step that is under way gives back what it reads for the stream (`step_ended`)."""
        self._streams.remove(stream)

    def stop(self) -> None:
        """Let `run` end after the step that is under way: what it takes must not stay with consumers that have gone."""
        self._is_stopped = True
        self.changed.set()

    async def step_ended(self) -> None:
        """Wait for the end of the step that is under way."""
        async with self._step_lock:
            pass

    def sweep_now(self) -> None:
        """Look at once for items that a consumer has left."""
        self._next_sweep, self._cursor = 0.0, 0
        self.changed.set()

    def notify(self, queues: Collection[str]) -> None:
        """Note that `queues` have new entries; if `queues` is empty, that the bus closes."""
        if not queues or self.queue in queues:
            self.changed.set()

    async def run(self) -> None:
        """Serve the streams until `stop`. After an error of the log, go on; an unexpected error ends the streams."""
        replica = self._sequencer.replica
        replica.work_listeners.add(self.notify)
        try:
            while not (replica.closing or self._is_stopped):
                try:
                    async with self._step_lock:
                        is_idle = await self._step()
                    if is_idle and not self._is_stopped:
                        await self._wait()
                except (LogError, ServiceError) as error:
                    self._note(str(error))
                    await asyncio.sleep(FAILURE_PAUSE_SECONDS)
                else:
                    self._note("")
            self._end(ServiceError(error_pb2.ERROR_REASON_SHUTTING_DOWN, "the server is shutting down; try again, or use another server"))
        except Exception as error:  # noqa: BLE001  # a bug in one group must not leave its streams without an end
            _LOG.exception("work.group_failed", bus=self._sequencer.bus, queue=self.queue, group=self.name)
            self._end(
                ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, f"the group failed ({type(error).__name__}); open the stream again")
            )
        finally:
            replica.work_listeners.discard(self.notify)

    def _end(self, error: ServiceError) -> None:
        for stream in self._streams:
            stream.end(error)

    async def _step(self) -> bool:
        """Do what is due; then read new items once. Return whether there were none, or no stream has room."""
        if not all(stream.is_own for stream in self._streams):
            self._sequencer.is_used = True
        self.changed.clear()
        self._follow_grants()
        await self._look_again()
        now = asyncio.get_running_loop().time()
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + SILENCE_MS_MAX / HEARTBEATS / 1000
            await self._send_heartbeats()
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_SECONDS
            await self._sweep()
        if now >= self._next_member_sweep:
            self._next_member_sweep = now + MEMBER_SWEEP_SECONDS
            await self._work.remove_silent(self.queue, self.name, MEMBER_SILENCE_MS_MAX)
        await self._take_waiting()
        stream = self._roomiest()
        if stream is not None:
            entries = await self._work.take_new(self.queue, self.name, stream.consumer, self._share(stream))
            await self._deliver(stream, entries)
            return not entries
        return True

    async def _wait(self) -> None:
        """Wait until something has changed, or the next sweep is due."""
        try:
            async with asyncio.timeout(max(0.0, self._next_sweep - asyncio.get_running_loop().time())):
                await self.changed.wait()
        except TimeoutError:
            pass  # the next sweep is due

    def _follow_grants(self) -> None:
        """After a change of grants, look at all items again, and end the streams that hold what their callers may not work on any more."""
        in_force = self._sequencer.replica.state.grants_in_force
        digest = "" if in_force is None else in_force.deployed.digest
        if digest == self._grants_digest:
            return
        self._grants_digest = digest
        self._unwanted.clear()
        self._next_sweep, self._cursor = 0.0, 0
        for stream in self._streams:
            stream.end_if_forbidden()

    async def _look_again(self) -> None:
        """Forget those unwanted items that a stream takes which has joined, so that the next sweep finds them."""
        joined, self._joined = self._joined, []
        if not joined:
            return
        time_slice = TimeSlice(UNWANTED_ITEMS_MAX)  # grants may make each look long
        for number, traits in list(self._unwanted.items()):
            if any(stream.takes(traits) for stream in joined):
                self._unwanted.pop(number, None)
            await time_slice.spend(len(joined))

    async def _take_waiting(self) -> None:
        """Give streams that have room again the items that waited for it."""
        for stream in list(self._streams):
            numbers = stream.pop_waiting(min(stream.room, READ_ITEMS_MAX))
            if numbers:
                await self._deliver(stream, await self._work.claim(self.queue, self.name, stream.consumer, numbers, SILENCE_MS_MAX))
                self.changed.set()  # there may be more

    def _roomiest(self) -> WorkStream | None:
        """Return the stream that has room for most items, or None."""
        stream = max(self._streams, key=lambda one: one.room, default=None)
        return stream if stream is not None and stream.room else None

    def _share(self, stream: WorkStream) -> int:
        """Return how many items to read for a stream: few while others have room too, so that they get as many."""
        others = sum(one.room > 0 for one in self._streams)
        return max(1, min(stream.room, READ_ITEMS_MAX) // others)

    async def _send_heartbeats(self) -> None:
        for stream in list(self._streams):
            numbers = stream.numbers
            if numbers:
                stream.keep(await self._work.renew(self.queue, self.name, stream.consumer, numbers))

    async def _sweep(self) -> None:
        """Take items that are due, and items that were left: by a killed server, a silent consumer or a stream that has ended."""
        while (stream := self._roomiest()) is not None:
            entries = await self._work.take_due(self.queue, self.name, stream.consumer, self._share(stream))
            await self._deliver(stream, entries)
            if not entries:
                break
        numbers_of_streams = {number for stream in self._streams for number in stream.numbers}
        examined = 0
        while examined < SWEEP_ITEMS_MAX and (stream := self._roomiest()) is not None:
            count = self._share(stream)
            page = await self._work.idle(self.queue, self.name, SILENCE_MS_MAX, self._cursor, SWEEP_ITEMS_MAX - examined)
            idle_numbers = [number for number in page if number not in numbers_of_streams and number not in self._unwanted][:count]
            examined += len(page)
            if not idle_numbers:
                self._cursor = page[-1] if len(page) == SWEEP_ITEMS_MAX else 0
                break
            self._cursor = idle_numbers[-1]
            await self._deliver(stream, await self._work.claim(self.queue, self.name, stream.consumer, idle_numbers, SILENCE_MS_MAX))

    async def _deliver(self, reader: WorkStream, entries: list[WorkEntry]) -> None:
        """Give items to the stream that they were read for, or to another one that takes them.

        After a failure those that nobody got go back, and this delivery does not count.
        """
        if not entries:
            return
        undelivered = {entry.sequence_number: entry.deliveries - 1 for entry in entries}
        try:
            await self._sequencer.confirm(max(undelivered))
            for entry in await self._readable(reader, entries):
                item = await self._item(entry)
                await self._deliver_one(reader, item)
                del undelivered[entry.sequence_number]
        except (LogError, ServiceError):
            if undelivered:
                await self._work.release(self.queue, self.name, reader.consumer, undelivered, SILENCE_MS_MAX)
            raise

    async def _readable(self, reader: WorkStream, entries: list[WorkEntry]) -> list[WorkEntry]:
        """Return entries with their events, which an archive may have. Those that cannot be read go back for SILENCE_MS_MAX."""
        trimmed = {entry.sequence_number: entry.deliveries - 1 for entry in entries if not entry.envelope}
        if not trimmed:
            return entries
        records: Mapping[int, Record] = {}
        problem = "neither the log nor its archive has them"
        try:
            records = await self._sequencer.log.read_many(list(trimmed))
        except LogError as error:
            problem = str(error)
        unreadable = {number: deliveries for number, deliveries in trimmed.items() if number not in records}
        if unreadable:
            self._note(f"items {', '.join(map(str, unreadable))} cannot be read: {problem}")
            await self._work.release(self.queue, self.name, reader.consumer, unreadable, 0)
        readable: list[WorkEntry] = []
        for entry in entries:
            record = records.get(entry.sequence_number)
            if record is not None:
                readable.append(entry._replace(envelope=record.envelope, chain_hash=record.chain_hash))
            elif entry.envelope:
                readable.append(entry)
        return readable

    async def _deliver_one(self, reader: WorkStream, item: Item) -> None:
        entry = item.entry
        stream = reader if reader.takes(item.traits) and reader in self._streams else self._taker(item.traits)
        if stream is None:
            await self._give_back(reader, item)
            return
        if stream is not reader and not await self._work.transfer(
            self.queue, self.name, reader.consumer, entry.sequence_number, stream.consumer
        ):
            return
        if entry.deliveries > stream.deliveries_max:
            await stream.park(self.queue, self.name, item, DELIVERIES_MAX_REASON, entry.deliveries - 1)
        elif stream in self._streams:
            stream.push(item)
        else:
            await self._give_back(stream, item)

    async def _item(self, entry: WorkEntry) -> Item:
        envelope = Envelope.FromString(entry.envelope)
        return Item(entry, envelope.event_id, await traits_of(self._sequencer, self.queue, envelope))

    def _taker(self, traits: Traits) -> WorkStream | None:
        """Return the stream with most room that takes an item, or None."""
        return max((stream for stream in self._streams if stream.room and stream.takes(traits)), key=lambda one: one.room, default=None)

    async def _give_back(self, reader: WorkStream, item: Item) -> None:
        number = item.entry.sequence_number
        taker = min((stream for stream in self._streams if stream.takes(item.traits)), key=lambda one: one.waiting, default=None)
        if taker is not None:
            taker.add_waiting(number)
        else:
            while len(self._unwanted) >= UNWANTED_ITEMS_MAX:
                del self._unwanted[next(iter(self._unwanted))]
            self._unwanted[number] = item.traits
        await self._work.release(self.queue, self.name, reader.consumer, {number: item.entry.deliveries - 1}, SILENCE_MS_MAX)

    def _note(self, problem: str) -> None:
        if problem and problem != self._problem:
            _LOG.warning("work.unavailable", bus=self._sequencer.bus, queue=self.queue, group=self.name, problem=problem)
        self._problem = problem
