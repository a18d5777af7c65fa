"""The answers of a gate after which the tool must not run: Refused, Pending and Finished.

`message()` is the text for the language model in place of the tool's output. `succeeded` is whether the call was a success.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gavel.v1.decision_pb2 import OUTCOME_APPROVED, RetryHint
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import EXECUTION_STATUS_ABORTED, EXECUTION_STATUS_SUCCESS, ExecutionStatus

from gavel_client.decisions import explain
from gavel_client.gate.results import output_of

# Begins the message of a Pending.
WAITS = "The tool was not called yet: decision "
# The refusals of a start that end an approval: no attempt has begun, and none will (docs/arbitration.md).
_LAPSES = frozenset({"EXPIRED", "STALE_FACT", "FACT_SUPERSEDED"})


@dataclass(frozen=True)
class Refused:
    """The tool must not run.

    `reason` is the decision's reason code, that of a refused start, or the gate's own: UNKNOWN_TOOL, CALL_INVALID, CALL_DIFFERS, DEADLINE,
    or the name of a StopReason. `decision` is the decision that refuses the call; None: the gate refuses it by itself.
    """

    reason: str
    detail: str
    decision: Envelope | None = None

    @property
    def hint(self) -> RetryHint | None:
        """The retry hint of the decision; None without a decision."""
        return None if self.decision is None else self.decision.decision.retry_hint

    @property
    def succeeded(self) -> bool:
        """False."""
        return False

    @property
    def lapsed_decision_id(self) -> str:
        """The approval that ended before an attempt began; "": none did."""
        decision = self.decision
        is_lapsed = decision is not None and decision.decision.outcome == OUTCOME_APPROVED and self.reason in _LAPSES
        return decision.event_id if decision is not None and is_lapsed else ""

    def message(self) -> str:
        """Return why the tool did not run, and what can help."""
        lines = [f"The tool was not called: {self.detail}."]
        return "\n".join(lines if self.decision is None else [*lines, explain(self.decision)])


@dataclass(frozen=True)
class Pending:
    """The tool must wait: for a person, or for another attempt of the same call. Ask the gate again later."""

    decision_id: str
    reason: str
    decision: Envelope | None = None

    @property
    def succeeded(self) -> bool:
        """False."""
        return False

    def message(self) -> str:
        """Return what the call waits for."""
        lines = [f"{WAITS}{self.decision_id} is open ({self.reason})."]
        return "\n".join(lines if self.decision is None else [*lines, explain(self.decision)])

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON values, e.g. for an interrupt of a graph."""
        return {"decision_id": self.decision_id, "reason": self.reason, "message": self.message()}


@dataclass(frozen=True)
class Finished:
    """The call has been carried out before, has failed, or its approval has lapsed: `report` is the EXECUTION that ended it.

    The tool must not run again for this decision.
    """

    report: Envelope

    @property
    def succeeded(self) -> bool:
        """Whether the action succeeded."""
        return self.report.execution.status == EXECUTION_STATUS_SUCCESS

    @property
    def output(self) -> Any:
        """The tool's output as the report holds it; None if it holds none."""
        return output_of(self.report.execution)

    @property
    def lapsed_decision_id(self) -> str:
        """The approval that ended before an attempt began; "": an attempt did begin."""
        execution = self.report.execution
        return execution.decision_id if execution.status == EXECUTION_STATUS_ABORTED and not execution.attempt else ""

    def message(self) -> str:
        """Return the output, or how the call ended."""
        output, execution = self.output, self.report.execution
        if self.succeeded and output is not None:
            return output if isinstance(output, str) else json.dumps(output)
        status = ExecutionStatus.Name(execution.status).removeprefix("EXECUTION_STATUS_")
        error = f" {execution.error.code} {execution.error.message}".rstrip()
        if self.lapsed_decision_id:
            return f"The tool was not called: decision {execution.decision_id} ended before it began:{error}."
        reason = f" {execution.reason_code}".rstrip()
        return f"The tool was called before, for decision {execution.decision_id}, and is not called again: {status}{reason}{error}."
