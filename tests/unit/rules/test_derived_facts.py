"""From executions to facts: the facts that a report derives; the server accepts no others (constitution §4.7.3, §7.2)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import common_pb2, error_pb2, fact_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import ExecutionStatus
from gavel_rules.commands import PublishEvent
from gavel_rules.derivation import STATUS_RULE_ID, STATUS_RULE_VERSION, derive
from gavel_rules.events.ids import derived_event_id
from gavel_rules.events.timestamps import timestamp
from gavel_rules.values import python_to_value

from tests.support.driver import ABORTED, FAILED, PARTIAL, SUBJECT, SUCCESS, TIMEOUT, Core, document, event_id

MISMATCH = error_pb2.ERROR_REASON_DERIVATION_MISMATCH


def report_execution(status: ExecutionStatus.ValueType = SUCCESS) -> tuple[Core, Envelope, Envelope]:
    """Approve, start and report; return the bus, the approval and the report."""
    core = Core(document())
    approval = core.approve()
    attempt = core.start(approval)
    core.pass_time(300)
    return core, approval, core.report(attempt, status)


@pytest.mark.parametrize("status", [SUCCESS, FAILED, PARTIAL, TIMEOUT, ABORTED])
def test_every_report_derives_its_status(status: ExecutionStatus.ValueType) -> None:
    """Every status but STARTED derives a fact about the decision's subject, in its trace, that names decision and execution."""
    core, approval, report = report_execution(status)
    (fact,) = derive(report, approval, None)
    name = ExecutionStatus.Name(status).removeprefix("EXECUTION_STATUS_")
    assert ("execution.refund.create.status", python_to_value(name)) == (fact.fact.key, fact.fact.value)
    assert (fact_pb2.OBSERVED_FROM_EXECUTOR_FEEDBACK, 0) == (fact.fact.observed_from, fact.fact.max_age_ms)
    assert (approval.event_id, report.execution.execution_id, STATUS_RULE_ID, STATUS_RULE_VERSION) == (
        fact.fact.decision_id,
        fact.fact.execution_id,
        fact.fact.derivation_rule_id,
        fact.fact.derivation_rule_version,
    )
    assert Producer(type=common_pb2.PRODUCER_TYPE_SYSTEM, id="fact-derivation-reactor", version="1") == fact.producer
    assert (report.event_id, approval.trace_id, SUBJECT, report.recorded_at) == (
        fact.causation_id,
        fact.trace_id,
        fact.subject,
        fact.occurred_at,
    )
    assert derived_event_id(report.event_id, report.sequence_number, f"fact:{STATUS_RULE_ID}", 0) == fact.event_id
    core.derive(report)
    core.prove()


def test_a_start_derives_nothing() -> None:
    """STARTED derives no fact."""
    core = Core(document())
    approval = core.approve()
    assert () == derive(core.start(approval), approval, None)


def test_deriving_is_pure() -> None:
    """The same two events give the same bytes, and are not changed."""
    _, approval, report = report_execution()
    before = (report.SerializeToString(), approval.SerializeToString())
    first, second = derive(report, approval, None), derive(report, approval, None)
    assert first == second
    assert before == (report.SerializeToString(), approval.SerializeToString())


def test_a_derived_fact_is_evidence_like_any_other() -> None:
    """Rules may use derived facts."""
    facts = {"done": {"key": "execution.refund.create.status", "type": "string", "max_age_ms": 60_000, "optional": True}}
    rules = [
        {"id": "again", "when": "has(facts.done) && facts.done == 'SUCCESS'", "effect": "reject", "reason_code": "ALREADY_DONE"},
        {"id": "first", "when": "!has(facts.done)", "effect": "approve"},
    ]
    core = Core(document(facts, rules))
    note = core.fact("k.note", "x")
    core.derive(core.report(core.start(core.propose([note])), SUCCESS))
    assert "ALREADY_DONE" == core.decide([note]).reason_code
    core.prove()


def _alter(name: str, value: Any) -> Any:
    def alter(envelope: Envelope) -> None:
        target: Any = envelope
        *path, last = name.split(".")
        for step in path:
            target = getattr(target, step)
        if hasattr(value, "DESCRIPTOR"):
            getattr(target, last).CopyFrom(value)
        else:
            setattr(target, last, value)

    return alter


ALTERATIONS = {
    "value": _alter("fact.value", python_to_value("FAILED")),
    "key": _alter("fact.key", "execution.refund.create.state"),
    "max_age": _alter("fact.max_age_ms", 1),
    "execution_id": _alter("fact.execution_id", "exec_000000000000"),
    "rule": _alter("fact.derivation_rule_id", "another-rule"),
    "rule_version": _alter("fact.derivation_rule_version", 2),
    "occurred_at": _alter("occurred_at", timestamp(0)),
    "no_occurred_at": lambda envelope: envelope.ClearField("occurred_at"),
    "trace": _alter("trace_id", "another-trace"),
    "subject": _alter("subject", "order/2"),
    "name": _alter("event_name", "FactInvented"),
    "producer_version": _alter("producer.version", "2"),
    "version_binding": _alter("version_binding.planner_version", "1"),
}


@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_a_fact_that_differs_is_refused(alteration: str) -> None:
    """A derived fact that differs from the recomputed one is DERIVATION_MISMATCH, and the decision waits."""
    core, approval, report = report_execution()
    (fact,) = core.derived_facts(report)
    ALTERATIONS[alteration](fact)
    assert MISMATCH == core.fault(PublishEvent(core.admit(fact))).reason
    assert [approval.event_id] == [live.decision_id for live in core.state.pending_decisions()]


def test_unexpected_derived_fact_is_refused() -> None:
    """A derived fact with an invented id, or of an ended or unknown decision, is DERIVATION_MISMATCH."""
    core, _, report = report_execution()
    (fact,) = core.derived_facts(report)
    fake = Envelope.FromString(fact.SerializeToString())
    fake.event_id = derived_event_id(report.event_id, report.sequence_number, "fact:invented")
    assert MISMATCH == core.fault(PublishEvent(core.admit(fake))).reason
    core.derive(report)
    assert MISMATCH == core.fault(PublishEvent(core.admit(fact))).reason
    fact.fact.decision_id = event_id(999)
    assert MISMATCH == core.fault(PublishEvent(core.admit(fact))).reason
    core.prove()


def test_a_derived_fact_may_come_while_a_person_looks() -> None:
    """The facts of a PARTIAL report are recorded; the decision stays under review."""
    core, approval, report = report_execution(PARTIAL)
    core.derive(report)
    (live,) = core.state.pending_decisions()
    assert (approval.event_id, ()) == (live.decision_id, live.awaited_facts)
    core.prove()
