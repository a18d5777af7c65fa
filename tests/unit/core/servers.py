"""Servers on one log in memory, in virtual time, for tests of the sequencer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from gavel.v1 import error_pb2, fact_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import CrossCheck
from gavel_rules.commands import (
    ActivateRuleSet,
    Command,
    DeployRuleSet,
    PublishEvent,
    Recorded,
    ReportExecution,
    SubmitProposal,
)
from gavel_server.admission import admit
from gavel_server.bus.checkpoint import Checkpoint
from gavel_server.bus.planning import Completed
from gavel_server.bus.sequencer import Sequencer
from gavel_server.clock import GuardedClock
from gavel_server.errors import ServiceError
from gavel_server.log import Entry, EventLog, Head
from gavel_server.log.memory import MemoryLog

from tests.simulation.virtual import run_virtually
from tests.unit.core.driver import (
    ALL_PAYLOADS,
    BUS,
    START_MS,
    WEEK_MS,
    compiled,
    document,
    event_id,
    fact_envelope,
    replayed,
)

CROSS_CHECK = CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_ALWAYS)
TEXT = document()


class Counting:
    """A log that counts appends and can be made to fail: `faults` are raised by the next appends, before or after applying."""

    def __init__(self, log: EventLog) -> None:
        self.bus = log.bus
        self.appended: list[int] = []
        self.before: list[Exception] = []
        self.after: list[Exception] = []
        self.broken: Exception | None = None
        self.pause_seconds = 0.0
        self._log = log

    async def append(self, expected: Head, entries: Sequence[Entry], recorded_at_ms: int, check_ids: Sequence[str]) -> None:
        """Append, or fail as told."""
        await asyncio.sleep(self.pause_seconds)
        if self.before:
            raise self.before.pop(0)
        await self._log.append(expected, entries, recorded_at_ms, check_ids)
        self.appended.append(len(entries))
        if self.after:
            raise self.after.pop(0)

    async def head(self) -> Head:
        """The head, or the error that was told."""
        if self.broken is not None:
            raise self.broken
        return await self._log.head()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class Servers:
    """Servers on one log in memory, on one clock."""

    def __init__(self) -> None:
        self.offset_ms = 0
        self.log = MemoryLog(BUS, self.now_ms, WEEK_MS)
        self._ids = 0

    def now_ms(self) -> int:
        """The time of log and servers."""
        return START_MS + self.offset_ms + int(asyncio.get_running_loop().time() * 1000)

    async def start(
        self, *, skew_ms: int = 0, checkpoint: Checkpoint | None = None, log: EventLog | None = None
    ) -> tuple[Sequencer, Counting]:
        """Start a server."""
        counting = Counting(log or self.log)
        clock = GuardedClock(lambda: self.now_ms() + skew_ms)
        sequencer = Sequencer(counting, clock, cross_check=CROSS_CHECK, idempotency_window_ms=WEEK_MS, checkpoint=checkpoint)
        await sequencer.start()
        return sequencer, counting

    async def governed(self) -> tuple[Sequencer, Counting]:
        """Start a server and put the default rules in force."""
        sequencer, counting = await self.start()
        await sequencer.execute(DeployRuleSet(self.new_id(), compiled(TEXT), TEXT))
        await sequencer.execute(ActivateRuleSet(self.new_id(), "refunds", 1, None))
        return sequencer, counting

    def new_id(self) -> str:
        """A fresh event_id."""
        self._ids += 1
        return event_id(self._ids)

    def admitted(self, envelope: Envelope) -> Envelope:
        """As admission hands it on, with a counted id where it has none."""
        envelope.event_id = envelope.event_id or self.new_id()
        admit(envelope, BUS, ALL_PAYLOADS)
        return envelope

    def fact(self, value: object = "delivered", **changes: Any) -> PublishEvent:
        """A fact to publish."""
        return PublishEvent(self.admitted(fact_envelope("order.status", value, **changes)))

    def caused(self, cause: str, **changes: Any) -> PublishEvent:
        """A fact with a cause and no trace of its own."""
        envelope = fact_envelope("order.note", "x", trace_id="", **changes)
        envelope.causation_id = cause
        return PublishEvent(self.admitted(envelope))

    async def events(self) -> list[Envelope]:
        """The log."""
        return [Envelope.FromString(record.envelope) for record in await self.log.read(1, 10_000, 10_000)]

    async def prove(self) -> None:
        """The log must replay."""
        replayed(BUS, await self.log.read(1, 10_000, 10_000))


Scene = Callable[[Servers], Awaitable[None]]


def scene(test: Scene) -> Callable[[], None]:
    """Run a test on servers of its own in virtual time."""

    def run() -> None:
        async def main() -> None:
            servers = Servers()
            await test(servers)

        run_virtually(main())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def again(command: Any) -> Any:
    """The same command, as a caller sends it again."""
    return type(command)(Envelope.FromString(command.envelope.SerializeToString()))


async def tell(sequencer: Sequencer, command: Command) -> Completed | ServiceError:
    """Have a command carried out under its event_id as idempotency key; return the answer or the error."""
    check_id = command.envelope.event_id if isinstance(command, PublishEvent | SubmitProposal | ReportExecution) else ""
    try:
        return await asyncio.wait_for(sequencer.execute(command, check_id), 60)
    except ServiceError as error:
        return error


async def recorded(sequencer: Sequencer, command: Command) -> Envelope:
    """Have a command carried out that must be recorded; return the event that answers it."""
    result = await tell(sequencer, command)
    assert isinstance(result, Completed), result
    assert isinstance(result.answer, Recorded)
    assert result.record is not None
    assert result.answer.envelope == Envelope.FromString(result.record.envelope)
    return result.answer.envelope


def reason(result: Completed | ServiceError) -> str:
    """Why a command failed."""
    assert isinstance(result, ServiceError), result
    return error_pb2.ErrorReason.Name(result.reason).removeprefix("ERROR_REASON_")
