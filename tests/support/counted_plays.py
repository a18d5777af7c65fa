"""Histories of a bus with counters of every kind, played step by step on the core and compared with a recount of the log."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

from gavel.v1 import execution_pb2, fact_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import EventAnswer, LeasedAttempt
from gavel_rules.values import python_to_value
from google.protobuf.struct_pb2 import Struct

from tests.support.driver import Core, document
from tests.support.recount import recount

WINDOW_MS = 60_000
CUSTOMERS = ("ann", "bob")
ACTION = "refund.create"
UNDO = "refund.reverse"
COUNTERS: dict[str, dict[str, Any]] = {
    "approved": {"of": "approvals", "sum": "params.amount"},
    "reserved": {"of": "approvals", "sum": "params.amount", "keep": "reserved"},
    "settled": {
        "of": "approvals",
        "sum": "params.amount",
        "keep": "reserved",
        "settle": "has(execution.result.refunded) ? double(execution.result.refunded) : params.amount",
    },
    "undone": {"of": "approvals", "action": UNDO, "sum": "params.amount"},
    "moved": {"of": "approvals", "action": [ACTION, UNDO], "sum": "params.amount", "keep": "reserved"},
    "proposed": {"of": "proposals"},
    "rejected": {"of": "rejections", "max": "params.amount"},
    "smallest": {"of": "approvals", "min": "params.amount"},
    "latest": {"of": "proposals", "last": "params.amount"},
    "different": {"of": "proposals", "distinct": "string(params.amount)"},
}
SMALL = {"id": "large", "when": "params.amount > 50.0", "effect": "reject", "reason_code": "LARGE"}
STATUSES = [
    execution_pb2.EXECUTION_STATUS_SUCCESS,
    execution_pb2.EXECUTION_STATUS_FAILED,
    execution_pb2.EXECUTION_STATUS_ABORTED,
    execution_pb2.EXECUTION_STATUS_PARTIAL,
]
VERDICTS = [fact_pb2.REVIEW_VERDICT_APPROVE, fact_pb2.REVIEW_VERDICT_REJECT]

PARAMS: dict[str, Any] = {
    "type": "object",
    "required": ["amount", "customer_id"],
    "properties": {"amount": {"type": "number"}, "customer_id": {"type": "string", "maxLength": 40}},
}
FACTS: dict[str, Any] = {"status": {"key": "order.status", "type": "string", "max_age_ms": 864_000_000}}
OK = {"id": "ok", "when": 'facts.status == "delivered"', "effect": "approve"}
# A refund that is reported PARTIAL is undone by a compensation, which counts for the same customer.
COMPENSATION = {"action": UNDO, "params": {"amount": "execution.result.refunded", "customer_id": "params.customer_id"}}
SETTINGS: dict[str, Any] = {
    "params": PARAMS,
    "decision_ttl_ms": 5_000,
    "compensation": COMPENSATION,
    "more_actions": {UNDO: {"params": PARAMS, "retry": {"max_attempts": 3}}},
}
UNDO_RULE = {"id": "undo", "action": UNDO, "when": "true", "effect": "approve"}

Step = tuple[str, Any, Any]
AMOUNTS = (0.1, 7.25, 30.0, 51.0)
PAUSES_MS = (1, 4_999, WINDOW_MS // 2, WINDOW_MS - 1, WINDOW_MS)


def rule_set(version: int) -> str:
    """Return a rule set with all counters, which its rules read so that they are in force."""
    common = {"action": ACTION, "by": "params.customer_id", "window_ms": WINDOW_MS}
    counters = {name: {**common, **counter} for name, counter in COUNTERS.items()}
    reads = " || ".join(f"history.{name}(params.customer_id) < {'0' if name in ('proposed', 'different') else '0.0'}" for name in COUNTERS)
    never = {"id": "never", "when": reads, "effect": "reject", "reason_code": "NEVER"}
    text = document(FACTS, [never, SMALL, OK, UNDO_RULE], version=version, **SETTINGS)
    return json.dumps({**json.loads(text), "gavel": "v2", "counters": counters})


# Both versions have the same counters, and `without` has none: what activates them again has to fill them.
WITH = (rule_set(1), rule_set(3))
WITHOUT = document(FACTS, [SMALL, OK, UNDO_RULE], version=2, **SETTINGS)


def play(core: Core, step: Step, number: int) -> None:
    """Carry out one step. Steps about decisions choose one by its place; one that the core refuses changes nothing."""
    kind, first, second = step
    approvals = core.events_named("DecisionApproved")
    match kind:
        case "propose":
            subject = f"order/{number}"
            fact = core.fact("order.status", "delivered", subject=subject)
            params = {"amount": second, "customer_id": first}
            core.decide([fact], subject=subject, trace_id=f"trace-{number}", params=params, max_fact_age_ms=10 * WINDOW_MS)
        case "report" if approvals:
            report(core, approvals[first % len(approvals)], second, AMOUNTS[number % len(AMOUNTS)])
        case "undo" if compensations := [one for one in approvals if one.decision.compensates_decision_id]:
            report(core, compensations[first % len(compensations)], second, AMOUNTS[number % len(AMOUNTS)])
        case "start" if approvals:
            core.begin(approvals[first % len(approvals)])
        case "late" if starts := core.events_named("ExecutionStarted"):
            answer = core.run(core.report_command(starts[first % len(starts)], second, result=refund(AMOUNTS[number % len(AMOUNTS)])))
            if isinstance(answer, EventAnswer) and answer.envelope.HasField("execution"):
                core.derive(answer.envelope)
        case "resolve" if reviews := [*core.state.reviews]:
            core.run(core.resolution(core.by_id[reviews[first % len(reviews)]], second))
        case "revoke" if approvals:
            core.run(core.revocation(approvals[first % len(approvals)]))
        case "pass":
            core.tick(first)
        case "reactivate":
            core.activate(WITHOUT)
            core.activate(WITH[first])


def report(core: Core, approval: Envelope, status: execution_pb2.ExecutionStatus.ValueType, refunded: float) -> None:
    """Carry out an approval, unless the core lets nobody begin. A report of partial work states what was refunded."""
    answer = core.begin(approval)
    if isinstance(answer, LeasedAttempt):
        result = refund(refunded) if status == execution_pb2.EXECUTION_STATUS_PARTIAL else Struct()
        core.derive(core.report(answer.envelope, status, result=result))


def refund(amount: float) -> Struct:
    """Return the result of an execution that refunded an amount."""
    return python_to_value({"refunded": amount}).struct_value


def compare(core: Core) -> None:
    """Compare every counter in every group with the recount."""
    for table in core.state.counters.values():
        counter = {"action": ACTION, **COUNTERS[table.counter.name], "window_ms": WINDOW_MS}
        for customer in CUSTOMERS:
            reading = table.read(customer, core.now_ms)
            assert reading is not None
            expected = recount(core.events, counter, customer, core.now_ms)
            assert expected == Fraction(str(reading.value)), (table.counter.name, customer)
