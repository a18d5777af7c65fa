"""The proxy as an MCP server, for clients of the protocol's stateless revision and of earlier ones."""

from __future__ import annotations

import errno
from collections import deque
from typing import Any, Final

import anyio
from gavel.v1.arbitration_service_pb2 import WaitDecisionResponse
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    NotificationParams,
    PaginatedRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from gavel_client.envelopes import new_event_id
from gavel_client.gate import Pending
from gavel_client.mcp import answers
from gavel_client.mcp.caller import TASKS_EXTENSION, Caller, CallerError, caller_of
from gavel_client.mcp.proxy import Proxy
from gavel_client.mcp.tasks import TaskParams, may_act
from gavel_client.rpc.errors import GavelError, describe_error

NAME: Final = "gavel"
INSTRUCTIONS: Final = (
    "Calls that change something are decided by Gavel before they are made. A refusal says what is missing. A call that waits for a person "
    "can be made again once gavel_decision_status says that it is approved."
)
# Clients of earlier revisions that are told of changes; the SDK serves as many sessions.
SESSIONS_MAX: Final = 10_000
# Time for one such client to take a notification.
NOTIFICATION_SECONDS_MAX: Final = 5.0

_Context = ServerRequestContext[Any, Any]


class ProxyServer(Server[Any]):
    """An MCP server that answers with a proxy, and tells its clients when the tools change. It may serve any number of connections."""

    def __init__(self, proxy: Proxy, version: str) -> None:
        handlers = _Handlers(proxy)
        self._bus: Final = InMemorySubscriptionBus()
        self._listeners: Final = ListenHandler(self._bus)
        # Clients of earlier revisions get notifications without asking. A closed connection drops them.
        self._sessions: Final[deque[ServerSession]] = deque(maxlen=SESSIONS_MAX)
        super().__init__(
            NAME,
            version=version,
            title="Gavel",
            instructions=INSTRUCTIONS,
            on_list_tools=handlers.list_tools,
            on_call_tool=handlers.call_tool,  # type: ignore[arg-type]  # a task is a dict, which tasks/call sends as it is
            on_subscriptions_listen=self._listeners,
            # Answers of the proxy depend on the log: no client may take them from a cache.
            get_tool_input_schema=lambda name: None,
        )
        self.extensions[TASKS_EXTENSION] = {}
        for method, handler in (
            ("tasks/get", handlers.get_task),
            ("tasks/update", handlers.update_task),
            ("tasks/cancel", handlers.cancel_task),
        ):
            self.add_request_handler(method, TaskParams, handler)
        self.add_notification_handler("notifications/initialized", NotificationParams, self._note_session)
        proxy.on_tools_changed = self._announce

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """Return the options of a handshake, with the capability to say that tools have changed."""
        options = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(options, experimental_capabilities, extensions)

    def close_subscriptions(self) -> None:
        """End the streams of clients that wait for changes, so that a web server can stop."""
        self._listeners.close()

    async def _note_session(self, context: _Context, params: NotificationParams) -> None:
        self._sessions.append(context.session)

    async def _announce(self) -> None:
        await self._bus.publish(ToolsListChanged())
        for session in tuple(self._sessions):
            with anyio.move_on_after(NOTIFICATION_SECONDS_MAX):
                await session.send_tool_list_changed()


class _Handlers:
    def __init__(self, proxy: Proxy) -> None:
        self._proxy: Final = proxy
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
            return self._proxy.tasks.created(answer.decision)
        return answers.pending(answer)

    async def get_task(self, context: _Context, params: TaskParams) -> dict[str, Any]:
        """Answer tasks/get."""
        caller, state = await self._task(context, params)
        try:
            return await self._proxy.tasks.get(
                caller.agent,
                params.task_id,
                state,
                lambda task, cancelled: self._proxy.resume(task, caller, cancelled),
            )
        except GavelError as error:
            raise _unreachable(error) from None

    async def update_task(self, context: _Context, params: TaskParams) -> dict[str, Any]:
        """Answer tasks/update: no task asks its client for anything."""
        await self._task(context, params)
        return {}

    async def cancel_task(self, context: _Context, params: TaskParams) -> dict[str, Any]:
        """Answer tasks/cancel. A task that has ended stays as it is."""
        caller, state = await self._task(context, params)
        if not may_act(state):
            return {}
        try:
            await self._proxy.tasks.cancel(caller.agent, params.task_id, lambda task_id: self._proxy.decision(task_id, caller))
            await self._proxy.cancel(state, caller)
        except GavelError as error:
            raise _unreachable(error) from None
        except OSError as error:
            if error.errno == errno.EDQUOT:
                raise MCPError(INTERNAL_ERROR, f"the task was not cancelled: {error.strerror}") from None
            raise MCPError(INTERNAL_ERROR, f"the proxy cannot write its state: {describe_error(error)}") from None
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
