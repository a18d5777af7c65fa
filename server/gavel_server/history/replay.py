"""Replays a log: reads it page by page and feeds the passes of the core. `gavel replay` and ReplayService share this module.

`verify` checks the integrity of each event (`Integrity`), then recomputes it (`Recomputation`), and at the end the past of counters
(`FillProof`). `impact` checks the whole log, then decides past proposals under a candidate rule set. Both yield messages of the contract,
progress first and the result last, and let other tasks run after each page. Nothing here writes or repairs. A log that cannot be read
raises LogUnavailableError, which is no verdict on its contents.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from time import perf_counter
from typing import Final

from gavel.v1 import decision_pb2, replay_service_pb2
from gavel.v1.decision_pb2 import Engine, Outcome
from gavel.v1.replay_service_pb2 import Divergence, ReplayStatus, ReplayVerdict, VerifyReplayResponse
from gavel.v1.rule_set_service_pb2 import (
    ChangedDecision,
    ChangedFacts,
    ReplayProgress,
    SimulatedFact,
    SimulateRuleSetResponse,
    SimulationSummary,
)
from gavel_rules.authoring import simulate
from gavel_rules.language.rule_set import CompiledRuleSet
from gavel_rules.replay import DamagedError, DivergedError, FillProof, Integrity, VersionNotImplementedError
from gavel_rules.values import python_to_value

from gavel_server.compile.precompiler import Precompiler
from gavel_server.errors import GavelServerError
from gavel_server.fairness.callers import INTERNAL
from gavel_server.fairness.turns import call_slice
from gavel_server.history.disposal import temporary_states
from gavel_server.history.read_ahead import read_ahead
from gavel_server.history.replay_times import ReplayTimes
from gavel_server.history.snapshot_files import SnapshotFiles
from gavel_server.history.verification import Verification
from gavel_server.log import EventLog, LogCorruptError, Record

# Events handled before other tasks get their turn, unless a slice's time ends before: some milliseconds of work.
SLICE_EVENTS: Final = 128

_OUTCOME_PREFIX: Final = "OUTCOME_"


class ReplayRangeError(GavelServerError):
    """The requested range is not in the log; the message names the range that is."""


async def verify(
    log: EventLog,
    *,
    engine: Engine.ValueType = decision_pb2.ENGINE_UNSPECIFIED,
    from_sequence_number: int = 0,
    to_sequence_number: int = 0,
    snapshots: SnapshotFiles | None = None,
    times: ReplayTimes | None = None,
) -> AsyncGenerator[VerifyReplayResponse, None]:
    """Recompute the log up to `to_sequence_number` (0: its head now) and compare from `from_sequence_number` (0: the start).

    The state is compared with each of `snapshots` that it passes. `times` is told how long it took. A log that is not intact is reported
    as such, also after an event that is recomputed differently.

    Yields progress, which counts up once, or twice if counters were filled, and last the verdict. Raises ReplayRangeError,
    LogUnavailableError.
    """
    times = ReplayTimes() if times is None else times
    times.began = perf_counter()
    async with temporary_states() as states:
        try:
            head, last = await _range(log, from_sequence_number, to_sequence_number)
            verification = Verification(log.bus, engine, from_sequence_number, snapshots, times)
            recomputation, comparison = verification.recomputation, verification.comparison
            states.append(recomputation.state)
            began = perf_counter()
            await comparison.load(log, last)
            async for number in pages(log, last, verification.feed, verification.before):
                yield VerifyReplayResponse(progress=ReplayProgress(sequence_number=number, to_sequence_number=last))
            await verification.finish(last, at_head=last == head)
            times.seconds += perf_counter() - began
            past = FillProof(log.bus, recomputation.fills)
            states.extend(past.states)
            async for number in pages(log, past.last, lambda record: past.feed(record.sequence_number, record.envelope)):
                yield VerifyReplayResponse(progress=ReplayProgress(sequence_number=number, to_sequence_number=past.last))
            time_slice = call_slice(1, INTERNAL)
            for _ in past.compare():
                await time_slice.spend(1)
        except (DamagedError, DivergedError, VersionNotImplementedError, LogCorruptError) as error:
            yield VerifyReplayResponse(verdict=verdict_of(error))
            return
        events, decisions = recomputation.events, recomputation.decisions
        yield VerifyReplayResponse(
            verdict=ReplayVerdict(
                proved=True,
                status=replay_service_pb2.REPLAY_STATUS_PROVED,
                events=events,
                decisions=decisions,
                derived_facts=recomputation.derived_facts,
                snapshots=comparison.compared,
                drifts=verification.report.drifts(recomputation.state),
                data_losses=recomputation.data_losses,
                message=proved_message(events, decisions, comparison.compared),
            )
        )


def proved_message(events: int, decisions: int, snapshots: int) -> str:
    """Return the verdict on a proved log as a sentence."""
    confirmed = f", {snapshots} snapshot{'s' if snapshots > 1 else ''} confirmed" if snapshots else ""
    return f"proved: {events} events, {decisions} decisions recomputed equal{confirmed}"


async def impact(
    log: EventLog, candidate: CompiledRuleSet, *, from_sequence_number: int = 0, to_sequence_number: int = 0
) -> AsyncGenerator[SimulateRuleSetResponse, None]:
    """Decide the log's proposals under `candidate`, everything else as it was; list the first decisions that would change.

    Yields progress, which counts up once per pass, changed decisions, reports from which other facts would be derived, and last a
    summary. Raises ReplayRangeError, LogUnavailableError, and the errors that `verdict_of` explains, because a damaged log allows no
    forecast.
    """
    _, last = await _range(log, from_sequence_number, to_sequence_number)
    integrity = Integrity(log.bus)
    async for number in pages(log, last, lambda record: integrity.feed(record.sequence_number, record.envelope, record.chain_hash)):
        yield SimulateRuleSetResponse(progress=ReplayProgress(sequence_number=number, to_sequence_number=last))
    async with temporary_states() as states:
        simulation = simulate.Simulation(log.bus, candidate)
        states.append(simulation.state)
        summary = SimulationSummary()
        changes: list[SimulateRuleSetResponse] = []

        def feed(record: Record) -> None:
            before = simulation.decisions, simulation.replaced, simulation.reports, simulation.human_decisions
            change = simulation.feed(record.sequence_number, record.envelope)
            if record.sequence_number >= from_sequence_number:
                summary.decisions += simulation.decisions - before[0]
                summary.replaced += simulation.replaced - before[1]
                summary.reports += simulation.reports - before[2]
                summary.human_decisions += simulation.human_decisions - before[3]
                if isinstance(change, simulate.ChangedDecision):
                    summary.changed += 1
                    summary.transitions[transition(change.recorded.outcome, change.simulated.outcome)] += 1
                    changes.append(SimulateRuleSetResponse(changed=_changed_decision(change)))
                elif change is not None:
                    summary.changed_reports += 1
                    changes.append(SimulateRuleSetResponse(changed_facts=_changed_facts(change)))

        precompiler = Precompiler()
        async for number in pages(log, last, feed, lambda record: precompiler.before(simulation.state, record.envelope)):
            for response in changes:
                yield response
            changes.clear()
            yield SimulateRuleSetResponse(progress=ReplayProgress(sequence_number=number, to_sequence_number=last))
        yield SimulateRuleSetResponse(summary=summary)


def _changed_decision(change: simulate.ChangedDecision) -> ChangedDecision:
    return ChangedDecision(recorded=change.recorded, simulated=change.simulated, sequence_number=change.sequence_number)


def _changed_facts(change: simulate.ChangedFacts) -> ChangedFacts:
    recorded, simulated = (
        [SimulatedFact(key=one.key, subject=one.subject, value=python_to_value(one.value)) for one in facts]
        for facts in (change.recorded, change.simulated)
    )
    return ChangedFacts(
        sequence_number=change.sequence_number,
        decision_id=change.decision.decision_id,
        action_type=change.decision.action_type,
        recorded=recorded,
        simulated=simulated,
    )


async def pages(
    log: EventLog,
    last: int,
    feed: Callable[[Record], object],
    before: Callable[[Record], Awaitable[None] | None] | None = None,
    *,
    slice_events: int = SLICE_EVENTS,
) -> AsyncGenerator[int, None]:
    """Feed every event from the first to `last`; yield the number reached after each page, and let other tasks run.

    `before` returns what to await before an event is fed, or None.
    """
    number = 0
    time_slice = call_slice(slice_events, INTERNAL)
    async with aclosing(read_ahead(log, 1, last)) as pages_read:
        async for records in pages_read:
            for record in records:
                preparation = before(record) if before is not None else None
                if preparation is not None:
                    await preparation
                feed(record)
                if time_slice.is_over(1):
                    await time_slice.end()
            number = records[-1].sequence_number
            yield number
            await asyncio.sleep(0)
    if number < last:
        message = f"event {number + 1} is missing; the log ends before its head"
        raise DamagedError(Divergence(sequence_number=number + 1, kind="sequence-gap", message=message))


def verdict_of(error: DamagedError | DivergedError | VersionNotImplementedError | LogCorruptError) -> ReplayVerdict:
    """Return the verdict on a log that could not be proved."""
    match error:
        case DivergedError():
            status: ReplayStatus.ValueType = replay_service_pb2.REPLAY_STATUS_DIVERGED
            divergence = error.divergence
        case DamagedError():
            status, divergence = replay_service_pb2.REPLAY_STATUS_DAMAGED, error.divergence
        case VersionNotImplementedError():
            status = replay_service_pb2.REPLAY_STATUS_VERSION_NOT_IMPLEMENTED
            divergence = Divergence(sequence_number=error.sequence_number, kind="version-not-implemented", message=str(error))
        case LogCorruptError():
            status = replay_service_pb2.REPLAY_STATUS_DAMAGED
            divergence = Divergence(kind="log-corrupt", message=str(error))
    return ReplayVerdict(status=status, divergence=divergence, message=f"{_VERDICT_WORDS[status]}: {divergence.message}")


def transition(recorded: Outcome.ValueType, simulated: Outcome.ValueType) -> str:
    """Return the change of an outcome, e.g. "APPROVED->REJECTED"."""
    return "->".join(Outcome.Name(outcome).removeprefix(_OUTCOME_PREFIX) for outcome in (recorded, simulated))


_VERDICT_WORDS: Final = {
    replay_service_pb2.REPLAY_STATUS_DIVERGED: "diverged",
    replay_service_pb2.REPLAY_STATUS_DAMAGED: "damaged",
    replay_service_pb2.REPLAY_STATUS_VERSION_NOT_IMPLEMENTED: "arbiter version not implemented",
}


async def _range(log: EventLog, from_sequence_number: int, to_sequence_number: int) -> tuple[int, int]:
    """Return the log's head and the last number to read."""
    head = (await log.head()).sequence_number
    last = to_sequence_number or head
    if not 0 <= from_sequence_number <= last <= head:
        raise ReplayRangeError(f"cannot replay from {from_sequence_number} to {last}: the log of bus {log.bus} holds events 1 to {head}")
    return head, last
