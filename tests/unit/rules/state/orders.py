"""A bus with a budget: rule sets with one counter of refunds, `spent`, and orders of which each has one proposal."""

from __future__ import annotations

import json
from typing import Any

from gavel.v1 import execution_pb2
from gavel.v1.decision_pb2 import Decision
from gavel_rules.commands import SubmitProposal
from gavel_rules.events.arbiter_versions import ARBITER_VERSION
from gavel_rules.preflight import preflight as dry_run
from gavel_rules.values import python_to_value
from google.protobuf.struct_pb2 import Struct

from tests.support.counted_plays import FACTS, OK, PARAMS
from tests.support.driver import Core, document

DAY_MS = 86_400_000
SUCCESS = execution_pb2.EXECUTION_STATUS_SUCCESS
FAILED = execution_pb2.EXECUTION_STATUS_FAILED
PARTIAL = execution_pb2.EXECUTION_STATUS_PARTIAL

BUDGET: dict[str, Any] = {
    "of": "approvals",
    "action": "refund.create",
    "by": "params.customer_id",
    "sum": "params.amount",
    "window_ms": DAY_MS,
}
RESERVED: dict[str, Any] = {**BUDGET, "keep": "reserved"}
SETTLED: dict[str, Any] = {**RESERVED, "settle": "double(execution.result.refunded)"}
OVER = {
    "id": "over-budget",
    "when": "history.spent(params.customer_id) + params.amount > 1000.0",
    "effect": "reject",
    "reason_code": "DAILY_BUDGET",
}
# Rules that read the counter, and refuse no proposal of these tests.
READ_OF_CUSTOMER = {**OVER, "when": "history.spent(params.customer_id) < 0.0"}
READ_OF_ALL = {**OVER, "when": "history.spent() > 1000"}


def budget_rules(counter: dict[str, Any] = RESERVED, *, over: dict[str, Any] = OVER, version: int = 1, **changes: Any) -> str:
    """Return a rule set of the second version with the counter `spent`."""
    text = document(FACTS, [over, OK], params=PARAMS, version=version, conflict_key='"order/" + string(now)', **changes)
    data = json.loads(text)
    for action in data["actions"].values():
        action["conflict_key"] = "subject"
    return json.dumps({**data, "gavel": "v2", "counters": {"spent": counter}})


class Orders:
    """A bus with the budget in force, on which each proposal is about an order of its own."""

    def __init__(self, text: str | None = None, *, arbiter_version: int = ARBITER_VERSION) -> None:
        self.core = Core(text if text is not None else budget_rules(), arbiter_version=arbiter_version)
        self._orders = 0

    def propose(self, amount: float, customer_id: str = "ann") -> Decision:
        """Propose a refund of a delivered order, and return the decision."""
        self._orders += 1
        subject = f"order/{self._orders}"
        status = self.core.fact("order.status", "delivered", subject=subject)
        params = python_to_value({"amount": amount, "customer_id": customer_id}).struct_value
        trace_id = f"trace-{self._orders}"
        return self.core.decide([status], subject=subject, trace_id=trace_id, params=params, max_fact_age_ms=10 * DAY_MS)

    def approve(self, amount: float, customer_id: str = "ann") -> Decision:
        """Propose a refund that must be approved."""
        decision = self.propose(amount, customer_id)
        assert "" == decision.reason_code
        return decision

    def spent(self, customer_id: str = "ann") -> float:
        """Return what the counter gives now."""
        (table,) = self.core.state.counters.values()
        reading = table.read(customer_id, self.core.now_ms)
        assert reading is not None
        return reading.value

    def carry_out(self, decision: Decision, status: execution_pb2.ExecutionStatus.ValueType, **changes: Any) -> None:
        """Begin and report the work of an approval."""
        started = self.core.start(self.core.by_id[decision.decision_id])
        self.core.report(started, status, **changes)


def refund_result(amount: float | str) -> Struct:
    """Return the result of an execution that states the refunded amount."""
    return python_to_value({"refunded": amount}).struct_value


def preflight(core: Core, command: SubmitProposal) -> Decision:
    """Return the decision that a proposal would get now."""
    decision = dry_run(core.state, command.proposal, core.references(command).cited_events, core.now_ms)
    assert isinstance(decision, Decision)
    return decision
