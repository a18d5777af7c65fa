"""The envelopes of a tool's call and result (constitution 004 §3), as hooks, providers and callers of the runtime see them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from gavel.v1.common_pb2 import VersionBinding
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.tool_pb2 import ToolContract

from gavel_client.handlers import ExecutionContext, HandlerResult
from gavel_client.rpc.errors import describe_error
from gavel_client.tools.errors import PERMISSION, UNKNOWN_EFFECT, ToolError
from gavel_client.tools.redaction import redact

TIMEOUT_MS_DEFAULT: Final = 30_000

_logger = logging.getLogger(__name__)

Json = Mapping[str, Any]
# Takes "stdout" or "stderr", and a part of the text.
Emit = Callable[[str, str], None]


@dataclass(frozen=True)
class ToolContext:
    """The circumstances of one call: on whose behalf it is made, in which trace, and for how long it may run."""

    subject: str
    """Subject of the events, "type/id"."""
    trace_id: str = ""
    """The trace. Observations of the result belong to the same trace. Empty: the server chooses one."""
    causation_id: str = ""
    """event_id of the cause."""
    call_id: str = ""
    """The model's id of the call."""
    agent_id: str = ""
    """The agent that asked for the call."""
    caller_role: str = ""
    """Role of the agent."""
    session_id: str = ""
    """Session of the agent, whose bindings apply."""
    parent_session_id: str = ""
    """Session that the agent's session belongs to."""
    timeout_ms: int = TIMEOUT_MS_DEFAULT
    """Time for the provider, in milliseconds."""
    arguments_summary: str = ""
    """Summary for people, recorded in the log; put no secret into it."""
    version_binding: VersionBinding | None = None
    """The versions that the call is bound to."""
    execution: ExecutionContext | None = None
    """The attempt to carry out an approved decision that makes the call. Only such a call reaches tools with effects outside."""
    emit: Emit | None = None
    """Receives output while the tool runs."""


@dataclass(frozen=True)
class ToolInvocation:
    """One call, as hooks and the provider see it."""

    requested_tool: str
    """The name in the request."""
    contract: ToolContract
    """The contract of the tool."""
    provider_id: str
    """The provider that carries out the call."""
    execution_id: str
    """"exec_" and 12 hex digits; the same in TOOL_CALL and TOOL_RESULT."""
    arguments: Json
    context: ToolContext

    @property
    def canonical_tool(self) -> str:
        """The canonical name of the tool."""
        return self.contract.name

    @property
    def idempotency_key(self) -> str:
        """The decision that the call carries out, the same for every attempt; else the execution_id. Pass it on to other systems."""
        return self.context.execution.idempotency_key if self.context.execution else self.execution_id

    def emit(self, stream: str, text: str) -> None:
        """Pass output on while the tool runs; `stream` is "stdout" or "stderr". A receiver that fails does not fail the call."""
        if self.context.emit is None:
            return
        try:
            self.context.emit(stream, text)
        except Exception as error:  # noqa: BLE001  # the receiver is the caller's
            _logger.warning("execution=%s output is not passed on: %s", self.execution_id, describe_error(error))

    def require_effect(self, effect: str) -> None:
        """Raise ToolError E_PERMISSION unless the contract names the effect, e.g. "workspace.fs.write"."""
        if effect not in self.contract.side_effects:
            raise ToolError(PERMISSION, f"the contract of {self.canonical_tool} does not name the effect {effect}")


@dataclass(frozen=True)
class ToolData:
    """The data that a provider returns."""

    data: Json
    """The result, a JSON object."""
    summary: str = ""
    """Summary for people, recorded in the log; without secrets."""
    query_ref: str = ""
    """The query, so that it can be repeated."""
    snapshot_ref: str = ""
    """The snapshot that the query read."""
    reproducible: bool = False
    """Whether repeating the query on the snapshot gives the same result (constitution §5.3)."""


@dataclass(frozen=True)
class ToolFailure:
    """Why a call failed."""

    code: str
    """One of the codes in `gavel_client.tools.errors`."""
    message: str
    """For people and models, without secrets."""
    details: Json = field(default_factory=dict)
    refused: bool = False
    """Whether the guard refused the call."""
    may_have_acted: bool = False
    """Whether the call failed after its tool had returned, so that it may have taken effect."""


@dataclass(frozen=True)
class ToolOutcome:
    """The result of a call for its caller. The log has the same fields, except for the data."""

    requested_tool: str
    canonical_tool: str
    tool_version: str
    provider_id: str
    execution_id: str
    arguments_hash: str
    """Of the arguments that the provider got, without their redactions."""
    result_hash: str
    """Of the result without its redactions; "" for a failure."""
    request_schema_hash: str
    response_schema_hash: str
    started_at: datetime
    finished_at: datetime
    ok: bool
    data: dict[str, Any] | None
    """The result; None for a failure."""
    error: ToolFailure | None
    """The failure; None for a result."""
    evidence_uri: str
    evidence_hash: str
    call: Envelope
    """The TOOL_CALL as recorded."""
    result: Envelope
    """The TOOL_RESULT as recorded: the evidence of observations. Its sequence_number is 0 if the server did not take it."""
    redactions: tuple[str, ...] = ()
    """The contract's redactions. They are not applied to `data`."""

    def handler_result(self) -> HandlerResult:
        """Return the outcome of an attempt whose action is this call: its result with the contract's redactions applied, or its failure.

        The effect is unknown after E_TIMEOUT, E_LOST and E_TOOL, and after a failure that came once the tool had returned.
        """
        if self.error is None:
            recorded = redact(self.data, "result", self.redactions)
            return HandlerResult.success(recorded if isinstance(recorded, dict) else {})
        is_unknown = self.error.may_have_acted or self.error.code in UNKNOWN_EFFECT
        return (HandlerResult.timeout if is_unknown else HandlerResult.failed)(self.error.code, self.error.message)
