"""The table of reason codes: it is complete, and its stages are those that arbitration walks."""

from __future__ import annotations

from gavel_rules import reason_codes
from gavel_rules.arbitration.stages import REREAD_STAGES, STAGES
from gavel_rules.reason_codes import REASON_CODES, Arms, Bearer


def test_every_constant_has_one_row() -> None:
    """Each reason code of the module has exactly one row, and its constant has its name."""
    constants = sorted(name for name, value in vars(reason_codes).items() if name.isupper() and name == value)
    assert constants == sorted(row.code for row in REASON_CODES)


def test_stages_are_in_order() -> None:
    """Stages are walked by number, and the table lists its codes in the same order."""
    numbers = [stage.number for stage in STAGES]
    assert numbers == sorted(numbers)
    of_codes = [row.stage for row in REASON_CODES if row.stage is not None]
    assert of_codes == sorted(of_codes)


def test_every_stage_has_its_codes() -> None:
    """Each stage has a function and a code, except for 17, which keeps the code of 16."""
    assert {stage.number for stage in STAGES} - {17} == {row.stage for row in REASON_CODES if row.stage is not None}


def test_a_reread_walks_the_stages_of_evidence_and_conflict() -> None:
    """A person's approval is checked for subjects (4), citations, contradictions, evidence and the conflict key."""
    assert [4, 6, 9, 10, 10, 11, 12, 15] == [stage.number for stage in REREAD_STAGES]


def test_only_counting_codes_have_a_class() -> None:
    """A refusal counts if and only if it has a class and requires no review."""
    for row in REASON_CODES:
        counts = row.refusal_class is not None and Arms.TRACE_REVIEW not in row.arms
        assert counts == (Arms.COUNT in row.arms), row.code


def test_calls_for_a_person_are_not_retryable() -> None:
    """A first decision that requests a human review is not retryable."""
    reviews = [row for row in REASON_CODES if row.bearer is Bearer.FIRST_DECISION and Arms.TRACE_REVIEW in row.arms]
    assert [False] * 3 == [row.retryable for row in reviews]
