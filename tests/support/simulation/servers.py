"""Servers on one log in memory, in virtual time, for tests of the sequencer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from gavel.v1 import error_pb2, fact_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import CrossCheck
from gavel_rules.commands import ActivateRuleSet, Command, DeployRuleSet, EventAnswer, PublishEvent, command_envelope
from gavel_server.bus.checkpoint import Checkpoint
from gavel_server.bus.request import CommittedAnswer
from gavel_server.bus.sequencer import Sequencer
from gavel_server.bus.snapshots import BusSnapshots
from gavel_server.errors import ServiceError
from gavel_server.intake.admission import admit
from gavel_server.log import Entry, EventLog, Head, Record
from gavel_server.log.memory import MemoryLog
from gavel_server.process.clock import GuardedClock

from tests.simulation.virtual_time import run_virtually
from tests.support.driver import (
    ALL_PAYLOADS,
    BUS,
    START_MS,
    WEEK_MS,
    compile_cached,
    copy_command,
    document,
    event_id,
    fact_envelope,
    replay_log,
)

CROSS_CHECK = CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_ALWAYS)
TEXT = document()


class CountingLog:
    """A log that records the sizes of appends and can fail: the next appends raise `errors_before` and `errors_after`."""

    def __init__(self, log: EventLog) -> None:
        self.bus = log.bus
        self.appended: list[int] = []
        self.errors_before: list[Exception] = []
        self.errors_after: list[Exception] = []
        self.head_error: Exception | None = None
        self.pause_seconds = 0.0
        self._log = log

    async def append(
        self, expected: Head, entries: Sequence[Entry], recorded_at_ms: int, idempotency_keys: Sequence[str], date_ms: int | None = None
    ) -> None:
        """Append, or raise the next error."""
        await asyncio.sleep(self.pause_seconds)
        if self.errors_before:
            raise self.errors_before.pop(0)
        await self._log.append(expected, entries, recorded_at_ms, idempotency_keys, date_ms)
        self.appended.append(len(entries))
        if self.errors_after:
            raise self.errors_after.pop(0)

    async def head(self) -> Head:
        """Return the head, or raise `head_error`."""
        if self.head_error is not None:
            raise self.head_error
        return await self._log.head()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class Servers:
    """Servers on one log in memory, on one clock."""

    def __init__(self) -> None:
        self.offset_ms = 0  # time that has passed at once, for all clocks
        self.log = MemoryLog(BUS, self.now_ms, WEEK_MS)
        self._ids = 0

    def now_ms(self) -> int:
        """Return the time of the log and the servers."""
        return START_MS + self.offset_ms + int(asyncio.get_running_loop().time() * 1000)

    async def start(
        self,
        *,
        skew_ms: int | Callable[[], int] = 0,
        checkpoint: Checkpoint | None = None,
        log: EventLog | None = None,
        monotonic: Callable[[], float] | None = None,
        requires_attestation: bool = False,
        snapshots: BusSnapshots | None = None,
    ) -> tuple[Sequencer, CountingLog]:
        """Start a server. Its wall clock is `skew_ms` ahead."""
        counting = CountingLog(log or self.log)
        clock = GuardedClock(lambda: self.now_ms() + (skew_ms if isinstance(skew_ms, int) else skew_ms()), self.now_ms)
        sequencer = Sequencer(
            counting,
            clock,
            cross_check=CROSS_CHECK,
            idempotency_window_ms=WEEK_MS,
            checkpoint=checkpoint,
            monotonic=monotonic or asyncio.get_running_loop().time,
            requires_attestation=requires_attestation,
            snapshots=snapshots,
        )
        await sequencer.start()
        return sequencer, counting

    async def start_with_rules(self, monotonic: Callable[[], float] | None = None) -> tuple[Sequencer, CountingLog]:
        """Start a server and put the default rules in force."""
        sequencer, counting = await self.start(monotonic=monotonic)
        await sequencer.execute(DeployRuleSet(self.new_id(), compile_cached(TEXT), TEXT))
        await sequencer.execute(ActivateRuleSet(self.new_id(), "refunds", 1, None))
        return sequencer, counting

    def new_id(self) -> str:
        """Return a new event_id."""
        self._ids += 1
        return event_id(self._ids)

    def skip_ids(self, count: int) -> None:
        """Leave out as many event_ids: the log has events that were written by hand."""
        self._ids += count

    def admit_envelope(self, envelope: Envelope) -> Envelope:
        """Admit an envelope. Without an event_id it gets the next one."""
        envelope.event_id = envelope.event_id or self.new_id()
        admit(envelope, BUS, ALL_PAYLOADS)
        return envelope

    def fact(self, value: object = "delivered", **changes: Any) -> PublishEvent:
        """Return the command to publish a fact."""
        return PublishEvent(self.admit_envelope(fact_envelope("order.status", value, **changes)))

    def effect_of(self, cause: str, **changes: Any) -> PublishEvent:
        """Return the command to publish a fact with a cause and without a trace."""
        envelope = fact_envelope("order.note", "x", trace_id="", **changes)
        envelope.causation_id = cause
        return PublishEvent(self.admit_envelope(envelope))

    async def events(self) -> list[Envelope]:
        """Return the events of the log."""
        return [Envelope.FromString(record.envelope) for record in await self.records()]

    async def records(self) -> list[Record]:
        """Return the records of the log."""
        records: list[Record] = []
        while more := await self.log.read(len(records) + 1, 10_000):
            records += more
        return records

    async def prove(self) -> None:
        """Replay the log."""
        replay_log(BUS, await self.records())


Scene = Callable[[Servers], Awaitable[None]]


def with_servers(test: Scene) -> Callable[[], None]:
    """Run a test on servers of its own in virtual time."""

    def run() -> None:
        async def main() -> None:
            servers = Servers()
            await test(servers)

        run_virtually(main())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def repeat_command(command: Any) -> Any:
    """Return a copy of a command, as for a repeated request."""
    return copy_command(command)


async def execute(sequencer: Sequencer, command: Command) -> CommittedAnswer | ServiceError:
    """Execute a command with its event_id as idempotency key; return the answer or the error."""
    envelope = command_envelope(command)
    idempotency_key = envelope.event_id if envelope is not None else getattr(command, "request_id", "")
    try:
        return await asyncio.wait_for(sequencer.execute(command, idempotency_key), 60)
    except ServiceError as error:
        return error


async def record_event(sequencer: Sequencer, command: Command) -> Envelope:
    """Execute a command that must be recorded; return the event that answers it."""
    result = await execute(sequencer, command)
    assert isinstance(result, CommittedAnswer), result
    assert isinstance(result.answer, EventAnswer)
    assert result.record is not None
    assert result.answer.envelope == Envelope.FromString(result.record.envelope)
    return result.answer.envelope


def reason(result: CommittedAnswer | ServiceError) -> str:
    """Return the reason of an error."""
    assert isinstance(result, ServiceError), result
    return error_pb2.ErrorReason.Name(result.reason).removeprefix("ERROR_REASON_")
