"""A change of the arbiter version: what the state remembers of refusals by version 2 becomes what version 3 remembers."""

from __future__ import annotations

import pytest
from gavel.v1 import decision_pb2, error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.tool_pb2 import ToolCall, ToolResult
from gavel_rules import reason_codes
from gavel_rules.commands import EventAnswer, UpgradeBus
from gavel_rules.events.arbiter_versions import ARBITER_VERSION
from gavel_rules.events.timestamps import timestamp
from gavel_rules.limits import TRACE_LAPSE_MS
from gavel_rules.state.snapshot.encoding import state_sha256

from tests.support.driver import AGENT, SUBJECT, Core
from tests.support.hashes import sha256_of
from tests.support.histories.shared_trace import APPROVE, GUEST, OWNER, WINDOW_MS, rule_set
from tests.support.state.snapshots import page_out, restore, tables

TRACE = "shared"


def bus_of_version_2() -> tuple[Core, Envelope]:
    """Return a bus of version 2 with the rule set of shared traces, and the fact that its rules approve on."""
    core = Core(rule_set(), arbiter_version=2)
    return core, core.fact("order.status", "delivered")


def change_to_version_3(core: Core) -> Envelope:
    """Change the version of the bus by the command, and return the event."""
    answer = core.run(UpgradeBus(core.new_id(), 2, 3, "ada", "to count for each producer"))
    assert isinstance(answer, EventAnswer), answer
    return answer.envelope


def test_counts_begin_anew() -> None:
    """After the change, earlier rejections of the whole trace count against no producer, and no proposal is a repetition of them."""
    core, fact = bus_of_version_2()
    for number in range(2):
        core.decide([fact], trace_id=TRACE, amount=500 + number, producer=GUEST)
    change_to_version_3(core)
    for producer in (OWNER, GUEST):
        decision = core.decide([fact], trace_id=TRACE, amount=501, producer=producer)
        assert ("TOO_MUCH", 1, 3) == (decision.reason_code, decision.consecutive_rejections, decision.arbiter_version)
    core.prove()


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
    """While a proposal waits, an equal one of its producer is a duplicate, one of another producer is not; later nothing is left of it."""
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


def test_the_change_is_an_event_of_the_earlier_version() -> None:
    """The event names both versions, the operator, the reason and the digest of the state before; a replay recomputes all of it."""
    core, fact = bus_of_version_2()
    core.decide([fact], trace_id=TRACE, amount=500, producer=GUEST)
    expected = f"sha256:{state_sha256(core.state.store).hex()}"
    envelope = change_to_version_3(core)
    changed = envelope.fact.arbiter_version_changed
    assert (2, 3, expected) == (changed.from_arbiter_version, changed.arbiter_version, changed.state_digest)
    assert ("ada", "to count for each producer") == (changed.upgraded_by, changed.reason)
    assert ("ArbiterVersionChanged", "2") == (envelope.event_name, envelope.producer.version)
    decision = core.propose([fact], trace_id=TRACE, amount=501, producer=GUEST)
    assert (3, "3") == (decision.decision.arbiter_version, decision.producer.version)
    core.prove()


@pytest.mark.parametrize(
    ("from_version", "to_version", "reason"),
    [
        (2, 2, error_pb2.ERROR_REASON_WRONG_STATE),
        (2, 1, error_pb2.ERROR_REASON_WRONG_STATE),
        (3, 3, error_pb2.ERROR_REASON_WRONG_STATE),
        (2, ARBITER_VERSION + 1, error_pb2.ERROR_REASON_ARBITER_VERSION_NOT_IMPLEMENTED),
    ],
)
def test_other_changes_are_refused(from_version: int, to_version: int, reason: int) -> None:
    """A bus gets a later version that the build implements, from the version that the operator expects; nothing else is recorded."""
    core, _ = bus_of_version_2()
    head = core.state.head
    assert reason == core.fault(UpgradeBus(core.new_id(), from_version, to_version, "ada", "")).reason
    assert head == core.state.head


def test_a_bus_never_goes_back() -> None:
    """After the change, a change to the version before is refused."""
    core, _ = bus_of_version_2()
    change_to_version_3(core)
    assert error_pb2.ERROR_REASON_WRONG_STATE == core.fault(UpgradeBus(core.new_id(), 3, 2, "ada", "")).reason


def test_tool_calls_are_found_by_their_execution() -> None:
    """After the change, no other trace may use the execution_id of a remembered call; a restored state has the same calls.

    Version 2 let two traces use one. The call in one of them stays.
    """
    core, _ = bus_of_version_2()
    for trace_id, number in (("b", 1), ("a", 1), ("b", 2)):
        call = ToolCall(tool_name="fraud-tool", execution_id=f"exec_{number:012x}")
        core.publish(Envelope(subject=SUBJECT, trace_id=trace_id, producer=AGENT, tool_call=call))
    change_to_version_3(core)
    first, second = (f"exec_{number:012x}" for number in (1, 2))
    assert {first: "a", second: "b"} == core.state.trace_of_execution
    assert {"a": [first], "b": [second]} == {trace_id: list(calls) for trace_id, calls in core.state.tool_calls.items()}
    assert tables(core.state) == tables(restore(core.state))
    core.prove()


def test_a_tool_result_has_one_trace() -> None:
    """After the change, of several results of one event_id only the last is remembered; a restored state has the same results."""
    core, _ = bus_of_version_2()
    event_ids = core.new_id(), core.new_id()
    for trace_id, event_id in (("a", event_ids[0]), ("b", event_ids[0]), ("b", event_ids[1]), ("a", event_ids[1])):
        result = ToolResult(tool_name="fraud-tool", content_hash=sha256_of("1"))
        core.publish(Envelope(event_id=event_id, subject=SUBJECT, trace_id=trace_id, producer=AGENT, tool_result=result))
    change_to_version_3(core)
    assert {"a": [event_ids[1]], "b": [event_ids[0]]} == {trace_id: list(results) for trace_id, results in core.state.tool_results.items()}
    assert tables(core.state) == tables(restore(core.state))


@pytest.mark.parametrize("is_paged", [False, True])
def test_evidence_of_before_is_counted(is_paged: bool) -> None:
    """Observations of before the change keep the readings of their tool result, until later ones have replaced all of them."""
    core, fact = bus_of_version_2()
    evidence, unread = core.tool_result(), core.tool_result()
    cited = core.observe("order.score", 0.1, evidence=evidence)
    core.observe("order.score", 0.9, evidence=evidence, subject="order/2")
    core.observe("k.other", 1, evidence=evidence)
    core.observe("k.other", 1, evidence=evidence, tool="other-tool")
    if is_paged:
        page_out(core.state, lambda: True)
    change_to_version_3(core)
    counts = core.state.store.tool_result_tables.candidate_counts
    assert {evidence.event_id: 4} == counts
    assert unread.event_id not in counts
    assert tables(core.state) == tables(restore(core.state))
    core.pass_time(TRACE_LAPSE_MS + 1)
    core.observe("order.score", 0.2, evidence=evidence, trace_id="other")
    assert core.state.contradiction_of(evidence.event_id)
    assert reason_codes.CONFLICTING_EVIDENCE == core.decide([fact, cited], amount=1, max_fact_age_ms=10 * TRACE_LAPSE_MS).reason_code
    later = core.tool_result("trace-2", content_hash=sha256_of("2"))
    for key, subject, tool in (
        ("order.score", SUBJECT, "fraud-tool"),
        ("order.score", "order/2", "fraud-tool"),
        ("k.other", SUBJECT, "fraud-tool"),
    ):
        core.observe(key, 0.3, evidence=later, trace_id="trace-2", subject=subject, tool=tool)
    core.prove()
