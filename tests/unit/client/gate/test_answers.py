"""The answers after which a tool must not run."""

from __future__ import annotations

import pytest
from gavel.v1.decision_pb2 import OUTCOME_APPROVED, OUTCOME_REJECTED, Decision, Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import EXECUTION_STATUS_ABORTED, EXECUTION_STATUS_FAILED, Execution, ExecutionError, ExecutionStatus
from gavel_client.gate import Finished, Refused


@pytest.mark.parametrize(
    ("outcome", "reason", "decision_id"),
    [
        (OUTCOME_APPROVED, "EXPIRED", "decision-1"),
        (OUTCOME_APPROVED, "STALE_FACT", "decision-1"),
        (OUTCOME_APPROVED, "FACT_SUPERSEDED", "decision-1"),
        (OUTCOME_APPROVED, "KEY_HELD", ""),
        (OUTCOME_REJECTED, "FACT_SUPERSEDED", ""),
    ],
)
def test_a_refused_start_may_end_an_approval(outcome: Outcome.ValueType, reason: str, decision_id: str) -> None:
    """A refusal tells the approval that it ends; another refusal, and that of a proposal, ends none."""
    decision = Envelope(event_id="decision-1", decision=Decision(outcome=outcome))
    assert decision_id == Refused(reason, "no", decision).lapsed_decision_id
    assert "" == Refused(reason, "no").lapsed_decision_id


@pytest.mark.parametrize(
    ("status", "attempt", "decision_id", "message"),
    [
        (EXECUTION_STATUS_ABORTED, 0, "decision-1", "The tool was not called: decision decision-1 ended before it began: GONE away."),
        (
            EXECUTION_STATUS_ABORTED,
            1,
            "",
            "The tool was called before, for decision decision-1, and is not called again: ABORTED GONE away.",
        ),
        (
            EXECUTION_STATUS_FAILED,
            1,
            "",
            "The tool was called before, for decision decision-1, and is not called again: FAILED GONE away.",
        ),
    ],
)
def test_an_end_tells_whether_the_tool_was_called(status: ExecutionStatus.ValueType, attempt: int, decision_id: str, message: str) -> None:
    """An approval that lapsed before an attempt is not told as a call; an attempt, whatever became of it, is."""
    error = ExecutionError(code="GONE", message="away")
    report = Envelope(execution=Execution(decision_id="decision-1", status=status, attempt=attempt, error=error))
    assert (decision_id, message) == (Finished(report).lapsed_decision_id, Finished(report).message())
