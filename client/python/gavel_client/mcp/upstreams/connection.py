"""Connections to upstream servers: one for each server of the configuration, over stdio or streamable HTTP.

A connection that ends is opened again, with growing pauses; meanwhile calls fail at once. The list of tools is read when a connection
opens, when the server says that it has changed, and from time to time. Answers of servers are data: their size is limited before they are
parsed, the time for them is limited, and no instruction in them is followed. A server's requests to its client (sampling, elicitation,
roots) are not served.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import CallToolResult, Implementation, InputRequiredResult, Tool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from gavel_client.mcp.configuration import Secret, ServerSettings
from gavel_client.mcp.errors import UpstreamError
from gavel_client.mcp.upstreams.definitions import TOOLS_PER_SERVER_MAX, ToolDefinition, define
from gavel_client.mcp.upstreams.transports import TOO_LARGE, open_http, open_stdio
from gavel_client.rpc.backoff import Backoff
from gavel_client.tools.errors import LOST, QUOTA, TIMEOUT, TOOL
from gavel_client.tools.records import clip

LISTING_PAGES_MAX: Final = 50
LISTING_INTERVAL_SECONDS: Final = 60.0
# Between two lists, however often a server says that its list has changed.
LISTING_PAUSE_SECONDS: Final = 1.0
CONNECT_SECONDS_MAX: Final = 60.0
BACKOFF: Final = Backoff(initial_ms=500, maximum_ms=30_000)
# Of the SDK's error for an event that is too large.
_EVENT_TOO_LARGE: Final = "Server-sent event exceeded"
CLIENT_NAME: Final = "gavel-mcp-proxy"
# As long as versions of providers may be.
VERSION_LENGTH_MAX: Final = 128
# Errors of the protocol by which a server says that it has not carried out a call. Others may follow the effect.
_NOT_CARRIED_OUT: Final = frozenset(
    {
        types.METHOD_NOT_FOUND,
        types.INVALID_PARAMS,
        types.HEADER_MISMATCH,
        types.MISSING_REQUIRED_CLIENT_CAPABILITY,
        types.UNSUPPORTED_PROTOCOL_VERSION,
        types.URL_ELICITATION_REQUIRED,
    }
)
# The beginnings of the SDK's own errors for requests under way when the connection, or the stream of an answer over HTTP, ends.
_CLOSED: Final = ("Connection closed", "SSE stream ")
# The message of the SDK's own error for a session that the server does not know.
_NO_SESSION: Final = "Session terminated"
# A message holds a result, whose characters may be escaped, or a page of the list of tools.
ESCAPES_FACTOR: Final = 4
MESSAGE_BYTES_MIN: Final = 4 * 1024 * 1024

_logger = logging.getLogger(__name__)


class Upstream:
    """One upstream server. `run` keeps the connection; the other methods use it."""

    def __init__(self, name: str, settings: ServerSettings, folder: Path, note_change: Callable[[], None] = lambda: None) -> None:
        """`folder` is the one to which paths of the settings are relative. `note_change` is called when the list of tools has changed.

        Raises ConfigurationError for a secret that is not there.
        """
        self.name: Final = name
        self.settings: Final = settings
        self.definitions: dict[str, ToolDefinition] = {}
        self.problem = f"the server {name} is not connected yet"
        """Why the server cannot be used now, as a sentence; "" if it can."""
        self._folder: Final = folder
        self._note_change: Final = note_change
        self._message_bytes_max: Final = max(ESCAPES_FACTOR * settings.result_bytes_max, MESSAGE_BYTES_MIN)
        self._env: Final = {key: value.read(folder) if isinstance(value, Secret) else value for key, value in settings.env.items()}
        self._headers: Final = {key: value.read(folder) for key, value in settings.headers.items()}
        self._client: Client | None = None
        self._first_try: Final = asyncio.Event()
        self._wake: Final = asyncio.Event()
        self._ended = False
        self._is_too_large = False

    @property
    def version(self) -> str:
        """The version that the server states, as far as it can be recorded."""
        information: Implementation | None = None if self._client is None else self._client.server_info
        stated = information.version[:VERSION_LENGTH_MAX] if information else ""
        return "".join(one for one in stated if one.isprintable()) or "unknown"

    async def wait_for_first_try(self) -> None:
        """Return once the first try to connect has succeeded or failed."""
        await self._first_try.wait()

    async def run(self) -> None:
        """Keep the connection until cancelled."""
        failures = 0
        while True:
            try:
                async with self._connected() as client:
                    failures = 0
                    await self._watch(client)
                self.problem = f"the server {self.name} has ended; it is started again"
            except Exception as error:  # noqa: BLE001  # whatever a server does, it is connected again; the text may hold its data
                self.problem = f"the server {self._describe(_innermost(error))}; it is tried again"
            self._first_try.set()
            failures += 1
            pause_ms = BACKOFF.pause_ms(failures)
            _logger.warning("server=%s %s in %d ms", self.name, self.problem, pause_ms)
            await asyncio.sleep(pause_ms / 1000)

    async def call(self, tool_name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Call a tool by the server's own name for it. Raises UpstreamError."""
        client = self._connection()
        try:
            with anyio.fail_after(self.settings.timeout_ms / 1000):
                result = await client.session.call_tool(tool_name, dict(arguments), allow_input_required=True, allow_claimed=True)
        except TimeoutError:
            message = f"{self.name} did not answer within {self.settings.timeout_ms} ms"
            raise UpstreamError(TIMEOUT, message, may_have_acted=True) from None
        except MCPError as error:
            raise self._refused(error) from None
        except Exception as error:  # a result that the protocol or its schema does not allow
            raise UpstreamError(
                TOOL, f"{self.name} answered with an invalid result ({type(error).__name__})", may_have_acted=True
            ) from error
        if isinstance(result, InputRequiredResult) or not isinstance(result, CallToolResult):
            message = f"{self.name} asks for something else than the call before it acts, which the proxy does not pass on"
            raise UpstreamError(TOOL, message, may_have_acted=False)
        size = len(result.model_dump_json().encode())
        if size > self.settings.result_bytes_max:
            message = f"the result of {self.name} has {size} bytes; the limit is {self.settings.result_bytes_max} (result_bytes_max)"
            raise UpstreamError(QUOTA, message, may_have_acted=True)
        return result

    async def list_tools(self) -> dict[str, ToolDefinition]:
        """Read the list of tools, and return the definitions by the server's own names. Raises UpstreamError."""
        client = self._connection()
        try:
            with anyio.fail_after(self.settings.timeout_ms / 1000):
                tools = await _list_all(client)
        except TimeoutError:
            raise UpstreamError(TIMEOUT, f"{self.name} did not list its tools in time", may_have_acted=False) from None
        except MCPError as error:
            raise self._refused(error) from None
        except Exception as error:  # a list that the protocol does not allow
            _logger.warning("server=%s its list of tools is invalid: %s", self.name, _first_mistake(error))
            raise UpstreamError(
                TOOL, f"{self.name} answered with an invalid list ({type(error).__name__})", may_have_acted=False
            ) from error
        before = self.definitions
        # Large definitions take long to hash, and other servers' calls must not wait for that.
        self.definitions, problems = await asyncio.to_thread(define, self.name, tools)
        for problem in problems:
            _logger.warning("server=%s %s", self.name, problem)
        if self.definitions != before:
            self._note_change()
        return self.definitions

    def _describe(self, error: BaseException) -> str:
        """Return why the server cannot be used, beginning with its name."""
        if isinstance(error, UpstreamError):
            return error.message
        what = f"did not answer within {CONNECT_SECONDS_MAX:g} s" if isinstance(error, TimeoutError) else "cannot be reached"
        return f"{self.name} {what} ({type(error).__name__})"

    def _connection(self) -> Client:
        if self._client is None:
            raise UpstreamError(LOST, self.problem, may_have_acted=False)
        return self._client

    def _refused(self, error: MCPError) -> UpstreamError:
        if TOO_LARGE in error.message or _EVENT_TOO_LARGE in error.message:
            return UpstreamError(QUOTA, f"{self.name} answered with more than {self._message_bytes_max} bytes", may_have_acted=True)
        if error.code == types.PARSE_ERROR:
            return UpstreamError(TOOL, f"{self.name} answered with invalid JSON", may_have_acted=True)
        if error.code == types.CONNECTION_CLOSED:
            # Servers use the code for errors of their own. A list of tools shows whether the connection works.
            self._wake.set()
            if error.message.startswith(_CLOSED):
                reason = f": it sent a message of more than {self._message_bytes_max} bytes" if self._is_too_large else ""
                return UpstreamError(LOST, f"the connection to {self.name} ended before it answered{reason}", may_have_acted=True)
        was_refused = error.code in _NOT_CARRIED_OUT or (error.code == types.INVALID_REQUEST and error.message == _NO_SESSION)
        return UpstreamError(TOOL, f"{self.name} answered with the error {error.code}", may_have_acted=not was_refused)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        """Open the connection and read the list of tools; `_client` is set meanwhile."""
        self._ended = self._is_too_large = False
        self._wake.clear()
        client = Client(
            _observed(self._transport(), self._note_end),
            message_handler=self._note_message,
            client_info=Implementation(name=CLIENT_NAME, version="1"),
            cache=None,
        )
        async with _within(CONNECT_SECONDS_MAX, client) as connected:
            self._client = connected
            try:
                await self.list_tools()
                self.problem = ""
                self._first_try.set()
                _logger.info("server=%s connected, protocol %s, %d tools", self.name, connected.protocol_version, len(self.definitions))
                yield connected
            finally:
                self._client = None
                self.definitions = {}
                self._note_change()

    async def _watch(self, client: Client) -> None:
        """Read the list of tools again when it may have changed; return when the connection has ended."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._listen, client)
            while not self._ended:
                # Not asyncio.wait_for: before Python 3.12 it may swallow a cancellation.
                with anyio.move_on_after(LISTING_INTERVAL_SECONDS):
                    await self._wake.wait()
                self._wake.clear()
                if not self._ended:
                    await self.list_tools()
                    await asyncio.sleep(LISTING_PAUSE_SECONDS)
            group.cancel_scope.cancel()

    async def _listen(self, client: Client) -> None:
        """Subscribe to changes of the list of tools. Servers of earlier revisions send them without that."""
        capability = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or capability is None or not capability.list_changed:
            return
        while True:
            with suppress(MCPError, SubscriptionLost):
                async with client.listen(tools_list_changed=True) as subscription:
                    self._wake.set()
                    async for _ in subscription:
                        self._wake.set()
            await asyncio.sleep(BACKOFF.maximum_ms / 1000)

    def _note_end(self) -> None:
        self._ended = True
        self._wake.set()

    def _note_too_large(self) -> None:
        self._is_too_large = True
        _logger.warning("server=%s sent a message of more than %d bytes", self.name, self._message_bytes_max)

    async def _note_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._wake.set()

    def _transport(self) -> AbstractAsyncContextManager[Any]:
        if self.settings.command:
            directory = self._folder / (self.settings.directory or os.curdir)
            return open_stdio(self.settings.command, self._env, directory, self._message_bytes_max, self._note_too_large)
        return open_http(self.settings.url, self._headers, CONNECT_SECONDS_MAX, self._message_bytes_max)


@asynccontextmanager
async def _observed(transport: AbstractAsyncContextManager[Any], note_end: Callable[[], None]) -> AsyncIterator[Any]:
    """Open a transport, and report when the server has closed it; a session reports that only to requests under way."""
    async with transport as (read, write), anyio.create_task_group() as group:
        sender, receiver = anyio.create_memory_object_stream[Any](0)

        async def forward() -> None:
            async with sender:
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
                    async for message in read:
                        await sender.send(message)
            note_end()

        group.start_soon(forward)
        yield receiver, write
        group.cancel_scope.cancel()


async def _list_all(client: Client) -> list[Tool]:
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(LISTING_PAGES_MAX):
        page = await client.list_tools(cursor=cursor)
        tools.extend(page.tools)
        cursor = page.next_cursor
        if cursor is None or len(tools) > TOOLS_PER_SERVER_MAX:
            break
    return tools


@asynccontextmanager
async def _within(seconds: float, client: Client) -> AsyncIterator[Client]:
    """Enter a client within a time. Raises TimeoutError."""
    with anyio.fail_after(seconds) as scope:
        async with client as connected:
            scope.deadline = float("inf")
            yield connected


def _first_mistake(error: Exception) -> str:
    """Return the place and the kind of the first mistake in a message, without its content."""
    if not isinstance(error, ValidationError):
        return type(error).__name__
    mistake = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return clip(f"{'.'.join(map(str, mistake['loc']))}: {mistake['type']}").encode("unicode_escape").decode()


def _innermost(error: BaseException) -> BaseException:
    """Return the first error in a group of errors."""
    while isinstance(error, BaseException) and getattr(error, "exceptions", None):
        error = error.exceptions[0]  # type: ignore[attr-defined]
    return error
