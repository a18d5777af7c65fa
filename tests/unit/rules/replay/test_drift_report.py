"""The drift of a whole log: what its events recorded, compared with the state at its end."""

from __future__ import annotations

from gavel.v1.common_pb2 import VersionBinding
from gavel.v1.diagnostic_pb2 import AgentDiagnostic, LlmInvocation
from gavel.v1.drift_pb2 import Drift
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.replay import DriftReport, Recomputation

from tests.support.driver import AGENT, BUS, SUBJECT, Core, document
from tests.support.hashes import sha256_of
from tests.unit.rules.tools.test_registry import contract, run


def report(core: Core) -> list[Drift]:
    """Replay a log, and return its drift."""
    recomputation, drift_report = Recomputation(BUS), DriftReport()
    for record in core.records:
        drift_report.note(recomputation.feed(record.sequence_number, record.envelope), recomputation.state)
    return drift_report.drifts(recomputation.state)


def invoke(core: Core, model: str, version: str = "") -> None:
    """Record an answer of a model, by an agent of a version."""
    invocation = LlmInvocation(requested_model=model, llm_model=model, llm_provider="p", prompt_hash=sha256_of("prompt"))
    diagnostic = AgentDiagnostic(kind="LlmInvocationCommitted", llm_invocation=invocation)
    binding = VersionBinding(planner_version=version) if version else None
    core.publish(Envelope(subject=SUBJECT, trace_id="trace-1", producer=AGENT, version_binding=binding, agent_diagnostic=diagnostic))


def test_drift_of_a_log() -> None:
    """Every kind of drift is reported once, with the number of events that have it; what is recorded after a change is no drift."""
    core = Core(document())
    run(core, contract("fraud-tool", version="1"))
    for _ in range(3):
        core.tool_result()
    for version in ("1", "2", "2"):
        invoke(core, "m-1", version)
    status = core.fact("order.status", "delivered")
    core.decide([status])
    core.decide([status])
    assert [("EXECUTION_VERSION_MISMATCH", 2)] == [(drift.code, drift.count) for drift in report(core)]
    run(core, contract("fraud-tool", version="2", argument_schema={"type": "object"}))
    core.tool_result()
    invoke(core, "m-2")
    core.activate(document(version=2))
    core.decide([status])
    assert [("SCHEMA_DRIFT", 3), ("MODEL_DRIFT", 3), ("EXECUTION_VERSION_MISMATCH", 2), ("RULE_SET_DRIFT", 2)] == [
        (drift.code, drift.count) for drift in report(core)
    ]


def test_a_log_without_drift() -> None:
    """A log whose tools, models, versions and rule sets are what they were has no drift."""
    core = Core(document())
    run(core, contract("fraud-tool"))
    core.tool_result()
    invoke(core, "m-1", "1")
    core.decide([core.fact("order.status", "delivered")])
    assert [] == report(core)
