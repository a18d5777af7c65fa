"""The proxy: the parts together, and the way of a call through them.

    tools/call ─▶ definition ─▶ pin ─▶ read: witness, or effect: gate ─▶ upstream server

A failure before the call of the upstream server ends as a tool error without effect. While Gavel cannot be reached, no call is made.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import grpc
from gavel.v1.arbitration_service_pb2 import WaitDecisionResponse
from gavel.v1.decision_pb2 import OUTCOME_APPROVED, OUTCOME_NEEDS_HUMAN_REVIEW, OUTCOME_REJECTED
from mcp_types import CallToolResult, Tool

from gavel_client.evidence.store import EvidenceStore
from gavel_client.gate import Pending, Refused
from gavel_client.mcp import answers
from gavel_client.mcp.caller import Caller
from gavel_client.mcp.configuration import Configuration
from gavel_client.mcp.effects import EffectCall, Effects
from gavel_client.mcp.errors import ExpressionError
from gavel_client.mcp.observation import Observation
from gavel_client.mcp.open_calls import OpenCalls
from gavel_client.mcp.status_tool import STATUS_DEFINITION, STATUS_TOOL, describe_status
from gavel_client.mcp.tasks import Tasks
from gavel_client.mcp.upstreams.connection import LISTING_INTERVAL_SECONDS, Upstream
from gavel_client.mcp.upstreams.definitions import ToolDefinition
from gavel_client.mcp.upstreams.pins import Pins
from gavel_client.mcp.upstreams.provider import UpstreamProvider
from gavel_client.mcp.witness import Agent, Witness
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.errors import GavelClientError, GavelError, describe_error
from gavel_client.tools import ToolRuntime
from gavel_client.values import from_struct, to_struct

if TYPE_CHECKING:
    from typing_extensions import Self

PRODUCER_ID: Final = "mcp-proxy"
# Time for the calls under way when the proxy stops.
STOP_GRACE_MS: Final = 10_000

_logger = logging.getLogger(__name__)


class Proxy:
    """Governs the calls of agents to upstream servers. `async with` connects the servers; the methods answer requests.

    `client` records tool events, contracts and drifts. `agent_clients` propose, observe and execute, by the id of the agent; an agent
    without one uses `client`. `folder` is that of the configuration. With `observe` refused calls are made too.
    """

    def __init__(
        self,
        configuration: Configuration,
        folder: Path,
        client: GavelClient,
        *,
        agent_clients: Mapping[str, GavelClient] | None = None,
        observe: bool = False,
        producer_id: str = PRODUCER_ID,
    ) -> None:
        """Raises ConfigurationError for a secret that is not there."""
        self.configuration: Final = configuration
        self._agents: Final = {agent.id: Agent(agent.id, (agent_clients or {}).get(agent.id, client)) for agent in configuration.all_agents}
        self._changed: Final = asyncio.Event()
        self._upstreams: Final = {
            name: Upstream(name, settings, folder, self._changed.set) for name, settings in configuration.servers.items()
        }
        self._known_tools: list[Tool] | None = None
        self.on_tools_changed: Callable[[], Awaitable[None]] | None = None
        """Is called when the list of open tools has changed."""
        self._pins: Final = Pins(client, configuration, producer_id)
        self._registered: Final[dict[str, tuple[str, ...]]] = {}
        state = folder / configuration.state
        self.tasks: Final = Tasks(state / "cancelled-tasks")
        evidence = EvidenceStore(str(state / "evidence"))
        providers = {name: UpstreamProvider(upstream) for name, upstream in self._upstreams.items()}
        self._runtime: Final = ToolRuntime(client, producer_id, providers=list(providers.values()), evidence=evidence, aliases=False)
        self._witness: Final = Witness(self._runtime)
        self._effects: Final = Effects(
            self._runtime, self._witness, OpenCalls(state / "open-calls"), evidence, producer_id, configuration.max_fact_age_ms
        )
        self._observation: Final = Observation(client, producer_id, providers, evidence) if observe else None
        self._connections: Final[list[asyncio.Task[None]]] = []

    async def __aenter__(self) -> Self:
        self._connections.extend(asyncio.create_task(upstream.run()) for upstream in self._upstreams.values())
        self._connections.append(asyncio.create_task(self._watch_tools()))
        await self._runtime.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for the calls with effects that are under way, at most STOP_GRACE_MS, and end the connections."""
        await self._effects.close(STOP_GRACE_MS)
        await self._runtime.close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def list_tools(self) -> list[Tool]:
        """Return the open tools under the names that clients see. Raises GavelError."""
        tools = await self._open_tools()
        if self._known_tools is None:
            self._known_tools = tools
        return tools

    async def _open_tools(self) -> list[Tool]:
        await asyncio.gather(*(upstream.wait_for_first_try() for upstream in self._upstreams.values()))
        for upstream in self._upstreams.values():
            await self._register(upstream)
        definitions = [definition for upstream in self._upstreams.values() for definition in upstream.definitions.values()]
        closed = await self._pins.check(definitions)
        return [*(self._client_tool(definition) for definition in definitions if definition.name not in closed), STATUS_DEFINITION]

    async def _watch_tools(self) -> None:
        """Tell clients of changes, after the tools have been compared with their pins: a drifted tool is closed before they list it.

        A tool that a person accepts opens without a change of its server, so the list is also compared from time to time.
        """
        while True:
            with anyio.move_on_after(LISTING_INTERVAL_SECONDS):
                await self._changed.wait()
            self._changed.clear()
            known = self._known_tools
            if known is None:
                continue  # no client has listed any tools
            try:
                self._known_tools = await self._open_tools()
                if self._known_tools != known and self.on_tools_changed is not None:
                    await self.on_tools_changed()
            except Exception as error:  # noqa: BLE001  # whatever it is, the next comparison may succeed
                _logger.warning("the tools cannot be compared with their pins: %s", describe_error(error))

    async def call_tool(self, name: str, arguments: Mapping[str, Any], caller: Caller) -> CallToolResult | Pending:
        """Answer a call. Pending: it waits for a person."""
        return await self._answer_errors(lambda: self._call(name, arguments, caller))

    async def decision(self, decision_id: str, caller: Caller) -> WaitDecisionResponse | None:
        """Return the state of a decision about a call of the caller's agent; None if there is none with this id. Raises GavelError."""
        agent = self._agents[caller.agent]
        try:
            state = await agent.client.wait_decision(decision_id, timeout_ms=0)
            proposal = (await agent.client.get_event(event_id=state.decision.decision.proposal_id)).envelope
        except GavelError as error:
            if error.code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT):
                return None
            raise
        server, _, _ = state.decision.decision.action_type.partition(".")
        is_own = (proposal.producer.type, proposal.producer.id) == (agent.producer.type, agent.producer.id)
        return state if is_own and server in self._upstreams else None

    async def resume(self, state: WaitDecisionResponse, caller: Caller, cancelled: asyncio.Event) -> CallToolResult | Pending | Refused:
        """Make the call of a decision, if the decision approves it and it was not made yet. Raises GavelError.

        If `cancelled` is set before the call has begun, the decision ends without it.
        """
        decision = state.decision
        content = decision.decision
        if content.outcome == OUTCOME_NEEDS_HUMAN_REVIEW:
            return Pending(decision.event_id, content.reason_code, decision)
        if content.outcome != OUTCOME_APPROVED:
            return Refused(content.reason_code, f"the decision is {content.reason_code or 'not an approval'}", decision)
        definition = await self._find_canonical(content.action_type)
        if definition is None:
            return Pending(decision.event_id, "NO_SERVER_LISTS_THE_TOOL", decision)
        if await self._pins.check_one(definition) is not None:
            return Pending(decision.event_id, "TOOL_CLOSED", decision)
        call = self._effect_call(definition, from_struct(content.params), caller)
        return await self._effects.resume(decision, replace(call, cancelled=cancelled))

    async def cancel(self, state: WaitDecisionResponse, caller: Caller) -> None:
        """Forget the call of a decision: the next equal call is another one. Raises GavelError and OSError."""
        await self._effects.forget(state.decision, self._agents[caller.agent])

    async def _answer_errors(self, call: Callable[[], Awaitable[CallToolResult | Pending]]) -> CallToolResult | Pending:
        """Return the answer of a call; what prevents it becomes a tool error."""
        try:
            return await call()
        except GavelError as error:
            _logger.warning("a call was not made: %s", describe_error(error))
            return answers.unreachable(error)
        except ExpressionError as error:
            return answers.failed(f"The call was not made: its subject cannot be determined ({error}).")
        except GavelClientError as error:
            return answers.failed(f"The call was not made: {describe_error(error)}.")
        except OSError as error:
            if error.errno == errno.EDQUOT:
                return answers.failed(f"The call was not made: {error.strerror}.")
            _logger.error("the state of the proxy cannot be written: %s", describe_error(error))
            return answers.failed("The call was not made: the proxy cannot write its state.")
        except Exception as error:  # noqa: BLE001  # a client gets an answer; the text of the error may hold its data
            _logger.error("a call failed unexpectedly: %s", describe_error(error))
            return answers.failed("The proxy failed unexpectedly; whether the call was made is unknown. A person has to look at it.")

    async def _call(self, name: str, arguments: Mapping[str, Any], caller: Caller) -> CallToolResult | Pending:
        if name == STATUS_TOOL:
            return await self._status(arguments, caller)
        definition = await self._find_exposed(name)
        if definition is None:
            return answers.closed(self._unknown(name))
        await self._register(self._upstreams[definition.server])
        closed = await self._pins.check_one(definition)
        if closed is not None:
            return answers.closed(closed.reason)
        settings = self.configuration.settings(definition.server, definition.tool.name)
        if settings.mode == "read":
            timeout_ms = self.configuration.servers[definition.server].timeout_ms
            return await self._witness.read(definition, settings, arguments, caller, self._agents[caller.agent], timeout_ms)
        try:
            params = from_struct(to_struct(arguments, "arguments"))
        except (TypeError, ValueError) as error:
            return answers.failed(f"The call was not made: {error}.")
        call = self._effect_call(definition, params, caller)
        answer = await self._effects.call(call, caller)
        if self._observation is not None and isinstance(answer, Pending | Refused) and answer.decision is not None and _denies(answer):
            await self._effects.forget(answer.decision, call.agent)
            return await self._observation.make(call, answer)
        return answers.refused(answer) if isinstance(answer, Refused) else answer

    async def _status(self, arguments: Mapping[str, Any], caller: Caller) -> CallToolResult:
        decision_id = arguments.get("decision_id")
        state = await self.decision(decision_id, caller) if isinstance(decision_id, str) else None
        if state is None:
            return answers.failed("There is no such decision about a call of this proxy.")
        return describe_status(state)

    async def _register(self, upstream: Upstream) -> None:
        """Register a server's provider, unless it is registered as it is. Raises GavelError."""
        if not upstream.definitions:
            return
        key = (upstream.version, *sorted(definition.name for definition in upstream.definitions.values()))
        if self._registered.get(upstream.name) != key:
            await self._pins.register_server(upstream.name, upstream.version, upstream.definitions.values())
            self._registered[upstream.name] = key

    async def _find_exposed(self, name: str) -> ToolDefinition | None:
        server, _, _ = name.partition("__")
        upstream = self._upstreams.get(server)
        if upstream is None:
            return None
        await upstream.wait_for_first_try()
        return next((one for one in upstream.definitions.values() if one.exposed_name == name), None)

    async def _find_canonical(self, name: str) -> ToolDefinition | None:
        upstream = self._upstreams.get(name.partition(".")[0])
        if upstream is None:
            return None
        await upstream.wait_for_first_try()
        return next((one for one in upstream.definitions.values() if one.name == name), None)

    def _unknown(self, name: str) -> str:
        upstream = self._upstreams.get(name.partition("__")[0])
        if upstream is not None and upstream.problem:
            return upstream.problem
        return "the proxy has no such tool; list the tools again"

    def _effect_call(self, definition: ToolDefinition, arguments: Mapping[str, Any], caller: Caller) -> EffectCall:
        server = self.configuration.servers[definition.server]
        settings = self.configuration.settings(definition.server, definition.tool.name)
        return EffectCall(definition, settings, arguments, self._agents[caller.agent], server.timeout_ms)

    def _client_tool(self, definition: ToolDefinition) -> Tool:
        """Return a tool as clients see it.

        A refusal carries the retry hint as structured content, which no schema of an upstream server describes; so effects have none.
        """
        tool = definition.tool
        reads = self.configuration.settings(definition.server, tool.name).mode == "read"
        return Tool(
            name=definition.exposed_name,
            title=tool.title,
            description=tool.description,
            input_schema=tool.input_schema,
            output_schema=tool.output_schema if reads else None,
            annotations=tool.annotations,
        )


def _denies(answer: Pending | Refused) -> bool:
    """Return whether a decision of Gavel keeps a call from being made; an approved call may be under way or done."""
    return answer.decision is not None and answer.decision.decision.outcome in (OUTCOME_REJECTED, OUTCOME_NEEDS_HUMAN_REVIEW)
