"""Answers to a client: texts that a model can act on, and the same for programs in `structuredContent`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import grpc
from gavel.v1.decision_pb2 import OUTCOME_REJECTED
from mcp_types import CallToolResult, TextContent

from gavel_client.decisions import explain, to_dict
from gavel_client.gate import Pending, Refused
from gavel_client.mcp.status_tool import OWN_ANSWER, STATUS_TOOL
from gavel_client.rpc.errors import GavelError, describe_error
from gavel_client.values import from_struct

# The reason of an answer to a call whose attempt has not been reported.
ALREADY_RUNNING: Final = "ALREADY_RUNNING"


def failed(text: str, structured: Mapping[str, Any] | None = None) -> CallToolResult:
    """Return a tool error of the proxy's own."""
    content = dict(structured) if structured else None
    return CallToolResult(content=[TextContent(text=text)], structured_content=content, is_error=True, _meta=dict(OWN_ANSWER))


CANCELLED: Final = failed("The call was not made: it was cancelled.")


def unreachable(error: GavelError) -> CallToolResult:
    """Return the answer to a call that was not made, because Gavel could not be reached or refused the request."""
    if error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return failed(
            f"The call was not made: Gavel, which decides about it, cannot be reached ({describe_error(error)}). Make the same call again "
            "later; do not make it in another way."
        )
    lines = [f"The call was not made: Gavel did not decide about it ({describe_error(error)})."]
    lines += [f"{violation.field}: {violation.description}" for violation in error.violations]
    return failed("\n".join(lines))


def unknown(error: GavelError) -> CallToolResult:
    """Return the answer to a call that was begun, and whose outcome could not be recorded."""
    text = f"The call may have been made: it was begun, but its outcome could not be recorded ({describe_error(error)})."
    return failed(f"{text} A person has to look at it.")


def unobserved(error: GavelError) -> CallToolResult:
    """Return the answer to a read that was made, and whose observation could not be recorded."""
    text = f"The call was made, but the observation of its result could not be recorded ({describe_error(error)})"
    return failed(f"{text}, so no proposal can cite it. It only reads: make the same call again.")


def closed(reason: str) -> CallToolResult:
    """Return the answer to a call of a closed tool."""
    return failed(f"The call was not made: {reason}.")


def refused(answer: Refused) -> CallToolResult:
    """Return a refusal. Its `structuredContent` is the retry hint, with the decision, its reason code and its details."""
    structured: dict[str, Any] = {"reason_code": answer.reason}
    text = answer.message()
    if answer.decision is not None:
        if answer.decision.decision.outcome == OUTCOME_REJECTED:
            text = f"The call was not made.\n{explain(answer.decision)}"
        structured["decision_id"] = answer.decision.event_id
        structured["terminal"] = answer.decision.decision.terminal
        if answer.decision.decision.HasField("details"):
            structured["details"] = from_struct(answer.decision.decision.details)
    return failed(text, {**structured, **(to_dict(answer.hint) if answer.hint is not None else {})})


def pending(answer: Pending) -> CallToolResult:
    """Return the answer to a call that waits for a person, or for the end of an attempt that another proxy has begun."""
    if answer.reason == ALREADY_RUNNING:
        text = (
            "The same call has been begun before, and its outcome is not known yet: it may have been made. Do not make it in another way. "
            f"Call {STATUS_TOOL} with decision_id {answer.decision_id} to learn how it stands."
        )
    else:
        text = (
            f"{answer.message()}\nCall {STATUS_TOOL} with decision_id {answer.decision_id} to learn how it stands. Once it is approved, "
            "make the same call again, with the same arguments."
        )
    return failed(text, {"status": "PENDING", "decision_id": answer.decision_id, "reason_code": answer.reason, "status_tool": STATUS_TOOL})
