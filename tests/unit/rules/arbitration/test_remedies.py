"""Remedies of refusals: every refusal has one, and it follows from the reason code and from what the hint requires."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision, FactRequirement, Remedy, RetryHint
from gavel.v1.reason_code_pb2 import ReasonCode
from gavel_rules.arbitration.retry_hint import complete
from gavel_rules.events.arbiter_versions import SEMANTICS
from gavel_rules.reason_codes import REASON_CODES, number_of, remedies_of
from gavel_rules.state.state import State
from hypothesis import HealthCheck, given, settings

from tests.support.driver import BUS
from tests.support.histories.plays import STEPS, Step, play

REJECTED, REVIEW = decision_pb2.OUTCOME_REJECTED, decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
STALE, MISSING, NOT_ACCEPTED = (
    decision_pb2.FACT_REQUIREMENT_STATE_STALE,
    decision_pb2.FACT_REQUIREMENT_STATE_MISSING,
    decision_pb2.FACT_REQUIREMENT_STATE_SOURCE_NOT_ACCEPTED,
)


def test_the_enum_lists_the_codes_of_the_table() -> None:
    """The ReasonCode enum has exactly the codes of the table, numbered from 1; a number never changes, so new codes come last."""
    codes = ["UNSPECIFIED", *(row.code for row in REASON_CODES)]
    assert sorted(f"REASON_CODE_{code}" for code in codes) == sorted(ReasonCode.keys())
    assert [*range(len(codes))] == ReasonCode.values()


def test_every_code_has_a_remedy() -> None:
    """Each code has at least one remedy, each once, and NONE stands alone."""
    for row in REASON_CODES:
        assert row.remedies, row.code
        assert len(set(row.remedies)) == len(row.remedies), row.code
        assert decision_pb2.REMEDY_UNSPECIFIED not in row.remedies, row.code
        assert decision_pb2.REMEDY_NONE not in row.remedies[1:], row.code


def test_a_code_that_a_rule_set_may_use_is_no_enum_value() -> None:
    """A rule set's own code has no number, and its remedy is to propose something else."""
    assert ReasonCode.Value("REASON_CODE_UNSPECIFIED") == number_of("ORDER_CANCELLED")
    assert (decision_pb2.REMEDY_REVISE_PARAMS,) == remedies_of("ORDER_CANCELLED")


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (Decision(outcome=REJECTED, reason_code="NEED_MORE_FACTS", retry_hint=RetryHint(fact_requirements=rows)), expected)
        for rows, expected in (
            ([FactRequirement(state=MISSING)], ["FETCH_EVIDENCE"]),
            ([FactRequirement(state=NOT_ACCEPTED)], ["REFRESH_EVIDENCE"]),
            ([FactRequirement(state=STALE), FactRequirement(state=MISSING)], ["FETCH_EVIDENCE", "REFRESH_EVIDENCE"]),
        )
    ],
)
def test_requirements_refine_remedies(decision: Decision, expected: list[str]) -> None:
    """Evidence is to be fetched if some is missing, and to be refreshed if some is defective."""
    assert expected == _complete(decision)


def test_terminal_refusals_have_no_remedy() -> None:
    """The only remedy of a terminal refusal is NONE."""
    assert ["NONE"] == _complete(Decision(outcome=REJECTED, reason_code="NO_RULE_MATCHED", terminal=True))


def test_reviews_ask_a_person() -> None:
    """A rule that asks for a person has that remedy alone; a failed approval of a person also names the evidence."""
    assert ["ASK_PERSON"] == _complete(Decision(outcome=REVIEW, reason_code="LARGE_AMOUNT"))
    stale = RetryHint(fact_requirements=[FactRequirement(state=STALE)])
    assert ["REFRESH_EVIDENCE", "ASK_PERSON"] == _complete(Decision(outcome=REVIEW, reason_code="STALE_FACTS", retry_hint=stale))


def test_version_2_has_no_remedies() -> None:
    """A bus of arbiter version 2 records refusals as before."""
    state = State(BUS)
    state.store.semantics = SEMANTICS[2]
    decision = Decision(outcome=REJECTED, reason_code="NO_RULE_MATCHED")
    complete(decision, state)
    assert Decision(outcome=REJECTED, reason_code="NO_RULE_MATCHED") == decision


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(STEPS)
def test_every_refusal_of_every_log_has_a_remedy(steps: Sequence[Step]) -> None:
    """In any log, exactly the refusals have remedies and a reason, the reason is that of the code, and effects are enum values."""
    for envelope in play(steps).events:
        if envelope.HasField("decision"):
            decision = envelope.decision
            is_refusal = decision.outcome != decision_pb2.OUTCOME_APPROVED
            assert is_refusal == bool(decision.retry_hint.remedy), decision
            assert decision.reason == (number_of(decision.reason_code) if is_refusal else 0), decision
            assert all(match.effect and not match.effect_text for match in decision.rule_matches), decision


def _complete(decision: Decision) -> list[str]:
    complete(decision, State(BUS))
    return [Remedy.Name(remedy).removeprefix("REMEDY_") for remedy in decision.retry_hint.remedy]
