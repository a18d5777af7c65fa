"""Drift in decisions: schemas, models and versions that differ from what a trace recorded (constitution 000)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.common_pb2 import VersionBinding
from gavel.v1.decision_pb2 import Decision
from gavel.v1.diagnostic_pb2 import AgentDiagnostic, LlmAttempt, LlmInvocation
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import Fact
from gavel.v1.tool_pb2 import ToolCall, ToolContract, ToolResult
from gavel_rules import reason_codes
from gavel_rules.arbitration import drift
from gavel_rules.commands import ChangeTools, EventAnswer, PublishEvent
from gavel_rules.decider import handle
from gavel_rules.limits import VERSIONED_TRACES_MAX
from gavel_rules.state.versions import TraceVersions
from google.protobuf.json_format import ParseDict

from tests.support.driver import AGENT, SUBJECT, Core, document
from tests.support.hashes import sha256_of

APPROVED = decision_pb2.OUTCOME_APPROVED
REJECTED = decision_pb2.OUTCOME_REJECTED
TRACE = "trace-1"
CODES = {drift.SCHEMA_DRIFT, drift.MODEL_DRIFT, drift.EXECUTION_VERSION_MISMATCH, drift.RULE_SET_DRIFT}


def event(core: Core, trace_id: str = TRACE, binding: VersionBinding | None = None, **payload: Any) -> Envelope:
    """Publish an agent's event in a trace."""
    return core.publish(Envelope(subject=SUBJECT, trace_id=trace_id, producer=AGENT, version_binding=binding, **payload))


def note(core: Core, trace_id: str = TRACE, **binding: str) -> Envelope:
    """Publish a diagnostic that names versions."""
    return event(core, trace_id, VersionBinding(**binding), agent_diagnostic=AgentDiagnostic(kind="Noted"))


def register(core: Core, version: str, schema: dict[str, Any], result_schema: dict[str, Any] | None = None) -> None:
    """Register a version of the contract of crm.read."""
    schemas = {"argument_schema": schema, "result_schema": result_schema or {}}
    contract = ParseDict({"name": "crm.read", "version": version, **schemas}, ToolContract())
    answer = core.run(ChangeTools(Envelope(event_id=core.new_id(), fact=Fact(tool_contract_registered=contract))))
    assert isinstance(answer, EventAnswer), answer


def invoke(core: Core, trace_id: str = TRACE, **changes: Any) -> Envelope:
    """Record the call of a model."""
    fields = {"requested_model": "m-1", "llm_model": "m-1", "llm_provider": "p", "prompt_hash": sha256_of("prompt"), **changes}
    return event(core, trace_id, agent_diagnostic=AgentDiagnostic(kind="LlmInvocationCommitted", llm_invocation=LlmInvocation(**fields)))


def call_tool(core: Core, trace_id: str = TRACE, tool: str = "crm.read", **changes: Any) -> Envelope:
    """Record the call of a tool and its result; return the call."""
    call = event(core, trace_id, tool_call=ToolCall(tool_name=tool, **changes))
    execution_id = call.tool_call.execution_id
    event(core, trace_id, tool_result=ToolResult(tool_name=tool, execution_id=execution_id, content_hash=sha256_of("1")))
    return call


def drifts(decision: Decision) -> list[tuple[str, str]]:
    """Return code and message of the warnings of drift."""
    return [(warning.code, warning.message) for warning in decision.warnings if warning.code in CODES]


def decide(core: Core, trace_id: str = TRACE, **binding: str) -> Decision:
    """Submit a proposal that is approved unless its versions prevent it."""
    status = core.fact("order.status", "delivered")
    return core.decide([status], trace_id=trace_id, version_binding=VersionBinding(**binding) if binding else None)


@pytest.mark.parametrize("policy", [None, "warn", "fail", "ignore"])
def test_policies(policy: str | None) -> None:
    """Other versions than the trace is bound to are warned of by default, refused with `fail`, and not looked at with `ignore`."""
    core = Core(document() if policy is None else document(on_version_mismatch=policy))
    note(core, execution_version="1", planner_version="a")
    same, other = decide(core, execution_version="1"), decide(core, execution_version="2", planner_version="a")
    assert (APPROVED, []) == (same.outcome, drifts(same))
    message = (drift.EXECUTION_VERSION_MISMATCH, "execution_version is 2; the trace is bound to 1")
    # The second proposal finds the key held by the first, unless its versions are refused before.
    expected = reason_codes.VERSION_MISMATCH if policy == "fail" else reason_codes.CONFLICTING_DECISION
    assert (REJECTED, expected) == (other.outcome, other.reason_code)
    assert ([] if policy == "ignore" else [message]) == drifts(other)
    core.prove()


def test_the_first_event_that_names_versions_binds_the_trace() -> None:
    """Events without versions bind nothing and inherit; versions that the first event leaves out stay free; other traces are free."""
    core = Core(document(versions={"planner_version": "a"}))
    event(core, agent_diagnostic=AgentDiagnostic(kind="Noted"))
    note(core, planner_version="a")
    inherited = decide(core, tool_registry_version="t-2")
    assert (APPROVED, []) == (inherited.outcome, list(inherited.warnings))
    elsewhere = decide(core, "trace-2")
    assert (reason_codes.VERSION_MISMATCH, []) == (elsewhere.reason_code, drifts(elsewhere))
    core.prove()


def test_mismatches_of_other_events_are_warned_of_and_refuse_nothing() -> None:
    """Versions of other events of the trace are drift, but only the proposal's own versions can be refused."""
    core = Core(document(on_version_mismatch="fail"))
    for version in ("1", "2", "2", "3"):
        note(core, tool_registry_version=version)
    decision = decide(core)
    messages = [f"tool_registry_version is {version}; the trace is bound to 1" for version in "23"]
    assert (APPROVED, [(drift.EXECUTION_VERSION_MISMATCH, message) for message in messages]) == (decision.outcome, drifts(decision))
    core.prove()


def test_schemas() -> None:
    """A tool whose schemas have changed since its call is drift. A call that names no schema gets that of the contract in force."""
    core = Core(document())
    register(core, "1", {"type": "object"})
    called = call_tool(core)
    assert ("1", True) == (called.tool_call.tool_version, called.tool_call.request_schema_hash.startswith("sha256:"))
    assert [] == drifts(decide(core))
    register(core, "2", {"type": "object", "required": ["id"]})
    core.pass_time(10_000)
    (difference,) = drifts(decide(core))
    assert (drift.SCHEMA_DRIFT, True, True) == (
        difference[0],
        "argument schema of crm.read" in difference[1],
        "in version 1" in difference[1],
    )
    call_tool(core, "trace-2")
    core.pass_time(10_000)
    assert [] == drifts(decide(core, "trace-2"))
    half = called.tool_call.request_schema_hash[: len("sha256:") + 32]
    call_tool(core, "trace-3", request_schema_hash=half)
    core.pass_time(10_000)
    assert [drift.SCHEMA_DRIFT] == [code for code, _ in drifts(decide(core, "trace-3"))]
    core.prove()


def test_result_schemas() -> None:
    """A result that names no schema gets that of the contract in force, and a failed one gets none. A changed result schema is drift."""
    core = Core(document())
    register(core, "1", {"type": "object"}, {"type": "object", "required": ["id"]})
    call_tool(core)
    answered = core.events[-1].tool_result
    assert ("1", sha256_of('{"required":["id"],"type":"object"}')) == (answered.tool_version, answered.response_schema_hash)
    call = event(core, tool_call=ToolCall(tool_name="crm.read"))
    failure = ToolResult(tool_name="crm.read", execution_id=call.tool_call.execution_id, is_error=True, error_code="E_TOOL")
    failed = event(core, tool_result=failure)
    assert "" == failed.tool_result.response_schema_hash
    assert [] == drifts(decide(core))
    register(core, "2", {"type": "object"}, {"type": "object", "required": ["id", "name"]})
    core.pass_time(10_000)
    (difference,) = drifts(decide(core))
    assert (drift.SCHEMA_DRIFT, True, True) == (
        difference[0],
        "result schema of crm.read" in difference[1],
        "in version 1" in difference[1],
    )
    call_tool(core, "trace-2")
    core.pass_time(10_000)
    assert [] == drifts(decide(core, "trace-2"))
    core.prove()


def test_unregistered_tools_do_not_drift() -> None:
    """Nothing is compared for a tool without a contract."""
    core = Core(document())
    call_tool(core, request_schema_hash=sha256_of("schema"))
    assert [] == drifts(decide(core))
    core.prove()


@pytest.mark.parametrize(
    ("first", "later", "message"),
    [
        ({}, {}, ""),
        ({}, {"prompt_hash": sha256_of("another"), "llm_model": "m-2", "requested_model": "m-2"}, ""),
        ({}, {"llm_model": "m-2", "requested_model": "m-2"}, "the last answer is by p m-2"),
        ({}, {"llm_provider": "q"}, "the last answer is by q m-1"),
        ({"output_hash": sha256_of("yes")}, {"output_hash": sha256_of("no")}, "differently the last time"),
        ({"output_hash": sha256_of("yes")}, {"output_hash": sha256_of("yes")}, ""),
        ({"requested_model": "m"}, {}, "p m-1 answered instead of m"),
        ({"llm_model": "", "attempts": [LlmAttempt(error_code="TIMEOUT")]}, {"llm_model": "m-2", "requested_model": "m-2"}, ""),
    ],
)
def test_models(first: dict[str, Any], later: dict[str, Any], message: str) -> None:
    """An equal prompt that another model answers, or that is answered differently, is drift of the trace that has the older answer."""
    core = Core(document())
    invoke(core, **first)
    invoke(core, "trace-2", **later)
    differences = drifts(decide(core))
    assert [drift.MODEL_DRIFT] * bool(message) == [code for code, _ in differences]
    assert not message or message in differences[0][1]
    core.prove()


def test_the_oldest_traces_are_forgotten() -> None:
    """Of more than VERSIONED_TRACES_MAX traces the oldest lose what is remembered of them, and undoing restores it."""
    core = Core(document())
    for number in range(VERSIONED_TRACES_MAX):
        core.state.store.put(core.state.trace_versions, f"t-{number}", TraceVersions(number - VERSIONED_TRACES_MAX))
    core.state.commit()
    before = core.state.digest()
    mark = core.state.mark()
    diagnostic = AgentDiagnostic(kind="Noted")
    binding = VersionBinding(planner_version="a")
    envelope = Envelope(subject=SUBJECT, trace_id=TRACE, producer=AGENT, version_binding=binding, agent_diagnostic=diagnostic)
    assert handle(core.state, PublishEvent(core.admit(envelope)), now_ms=core.now_ms).envelopes
    remembered = core.state.trace_versions
    assert (True, False, True) == (TRACE in remembered, "t-0" in remembered, len(remembered) < VERSIONED_TRACES_MAX)
    core.state.undo(mark)
    assert before == core.state.digest()
