"""Refunds that are half done and compensated, on a bus driven by hand."""

from __future__ import annotations

from typing import Any

from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.values import python_to_value

from tests.support.driver import EXECUTOR, PARTIAL, RULES, SUBJECT, Core, document

UNDO = "refund.reverse"
COMPENSATION = {"action": UNDO, "params": {"amount": "execution.result.refunded", "steps": "execution.completed_steps"}}
TAKEOVER_MS = 7_000
UNDO_PART: dict[str, Any] = {
    "params": {
        "type": "object",
        "required": ["amount"],
        "additionalProperties": False,
        "properties": {"amount": {"type": "number", "exclusiveMinimum": 0}, "steps": {"type": "array"}},
    },
    "retry": {"max_attempts": 3},
}
UNDO_RULE = {"id": "undo", "action": UNDO, "when": "true", "effect": "approve"}


def bus_with_compensation(
    compensation: dict[str, Any] | None = None, *, declared: bool = True, takeover_ms: int = TAKEOVER_MS, **changes: Any
) -> str:
    """Return the default rule set with a compensation. It declares the compensating action too, unless told otherwise."""
    undo = {**UNDO_PART, "retry": {**UNDO_PART["retry"], "human_takeover_after_ms": takeover_ms}}
    more: dict[str, Any] = {"more_actions": {UNDO: undo}, "rules": [*RULES, UNDO_RULE]} if declared else {}
    return document(compensation=compensation or COMPENSATION, **more, **changes)


def report_partial(core: Core, refunded: object = 20, producer: Producer = EXECUTOR, **changes: Any) -> Envelope:
    """Approve a refund and report it PARTIAL; return the report."""
    result = python_to_value({"refunded": refunded}).struct_value
    return core.report(core.start(core.approve(**changes), producer), PARTIAL, producer, result=result, completed_steps=["one"])


def compensation_of(core: Core, report: Envelope) -> Envelope:
    """Return the compensation that was decided right after a report."""
    event = core.by_id[report.event_id]
    decision = core.events[event.sequence_number]
    assert report.execution.decision_id == decision.decision.compensates_decision_id, decision
    return decision


def holder(core: Core) -> str:
    """Return the decision that holds the conflict key of the default subject."""
    return core.state.conflict_keys.get(SUBJECT, "")
