"""The groups that have streams on this server, and the limits on their streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple

from gavel.v1 import error_pb2

from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError
from gavel_server.log import LogError
from gavel_server.log.work.protocol import CALLER_GROUPS_MAX, GROUPS_MAX, GroupsFullError, GroupsLimit, QueueName
from gavel_server.work.group import WorkGroup
from gavel_server.work.limits import SILENCE_MS_MAX, STREAMS_MAX
from gavel_server.work.permissions import Traits
from gavel_server.work.stream import UnsentBytes, WorkStream

_RETRY_AFTER_MS: Final = 1_000
_REFUSALS: Final[Mapping[GroupsLimit, str]] = {
    "CALLER_GROUPS_MAX": (
        f"has {CALLER_GROUPS_MAX} groups that the caller has created and that are in use; use one of them, or settle what an old one holds"
    ),
    "FIRST_GROUPS_MIN": "has many groups: the other places are for callers without a group; use one that exists",
    "GROUPS_MAX": f"has {GROUPS_MAX} groups in use; use one of them, or settle what an old one holds",
}


class ConsumerSettings(NamedTuple):
    """The settings that a consumer asks for. No limit is 0, except `silence_ms_max` (0: no limit). Without labels it takes all items."""

    queue: QueueName
    group: str
    labels: Collection[str]
    in_flight_max: int
    deliveries_max: int
    silence_ms_max: int


class WorkGroups:
    """Opens the streams of this server."""

    def __init__(self) -> None:
        self._groups: dict[tuple[Sequencer, QueueName, str], tuple[WorkGroup, asyncio.Task[None]]] = {}
        self._streams = 0
        self._unsent = UnsentBytes()

    @asynccontextmanager
    async def open(
        self, sequencer: Sequencer, settings: ConsumerSettings, address: str, permits: Callable[[Traits], bool], *, is_own: bool = False
    ) -> AsyncIterator[WorkStream]:
        """Serve a stream within the block. `permits` tells which items the caller may work on now.

        A stream of the server's own reactor (`is_own`) does not keep an idle bus open.
        Raises ServiceError QUEUE_FULL, LogError.
        """
        if self._streams >= STREAMS_MAX:
            message = f"streams of work are limited to {STREAMS_MAX} on this server; close some, or use another server"
            raise ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, message, retry_after_ms=_RETRY_AFTER_MS)
        self._streams += 1
        try:
            async with self._member(sequencer, settings, address, permits, is_own) as stream:
                yield stream
        finally:
            self._streams -= 1

    @asynccontextmanager
    async def _member(
        self, sequencer: Sequencer, settings: ConsumerSettings, address: str, permits: Callable[[Traits], bool], is_own: bool
    ) -> AsyncIterator[WorkStream]:
        queue, name = settings.queue, settings.group
        work = sequencer.log.work
        stream = WorkStream(address, settings.labels, settings.in_flight_max, settings.deliveries_max, self._unsent, work, permits, is_own)
        try:
            await work.join(queue, name, stream.consumer, address)
        except GroupsFullError as error:
            message = f"the queue {queue} of bus {sequencer.bus} {_REFUSALS[error.limit]}"
            raise ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, message, retry_after_ms=_RETRY_AFTER_MS) from None
        group = self._group(sequencer, queue, name)
        settling = asyncio.create_task(stream.run_settling(queue, name, group.changed))
        group.join(stream)
        try:
            yield stream
        finally:
            group.remove(stream)
            # Not cancelled with the call: the items have to go to others now, and not only once this consumer counts as silent.
            leaving = asyncio.ensure_future(self._leave(group, stream, settling))
            with suppress(asyncio.CancelledError):
                await asyncio.shield(leaving)

    async def _leave(self, group: WorkGroup, stream: WorkStream, settling: asyncio.Task[None]) -> None:
        with suppress(LogError):  # the items are taken over later
            await stream.leave(group.queue, group.name, settling, SILENCE_MS_MAX)
        group.sweep_now()
        if not group.streams:
            group.stop()
            for key, (one, task) in list(self._groups.items()):
                if one is group:
                    del self._groups[key]
                    await asyncio.gather(task, return_exceptions=True)
        await group.step_ended()
        with suppress(LogError):
            await stream.work.leave(group.queue, group.name, stream.consumer)

    def _group(self, sequencer: Sequencer, queue: QueueName, name: str) -> WorkGroup:
        key = sequencer, queue, name
        if key not in self._groups or self._groups[key][1].done():
            group = WorkGroup(sequencer, queue, name)
            self._groups[key] = group, asyncio.create_task(group.run(), name=f"work {queue} {name}")
        return self._groups[key][0]
