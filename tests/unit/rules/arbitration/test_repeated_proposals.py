"""DUPLICATE_PROPOSAL: a trace repeats its last refused proposal (constitution §6.3)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.common_pb2 import EventReference, VersionBinding
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.proposal_pb2 import Proposal
from gavel_rules import reason_codes
from gavel_rules.events.fingerprint import fingerprint
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.limits import TRACE_LAPSE_MS
from hypothesis import given
from hypothesis import strategies as st

from tests.support.driver import PARAMS, Core, document

RULES: list[dict[str, Any]] = [
    {"id": "much", "when": "params.amount > 100.0", "effect": "reject", "reason_code": "TOO_MUCH"},
    {"id": "rest", "when": "facts.status == 'delivered'", "effect": "approve"},
]


@pytest.fixture
def core() -> Core:
    """A bus whose action has a limit on the amount."""
    return Core(document(rules=RULES))


def reason_code_above_limit(core: Core, status: Envelope, **changes: Any) -> str:
    """Return the reason code of a proposal whose amount is too large."""
    return core.decide([status], **{"amount": 500, **changes}).reason_code


def test_repeated_proposal_is_a_duplicate(core: Core) -> None:
    """A repetition is DUPLICATE_PROPOSAL whatever its estimates, and so is a second repetition."""
    status = core.fact("order.status", "delivered")
    codes = [
        reason_code_above_limit(core, status),
        reason_code_above_limit(core, status),
        reason_code_above_limit(core, status, risk=0.9, priority=7, expected_outcome="please"),
    ]
    assert ["TOO_MUCH", reason_codes.DUPLICATE_PROPOSAL, reason_codes.DUPLICATE_PROPOSAL] == codes
    core.prove()


def test_changes_that_make_another_proposal(core: Core) -> None:
    """A proposal with another amount, subject, trace or citation is no repetition; one with another order of citations is."""
    status = core.fact("order.status", "delivered")
    core.fact("order.status", "delivered", subject="order/2")
    note = core.fact("k.note", "x")
    assert "TOO_MUCH" == reason_code_above_limit(core, status)
    assert "TOO_MUCH" == reason_code_above_limit(core, status, amount=501)
    assert reason_codes.NEED_MORE_FACTS == core.decide([core.fact("k.note", "x", subject="order/3")], subject="order/3").reason_code
    assert "TOO_MUCH" == reason_code_above_limit(core, status, trace_id="trace-2")
    assert "TOO_MUCH" == core.decide([status, note], amount=500).reason_code
    assert reason_codes.DUPLICATE_PROPOSAL == core.decide([note, status], amount=500).reason_code
    core.prove()


def test_only_the_last_refusal_counts(core: Core) -> None:
    """Only the last refused proposal of a trace counts as repeated."""
    status = core.fact("order.status", "delivered")
    assert ["TOO_MUCH"] * 3 == [reason_code_above_limit(core, status, amount=amount) for amount in (500, 600, 500)]
    core.prove()


def test_uncited_evidence_does_not_help(core: Core) -> None:
    """A proposal refused for lack of a fact has to cite the evidence published since (constitution §5.6)."""
    note = core.fact("k.note", "x")
    assert reason_codes.NEED_MORE_FACTS == core.decide([note]).reason_code
    status = core.fact("order.status", "delivered")
    assert reason_codes.DUPLICATE_PROPOSAL == core.decide([note]).reason_code
    assert decision_pb2.OUTCOME_APPROVED == core.decide([note, status]).outcome
    core.prove()


def test_missing_evidence_is_named_before_repetition(core: Core) -> None:
    """While evidence is missing, a repetition is refused for the missing evidence."""
    note = core.fact("k.note", "x")
    assert [reason_codes.NEED_MORE_FACTS] * 3 == [core.decide([note]).reason_code for _ in range(3)]


def test_proposal_may_be_repeated_after_a_conflict(core: Core) -> None:
    """A proposal refused for a conflict may be repeated once the key is free."""
    approved = core.approve(trace_id="rival")
    status = core.by_id[approved.decision.pinned_facts[0].event_id]
    assert [reason_codes.CONFLICTING_DECISION] * 2 == [core.decide([status]).reason_code for _ in range(2)]
    core.pass_time(10_000)
    assert decision_pb2.OUTCOME_APPROVED == core.decide([status]).outcome
    core.prove()


def test_proposal_may_be_repeated_after_a_refusal_before_the_rules() -> None:
    """A proposal refused before the rules may be repeated once its versions, rule set or schema fit."""
    core = Core(document(action_type="refund.reverse"))
    status = core.fact("order.status", "delivered")
    assert reason_codes.NO_ACTIVE_POLICY == core.decide([status]).reason_code
    core.activate(document(rules=RULES, rule_set="team", versions={"planner_version": "7"}))
    assert [reason_codes.VERSION_MISMATCH] * 2 == [core.decide([status]).reason_code for _ in range(2)]
    seven = VersionBinding(planner_version="7")
    extra = {"amount": 50, "extra": 1}
    assert reason_codes.INVALID_PARAMS == core.decide([status], params=extra, version_binding=seven).reason_code
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


def test_versions_do_not_make_another_proposal(core: Core) -> None:
    """A repetition of what rules refused is a duplicate whatever its versions, even after one with wrong versions."""
    core.activate(document(rules=RULES, version=2, versions={"planner_version": ["7", "8"]}))
    status = core.fact("order.status", "delivered")
    codes = [
        reason_code_above_limit(core, status, version_binding=VersionBinding(planner_version=version)) for version in ("7", "6", "7", "8")
    ]
    assert ["TOO_MUCH", reason_codes.VERSION_MISMATCH, reason_codes.DUPLICATE_PROPOSAL, reason_codes.DUPLICATE_PROPOSAL] == codes
    core.prove()


@pytest.mark.parametrize("forgets", ["approval", "silence"])
def test_last_refusal_lapses(core: Core, forgets: str) -> None:
    """After an approval, or a day of silence, the trace may repeat a proposal that was refused."""
    status = core.fact("order.status", "delivered")
    assert "TOO_MUCH" == reason_code_above_limit(core, status)
    if forgets == "approval":
        assert decision_pb2.OUTCOME_APPROVED == core.decide([status]).outcome
        core.pass_time(10_000)
    else:
        core.pass_time(TRACE_LAPSE_MS + 1)
        core.fact("order.status", "delivered")
    assert reason_codes.DUPLICATE_PROPOSAL != reason_code_above_limit(core, status)
    core.prove()


TEXTS = st.text("1 é\n", max_size=3)
SAID = st.tuples(TEXTS, TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=2), st.lists(st.tuples(st.integers(-1, 11), TEXTS), max_size=3))


@given(SAID, SAID)
def test_equality_of_fingerprints(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    """Fingerprints are equal if and only if action, subject, params and the set of citations are equal, whatever their contents."""

    def proposed(content: tuple[Any, ...]) -> ProposalView:
        action_type, subject, params, cited = content
        envelope = Envelope(subject=subject)
        envelope.proposal.action_type = action_type
        envelope.proposal.params.update(params)
        envelope.proposal.based_on_events.extend(EventReference(sequence_number=number, event_id=event_id) for number, event_id in cited)
        return ProposalView(envelope)

    is_equal = (*one[:3], set(one[3])) == (*other[:3], set(other[3]))
    assert is_equal == (fingerprint(proposed(one)) == fingerprint(proposed(other)))
    assert fingerprint(proposed(one)) == fingerprint(proposed((*one[:3], [*reversed(one[3]), *one[3]])))


@pytest.mark.parametrize(("one", "other"), [(("1", "1"), ("11", "")), (("", "11"), ("1", "1")), (("1 1", ""), ("1", "1 "))])
def test_fingerprints_depend_on_the_bounds_of_texts(one: tuple[str, str], other: tuple[str, str]) -> None:
    """Texts with equal concatenations but different bounds have different fingerprints."""
    envelopes = [Envelope(subject=subject, proposal=Proposal(action_type=action_type)) for action_type, subject in (one, other)]
    assert fingerprint(ProposalView(envelopes[0])) != fingerprint(ProposalView(envelopes[1]))
