"""The replay driver over a log in memory: passes, progress, ranges, and what it makes of logs that are not whole.

What the passes find in an event is the core's, and tested there; the command line's tests tamper with logs in Redis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from gavel.v1 import decision_pb2, fact_pb2, replay_service_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import CrossCheck
from gavel.v1.replay_service_pb2 import ReplayVerdict
from gavel_rules.commands import ActivateRuleSet, Command, DeployRuleSet, OpenBus, PublishEvent, References, SubmitProposal
from gavel_rules.decider import handle
from gavel_rules.evidence import cited
from gavel_rules.language.ruleset import compile_rule_set
from gavel_rules.projection import State
from gavel_rules.replay import DamagedError, VersionNotImplementedError
from gavel_server.log import Entry, Head, LogCorruptError, Record, chain, empty_head
from gavel_server.log.memory import MemoryLog
from gavel_server.replaying import PAGE_EVENTS, ReplayRangeError, impact, verify
from google.protobuf.json_format import ParseDict

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
    """A UUIDv4 made of a number."""
    return f"00000000-0000-4000-8000-{number:012d}"


def fact(number: int) -> Envelope:
    """The fact that parcel `number` is ready."""
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
    """The proposal to send parcel `number`, which weighs as much as its number."""
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
        assert handled.events, handled.answer
        for event in handled.events:
            copy = Envelope()
            copy.CopyFrom(event)
            events.append(copy)
        state.commit()
        return handled.events[0]

    happens(OpenBus(uuid(1), CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_ALWAYS), 86_400_000))
    happens(DeployRuleSet(uuid(2), compile_rule_set(RULE_SET), RULE_SET))
    happens(ActivateRuleSet(uuid(3), "parcels", 1, None))
    for number in range(1, PARCELS + 1):
        evidence = happens(PublishEvent(fact(number)))
        happens(SubmitProposal(proposal(number, evidence)), References(cited={evidence.sequence_number: cited(evidence)}))
    return events


EVENTS = events_of_a_bus()
# BusOpened, deployment, activation, and per parcel a fact, a proposal and a decision.
EVENT_COUNT = 3 + 3 * PARCELS


async def log_of(events: Sequence[Envelope]) -> MemoryLog:
    """A log in memory that holds `events`, chained as they are."""
    log = MemoryLog(BUS, lambda: NOW_MS)
    head = empty_head(BUS)
    for event in events:
        content = event.SerializeToString()
        chain_hash = chain(head.chain_hash, content)
        await log.append(head, [Entry(event.sequence_number, content, chain_hash, event.event_id, "")], NOW_MS, [])
        head = Head(event.sequence_number, chain_hash)
    return log


async def verdict_on(log: MemoryLog, **range_and_engine: int) -> ReplayVerdict:
    """The verdict of a whole replay."""
    *_, last = [response async for response in verify(log, **range_and_engine)]  # type: ignore[arg-type]
    assert last.HasField("verdict")
    return last.verdict


@pytest.mark.parametrize("engine", [decision_pb2.ENGINE_UNSPECIFIED, decision_pb2.ENGINE_RETE, decision_pb2.ENGINE_REFERENCE])
async def test_proved(engine: int) -> None:
    """A log as the core made it is proved, by either engine, and the verdict says how much that was."""
    verdict = await verdict_on(await log_of(EVENTS), engine=engine)
    assert replay_service_pb2.REPLAY_STATUS_PROVED == verdict.status
    assert (True, EVENT_COUNT, PARCELS) == (verdict.proved, verdict.events, verdict.decisions)
    assert f"proved: {EVENT_COUNT} events, {PARCELS} decisions recomputed equal" == verdict.message


async def test_progress_counts_up_once_per_pass() -> None:
    """Progress comes after each page, goes twice from the start to the end, and the verdict comes last."""
    responses = [response async for response in verify(await log_of(EVENTS))]
    assert ["progress"] * (len(responses) - 1) + ["verdict"] == [response.WhichOneof("item") for response in responses]
    pages = [*range(PAGE_EVENTS, EVENT_COUNT, PAGE_EVENTS), EVENT_COUNT]
    assert pages * 2 == [response.progress.sequence_number for response in responses[:-1]]
    assert {EVENT_COUNT} == {response.progress.to_sequence_number for response in responses[:-1]}


async def test_other_tasks_run_between_pages() -> None:
    """A replay lets others have their turn after each page."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await verdict_on(await log_of(EVENTS))
    task.cancel()
    assert turns >= 2 * EVENT_COUNT // PAGE_EVENTS


async def test_part_of_a_log() -> None:
    """A range is compared from its first event and ends at its last, even inside a commit."""
    log = await log_of(EVENTS)
    assert EVENT_COUNT - 9 == (await verdict_on(log, from_sequence_number=10)).events
    for last in range(1, 12):
        verdict = await verdict_on(log, to_sequence_number=last)
        assert (True, last) == (verdict.proved, verdict.events)


@pytest.mark.parametrize(("first", "last"), [(-1, 0), (0, EVENT_COUNT + 1), (EVENT_COUNT + 1, 0), (9, 8), (0, -1)])
async def test_ranges_that_are_not_in_the_log(first: int, last: int) -> None:
    """A range that the log does not hold is refused with the one that it does."""
    with pytest.raises(ReplayRangeError, match=f"the log of bus {BUS} holds events 1 to {EVENT_COUNT}"):
        await verdict_on(await log_of(EVENTS), from_sequence_number=first, to_sequence_number=last)


async def test_diverged() -> None:
    """A changed decision in an intact chain is a divergence, field by field, with what it came from."""
    changed = [Envelope.FromString(event.SerializeToString()) for event in EVENTS]
    changed[5].decision.rule_id = "heavy"
    verdict = await verdict_on(await log_of(changed))
    assert (False, replay_service_pb2.REPLAY_STATUS_DIVERGED) == (verdict.proved, verdict.status)
    (difference,) = verdict.divergence.differences
    assert ("decision.rule_id", '"heavy"', '"light"') == (difference.path, difference.recorded, difference.expected)
    assert (6, [5, 4]) == (verdict.divergence.sequence_number, [found.sequence_number for found in verdict.divergence.inputs])
    assert verdict.message.startswith("diverged: event 6 (DecisionApproved) comes out otherwise: decision.rule_id")


async def test_cut_off_inside_a_commit() -> None:
    """A log whose last commit is not whole has lost an event."""
    verdict = await verdict_on(await log_of(EVENTS[:-1]))
    assert (replay_service_pb2.REPLAY_STATUS_DIVERGED, "missing-event") == (verdict.status, verdict.divergence.kind)


async def test_other_arbiter_version() -> None:
    """A log of semantics that this build does not have is no failure of the log."""
    changed = [Envelope.FromString(event.SerializeToString()) for event in EVENTS]
    changed[0].fact.bus_opened.arbiter_version = 99
    verdict = await verdict_on(await log_of(changed))
    assert replay_service_pb2.REPLAY_STATUS_VERSION_NOT_IMPLEMENTED == verdict.status
    assert verdict.message.startswith("arbiter version not implemented: event 1 sets arbiter_version 99")


class _Holey(MemoryLog):
    """A log that has lost what came after event `last`, although its head says otherwise."""

    def __init__(self, whole: MemoryLog, last: int, error: LogCorruptError | None = None) -> None:
        self.bus = whole.bus
        self._whole = whole
        self._last = last
        self._error = error

    async def head(self) -> Head:
        return await self._whole.head()

    async def read(self, from_sequence_number: int, to_sequence_number: int, limit: int = 1000) -> list[Record]:
        if self._error is not None:
            raise self._error
        return await self._whole.read(from_sequence_number, min(to_sequence_number, self._last), limit)


async def test_damaged() -> None:
    """A log that ends before its head, or contradicts itself while it is read, is damaged."""
    whole = await log_of(EVENTS)
    verdict = await verdict_on(_Holey(whole, 7))
    assert (replay_service_pb2.REPLAY_STATUS_DAMAGED, 8) == (verdict.status, verdict.divergence.sequence_number)
    verdict = await verdict_on(_Holey(whole, 7, LogCorruptError("event 3 is missing")))
    assert (replay_service_pb2.REPLAY_STATUS_DAMAGED, "damaged: event 3 is missing") == (verdict.status, verdict.message)


async def test_damage_comes_before_divergence() -> None:
    """The whole log is checked as a log before anything in it is decided again."""
    changed = [Envelope.FromString(event.SerializeToString()) for event in EVENTS]
    changed[5].decision.rule_id = "heavy"
    log = await log_of(changed)
    assert replay_service_pb2.REPLAY_STATUS_DAMAGED == (await verdict_on(_Holey(log, EVENT_COUNT - 1))).status


async def test_impact() -> None:
    """A candidate rule set is tried on every past proposal; what would change is listed and counted by transition."""
    responses = [response async for response in impact(await log_of(EVENTS), compile_rule_set(STRICTER))]
    changed = [response.changed for response in responses if response.HasField("changed")]
    summary = responses[-1].summary
    assert (PARCELS, 20, {"APPROVED->REJECTED": 20}) == (summary.decisions, summary.changed, dict(summary.transitions))
    assert list(range(11, 31)) == [change.recorded.params.fields["weight"].number_value for change in changed]
    assert ["NO_RULE_MATCHED"] * 20 == [change.simulated.reason_code for change in changed]
    assert [6 + 3 * (weight - 1) for weight in range(11, 31)] == [change.sequence_number for change in changed]


async def test_impact_on_a_part() -> None:
    """Only the decisions of the range are counted; what comes before still builds the state."""
    log = await log_of(EVENTS)
    first = 6 + 3 * (20 - 1)
    responses = [response async for response in impact(log, compile_rule_set(STRICTER), from_sequence_number=first)]
    assert (PARCELS - 19, 11) == (responses[-1].summary.decisions, responses[-1].summary.changed)
    responses = [response async for response in impact(log, compile_rule_set(STRICTER), to_sequence_number=first)]
    assert (20, 10) == (responses[-1].summary.decisions, responses[-1].summary.changed)


async def test_impact_of_what_is_in_force() -> None:
    """The rule set that decided would change nothing."""
    responses = [response async for response in impact(await log_of(EVENTS), compile_rule_set(RULE_SET))]
    assert (PARCELS, 0) == (responses[-1].summary.decisions, responses[-1].summary.changed)
    assert PARCELS == responses[-1].summary.replaced


async def test_impact_of_what_replaces_nothing() -> None:
    """A candidate of a name that was never in force replaces nothing, and the sum says so."""
    stranger = compile_rule_set(STRICTER.replace("rule_set: parcels", "rule_set: parcel"))
    responses = [response async for response in impact(await log_of(EVENTS), stranger)]
    assert (PARCELS, 0) == (responses[-1].summary.decisions, responses[-1].summary.replaced)


async def test_no_impact_on_a_log_that_is_not_intact() -> None:
    """A log that is damaged or of another version is no ground for a forecast."""
    with pytest.raises(DamagedError):
        _ = [response async for response in impact(_Holey(await log_of(EVENTS), 7), compile_rule_set(STRICTER))]
    changed = [Envelope.FromString(event.SerializeToString()) for event in EVENTS]
    changed[0].fact.bus_opened.arbiter_version = 99
    with pytest.raises(VersionNotImplementedError):
        _ = [response async for response in impact(await log_of(changed), compile_rule_set(STRICTER))]
