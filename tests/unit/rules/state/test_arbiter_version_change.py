"""A change of the arbiter version: what the state remembers of refusals by version 2 becomes what version 3 remembers."""

from __future__ import annotations

from gavel.v1 import decision_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reason_codes
from gavel_rules.events.arbiter_versions import LATEST
from gavel_rules.events.timestamps import timestamp

from tests.support.driver import Core
from tests.support.histories.shared_trace import APPROVE, GUEST, OWNER, WINDOW_MS, rule_set

TRACE = "shared"


def bus_of_version_2() -> tuple[Core, Envelope]:
    """Return a bus of version 2 with the rule set of shared traces, and the fact that its rules approve on."""
    core = Core(rule_set(), arbiter_version=2)
    return core, core.fact("order.status", "delivered")


def change_to_version_3(core: Core) -> None:
    """Apply the event that changes the version; no command records it yet."""
    changed = Envelope(sequence_number=core.state.head + 1, event_id=core.new_id(), trace_id="upgrade", producer=LATEST.system)
    changed.recorded_at.CopyFrom(timestamp(core.now_ms))
    changed.fact.arbiter_version_changed.arbiter_version = 3
    core.state.apply(changed)
    core.state.commit()


def test_counts_begin_anew() -> None:
    """Rejections that were counted for the whole trace count against no producer, and no proposal repeats them."""
    core, fact = bus_of_version_2()
    for number in range(2):
        core.decide([fact], trace_id=TRACE, amount=500 + number, producer=GUEST)
    change_to_version_3(core)
    for producer in (OWNER, GUEST):
        decision = core.decide([fact], trace_id=TRACE, amount=501, producer=producer)
        assert ("TOO_MUCH", 1, 3) == (decision.reason_code, decision.consecutive_rejections, decision.arbiter_version)


def test_an_open_review_holds_the_producer_that_it_is_about() -> None:
    """The review of a trace becomes that of the producer whose proposal opened it, until a person resolves it."""
    core, fact = bus_of_version_2()
    review = [core.propose([fact], trace_id=TRACE, amount=500 + number, producer=GUEST) for number in range(3)][-1]
    assert decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW == review.decision.outcome
    change_to_version_3(core)
    assert "TOO_MUCH" == core.decide([fact], trace_id=TRACE, amount=600, producer=OWNER).reason_code
    assert reason_codes.UNDER_REVIEW == core.decide([fact], trace_id=TRACE, amount=600, producer=GUEST).reason_code
    core.resolve(review, APPROVE)
    assert "TOO_MUCH" == core.decide([fact], trace_id=TRACE, amount=600, producer=GUEST).reason_code
    assert {} == core.state.trace_reviews


def test_waiting_proposals_are_those_of_their_producers() -> None:
    """A waiting proposal makes a copy of its producer a duplicate, not one of another producer, and leaves nothing behind."""
    core, fact = bus_of_version_2()
    offer = core.enter([fact], action_type="offer.make", trace_id=TRACE, producer=OWNER, priority=9)
    change_to_version_3(core)
    core.enter([fact], action_type="offer.make", trace_id=TRACE, producer=GUEST)
    copy = core.decide([fact], action_type="offer.make", trace_id=TRACE, producer=OWNER)
    assert [offer.event_id] == list(copy.conflict_with_proposal_ids)
    core.tick(WINDOW_MS)
    assert decision_pb2.OUTCOME_APPROVED == core.first_decision(offer).outcome
    assert ({}, {}) == (core.state.contests, core.state.open_proposals_by_trace)


def test_the_change_can_be_undone() -> None:
    """Undoing the change restores the state of version 2."""
    core, fact = bus_of_version_2()
    for number in range(3):
        core.propose([fact], trace_id=TRACE, amount=500 + number, producer=GUEST)
    core.decide([fact], trace_id="other", amount=500, producer=OWNER)
    core.enter([fact], action_type="offer.make", trace_id="other", producer=OWNER)
    before = core.state.digest()
    mark = core.state.mark()
    changed = Envelope(sequence_number=core.state.head + 1, trace_id="upgrade", recorded_at=timestamp(core.now_ms))
    changed.fact.arbiter_version_changed.arbiter_version = 3
    core.state.apply(changed)
    assert (before, 3) != (core.state.digest(), core.state.semantics.arbiter_version)
    core.state.undo(mark)
    assert (before, 2) == (core.state.digest(), core.state.semantics.arbiter_version)
