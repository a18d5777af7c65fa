"""A trace belongs to the producer of its first proposal; another one has to name a cause in it. In virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gavel.v1 import common_pb2, decision_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.error_pb2 import ErrorReason
from gavel_rules.commands import EventAnswer, PublishEvent, SubmitProposal
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.identity.grants import compile_grants
from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_rules.limits import TRACE_LAPSE_MS
from gavel_server.bus.request import CommittedAnswer
from gavel_server.bus.trace_owners import FORGOTTEN_AT_ONCE, TraceOwners, TraceParty, trace_refusal
from gavel_server.errors import ServiceError

from tests.support.driver import observation_envelope, proposal_envelope
from tests.support.simulation.servers import Servers, execute, reason, record_event, with_servers

OTHER = Producer(type=common_pb2.PRODUCER_TYPE_AGENT, id="another-agent")


def propose(servers: Servers, fact: Envelope, **changes: Any) -> SubmitProposal:
    """Return a proposal in the trace "trace-1", by default of the agent that opens it."""
    return SubmitProposal(ProposalView(servers.admit_envelope(proposal_envelope([fact], **changes))))


def outcome(result: CommittedAnswer | ServiceError) -> str:
    """Return the reason of an error, or the name of the decision's outcome."""
    if isinstance(result, ServiceError):
        return reason(result)
    assert isinstance(result.answer, EventAnswer)
    return decision_pb2.Outcome.Name(result.answer.envelope.decision.outcome).removeprefix("OUTCOME_")


@with_servers
async def test_foreign_producer_cannot_put_a_trace_under_review(servers: Servers) -> None:
    """Proposals of another producer are refused, whichever server they reach, also after a restart, and leave nothing in the log."""
    first, _ = await servers.start_with_rules()
    second, _ = await servers.start()
    fact = await record_event(first, servers.fact())
    assert "APPROVED" == outcome(await execute(first, propose(servers, fact)))
    restarted, _ = await servers.start()
    await second.read_on()
    before = len(await servers.events())
    for sequencer in (first, second, restarted):
        foreign = [propose(servers, fact, amount=600 + number, producer=OTHER) for number in range(4)]
        assert ["PRODUCER_NOT_ALLOWED"] * 4 == [outcome(await execute(sequencer, command)) for command in foreign]
    assert before == len(await servers.events())
    assert "REJECTED" == outcome(await execute(second, propose(servers, fact, amount=51)))  # its first approval is live
    await servers.prove()


@with_servers
async def test_delegation(servers: Servers) -> None:
    """Another producer may propose and observe in a trace with a cause in it, and not with a cause elsewhere."""
    sequencer, _ = await servers.start_with_rules()
    fact = await record_event(sequencer, servers.fact())
    elsewhere = await record_event(sequencer, servers.fact(trace_id="trace-2"))
    decision = await execute(sequencer, propose(servers, fact))
    assert isinstance(decision, CommittedAnswer)
    assert isinstance(decision.answer, EventAnswer)
    cause = decision.answer.envelope.event_id
    assert "PRODUCER_NOT_ALLOWED" == outcome(
        await execute(sequencer, propose(servers, fact, producer=OTHER, causation_id=elsewhere.event_id))
    )
    for number, trace_id in enumerate(("trace-1", "")):
        delegated = propose(servers, fact, producer=OTHER, trace_id=trace_id, causation_id=cause, amount=60 + number)
        assert "REJECTED" == outcome(await execute(sequencer, delegated))  # the first approval is live
    observation = observation_envelope("order.note", "x")
    observation.producer.CopyFrom(OTHER)
    assert "PRODUCER_NOT_ALLOWED" == reason(await execute(sequencer, PublishEvent(servers.admit_envelope(observation))))
    observation = observation_envelope("order.note", "x")
    observation.producer.CopyFrom(OTHER)
    observation.causation_id = cause
    await record_event(sequencer, PublishEvent(servers.admit_envelope(observation)))
    # Facts of any producer may be in any trace.
    await record_event(sequencer, servers.fact("paid"))
    await servers.prove()


@with_servers
async def test_first_of_a_batch_opens_the_trace(servers: Servers) -> None:
    """Of two producers whose proposals open one trace in one batch, the first one owns it."""
    sequencer, log = await servers.start_with_rules()
    fact = await record_event(sequencer, servers.fact())
    appends = len(log.appended)
    commands = [propose(servers, fact), propose(servers, fact, amount=51, producer=OTHER)]
    results = await asyncio.gather(*(execute(sequencer, command) for command in commands))
    assert ["APPROVED", "PRODUCER_NOT_ALLOWED"] == [outcome(result) for result in results]
    assert 1 == len(log.appended) - appends


@with_servers
async def test_first_of_the_append_under_way_opens_the_trace(servers: Servers) -> None:
    """A trace belongs to the producer whose proposal opens it also while that proposal is being appended."""
    sequencer, log = await servers.start_with_rules()
    fact = await record_event(sequencer, servers.fact())
    log.pause_seconds = 0.01
    sequencer._pacing.limit = 1
    commands = [propose(servers, fact), propose(servers, fact, amount=51, producer=OTHER)]
    results = await asyncio.gather(*(execute(sequencer, command) for command in commands))
    assert ["APPROVED", "PRODUCER_NOT_ALLOWED"] == [outcome(result) for result in results]


@with_servers
async def test_repeated_proposal_gets_its_answer(servers: Servers) -> None:
    """A proposal that was recorded is answered again, whoever owns its trace by now."""
    sequencer, _ = await servers.start_with_rules()
    fact = await record_event(sequencer, servers.fact())
    cause = await record_event(sequencer, servers.fact("x", subject="order/9", trace_id="trace-1"))
    await execute(sequencer, propose(servers, fact))
    command = propose(servers, fact, producer=OTHER, causation_id=cause.event_id, event_id=servers.new_id())
    assert ["REJECTED", "REJECTED"] == [outcome(await execute(sequencer, command)) for _ in range(2)]


def party(producer_id: str, principal: Principal = ANONYMOUS) -> TraceParty:
    """Return a party with a producer of type 1."""
    return TraceParty(1, producer_id, principal)


def owner_id(owners: TraceOwners, trace_id: str, now_ms: int) -> str | None:
    """Return the producer id of a trace's owner."""
    owner = owners.owner(trace_id, lambda: now_ms)
    return None if owner is None else owner.key[1]


def test_traces_lapse() -> None:
    """A trace without a proposal for a day is free, and belongs to the next producer."""
    owners = TraceOwners()
    owners.note("t", party("a"), 0)
    owners.note("t", party("b"), TRACE_LAPSE_MS)
    assert "a" == owner_id(owners, "t", 2 * TRACE_LAPSE_MS)
    assert owner_id(owners, "t", 2 * TRACE_LAPSE_MS + 1) is None
    owners.note("t", party("b"), 2 * TRACE_LAPSE_MS + 1)
    assert "b" == owner_id(owners, "t", 2 * TRACE_LAPSE_MS + 1)


@pytest.mark.parametrize("greedy", [1, 10])
def test_memory_is_bounded(greedy: int) -> None:
    """Producers that open very many traces lose their own, and others keep theirs."""
    owners = TraceOwners(2 * FORGOTTEN_AT_ONCE)
    owners.note("mine", party("me"), 0)
    for number in range(10 * FORGOTTEN_AT_ONCE):
        owners.note(f"t{number}", party(f"greedy-{number % greedy}"), 0)
    assert "me" == owner_id(owners, "mine", 0)
    assert len(owners._owned) <= 2 * FORGOTTEN_AT_ONCE
    assert len(owners._owned) == sum(len(owner.traces) for owner in owners._owners.values())
    last = 10 * FORGOTTEN_AT_ONCE - 1
    assert f"greedy-{last % greedy}" == owner_id(owners, f"t{last}", 0)


def test_one_search_for_the_largest_producer_makes_room_for_many_traces() -> None:
    """If the table is full of producers with one trace each, many traces are forgotten at once: more traces of one, then the oldest."""
    owners = TraceOwners(2 * FORGOTTEN_AT_ONCE)
    for number in range(5):
        owners.note(f"mine {number}", party("me"), 0)
    for number in range(2 * FORGOTTEN_AT_ONCE - 4):
        owners.note(f"t{number}", party(f"p{number}"), 0)
    assert FORGOTTEN_AT_ONCE + 1 == len(owners._owned)
    assert [None] * 4 == [owner_id(owners, f"mine {number}", 0) for number in range(4)]
    oldest = FORGOTTEN_AT_ONCE - 5
    assert [None, f"p{oldest}"] == [owner_id(owners, f"t{number}", 0) for number in (oldest - 1, oldest)]


@pytest.mark.parametrize("traces_each", [1, 5])
def test_of_equal_producers_the_one_with_the_longest_unused_trace_loses_it(traces_each: int) -> None:
    """Among producers with equally many traces, those in use lose theirs last, also if their producers have been known for longest."""
    owners = TraceOwners(2 * FORGOTTEN_AT_ONCE)
    producers = 2 * FORGOTTEN_AT_ONCE // traces_each
    for now_ms, last in ((1, producers), (2, producers // 2)):
        for number in range(last):
            for trace in range(traces_each):
                owners.note(f"t{number}-{trace}", party(f"p{number}"), now_ms)
    owners.note("new", party("new"), 3)
    assert FORGOTTEN_AT_ONCE + 1 == len(owners._owned)
    assert "new" == owner_id(owners, "new", 3)
    left = [sum(owner_id(owners, f"t{number}-{trace}", 3) is not None for trace in range(traces_each)) for number in range(producers)]
    assert [traces_each // 2 + 1] * (producers // 2) + [traces_each // 2] * (producers // 2) == left


def test_a_trace_in_use_is_kept() -> None:
    """A trace with recent proposals keeps its owner, however many traces are opened in the name of its producer."""
    owners = TraceOwners(2 * FORGOTTEN_AT_ONCE)
    owners.note("in use", party("planner"), 0)
    for number in range(6 * FORGOTTEN_AT_ONCE):
        owners.note(f"t-{number}", party("planner"), 0)
        if number % 100 == 0:
            owners.note("in use", party("planner"), 0)
    assert "planner" == owner_id(owners, "in use", 0)
    assert owner_id(owners, "t-0", 0) is None


GRANTS = """
gavel: v1
name: main
version: 1
grants:
  - {to: ["*"], may: [propose]}
  - {to: [bob], may: [propose], joins: ["group:planners"]}
"""
ALICE = Principal("alice", "jwt", "https://issuer", groups=("planners",))
BOB = Principal("bob", "token")
EVE = Principal("eve", "token")


def refusal_reason(party: TraceParty, cause_trace_id: str, *, grants: bool = True) -> str:
    """Return the reason why a party may not take part in a trace that ALICE opened as planner, or ""."""
    compiled = compile_grants(GRANTS) if grants else None
    refusal = trace_refusal("t", TraceParty(1, "planner", ALICE), party, cause_trace_id, compiled)
    return "" if refusal is None else ErrorReason.Name(refusal.reason).removeprefix("ERROR_REASON_")


def test_another_principal_joins_a_trace_only_by_a_grant() -> None:
    """With grants, another principal needs one that names the trace's owner, a cause in the trace, and a producer of its own."""
    assert "" == refusal_reason(party("worker", BOB), "t")
    assert "PRODUCER_NOT_ALLOWED" == refusal_reason(party("worker", BOB), "")
    assert "PRODUCER_NOT_ALLOWED" == refusal_reason(party("worker", BOB), "other")
    assert "RIGHT_LACKING" == refusal_reason(party("worker", EVE), "t")
    assert "" == refusal_reason(party("worker", EVE), "t", grants=False)


def test_nobody_joins_a_trace_as_its_owner() -> None:
    """The producer id of the owner does not make another principal the owner, so it cannot use up the owner's rejections."""
    assert "PRODUCER_NOT_ALLOWED" == refusal_reason(party("planner", BOB), "t")
    assert "PRODUCER_NOT_ALLOWED" == refusal_reason(party("planner", EVE), "")
    renewed = Principal("alice", "jwt", "https://issuer", credential_id="another token")
    assert "" == refusal_reason(party("planner", renewed), "")
    assert "" == refusal_reason(party("helper", renewed), "t")
