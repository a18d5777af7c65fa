"""Versions at the start of an attempt: what has drifted since the decision, and what the executor runs (constitution 000 §3)."""

from __future__ import annotations

import pytest
from gavel.v1.common_pb2 import VersionBinding
from gavel.v1.diagnostic_pb2 import AgentDiagnostic
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reason_codes
from gavel_rules.arbitration import drift
from gavel_rules.commands import Answer, AttemptRefusal, BeginExecution, LeasedAttempt

from tests.support.driver import AGENT, EXECUTOR, SUBJECT, Core, document

MESSAGE = "execution_version is 2; the trace is bound to 1"


def bound_bus(policy: str | None) -> tuple[Core, Envelope]:
    """Return a bus with an approved decision in a trace that is bound to execution_version 1."""
    core = Core(document() if policy is None else document(on_version_mismatch=policy))
    binding = VersionBinding(execution_version="1")
    diagnostic = AgentDiagnostic(kind="Noted")
    core.publish(Envelope(subject=SUBJECT, trace_id="trace-1", producer=AGENT, version_binding=binding, agent_diagnostic=diagnostic))
    return core, core.propose([core.fact("order.status", "delivered")])


def begin(core: Core, decision: Envelope, version: str = "") -> Answer:
    """Begin an attempt with an executor of a version."""
    binding = VersionBinding(execution_version=version) if version else None
    return core.run(BeginExecution(decision.event_id, EXECUTOR, 1_000, version_binding=binding))


@pytest.mark.parametrize("policy", [None, "warn", "fail", "ignore"])
def test_executor_of_another_version(policy: str | None) -> None:
    """The start of another version has a warning by default; with `fail` it is refused, ends nothing, and the bound version may start."""
    core, decision = bound_bus(policy)
    answer = begin(core, decision, "2")
    if policy == "fail":
        assert AttemptRefusal(reason_codes.EXECUTION_VERSION_MISMATCH, MESSAGE) == answer
        answer = begin(core, decision, "1")
    assert isinstance(answer, LeasedAttempt)
    expected = [] if policy in ("fail", "ignore") else [(drift.EXECUTION_VERSION_MISMATCH, MESSAGE)]
    assert expected == [(warning.code, warning.message) for warning in answer.envelope.execution.warnings]
    assert ("1" if policy == "fail" else "2") == answer.envelope.version_binding.execution_version
    core.prove()


def test_executor_without_versions_inherits_them() -> None:
    """An executor that names no versions is taken for one of the bound versions."""
    core, decision = bound_bus("fail")
    answer = begin(core, decision)
    assert isinstance(answer, LeasedAttempt)
    assert ([], False) == (list(answer.envelope.execution.warnings), answer.envelope.HasField("version_binding"))
    core.prove()


def test_a_start_warns_of_other_rule_sets() -> None:
    """A start names every rule set that decided and no longer governs the action, and every new one; a renewal names none."""
    core, decision = bound_bus(None)
    core.activate(document(version=2))
    core.activate(
        document(rule_set="freeze", rules=[{"id": "never", "when": "params.amount < 0.0", "effect": "reject", "reason_code": "NO"}])
    )
    started = begin(core, decision)
    assert isinstance(started, LeasedAttempt)
    assert [
        (drift.RULE_SET_DRIFT, "freeze version 1 governs refund.create, and did not when it was decided"),
        (drift.RULE_SET_DRIFT, "refunds version 1 decided refund.create; now version 2 is active"),
    ] == [(warning.code, warning.message) for warning in started.envelope.execution.warnings]
    core.run(core.renewal(started.envelope))
    assert ("ExecutionRenewed", []) == (core.events[-1].event_name, list(core.events[-1].execution.warnings))
    core.prove()


def test_a_start_warns_that_no_rule_set_governs_any_more() -> None:
    """A rule set that has been taken out of force since the decision is drift."""
    core, decision = bound_bus(None)
    core.deactivate("refunds")
    answer = begin(core, decision)
    assert isinstance(answer, LeasedAttempt)
    assert ["refunds version 1 decided refund.create; now no version of it governs the action"] == [
        warning.message for warning in answer.envelope.execution.warnings
    ]
    core.prove()
