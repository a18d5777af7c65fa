"""Witnessed reads: a call, its result and the fields read from it, as events.

The runtime of tools records the call and the result, and the fields of the result become an OBSERVATION of the agent that rests on it. With
authentication such an observation is of tier 2 only if the runtime and the agent are different principals (docs/arbitration.md).
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, Producer
from gavel.v1.envelope_pb2 import Envelope
from mcp_types import CallToolResult

from gavel_client.envelopes import observation_envelope
from gavel_client.mcp import answers
from gavel_client.mcp.caller import Caller
from gavel_client.mcp.configuration import ToolSettings
from gavel_client.mcp.errors import ExpressionError
from gavel_client.mcp.expressions import DATA_LENGTH_MAX, Expression
from gavel_client.mcp.upstreams.definitions import ToolDefinition, digest_key, listing_name
from gavel_client.mcp.upstreams.provider import REPORTED, result_of
from gavel_client.rpc.backoff import is_unopened_bus
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.errors import GavelError
from gavel_client.tools import ToolContext, ToolOutcome, ToolRuntime
from gavel_client.values import from_value

# An observation of a tool's digest serves proposals for so long. A new one supersedes it, also under approvals that are still open.
DIGEST_AGE_MS_MAX: Final = 12 * 60 * 60 * 1000
# Time that the runtime gives a call beyond the time of the server, which should be the one to end it.
MARGIN_MS: Final = 2_000

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Agent:
    """An agent with the client that acts in its name."""

    id: str
    client: GavelClient

    @property
    def producer(self) -> Producer:
        """The agent as a producer."""
        return Producer(type=PRODUCER_TYPE_AGENT, id=self.id)


class Witness:
    """Makes calls through the runtime and observes their results."""

    def __init__(self, runtime: ToolRuntime) -> None:
        self._runtime: Final = runtime
        # One digest is stated at a time: a second observation would supersede the one that another call has just cited.
        self._stating: Final[defaultdict[str, asyncio.Lock]] = defaultdict(asyncio.Lock)

    async def read(
        self,
        definition: ToolDefinition,
        settings: ToolSettings,
        arguments: Mapping[str, Any],
        caller: Caller,
        agent: Agent,
        timeout_ms: int,
    ) -> CallToolResult:
        """Call a tool that only reads, and return its result.

        Raises GavelError if the call was not made, and ExpressionError for a call without a subject.
        """
        subject = subject_of(definition, settings, arguments)
        context = ToolContext(
            subject,
            trace_id=caller.trace_of(subject),
            agent_id=agent.id,
            session_id=caller.session,
            timeout_ms=timeout_ms + MARGIN_MS,
        )
        outcome = await self._runtime.invoke(definition.name, arguments, context)
        if outcome.data is None:
            return failure_result(outcome)
        fields = read_fields(definition, settings, arguments, outcome.data)
        try:
            if fields:
                await self._observe(agent, outcome, fields)
        except GavelError as error:
            return answers.unobserved(error)
        return result_of(outcome.data)

    async def state_digest(self, definition: ToolDefinition, subject: str, trace_id: str, agent: Agent, timeout_ms: int) -> str:
        """Make sure that the log has an observation, on a subject, of the digest that the server lists for a tool now.

        A proposal cites it, and rules may read it. Return why the tool cannot be called; "" if it can. Raises GavelError.
        """
        async with self._stating[definition.server]:
            return await self._state_digest(definition, subject, trace_id, agent, timeout_ms)

    async def _state_digest(self, definition: ToolDefinition, subject: str, trace_id: str, agent: Agent, timeout_ms: int) -> str:
        if await self._has_digest(definition, subject, agent):
            return ""
        context = ToolContext(subject, trace_id=trace_id, agent_id=agent.id, timeout_ms=timeout_ms + MARGIN_MS)
        outcome = await self._runtime.invoke(listing_name(definition.server), {}, context)
        if outcome.data is None:
            return outcome.error.message if outcome.error else "the list of tools has no result"
        digest = outcome.data["digests"].get(definition.name)
        if digest != definition.digest:
            return f"the server {definition.server} has just changed {definition.name}"
        await self._observe(agent, outcome, {digest_key(definition.name): digest})
        return ""

    async def _has_digest(self, definition: ToolDefinition, subject: str, agent: Agent) -> bool:
        try:
            projection = (await agent.client.get_projection(subject)).projection
        except GavelError as error:
            if is_unopened_bus(error):
                return False
            raise
        oldest_ms = time.time() * 1000 - DIGEST_AGE_MS_MAX
        return any(
            row.key == digest_key(definition.name)
            and row.source_tool == listing_name(definition.server)
            and from_value(row.value) == definition.digest
            and row.observed_at.ToMilliseconds() > oldest_ms
            for row in projection.observations
        )

    async def _observe(self, agent: Agent, outcome: ToolOutcome, fields: Mapping[str, object]) -> Envelope:
        observation = observation_envelope(
            outcome.call.subject,
            agent.producer,
            source_tool=outcome.canonical_tool,
            extracted_fields=fields,
            evidence=outcome.result,
            trace_id=outcome.call.trace_id,
            causation_id=outcome.result.event_id,
        )
        return (await agent.client.publish_event(observation)).envelope


def subject_of(definition: ToolDefinition, settings: ToolSettings, arguments: Mapping[str, Any]) -> str:
    """Return the subject of a call. Raises ExpressionError."""
    if not settings.subject:
        return f"mcp-server/{definition.server}"
    return Expression(settings.subject, reads_result=False).subject(arguments)


def read_fields(
    definition: ToolDefinition, settings: ToolSettings, arguments: Mapping[str, Any], data: Mapping[str, Any]
) -> dict[str, object]:
    """Return the configured fields of a result. A field that cannot be read is left out, with a warning that holds no data."""
    values = {"arguments": dict(arguments), "result": _readable(data)} if settings.fields else {}
    fields: dict[str, object] = {}
    for key, source in settings.fields.items():
        try:
            fields[key] = Expression(source, reads_result=True).scalar(values)
        except ExpressionError:
            _logger.warning("tool=%s the field %s cannot be read from the result", definition.name, key)
    return fields


def failure_result(outcome: ToolOutcome) -> CallToolResult:
    """Return a failed call as the client gets it: the tool's own error, or that of the runtime."""
    error = outcome.error
    if error is None:
        return answers.failed("The call failed.")
    reported = error.details.get(REPORTED)
    return result_of(reported, is_error=True) if reported is not None else answers.failed(f"{error.code}: {error.message}.")


def _readable(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result as expressions read it: `text`, `structured` if there is any, and `json` if the text is one JSON object or list."""
    text = "\n".join(part["text"] for part in data["content"] if part.get("type") == "text" and isinstance(part.get("text"), str))
    readable: dict[str, Any] = {"text": text}
    if isinstance(data.get("structuredContent"), dict):
        readable["structured"] = data["structuredContent"]
    if text[:1] in ("{", "[") and len(text) <= DATA_LENGTH_MAX:
        with suppress(ValueError, RecursionError):
            readable["json"] = json.loads(text)
    return readable
