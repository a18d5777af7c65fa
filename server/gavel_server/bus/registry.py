"""The buses that this process serves: one sequencer each, started on demand and stopped when idle.

A bus is opened by the first command that records an event. Neither a read nor a refused command opens one, so a mistyped name creates
nothing, neither in the log store nor here. An idle bus is closed in this process and started again by its next call; its log stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final

import structlog
from gavel.v1 import error_pb2
from gavel_rules.identity.principal import Principal

from gavel_server.bus.acknowledged_head import regression
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError, invalid
from gavel_server.intake.formats import BUS
from gavel_server.log import Head, LogError
from gavel_server.log.protocol import empty_head

BUS_DEFAULT: Final = "default"
BUSES_MAX: Final = 1_000
# A bus that is idle for IDLE_ROUNDS_MAX rounds without a call is closed in this process.
IDLE_ROUND_SECONDS: Final = 60.0
IDLE_ROUNDS_MAX: Final = 5

OpenSequencer = Callable[[str], Awaitable[Sequencer]]
BusExists = Callable[[str], Awaitable[bool]]
BusNames = Callable[[], Awaitable[list[str]]]
HeadNumber = Callable[[str], Awaitable[int | None]]
LastAcknowledged = Callable[[str], Head | None]
Opened = Callable[[Sequencer], Coroutine[None, None, None]]
Closed = Callable[[Sequencer], Coroutine[None, None, None]]

_LOG: Final = structlog.get_logger(__name__)


async def _do_nothing(_: Sequencer) -> None:
    """The default of `opened` and `closed`."""


async def _no_head(_: str) -> int | None:
    """The default of `head_number`: the buses that are open in this process are all that there are."""
    return None


class BusRegistry:
    """Sequencers by bus name. An empty name means BUS_DEFAULT.

    `opener` creates and starts the sequencer of a bus. `exists` tells whether the log store holds a bus. `opened` runs once a
    bus has its first event, and `closed` after its sequencer has stopped. `names` lists the buses of the log store; default:
    those that are open in this process. `head_number` returns the number of a bus's newest event without opening the bus.
    `creates`: whether a command creates its bus; otherwise only `create` does. `acknowledged` returns the last event of a bus
    that this server has acknowledged: without events in the store, such a bus is lost, not unknown.
    """

    def __init__(
        self,
        opener: OpenSequencer,
        exists: BusExists,
        *,
        opened: Opened = _do_nothing,
        closed: Closed = _do_nothing,
        names: BusNames | None = None,
        head_number: HeadNumber = _no_head,
        creates: bool = True,
        acknowledged: LastAcknowledged = lambda _: None,
    ) -> None:
        self._acknowledged = acknowledged
        self._opener = opener
        self._exists = exists
        self._opened = opened
        self._closed = closed
        self._names = names
        self._head_number = head_number
        self._creates = creates
        self._sequencers: dict[str, Sequencer] = {}
        # Started for a write, and without an event yet.
        self._unopened: dict[str, Sequencer] = {}
        self._opening: dict[str, asyncio.Task[Sequencer]] = {}
        # By `reopen`: the next opening waits for it.
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._idle_rounds: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def find_open(self, name: str, incarnation: str = "") -> Sequencer | None:
        """Return the sequencer of a bus that is open in this process, or None. Does not wait: the hot path.

        Raises ServiceError BUS_REPLACED if the bus has another incarnation than the given one, as `existing` and `open` do.
        """
        sequencer = self._sequencers.get(name or BUS_DEFAULT)
        if sequencer is not None:
            _check_incarnation(sequencer, incarnation)
            sequencer.is_used = True
        return sequencer

    def peek(self, name: str) -> Sequencer | None:
        """Return what `find_open` returns, without counting as a call that keeps the bus open."""
        return self._sequencers.get(name or BUS_DEFAULT)

    def check_name(self, name: str) -> None:
        """Raise ServiceError if the name is not the name of a bus ("" is the default), or the server is stopping."""
        if not BUS.match(name or BUS_DEFAULT):
            raise invalid([("bus", "is not 1 to 63 characters of a-z, 0-9 and -")])
        if self._stopping:
            raise _shutting_down()

    async def existing(self, name: str, incarnation: str = "") -> Sequencer:
        """Return the sequencer of a bus for a call that needs events: a read, or a command on what is recorded. Never opens a bus.

        Raises ServiceError: BUS_NOT_FOUND if the bus has no events, LOG_REGRESSED if it has lost all of them, and the errors of `open`.
        """
        name = name or BUS_DEFAULT
        sequencer = self.find_open(name, incarnation)
        if sequencer is not None:
            return sequencer
        if name not in self._opening:
            self.check_name(name)
            try:
                exists = await self._exists(name)
            except LogError as error:
                raise _log_unavailable(error) from error
            if not exists:
                raise self._not_found(name, incarnation)
        sequencer = await self._find_or_open(name)
        if not sequencer.is_open:
            # Another server has just opened it, or nobody.
            await sequencer.read_on()
            if not sequencer.is_open:
                raise self._not_found(name, incarnation)
        _check_incarnation(sequencer, incarnation)
        return sequencer

    async def open(self, name: str, incarnation: str = "") -> Sequencer:
        """Return the sequencer of a bus for a command that may be its first. Queue the command before anything else is awaited.

        A caller that names an incarnation knows the bus, so that its command cannot be the first.

        Raises ServiceError: INVALID_REQUEST, LOG_UNAVAILABLE, QUEUE_FULL, SHUTTING_DOWN, and the errors of the opener.
        """
        name = name or BUS_DEFAULT
        if incarnation or not (self._creates or name == BUS_DEFAULT):
            return await self.existing(name, incarnation)
        return await self._find_or_open(name)

    async def _find_or_open(self, name: str) -> Sequencer:
        """Return the sequencer of a bus, which may have no events."""
        sequencer = self.find_open(name) or self._unopened.get(name)
        if sequencer is not None:
            sequencer.is_used = True
            return sequencer
        opening = self._opening.get(name) or self._begin(name)
        # A caller that gives up does not end the opening, or a long log would never be read to its end.
        await asyncio.wait([opening])
        if opening.cancelled():
            raise _shutting_down()
        error = opening.exception()
        if isinstance(error, ServiceError):
            raise error.copy() from error.__cause__
        return opening.result()

    async def reopen(self, name: str) -> Sequencer:
        """Stop a bus in this process, and read its log anew. Its streams and callers that wait end as in a restart. Raises ServiceError."""
        name = name or BUS_DEFAULT
        sequencer = self._sequencers.pop(name, None)
        if sequencer is not None:
            # A caller that gives up must not leave the bus half-stopped.
            closing = self._closing[name] = asyncio.create_task(self._close(sequencer))
            self._track(closing)
            closing.add_done_callback(lambda _: self._closing.pop(name))
        return await self.existing(name)

    async def create(self, name: str, caller: str, principal: Principal) -> Sequencer:
        """Open a new bus. Raises ServiceError BUS_EXISTS, and the errors of `open`."""
        try:
            await self.existing(name)
        except ServiceError as error:
            if error.reason != error_pb2.ERROR_REASON_BUS_NOT_FOUND:
                raise
        else:
            raise _exists(name)
        sequencer = await self._find_or_open(name)
        try:
            await sequencer.create(caller, principal)
        except ServiceError as error:
            if error.reason == error_pb2.ERROR_REASON_WRONG_STATE:
                raise _exists(name) from error  # somebody else has just opened it
            raise
        return sequencer

    def _not_found(self, name: str, incarnation: str) -> ServiceError:
        acknowledged = self._acknowledged(name)
        if acknowledged is not None:
            message = regression(name, empty_head(name), acknowledged)
            return ServiceError(error_pb2.ERROR_REASON_LOG_REGRESSED, message, retry_after_ms=5000)
        if incarnation:
            return _replacement_error(name, incarnation)
        remedy = "write to the bus first: the first event opens it" if self._creates else "create it first: `gavel bus create`, CreateBus"
        return ServiceError(error_pb2.ERROR_REASON_BUS_NOT_FOUND, f"bus {name} does not exist; check the name, or {remedy}")

    async def names(self) -> list[str]:
        """Return the names of all buses of the log store, sorted. Raises ServiceError LOG_UNAVAILABLE."""
        if self._names is None:
            return sorted(self._sequencers)
        try:
            return sorted(await self._names())
        except LogError as error:
            raise _log_unavailable(error) from error

    async def head_number(self, name: str) -> int | None:
        """Return the number of a bus's newest event, or None if it has none. Does not open the bus, nor keep it open.

        Raises ServiceError LOG_UNAVAILABLE.
        """
        sequencer = self.peek(name)
        if sequencer is not None:
            return sequencer.head.sequence_number
        try:
            return await self._head_number(name)
        except LogError as error:
            raise _log_unavailable(error) from error

    def all(self) -> list[Sequencer]:
        """Return the sequencers of this process, sorted by bus name."""
        sequencers = {**self._unopened, **self._sequencers}
        return [sequencers[name] for name in sorted(sequencers)]

    async def close_idle_forever(self) -> None:
        """Close buses when they are idle, until cancelled."""
        while True:
            await asyncio.sleep(IDLE_ROUND_SECONDS)
            self.close_idle()

    def close_idle(self) -> None:
        """Close the buses that nobody has called for IDLE_ROUNDS_MAX rounds; one round is from one call of this method to the next."""
        for name, sequencer in list(self._unopened.items()):
            # Its caller has gone before it could queue a command.
            if not sequencer.is_used and sequencer.is_idle:
                self._start(self._close(self._unopened.pop(name)))
            sequencer.is_used = False
        for name, sequencer in list(self._sequencers.items()):
            idle_rounds = 0 if sequencer.is_used or not sequencer.is_idle else self._idle_rounds.get(name, 0) + 1
            sequencer.is_used = False
            self._idle_rounds[name] = idle_rounds
            if idle_rounds >= IDLE_ROUNDS_MAX and name != BUS_DEFAULT:
                del self._idle_rounds[name]
                _LOG.info("bus.closed", bus=name, note="idle; the next call opens it again")
                self._start(self._close(self._sequencers.pop(name)))

    async def stop(self) -> None:
        """Commit and answer what is queued on every bus, then stop. No bus is opened afterwards."""
        self._stopping = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, *self._tasks, return_exceptions=True)
        await asyncio.gather(*(sequencer.stop() for sequencer in self.all()))

    def _begin(self, name: str) -> asyncio.Task[Sequencer]:
        """Start to open a bus, on behalf of every caller that asks for it meanwhile. Raises ServiceError."""
        self.check_name(name)
        if len(self._sequencers) + len(self._unopened) + len(self._opening) >= BUSES_MAX:
            message = f"this server has {BUSES_MAX} buses open already; try again later, or use another server"
            raise ServiceError(error_pb2.ERROR_REASON_QUEUE_FULL, message)
        opening = self._opening[name] = asyncio.create_task(self._open(name))
        opening.add_done_callback(lambda ended: self._end(name, ended))
        return opening

    async def _open(self, name: str) -> Sequencer:
        closing = self._closing.get(name)
        if closing is not None:
            await asyncio.wait([closing])
        try:
            sequencer = await self._opener(name)
        except LogError as error:
            raise _log_unavailable(error) from error
        if sequencer.is_open:
            await self._opened(sequencer)
        return sequencer

    def _end(self, name: str, opening: asyncio.Task[Sequencer]) -> None:
        """Keep a sequencer that was started. After a failure, which its callers have received, the next caller tries again."""
        del self._opening[name]
        if opening.cancelled() or opening.exception() is not None:
            return
        sequencer = opening.result()
        if sequencer.is_open:
            self._sequencers[name] = sequencer
            return
        self._unopened[name] = sequencer
        sequencer.watch_opening(lambda: self._keep(name), lambda: self._start(self._close(self._unopened.pop(name))))

    def _keep(self, name: str) -> None:
        """Keep a bus that has got its first event."""
        sequencer = self._sequencers[name] = self._unopened.pop(name)
        self._start(self._opened(sequencer))

    async def _close(self, sequencer: Sequencer) -> None:
        await sequencer.stop()
        await self._closed(sequencer)
        await sequencer.log.close()
        if not self._stopping:  # else the process ends
            await sequencer.free()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        """Run work for a bus in a task of its own."""
        self._track(asyncio.create_task(work))

    def _track(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._end_task)

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("bus.task_failed", exc_info=error)


def _check_incarnation(sequencer: Sequencer, incarnation: str) -> None:
    """Raise ServiceError BUS_REPLACED if the caller knows another incarnation of the bus."""
    if incarnation and sequencer.replica.incarnation != incarnation:
        raise _replacement_error(sequencer.bus, incarnation)


def _replacement_error(bus: str, incarnation: str) -> ServiceError:
    message = (
        f"bus {bus} no longer has the incarnation {incarnation}: its log was emptied or replaced. "
        "Check which of your events are missing, then continue with a new client"
    )
    return ServiceError(error_pb2.ERROR_REASON_BUS_REPLACED, message)


def _exists(name: str) -> ServiceError:
    return ServiceError(error_pb2.ERROR_REASON_BUS_EXISTS, f"bus {name} exists already")


def _log_unavailable(error: LogError) -> ServiceError:
    return ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, str(error))


def _shutting_down() -> ServiceError:
    return ServiceError(error_pb2.ERROR_REASON_SHUTTING_DOWN, "the server is shutting down; try again, or use another server")
