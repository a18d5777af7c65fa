"""Derivations of a rule set: facts that follow from reports, computed alike by the reactor, the server and a replay."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import ExecutionStatus
from gavel_rules.commands import PublishEvent
from gavel_rules.language.rule_set import DocumentError, compile_rule_set
from gavel_rules.values import python_to_value, value_to_python

from tests.support.driver import ABORTED, ACTION, FAILED, PARTIAL, SUCCESS, TIMEOUT, Core, document

STATUS_KEY = f"execution.{ACTION}.status"


def derivation(value: str, status: str = "SUCCESS", **changes: Any) -> dict[str, Any]:
    """Return a derivation of order.refunded."""
    return {"id": "refunded", "version": 3, "on": {"action": ACTION, "status": status}, "key": "order.refunded", "value": value, **changes}


def with_derivations(*derivations: dict[str, Any], version: int = 1, **action: Any) -> str:
    """Return the default rule set with these derivations."""
    return json.dumps({**json.loads(document(version=version, **action)), "derivations": derivations})


def report_execution(
    core: Core, status: ExecutionStatus.ValueType = SUCCESS, result: dict[str, object] | None = None, **changes: Any
) -> Envelope:
    """Approve, start, and report."""
    attempt = core.start(core.approve())
    return core.report(attempt, status, result=python_to_value(result or {}).struct_value, **changes)


def facts_of(core: Core, report: Envelope) -> dict[str, object]:
    """Publish the facts derived from a report; return their values by key. The log must replay."""
    facts = {fact.fact.key: value_to_python(fact.fact.value) for fact in core.derive(report)}
    core.prove()
    return facts


def failed_derivations(core: Core) -> list[tuple[object, object]]:
    """Return id and version of the derivations that the notices of failure name."""
    attributes = [event.agent_diagnostic.attributes for event in core.events if event.agent_diagnostic.kind == "DerivationFailed"]
    return [(one["derivation_rule_id"], one["derivation_rule_version"]) for one in attributes]


@pytest.mark.parametrize(
    ("value", "sizes", "has_value"),
    [
        ("execution.result.a.all(k, k != '')", (9_999, 1), True),
        ("execution.result.a.exists(k, k == 'n0')", (10_000, 1), False),
        ("execution.result.a.exists(k, k == 'n0')", (1, 20_000), True),
        ("execution.result.a.all(k, k != '')", (10_001, 1), False),
        ("execution.result.a.exists(k, true) || execution.result.b.exists(k, true)", (6_000, 6_000), False),
        ("size(execution.result.a) == 10001 && 'n7' in execution.result.a", (10_001, 1), True),
    ],
)
def test_macros_over_too_many_keys_have_no_value(value: str, sizes: tuple[int, int], has_value: bool) -> None:
    """A macro over a map that may reach the library's limit is not evaluated, because the result would depend on the order of keys."""
    core = Core(with_derivations(derivation(value)))
    maps: list[dict[str, object]] = [{f"n{number}": 1 for number in range(size)} for size in sizes]
    report = report_execution(core, result={"a": maps[0], "b": maps[1]})
    facts = {STATUS_KEY: "SUCCESS", **({"order.refunded": True} if has_value else {})}
    assert facts == facts_of(core, report)
    assert ([] if has_value else [("refunded", 3.0)]) == failed_derivations(core)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("execution.result.amount", 49.5),
        ("params.amount - double(execution.result.fee)", 49.5),
        ('subject + ":" + execution.status', "order/1:SUCCESS"),
        ("has(execution.result.nothing) ? 1 : 2", 2),
        ("has(execution.result.amount) && execution.result.amount < params.amount", True),
        ("execution.attempt", 1),
        ("size(execution.completed_steps)", 2),
        ("execution.completed_steps[1]", "b"),
        ('has(params.note) ? params.note : "none"', "none"),
        ("execution.result.deep.list[0].name", "x"),
        ('decision.policy_id + "/" + decision.rule_id + "/" + decision.conflict_key', "refunds/delivered/order/1"),
        ("string(decision.policy_version)", "1"),
    ],
)
def test_values(value: str, expected: object) -> None:
    """A derivation gives its key the value of its expression over the execution, the decision, its params and subject."""
    core = Core(with_derivations(derivation(value)))
    result = {"amount": 49.5, "fee": 0.5, "deep": {"list": [{"name": "x"}]}, "empty": None}
    report = report_execution(core, result=result, completed_steps=["a", "b"])
    assert {STATUS_KEY: "SUCCESS", "order.refunded": expected} == facts_of(core, report)
    assert [] == failed_derivations(core)


@pytest.mark.parametrize(
    "value",
    [
        "execution.result.missing",
        "execution.result.empty",
        "execution.result.list",
        "execution.result",
        "execution.result.text + 1",
        "1 / (execution.attempt - 1)",
        "execution.result.amount * 1e308",
        "9007199254740993",
        "execution.result.list[7]",
    ],
)
def test_a_failure_leaves_the_built_in_fact(value: str) -> None:
    """An expression that fails, or gives no string, finite number or boolean, derives no fact; a diagnostic names its rule."""
    core = Core(with_derivations(derivation(value)))
    report = report_execution(core, result={"amount": 49.5e10, "text": "x", "list": [1], "empty": None})
    assert [("refunded", 3)] == failed_derivations(core)
    assert {STATUS_KEY: "SUCCESS"} == facts_of(core, report)
    (notice,) = core.events_named("DerivationFailed")
    assert (report.event_id, report.subject, report.trace_id) == (notice.causation_id, notice.subject, notice.trace_id)


@pytest.mark.parametrize("status", [SUCCESS, FAILED, PARTIAL, TIMEOUT, ABORTED], ids=ExecutionStatus.Name)
def test_derivations_apply_to_their_status(status: ExecutionStatus.ValueType) -> None:
    """A derivation applies only to reports with its status."""
    names = ["SUCCESS", "FAILED", "PARTIAL", "TIMEOUT", "ABORTED"]
    derivations = [derivation(f'"{name}"', name, id=name.lower(), key="order.outcome") for name in names]
    core = Core(with_derivations(*derivations))
    name = ExecutionStatus.Name(status).removeprefix("EXECUTION_STATUS_")
    assert {STATUS_KEY: name, "order.outcome": name} == facts_of(core, report_execution(core, status))


def test_an_aborted_start_derives_too() -> None:
    """Facts are also derived for a decision that is given up before any attempt (ABORTED)."""
    core = Core(with_derivations(derivation("execution.reason_code", "ABORTED"), derivation("1 / 0", "ABORTED", id="bad", key="a.bad")))
    approved = core.approve()
    core.fact("order.status", "lost")
    core.refuse_start(approved)
    assert {STATUS_KEY: "ABORTED", "order.refunded": "FACT_SUPERSEDED"} == facts_of(core, core.events_named("ExecutionAborted")[0])
    assert [("bad", 3)] == failed_derivations(core)


def test_rule_set_of_the_decision_derives() -> None:
    """The derivations are those of the version that decided, whichever is active at the report."""
    core = Core(with_derivations(derivation('"old"')))
    attempt = core.start(core.approve())
    core.activate(with_derivations(derivation('"new"', version=4), version=2))
    report = core.report(attempt, SUCCESS)
    assert "old" == facts_of(core, report)["order.refunded"]
    (candidate,) = core.state.evidence_of("order/1")["order.refunded"]
    assert ("refunded", 3) == (candidate.derivation_rule_id, candidate.derivation_rule_version)


def test_the_server_refuses_another_value() -> None:
    """A derived fact that differs from the derivation's value is refused, and the decision waits for the right one."""
    core = Core(with_derivations(derivation("execution.result.amount")))
    report = report_execution(core, result={"amount": 49.5})
    status, refunded = core.derived_facts(report)
    forgery = Envelope.FromString(refunded.SerializeToString())
    forgery.fact.value.number_value = 50
    assert error_pb2.ERROR_REASON_DERIVATION_MISMATCH == core.fault(PublishEvent(core.admit(forgery))).reason
    core.publish(status)
    assert 1 == len(core.state.decisions)
    core.publish(refunded)
    assert {} == core.state.decisions
    core.prove()


def test_derivations_of_other_actions_are_left_alone() -> None:
    """Derivations that are declared for one action do not apply to executions of another."""
    other = {"params": {"type": "object"}, "retry": {"max_attempts": 1}}
    text = json.loads(document(more_actions={"other.act": other}, rules=[*json.loads(document())["rules"], OTHER_RULE]))
    core = Core(json.dumps({**text, "derivations": [derivation("true", on={"action": "other.act", "status": "SUCCESS"})]}))
    assert {STATUS_KEY: "SUCCESS"} == facts_of(core, report_execution(core))


OTHER_RULE = {"id": "other", "action": "other.act", "priority": 1, "when": "true", "effect": "approve"}


@pytest.mark.parametrize(
    ("derivations", "expected"),
    [
        ([derivation("true"), derivation("true", key="order.other")], ["duplicate-id"]),
        ([derivation("true"), derivation("true", id="other")], ["duplicate-derivation"]),
        ([derivation("true"), derivation("true", "FAILED", id="other")], []),
        ([derivation("true", id="gavel.mine")], ["reserved-name"]),
        ([derivation("true", key="execution.refund.create.status")], ["reserved-name"]),
        ([derivation("true", key="gavel.bus_opened")], ["reserved-name"]),
        ([derivation("true", key="Order")], ["bad-name"]),
        ([derivation("true", on={"action": "refund.craete", "status": "SUCCESS"})], ["undeclared-action"]),
        ([derivation("true", "STARTED")], ["unknown-value"]),
        ([derivation("true", version=0)], ["out-of-range"]),
        ([derivation("true", on={"action": ACTION})], ["missing-key"]),
        ([derivation("true", on="SUCCESS")], ["wrong-type"]),
        (["true"], ["wrong-type"]),
        ([derivation("[1]")], ["not-scalar"]),
        ([derivation('timestamp("2020-01-01T00:00:00Z")')], ["not-scalar"]),
        ([derivation("facts.status")], ["unknown-name"]),
        ([derivation("execution.statsu")], ["unknown-name"]),
        ([derivation("execution.error")], ["not-a-value"]),
        ([derivation("params.note")], ["unguarded-optional"]),
        ([derivation("execution.result.")], ["cel-syntax"]),
        ([{"id": "x"}], ["missing-key"] * 4),
    ],
)
def test_mistakes(derivations: list[Any], expected: list[str]) -> None:
    """Each mistake in a derivation is reported with its code, and no other mistake is."""
    try:
        compile_rule_set(with_derivations(*derivations))
        codes = []
    except DocumentError as error:
        codes = [message.code for message in error.messages]
    assert expected == codes
