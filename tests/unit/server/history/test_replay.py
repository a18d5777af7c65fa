"""The replay driver over a log in memory: passes, progress, ranges, and damaged logs.

The core's tests cover divergences of single events; the command line's tests change logs in Redis.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from gavel.v1 import decision_pb2, fact_pb2, replay_service_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import CrossCheck
from gavel.v1.replay_service_pb2 import ReplayVerdict
from gavel_rules.commands import ActivateRuleSet, Command, DeployRuleSet, OpenBus, PublishEvent, References, SubmitProposal
from gavel_rules.decider import handle
from gavel_rules.events.citation import cited_event
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.language.rule_set import compile_rule_set
from gavel_rules.replay import DamagedError, VersionNotImplementedError
from gavel_rules.state.state import State
from gavel_server.history.replay import SLICE_EVENTS, ReplayRangeError, impact, verify
from gavel_server.history.replay_times import ReplayTimes
from gavel_server.log import Entry, Head, LogCorruptError, Record, chain, empty_head
from gavel_server.log.memory import MemoryLog
from gavel_server.log.protocol import PAGE_EVENTS_MAX
from google.protobuf.json_format import ParseDict

from tests.support.turns import other_turns

BUS = "replayed"
NOW_MS = 1_767_225_600_000
PARCELS = 60
RULE_SET = """gavel: v1
rule_set: parcels
version: 1
actions:
  parcel.send:
    params: {type: object, properties: {weight: {type: number}}, required: [weight]}
    facts:
      status: {key: parcel.status, type: string, min_trust: 1, max_age_ms: 60000}
rules:
  - {id: light, action: parcel.send, priority: 1, when: facts.status == "ready" && params.weight <= 30, effect: approve}
"""
STRICTER = RULE_SET.replace("version: 1", "version: 2").replace("<= 30", "<= 10")


def uuid(number: int) -> str:
    """Return a UUIDv4 made of a number."""
    return f"00000000-0000-4000-8000-{number:012d}"


def fact(number: int) -> Envelope:
    """Return the fact that parcel `number` is ready."""
    return ParseDict(
        {
            "schema_version": "gavel.v1",
            "event_id": uuid(1000 + number),
            "event_category": "EVENT_CATEGORY_FACT_EVENT",
            "event_name": "FactRecorded",
            "trace_id": f"trace-{number}",
            "producer": {"type": "PRODUCER_TYPE_API", "id": "depot"},
            "subject": f"parcel/{number}",
            "bus": BUS,
            "fact": {"key": "parcel.status", "value": "ready", "observed_from": "OBSERVED_FROM_API"},
        },
        Envelope(),
    )


def proposal(number: int, evidence: Envelope) -> Envelope:
    """Return the proposal to send parcel `number`; its weight is its number."""
    return ParseDict(
        {
            "schema_version": "gavel.v1",
            "event_id": uuid(2000 + number),
            "event_category": "EVENT_CATEGORY_PROPOSAL_EVENT",
            "event_name": "ProposalSubmitted",
            "trace_id": f"trace-{number}",
            "producer": {"type": "PRODUCER_TYPE_AGENT", "id": "agent"},
            "subject": f"parcel/{number}",
            "bus": BUS,
            "proposal": {
                "action_type": "parcel.send",
                "params": {"weight": number},
                "max_fact_age_ms": 60000,
                "based_on_events": [{"event_id": evidence.event_id, "sequence_number": evidence.sequence_number}],
            },
        },
        Envelope(),
    )


def events_of_a_bus() -> list[Envelope]:
    """A bus with a rule set, and PARCELS facts and proposals, as the core makes them."""
    state = State(BUS)
    events: list[Envelope] = []

    def happens(command: Command, references: References | None = None) -> Envelope:
        handled = handle(state, command, references or References(), NOW_MS)
        assert handled.envelopes, handled.answer
        for event in handled.envelopes:
            copy = Envelope()
            copy.CopyFrom(event)
            events.append(copy)
        state.commit()
        return handled.envelopes[0]

    happens(OpenBus(uuid(1), CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_ALWAYS), 86_400_000))
    happens(DeployRuleSet(uuid(2), compile_rule_set(RULE_SET), RULE_SET))
    happens(ActivateRuleSet(uuid(3), "parcels", 1, None))
    for number in range(1, PARCELS + 1):
        evidence = happens(PublishEvent(fact(number)))
        happens(
            SubmitProposal(ProposalView(proposal(number, evidence))),
            References(cited_events={evidence.sequence_number: cited_event(evidence)}),
        )
    return events


EVENTS = events_of_a_bus()
# BusOpened, deployment, activation, and per parcel a fact, a proposal and a decision.
EVENT_COUNT = 3 + 3 * PARCELS


async def log_of(events: Sequence[Envelope]) -> MemoryLog:
    """Return a log in memory that holds `events`, chained."""
    log = MemoryLog(BUS, lambda: NOW_MS)
    head = empty_head(BUS)
    for event in events:
        content = event.SerializeToString()
        chain_hash = chain(head.chain_hash, content)
        await log.append(head, [Entry(event.sequence_number, content, chain_hash, event.event_id, "")], NOW_MS, [])
        head = Head(event.sequence_number, chain_hash)
    return log


async def verdict_on(log: MemoryLog, **range_and_engine: int) -> ReplayVerdict:
    """Return the verdict of a whole replay."""
    *_, last = [response async for response in verify(log, **range_and_engine)]  # type: ignore[arg-type]
    assert last.HasField("verdict")
    return last.verdict


@pytest.mark.parametrize("engine", [decision_pb2.ENGINE_UNSPECIFIED, decision_pb2.ENGINE_RETE, decision_pb2.ENGINE_REFERENCE])
async def test_proved(engine: int) -> None:
    """A log made by the core is proved by either engine, and the verdict counts what was recomputed."""
    verdict = await verdict_on(await log_of(EVENTS), engine=engine)
    assert replay_service_pb2.REPLAY_STATUS_PROVED == verdict.status
    assert (True, EVENT_COUNT, PARCELS) == (verdict.proved, verdict.events, verdict.decisions)
    assert f"proved: {EVENT_COUNT} events, {PARCELS} decisions recomputed equal" == verdict.message


async def test_progress_counts_up_once() -> None:
    """Progress follows each page and counts from start to end; the verdict comes last."""
    responses = [response async for response in verify(await log_of(EVENTS))]
    assert ["progress"] * (len(responses) - 1) + ["verdict"] == [response.WhichOneof("item") for response in responses]
    numbers = [response.progress.sequence_number for response in responses[:-1]]
    assert (sorted({*numbers}), EVENT_COUNT) == (numbers, numbers[-1])
    assert PAGE_EVENTS_MAX >= max(end - start for start, end in pairwise([0, *numbers]))
    assert {EVENT_COUNT} == {response.progress.to_sequence_number for response in responses[:-1]}


async def test_other_tasks_run_within_pages() -> None:
    """A replay lets other tasks run after every few events."""
    async with other_turns() as turns:
        await verdict_on(await log_of(EVENTS))
    assert turns.count >= EVENT_COUNT // SLICE_EVENTS


async def test_part_of_a_log() -> None:
    """A range is compared from its first event to its last, even inside a commit."""
    log = await log_of(EVENTS)
    assert EVENT_COUNT - 9 == (await verdict_on(log, from_sequence_number=10)).events
    for last in range(1, 12):
        verdict = await verdict_on(log, to_sequence_number=last)
        assert (True, last) == (verdict.proved, verdict.events)


@pytest.mark.parametrize(("first", "last"), [(-1, 0), (0, EVENT_COUNT + 1), (EVENT_COUNT + 1, 0), (9, 8), (0, -1)])
async def test_ranges_outside_the_log(first: int, last: int) -> None:
    """A range that the log does not hold is refused with the range that it holds."""
    with pytest.raises(ReplayRangeError, match=f"the log of bus {BUS} holds events 1 to {EVENT_COUNT}"):
        await verdict_on(await log_of(EVENTS), from_sequence_number=first, to_sequence_number=last)


async def test_diverged() -> None:
    """A changed decision in an intact chain is a divergence, reported field by field with its causes."""
    changed = [Envelope.FromString(event.SerializeToString()) for event in EVENTS]
    changed[5].decision.rule_id = "heavy"
    verdict = await verdict_on(await log_of(changed))
    assert (False, replay_service_pb2.REPLAY_STATUS_DIVERGED) == (verdict.proved, verdict.status)
    (difference,) = verdict.divergence.differences
    assert ("decision.rule_id", '"heavy"', '"light"') == (difference.path, difference.recorded, difference.expected)
    assert (6, [5, 4]) == (verdict.divergence.sequence_number, [event.sequence_number for event in verdict.divergence.inputs])
    assert verdict.message.startswith("diverged: event 6 (DecisionApproved) is recomputed differently: decision.rule_id")


async def test_truncated_commit() -> None:
    """A log whose last commit is incomplete has lost an event."""
    verdict = await verdict_on(await log_of(EVENTS[:-1]))
    assert (replay_service_pb2.REPLAY_STATUS_DIVERGED, "missing-event") == (verdict.status, verdict.divergence.kind)


async def test_other_arbiter_version() -> None:
    """A log with semantics that this build does not implement is not damaged."""
    changed = [Envelope.FromString(event.SerializeToString()) for event in EVENTS]
    changed[0].fact.bus_opened.arbiter_version = 99
    verdict = await verdict_on(await log_of(changed))
    assert replay_service_pb2.REPLAY_STATUS_VERSION_NOT_IMPLEMENTED == verdict.status
    assert verdict.message.startswith("arbiter version not implemented: event 1 sets arbiter_version 99")


class _TruncatedLog(MemoryLog):
    """A log that lost the events after `last`, although its head is unchanged."""

    def __init__(self, log: MemoryLog, last: int, error: LogCorruptError | None = None) -> None:
        self.bus = log.bus
        self._log = log
        self._last = last
        self._error = error

    async def head(self) -> Head:
        return await self._log.head()

    async def read(self, from_sequence_number: int, to_sequence_number: int, limit: int = 1000) -> list[Record]:
        if self._error is not None:
            raise self._error
        return await self._log.read(from_sequence_number, min(to_sequence_number, self._last), limit)


async def test_damaged() -> None:
    """A log that ends before its head or contradicts itself is damaged."""
    log = await log_of(EVENTS)
    verdict = await verdict_on(_TruncatedLog(log, 7))
    assert (replay_service_pb2.REPLAY_STATUS_DAMAGED, 8) == (verdict.status, verdict.divergence.sequence_number)
    verdict = await verdict_on(_TruncatedLog(log, 7, LogCorruptError("event 3 is missing")))
    assert (replay_service_pb2.REPLAY_STATUS_DAMAGED, "damaged: event 3 is missing") == (verdict.status, verdict.message)


async def test_damage_comes_before_divergence() -> None:
    """Damage takes precedence over an unlawful event, which takes precedence over an event that is recomputed differently."""
    changed = [Envelope.FromString(event.SerializeToString()) for event in EVENTS]
    changed[5].decision.rule_id = "heavy"
    log = await log_of(changed)
    assert replay_service_pb2.REPLAY_STATUS_DAMAGED == (await verdict_on(_TruncatedLog(log, EVENT_COUNT - 1))).status
    changed[EVENT_COUNT - 4].causation_id = uuid(9)
    unlawful = (await verdict_on(await log_of(changed))).divergence
    assert (EVENT_COUNT - 3, "unlawful-event") == (unlawful.sequence_number, unlawful.kind)
    log = _TruncatedLog(await log_of(changed), EVENT_COUNT - 1)
    assert replay_service_pb2.REPLAY_STATUS_DAMAGED == (await verdict_on(log)).status


async def test_times() -> None:
    """A replay tells how long it took, and how much of that was recomputing."""
    times = ReplayTimes()
    _ = [response async for response in verify(await log_of(EVENTS), times=times)]
    assert 0 < times.recomputing_seconds < times.seconds


async def test_impact() -> None:
    """A candidate rule set decides every past proposal; changed decisions are listed and counted by transition."""
    responses = [response async for response in impact(await log_of(EVENTS), compile_rule_set(STRICTER))]
    changed = [response.changed for response in responses if response.HasField("changed")]
    summary = responses[-1].summary
    assert (PARCELS, 20, {"APPROVED->REJECTED": 20}) == (summary.decisions, summary.changed, dict(summary.transitions))
    assert list(range(11, 31)) == [change.recorded.params.fields["weight"].number_value for change in changed]
    assert ["NO_RULE_MATCHED"] * 20 == [change.simulated.reason_code for change in changed]
    assert [6 + 3 * (weight - 1) for weight in range(11, 31)] == [change.sequence_number for change in changed]


async def test_impact_on_a_part() -> None:
    """Only decisions of the range are counted; earlier events still build the state."""
    log = await log_of(EVENTS)
    first = 6 + 3 * (20 - 1)
    responses = [response async for response in impact(log, compile_rule_set(STRICTER), from_sequence_number=first)]
    assert (PARCELS - 19, 11) == (responses[-1].summary.decisions, responses[-1].summary.changed)
    responses = [response async for response in impact(log, compile_rule_set(STRICTER), to_sequence_number=first)]
    assert (20, 10) == (responses[-1].summary.decisions, responses[-1].summary.changed)


async def test_impact_of_the_active_rule_set() -> None:
    """The rule set that decided changes nothing."""
    responses = [response async for response in impact(await log_of(EVENTS), compile_rule_set(RULE_SET))]
    assert (PARCELS, 0) == (responses[-1].summary.decisions, responses[-1].summary.changed)
    assert PARCELS == responses[-1].summary.replaced


async def test_impact_of_a_new_rule_set() -> None:
    """A candidate whose name was never active replaces nothing, and the summary says so."""
    stranger = compile_rule_set(STRICTER.replace("rule_set: parcels", "rule_set: parcel"))
    responses = [response async for response in impact(await log_of(EVENTS), stranger)]
    assert (PARCELS, 0) == (responses[-1].summary.decisions, responses[-1].summary.replaced)


async def test_no_impact_on_a_damaged_log() -> None:
    """A log that is damaged or of another version allows no forecast."""
    with pytest.raises(DamagedError):
        _ = [response async for response in impact(_TruncatedLog(await log_of(EVENTS), 7), compile_rule_set(STRICTER))]
    changed = [Envelope.FromString(event.SerializeToString()) for event in EVENTS]
    changed[0].fact.bus_opened.arbiter_version = 99
    with pytest.raises(VersionNotImplementedError):
        _ = [response async for response in impact(await log_of(changed), compile_rule_set(STRICTER))]
