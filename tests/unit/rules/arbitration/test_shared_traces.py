"""Two producers in one trace: only its own refusals count against a producer, and only its own review holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import pytest
from gavel.v1 import common_pb2, decision_pb2, execution_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reason_codes
from gavel_rules.decider import handle
from gavel_rules.identity.principal import ANONYMOUS
from gavel_rules.limits import REFUSED_TRACES_MAX, TRACE_LAPSE_MS, TRACE_PRODUCERS_MAX
from gavel_rules.preflight import preflight
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.driver import AGENT, Core
from tests.support.histories.shared_trace import APPROVE, GUEST, OWNER, REJECT, WINDOW_MS, rule_set

TRACE: Final = "shared"
APPROVED = decision_pb2.OUTCOME_APPROVED
REJECTED = decision_pb2.OUTCOME_REJECTED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW


@pytest.fixture
def core() -> Core:
    """Return a bus with the rule set of shared traces."""
    return Core(rule_set())


def deliver(core: Core) -> Envelope:
    """Publish the fact that the rules approve on."""
    return core.fact("order.status", "delivered")


def refuse(core: Core, fact: Envelope, producer: Producer, amount: float) -> Decision:
    """Propose an amount that the rules reject."""
    return core.decide([fact], trace_id=TRACE, amount=amount, producer=producer)


def test_each_producer_has_its_own_count(core: Core) -> None:
    """Rejections count against the producer that they refuse, and its count alone requests a human review."""
    fact = deliver(core)
    decisions = [refuse(core, fact, producer, 500 + number) for number, producer in enumerate([GUEST, OWNER] * 3)]
    assert [1, 1, 2, 2, 3, 3] == [decision.consecutive_rejections for decision in decisions]
    assert [REJECTED] * 4 + [REVIEW] * 2 == [decision.outcome for decision in decisions]
    core.prove()


def test_a_review_holds_its_producer_alone(core: Core) -> None:
    """While a producer is under review, another one of the trace is decided; the verdict begins the count of the reviewed one anew."""
    fact = deliver(core)
    refuse(core, fact, OWNER, 600)
    review = [core.propose([fact], trace_id=TRACE, amount=500 + number, producer=GUEST) for number in range(3)][-1]
    assert (REVIEW, "REJECTION_LIMIT") == (review.decision.outcome, review.decision.reason_code)
    assert reason_codes.UNDER_REVIEW == refuse(core, fact, GUEST, 50).reason_code
    assert ("TOO_MUCH", 2) == _count(refuse(core, fact, OWNER, 601))
    core.resolve(review, APPROVE)
    assert ("TOO_MUCH", 1) == _count(refuse(core, fact, GUEST, 503))
    assert ("REJECTION_LIMIT", 3) == _count(refuse(core, fact, OWNER, 602))
    core.prove()


def test_both_may_be_under_review(core: Core) -> None:
    """Two producers of a trace have reviews of their own; each is held until its own is resolved."""
    fact = deliver(core)
    reviews = {}
    for producer in (OWNER, GUEST):
        reviews[producer.id] = [core.propose([fact], trace_id=TRACE, amount=500 + number, producer=producer) for number in range(3)][-1]
    core.resolve(reviews[GUEST.id], APPROVE)
    assert reason_codes.UNDER_REVIEW == refuse(core, fact, OWNER, 50).reason_code
    assert ("TOO_MUCH", 1) == _count(refuse(core, fact, GUEST, 600))
    core.resolve(reviews[OWNER.id], APPROVE)
    assert APPROVED == core.decide([fact], trace_id=TRACE, producer=OWNER).outcome
    core.prove()


def test_an_approval_resets_its_producer_alone(core: Core) -> None:
    """The approval of one producer leaves the count of another one."""
    fact = deliver(core)
    refuse(core, fact, GUEST, 500)
    refuse(core, fact, OWNER, 501)
    core.revoke(core.propose([fact], trace_id=TRACE, amount=5, producer=OWNER))
    assert ("TOO_MUCH", 2) == _count(refuse(core, fact, GUEST, 502))
    assert ("TOO_MUCH", 1) == _count(refuse(core, fact, OWNER, 503))
    core.prove()


def test_a_verdict_on_an_execution_resets_its_proposer_alone(core: Core) -> None:
    """A person's verdict on half-done work begins the count of the producer that proposed the work anew, and no other."""
    fact = deliver(core)
    approval = core.propose([fact], trace_id=TRACE, amount=5, producer=OWNER)
    core.report(core.start(approval), execution_pb2.EXECUTION_STATUS_PARTIAL)
    review = core.events[-1]
    assert REVIEW == review.decision.outcome
    note = core.fact("order.note", "x", subject="order/2")
    for producer in (OWNER, GUEST):
        core.decide([note], subject="order/2", trace_id=TRACE, producer=producer)
    core.resolve(review, REJECT)
    counts = [core.decide([note], subject="order/2", trace_id=TRACE, amount=9, producer=one) for one in (OWNER, GUEST)]
    assert [1, 2] == [decision.consecutive_rejections for decision in counts]
    core.prove()


def test_a_repetition_is_of_the_same_producer(core: Core) -> None:
    """A proposal that another producer was refused is judged by itself; the producer's own is a duplicate."""
    fact = deliver(core)
    assert "TOO_MUCH" == refuse(core, fact, GUEST, 500).reason_code
    assert "TOO_MUCH" == refuse(core, fact, OWNER, 500).reason_code
    assert reason_codes.DUPLICATE_PROPOSAL == refuse(core, fact, GUEST, 500).reason_code
    core.prove()


def test_rules_read_the_producers_own_count(core: Core) -> None:
    """`trace.consecutive_rejections` is the count of the producer that proposes, in a preflight as well."""
    fact = deliver(core)
    for number in range(2):
        refuse(core, fact, GUEST, 500 + number)
    command = core.proposal([fact], trace_id=TRACE, amount=77, producer=GUEST)
    forecast = preflight(core.state, command.proposal, core.references(command).cited_events, core.now_ms)
    assert isinstance(forecast, Decision)
    assert "HAGGLING" == forecast.reason_code
    assert APPROVED == refuse(core, fact, OWNER, 77).outcome


def test_equal_candidates_of_two_producers_compete(core: Core) -> None:
    """Equal proposals of two producers both enter a contest; a producer's second one is a duplicate."""
    fact = deliver(core)
    offers = [core.enter([fact], action_type="offer.make", trace_id=TRACE, producer=one, priority=1) for one in (GUEST, OWNER)]
    copy = core.decide([fact], action_type="offer.make", trace_id=TRACE, producer=GUEST)
    assert [offers[0].event_id] == list(copy.conflict_with_proposal_ids)
    core.tick(WINDOW_MS)
    assert [APPROVED, REJECTED] == [core.first_decision(offer).outcome for offer in offers]
    assert {} == core.state.open_proposals_by_trace
    core.prove()


def test_a_close_holds_the_producer_that_comes_under_review(core: Core) -> None:
    """If a producer reaches its limit when a contest closes, its remaining candidates are held, and those of another producer are not."""
    fact = deliver(core)
    core.enter([fact], action_type="offer.make", trace_id="rival", amount=1, priority=9, producer=AGENT)
    guests = [core.enter([fact], action_type="offer.make", trace_id=TRACE, amount=10 + one, priority=5, producer=GUEST) for one in range(4)]
    owners = core.enter([fact], action_type="offer.make", trace_id=TRACE, amount=20, priority=1, producer=OWNER)
    core.tick(WINDOW_MS)
    codes = [core.first_decision(offer).reason_code for offer in (*guests, owners)]
    assert ["OUTRANKED", "OUTRANKED", "REJECTION_LIMIT", "UNDER_REVIEW", "OUTRANKED"] == codes
    core.prove()


def test_a_closed_action_is_closed_for_the_trace(core: Core) -> None:
    """The end of a trace by a person or by facts holds for all its producers, and counts against none."""
    fact = core.fact("order.status", "cancelled")
    assert refuse(core, fact, GUEST, 5).terminal
    decision = refuse(core, fact, OWNER, 6)
    assert (reason_codes.NO_FEASIBLE_PROPOSAL, 0) == _count(decision)
    core.prove()


def test_types_and_ids_name_producers(core: Core) -> None:
    """Producers with one id and different types are different ones; versions of a producer are one."""
    fact = deliver(core)
    refuse(core, fact, GUEST, 500)
    newer = Producer(type=GUEST.type, id=GUEST.id, version="2.0")
    assert ("TOO_MUCH", 2) == _count(refuse(core, fact, newer, 501))
    key = core.state.semantics.refusals_key
    assert key(common_pb2.PRODUCER_TYPE_AGENT, "a") != key(common_pb2.PRODUCER_TYPE_SYSTEM, "a")


def test_any_event_of_the_trace_keeps_all_counts(core: Core) -> None:
    """Counts lapse with the trace: an event of any producer keeps them, a day of silence ends them, and reviews stay."""
    fact = deliver(core)
    refuse(core, fact, OWNER, 500)
    core.pass_time(TRACE_LAPSE_MS)
    fact = core.fact("order.status", "delivered", trace_id=TRACE)
    refuse(core, fact, GUEST, 500)
    core.pass_time(TRACE_LAPSE_MS)
    fact = deliver(core)
    assert ("TOO_MUCH", 2) == _count(refuse(core, fact, OWNER, 501))
    for number in range(2):
        refuse(core, fact, GUEST, 501 + number)
    core.pass_time(TRACE_LAPSE_MS + 1)
    fact = deliver(core)
    assert ({}, {}) == (core.state.traces, core.state.refusals)
    assert ("TOO_MUCH", 1) == _count(refuse(core, fact, OWNER, 502))
    assert reason_codes.UNDER_REVIEW == refuse(core, fact, GUEST, 5).reason_code
    core.prove()


@pytest.mark.long
def test_refusals_of_a_bounded_number_of_producers_are_remembered() -> None:
    """Beyond TRACE_PRODUCERS_MAX the producers of a trace that were refused longest ago start anew; reviews stay."""
    core = Core(rule_set(rejection_limits={"policy": 2}))
    fact = deliver(core)
    held = Producer(type=GUEST.type, id="held")
    for number in range(2):
        refuse(core, fact, held, 500 + number)
    agents = [Producer(type=GUEST.type, id=f"agent-{number}") for number in range(TRACE_PRODUCERS_MAX)]
    for agent in agents:
        refuse(core, fact, agent, 500)
    assert TRACE_PRODUCERS_MAX * 3 // 4 < len(core.state.refusals[TRACE]) <= TRACE_PRODUCERS_MAX
    assert reason_codes.UNDER_REVIEW == refuse(core, fact, held, 5).reason_code
    assert ("TOO_MUCH", 1) == _count(refuse(core, fact, agents[0], 501))
    assert ("REJECTION_LIMIT", 2) == _count(refuse(core, fact, agents[-1], 501))
    core.prove()


@pytest.mark.long
def test_refusals_of_a_bounded_number_of_traces_are_remembered() -> None:
    """Beyond REFUSED_TRACES_MAX a producer that is refused in ever new traces loses its own oldest ones; those of others stay, as do
    reviews, and undoing the last refusal restores what it made the bus forget.
    """
    core = Core(rule_set(rejection_limits={"policy": 2}))
    fact = deliver(core)

    def refuse_in(trace_id: str, producer: Producer, amount: float) -> Decision:
        return core.decide([fact], trace_id=trace_id, amount=amount, producer=producer)

    refuse_in("of-the-owner", OWNER, 500)
    for number in range(2):
        refuse_in("held", GUEST, 500 + number)
    while len(core.state.traces) < REFUSED_TRACES_MAX:
        refuse_in(f"flood-{len(core.state.traces)}", GUEST, 500)
    before = core.state.digest()
    position = core.state.mark()
    overflow = core.proposal([fact], trace_id="flood-last", amount=500, producer=GUEST)
    handle(core.state, overflow, core.references(overflow), core.now_ms, decision_pb2.ENGINE_RETE, ANONYMOUS)
    assert REFUSED_TRACES_MAX > len(core.state.traces) == len(core.state.refusals)
    core.state.undo(position)
    assert before == core.state.digest()
    core.pass_time(1)
    refuse_in("flood-last", GUEST, 500)
    assert ("TOO_MUCH", 1) == _count(refuse_in("flood-10", GUEST, 501))
    assert ("REJECTION_LIMIT", 2) == _count(refuse_in("flood-last", GUEST, 501))
    assert ("REJECTION_LIMIT", 2) == _count(refuse_in("of-the-owner", OWNER, 501))
    assert reason_codes.UNDER_REVIEW == refuse_in("held", GUEST, 5).reason_code
    core.prove()


# The property


class Move(NamedTuple):
    """One move in the trace after `gap_ms`: a proposal of the guest or the owner, or the verdict on its review."""

    is_guest: bool
    kind: str  # "amount", "evidence", "params", "action", "resolve" or "revoke"
    amount: float
    gap_ms: int


KINDS = ("amount", "amount", "amount", "evidence", "params", "action", "resolve", "revoke")
MOVES = st.lists(
    st.builds(Move, st.booleans(), st.sampled_from(KINDS), st.sampled_from([20, 77, 500, 501, 502]), st.integers(0, 3_000)), max_size=40
)


def play(moves: Sequence[Move], *, with_guest: bool) -> list[Decision]:
    """Play the moves, or those of the owner alone, and return the decisions on the owner's proposals and reviews, without ids."""
    core = Core(rule_set())
    status, note = deliver(core), core.fact("order.note", "x")
    decisions: list[Decision] = []
    approval: Envelope | None = None
    for move in moves:
        core.pass_time(move.gap_ms)
        if move.is_guest and not with_guest:
            continue
        producer = GUEST if move.is_guest else OWNER
        if move.kind == "revoke":
            core.tick()  # the approval may have expired
            if not move.is_guest and approval is not None and approval.event_id in core.state.decisions:
                core.revoke(approval)
            continue
        if move.kind == "resolve":
            review = core.state.open_review(TRACE, producer.type, producer.id)
            if not review:
                continue
            # A person who rejects the guest's action closes it for the trace: that is no rejection of the guest's alone.
            verdict = REJECT if move.amount == 502 and not move.is_guest else APPROVE
            decision = core.resolve(core.by_id[review], verdict)
        else:
            decision = propose(core, move, producer, status, note)
        if not move.is_guest:
            approval = decision if decision.decision.outcome == APPROVED else approval
            decisions.append(without_ids(decision.decision))
        else:
            assert decision.decision.outcome != APPROVED, decision
    core.prove()
    return decisions


def propose(core: Core, move: Move, producer: Producer, status: Envelope, note: Envelope) -> Envelope:
    """Submit the proposal of a move. Those of the guest are never approved: an approval would hold the conflict key."""
    amount = move.amount + 600 if move.is_guest else move.amount
    if move.kind == "evidence":
        return core.propose([note], subject="order/9", trace_id=TRACE, amount=amount, producer=producer)
    if move.kind == "params":
        return core.propose([status], trace_id=TRACE, params={"amount": "much"}, producer=producer)
    if move.kind == "action":
        return core.propose([status], trace_id=TRACE, action_type="nobody.knows", amount=amount, producer=producer)
    return core.propose([status], trace_id=TRACE, amount=amount, producer=producer)


def without_ids(decision: Decision) -> Decision:
    """Return a decision without what its place in the log gives."""
    plain = Decision()
    plain.CopyFrom(decision)
    for field in ("decision_id", "proposal_id", "previous_decision_id", "state_version", "conflict_with_proposal_ids"):
        plain.ClearField(field)
    return plain


@pytest.mark.long
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(MOVES)
def test_a_guests_rejections_do_not_change_the_owners_decisions(moves: list[Move]) -> None:
    """Refusals of a guest in a trace do not change the owner's decisions."""
    assert play(moves, with_guest=False) == play(moves, with_guest=True)


def _count(decision: Decision) -> tuple[str, int]:
    return decision.reason_code, decision.consecutive_rejections
