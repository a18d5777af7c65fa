"""DUPLICATE_PROPOSAL: a trace that proposes again exactly what it was refused has learnt nothing (seeds 002 §6.3)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.common_pb2 import EventReference, VersionBinding
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.proposal_pb2 import Proposal
from gavel_rules import reasons
from gavel_rules.fingerprint import fingerprint
from gavel_rules.limits import TRACE_LAPSE_MS
from gavel_rules.proposed import Proposed
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.driver import PARAMS, Core, document

RULES: list[dict[str, Any]] = [
    {"id": "much", "when": "params.amount > 100.0", "effect": "reject", "reason_code": "TOO_MUCH"},
    {"id": "rest", "when": "facts.status == 'delivered'", "effect": "approve"},
]


@pytest.fixture
def core() -> Core:
    """A bus whose action has a limit on the amount."""
    return Core(document(rules=RULES))


def refused(core: Core, status: Envelope, **changes: Any) -> str:
    """The reason code of a proposal of too much."""
    return core.decide([status], **{"amount": 500, **changes}).reason_code


def test_the_same_again_is_refused_as_such(core: Core) -> None:
    """The second time is DUPLICATE_PROPOSAL, whatever the agent thinks of risk and urgency now; so is the third."""
    status = core.fact("order.status", "delivered")
    codes = [refused(core, status), refused(core, status), refused(core, status, risk=0.9, priority=7, expected_outcome="please")]
    assert ["TOO_MUCH", reasons.DUPLICATE_PROPOSAL, reasons.DUPLICATE_PROPOSAL] == codes
    core.prove()


def test_what_makes_another_proposal(core: Core) -> None:
    """Another amount, subject, trace or citation is another proposal; the order of citations is not."""
    status = core.fact("order.status", "delivered")
    core.fact("order.status", "delivered", subject="order/2")
    note = core.fact("k.note", "x")
    assert "TOO_MUCH" == refused(core, status)
    assert "TOO_MUCH" == refused(core, status, amount=501)
    assert reasons.NEED_MORE_FACTS == core.decide([core.fact("k.note", "x", subject="order/3")], subject="order/3").reason_code
    assert "TOO_MUCH" == refused(core, status, trace_id="trace-2")
    assert "TOO_MUCH" == core.decide([status, note], amount=500).reason_code
    assert reasons.DUPLICATE_PROPOSAL == core.decide([note, status], amount=500).reason_code
    core.prove()


def test_only_the_last_refusal_counts(core: Core) -> None:
    """What was refused before the last refusal may be proposed again."""
    status = core.fact("order.status", "delivered")
    assert ["TOO_MUCH"] * 3 == [refused(core, status, amount=amount) for amount in (500, 600, 500)]
    core.prove()


def test_evidence_that_came_uncited_does_not_help(core: Core) -> None:
    """A proposal refused for lack of a fact has to cite what has come since (seeds 002 §5.6)."""
    note = core.fact("k.note", "x")
    assert reasons.NEED_MORE_FACTS == core.decide([note]).reason_code
    status = core.fact("order.status", "delivered")
    assert reasons.DUPLICATE_PROPOSAL == core.decide([note]).reason_code
    assert decision_pb2.OUTCOME_APPROVED == core.decide([note, status]).outcome
    core.prove()


def test_missing_evidence_is_named_before_repetition(core: Core) -> None:
    """While evidence lacks, that is the answer, as often as it is asked."""
    note = core.fact("k.note", "x")
    assert [reasons.NEED_MORE_FACTS] * 3 == [core.decide([note]).reason_code for _ in range(3)]


def test_a_conflict_may_be_tried_again(core: Core) -> None:
    """A refusal because of others says nothing about the proposal: the same is decided anew when the key is free."""
    approved = core.approve(trace_id="rival")
    status = core.by_id[approved.decision.pinned_facts[0].event_id]
    assert [reasons.CONFLICTING_DECISION] * 2 == [core.decide([status]).reason_code for _ in range(2)]
    core.pass_time(10_000)
    assert decision_pb2.OUTCOME_APPROVED == core.decide([status]).outcome
    core.prove()


def test_what_was_not_judged_may_be_proposed_again() -> None:
    """Who mends the versions, or comes back when a rule set governs or takes the params, did what he was told, and is judged."""
    core = Core(document(action_type="refund.reverse"))
    status = core.fact("order.status", "delivered")
    assert reasons.NO_ACTIVE_POLICY == core.decide([status]).reason_code
    core.activate(document(rules=RULES, rule_set="team", versions={"planner_version": "7"}))
    assert [reasons.VERSION_MISMATCH] * 2 == [core.decide([status]).reason_code for _ in range(2)]
    seven = VersionBinding(planner_version="7")
    extra = {"amount": 50, "extra": 1}
    assert reasons.INVALID_PARAMS == core.decide([status], params=extra, version_binding=seven).reason_code
    core.activate(
        document(
            rules=RULES,
            rule_set="team",
            version=2,
            versions={"planner_version": "7"},
            params={"type": "object", "properties": PARAMS["properties"], "required": ["amount"]},
        )
    )
    assert decision_pb2.OUTCOME_APPROVED == core.decide([status], params=extra, version_binding=seven).outcome
    core.prove()


def test_versions_make_no_other_proposal(core: Core) -> None:
    """What the rules have refused is refused as a repetition whatever versions it names, also after a try with wrong ones."""
    core.activate(document(rules=RULES, version=2, versions={"planner_version": ["7", "8"]}))
    status = core.fact("order.status", "delivered")
    codes = [refused(core, status, version_binding=VersionBinding(planner_version=version)) for version in ("7", "6", "7", "8")]
    assert ["TOO_MUCH", reasons.VERSION_MISMATCH, reasons.DUPLICATE_PROPOSAL, reasons.DUPLICATE_PROPOSAL] == codes
    core.prove()


@pytest.mark.parametrize("forgets", ["approval", "silence"])
def test_what_makes_a_trace_forget(core: Core, forgets: str) -> None:
    """After an approval, or a day of silence, the trace may propose what it was refused before."""
    status = core.fact("order.status", "delivered")
    assert "TOO_MUCH" == refused(core, status)
    if forgets == "approval":
        assert decision_pb2.OUTCOME_APPROVED == core.decide([status]).outcome
        core.pass_time(10_000)
    else:
        core.pass_time(TRACE_LAPSE_MS + 1)
        core.fact("order.status", "delivered")
    assert reasons.DUPLICATE_PROPOSAL != refused(core, status)
    core.prove()


TEXTS = st.text("1 é\n", max_size=3)
SAID = st.tuples(TEXTS, TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=2), st.lists(st.tuples(st.integers(-1, 11), TEXTS), max_size=3))


@given(SAID, SAID)
def test_what_makes_a_proposal_another(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    """Fingerprints are equal if action, subject, params and the set of what is cited are, and only then, whatever these hold."""

    def proposed(said: tuple[Any, ...]) -> Proposed:
        action_type, subject, params, cited = said
        envelope = Envelope(subject=subject)
        envelope.proposal.action_type = action_type
        envelope.proposal.params.update(params)
        envelope.proposal.based_on_events.extend(EventReference(sequence_number=number, event_id=event_id) for number, event_id in cited)
        return Proposed(envelope)

    same = (*one[:3], set(one[3])) == (*other[:3], set(other[3]))
    assert same == (fingerprint(proposed(one)) == fingerprint(proposed(other)))
    assert fingerprint(proposed(one)) == fingerprint(proposed((*one[:3], [*reversed(one[3]), *one[3]])))


@pytest.mark.parametrize(("one", "other"), [(("1", "1"), ("11", "")), (("", "11"), ("1", "1")), (("1 1", ""), ("1", "1 "))])
def test_where_texts_end_is_known(one: tuple[str, str], other: tuple[str, str]) -> None:
    """Texts that read the same behind one another are not the same if they end elsewhere."""
    envelopes = [Envelope(subject=subject, proposal=Proposal(action_type=action_type)) for action_type, subject in (one, other)]
    assert fingerprint(Proposed(envelopes[0])) != fingerprint(Proposed(envelopes[1]))
