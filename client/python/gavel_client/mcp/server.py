"""The proxy as an MCP server, for clients of the protocol's stateless revision and of earlier ones."""

from __future__ import annotations

from typing import Any, Final

from gavel.v1.arbitration_service_pb2 import WaitDecisionResponse
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from gavel_client.envelopes import new_event_id
from gavel_client.gate import Pending
from gavel_client.mcp import answers
from gavel_client.mcp.caller import TASKS_EXTENSION, Caller, CallerError, caller_of
from gavel_client.mcp.proxy import Proxy
from gavel_client.mcp.tasks import TaskParams, Tasks
from gavel_client.rpc.errors import GavelError, describe_error

NAME: Final = "gavel"
INSTRUCTIONS: Final = (
    "Calls that change something are decided by Gavel before they are made. A refusal says what is missing. A call that waits for a person "
    "can be made again once gavel_decision_status says that it is approved."
)

_Context = ServerRequestContext[Any, Any]


def create_server(proxy: Proxy, version: str) -> Server[Any]:
    """Return an MCP server that answers with a proxy. It may serve any number of connections."""
    handlers = _Handlers(proxy)
    server: Server[Any] = Server(
        NAME,
        version=version,
        title="Gavel",
        instructions=INSTRUCTIONS,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,  # type: ignore[arg-type]  # a task is a dict, which the server's tasks/call sends as it is
        # Answers of the proxy depend on the log: no client may take them from a cache.
        get_tool_input_schema=lambda name: None,
    )
    server.extensions[TASKS_EXTENSION] = {}
    for method, handler in (
        ("tasks/get", handlers.get_task),
        ("tasks/update", handlers.update_task),
        ("tasks/cancel", handlers.cancel_task),
    ):
        server.add_request_handler(method, TaskParams, handler)
    return server


class _Handlers:
    def __init__(self, proxy: Proxy) -> None:
        self._proxy: Final = proxy
        self._tasks: Final = Tasks()
        self._process: Final = new_event_id()
        # Of a connection without a token.
        self._agent: Final = proxy.configuration.all_agents[0].id

    async def list_tools(self, context: _Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        """Answer tools/list."""
        try:
            return ListToolsResult(tools=await self._proxy.list_tools())
        except GavelError as error:
            raise _unreachable(error) from None

    async def call_tool(self, context: _Context, params: CallToolRequestParams) -> CallToolResult | dict[str, Any]:
        """Answer tools/call."""
        try:
            caller = caller_of(context, self._agent, self._process)
        except CallerError as error:
            return answers.failed(f"The call was not made: {error}.")
        answer = await self._proxy.call_tool(params.name, params.arguments or {}, caller)
        if not isinstance(answer, Pending):
            return answer
        if caller.has_tasks and context.protocol_version in MODERN_PROTOCOL_VERSIONS and answer.decision is not None:
            return self._tasks.created(answer.decision)
        return answers.pending(answer)

    async def get_task(self, context: _Context, params: TaskParams) -> dict[str, Any]:
        """Answer tasks/get."""
        caller, state = await self._task(context, params)
        try:
            return await self._tasks.get(params.task_id, state, lambda found: self._proxy.resume(found, caller))
        except GavelError as error:
            raise _unreachable(error) from None

    async def update_task(self, context: _Context, params: TaskParams) -> dict[str, Any]:
        """Answer tasks/update: no task asks its client for anything."""
        await self._task(context, params)
        return {}

    async def cancel_task(self, context: _Context, params: TaskParams) -> dict[str, Any]:
        """Answer tasks/cancel."""
        await self._task(context, params)
        self._tasks.cancel(params.task_id)
        return {}

    async def _task(self, context: _Context, params: TaskParams) -> tuple[Caller, WaitDecisionResponse]:
        """Return the caller and the decision of a task. Raises MCPError."""
        try:
            caller = caller_of(context, self._agent, self._process)
            if not caller.has_tasks:
                required: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}}
                raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, "the client has not declared the Tasks extension", required)
            state = await self._proxy.decision(params.task_id, caller)
        except CallerError as error:
            raise MCPError(INVALID_PARAMS, str(error)) from None
        except GavelError as error:
            raise _unreachable(error) from None
        if state is None:
            raise MCPError(INVALID_PARAMS, f"there is no task {params.task_id[:128]}")
        return caller, state


def _unreachable(error: GavelError) -> MCPError:
    return MCPError(INTERNAL_ERROR, f"Gavel cannot be reached, or refuses the proxy: {describe_error(error)}")
