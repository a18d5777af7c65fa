"""The proxy's own tool: it tells a model how the decision about an earlier call stands. All other tools belong to upstream servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gavel.v1.arbitration_service_pb2 import DecisionPhase, WaitDecisionResponse
from gavel.v1.execution_pb2 import ExecutionStatus
from mcp_types import CallToolResult, TextContent, Tool, ToolAnnotations

from gavel_client.decisions import explain, to_dict

STATUS_TOOL: Final = "gavel_decision_status"
# `_meta` of the proxy's own answers. The proxy drops the `_meta` of a server's result, so no server can imitate it.
OWN_ANSWER: Final[Mapping[str, Any]] = {"dev.gavel/own-answer": True}
STATUS_DEFINITION: Final = Tool(
    name=STATUS_TOOL,
    title="Status of a decision",
    description="Says how a decision about an earlier call stands: whether a person approved it, why it was refused, whether it was made.",
    input_schema={
        "type": "object",
        "required": ["decision_id"],
        "properties": {"decision_id": {"type": "string", "description": "The id in the answer to the call."}},
    },
    annotations=ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False),
)


def describe_status(state: WaitDecisionResponse) -> CallToolResult:
    """Return the answer of the tool: how a decision stands."""
    decision = state.decision
    lines = [explain(decision)]
    structured: dict[str, Any] = {
        "decision_id": decision.event_id,
        "proposal_id": decision.decision.proposal_id,
        "action_type": decision.decision.action_type,
        "outcome": to_dict(decision.decision)["outcome"],
        "reason_code": decision.decision.reason_code,
        "phase": DecisionPhase.Name(state.phase).removeprefix("DECISION_PHASE_"),
    }
    if state.HasField("execution"):
        structured["execution"] = ExecutionStatus.Name(state.execution.execution.status).removeprefix("EXECUTION_STATUS_")
        lines.append(f"The last attempt: {structured['execution']}.")
    return CallToolResult(content=[TextContent(text="\n".join(lines))], structured_content=structured, _meta=dict(OWN_ANSWER))
