"""Observing instead of enforcing: calls that were refused, or that wait for a person, are recorded and made all the same.

Such a call carries out no decision. It is recorded as a call of the agent, caused by the decision that refused it, which is how a reader of
the log tells it from an approved one. A call that cannot be recorded is not made.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from gavel.v1.common_pb2 import PRODUCER_TYPE_TOOL_RUNTIME, Producer
from mcp_types import CallToolResult

from gavel_client.envelopes import new_execution_id
from gavel_client.evidence.store import EvidenceStore
from gavel_client.gate import Pending, Refused
from gavel_client.mcp import answers
from gavel_client.mcp.effects import EffectCall
from gavel_client.mcp.upstreams.provider import UpstreamProvider, result_of
from gavel_client.mcp.witness import MARGIN_MS, failure_result
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.errors import GavelError
from gavel_client.tools import ToolContext, ToolFailure
from gavel_client.tools.errors import ToolError
from gavel_client.tools.invocation import ToolData, ToolInvocation
from gavel_client.tools.records import ToolRecorder


class Observation:
    """Makes refused calls, and records them."""

    def __init__(self, client: GavelClient, producer_id: str, providers: Mapping[str, UpstreamProvider], evidence: EvidenceStore) -> None:
        self._client: Final = client
        self._recorder: Final = ToolRecorder(client, Producer(type=PRODUCER_TYPE_TOOL_RUNTIME, id=producer_id), evidence)
        self._providers: Final = providers

    async def make(self, call: EffectCall, answer: Pending | Refused) -> CallToolResult:
        """Make a call that `answer` refuses; `answer.decision` is set. Raises GavelError if the call was not made."""
        resolution = await self._client.resolve_tool(call.definition.name, canonical_only=True)
        decision = answer.decision
        invocation = ToolInvocation(
            requested_tool=call.definition.exposed_name,
            contract=resolution.contract,
            provider_id=resolution.provider.provider_id,
            execution_id=new_execution_id(),
            arguments=call.arguments,
            context=ToolContext(
                call.action.subject,
                trace_id=decision.trace_id if decision is not None else "",
                causation_id=decision.event_id if decision is not None else "",
                agent_id=call.agent.id,
                timeout_ms=call.timeout_ms + MARGIN_MS,
            ),
        )
        recorded = await self._recorder.record_call(invocation, carries_out=False)
        began_at = time.monotonic()
        try:
            result: ToolData | ToolFailure = await self._providers[call.definition.server].invoke(invocation)
        except ToolError as error:
            result = ToolFailure(error.code, error.message, error.details)
        duration_ms = int((time.monotonic() - began_at) * 1000)
        try:
            outcome = await self._recorder.record_result(invocation, recorded, result, duration_ms)
        except GavelError as error:
            return answers.unknown(error)
        data: Any = outcome.data
        return failure_result(outcome) if data is None else result_of(data)
