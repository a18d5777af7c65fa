"""Connections to upstream servers: one for each server of the configuration, over stdio or streamable HTTP.

A connection that ends is opened again, with growing pauses; meanwhile calls fail at once. The list of tools is read when a connection
opens, when the server says that it has changed, and from time to time. What servers send is data: its size and the time for it are
limited, and nothing in it is followed. A server's requests to its client (sampling, elicitation, roots) are not served.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
import mcp_types as types
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.session import IncomingMessage
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, Implementation, InputRequiredResult, Tool

from gavel_client.mcp.configuration import Secret, ServerSettings
from gavel_client.mcp.errors import UpstreamError
from gavel_client.mcp.upstreams.definitions import ToolDefinition, define
from gavel_client.rpc.backoff import Backoff
from gavel_client.tools.errors import LOST, QUOTA, TIMEOUT, TOOL

LISTING_PAGES_MAX: Final = 50
LISTING_INTERVAL_SECONDS: Final = 60.0
CONNECT_SECONDS_MAX: Final = 60.0
BACKOFF: Final = Backoff(initial_ms=500, maximum_ms=30_000)
CLIENT_NAME: Final = "gavel-mcp-proxy"

_logger = logging.getLogger(__name__)


class Upstream:
    """One upstream server. `run` keeps the connection; the other methods use it."""

    def __init__(self, name: str, settings: ServerSettings, folder: Path) -> None:
        """`folder` is the one to which paths of the settings are relative. Raises ConfigurationError for a secret that is not there."""
        self.name: Final = name
        self.settings: Final = settings
        self.definitions: dict[str, ToolDefinition] = {}
        self.problem = f"the server {name} is not connected yet"
        """Why the server cannot be used now, as a sentence; "" if it can."""
        self._folder: Final = folder
        self._env: Final = {key: value.read(folder) if isinstance(value, Secret) else value for key, value in settings.env.items()}
        self._headers: Final = {key: value.read(folder) for key, value in settings.headers.items()}
        self._client: Client | None = None
        self._first_try: Final = asyncio.Event()
        self._wake: Final = asyncio.Event()
        self._ended = False

    @property
    def version(self) -> str:
        """The version that the server states."""
        information: Implementation | None = None if self._client is None else self._client.server_info
        return (information.version if information else "") or "unknown"

    async def wait_for_first_try(self) -> None:
        """Return once the server has been connected, or could not be."""
        await self._first_try.wait()

    async def run(self) -> None:
        """Keep the connection until cancelled."""
        failures = 0
        while True:
            try:
                async with self._connected():
                    failures = 0
                    await self._watch()
                self.problem = f"the server {self.name} has ended; it is started again"
            except Exception as error:  # noqa: BLE001  # whatever a server does, it is connected again; the text may hold its data
                reason = _innermost(error)
                self.problem = f"the server {self.name} cannot be reached ({type(reason).__name__}); it is tried again"
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
        size = len(result.model_dump_json())
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
            raise UpstreamError(
                TOOL, f"{self.name} answered with an invalid list ({type(error).__name__})", may_have_acted=False
            ) from error
        self.definitions, problems = define(self.name, tools)
        for problem in problems:
            _logger.warning("server=%s %s", self.name, problem)
        return self.definitions

    def _connection(self) -> Client:
        if self._client is None:
            raise UpstreamError(LOST, self.problem, may_have_acted=False)
        return self._client

    def _refused(self, error: MCPError) -> UpstreamError:
        if error.code in (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT):
            self._ended = True
            self._wake.set()
            return UpstreamError(LOST, f"the connection to {self.name} ended before it answered", may_have_acted=True)
        # A request that a server refuses by a protocol error was not carried out as a call.
        return UpstreamError(
            TOOL, f"{self.name} refused the request (error {error.code})", may_have_acted=error.code == types.INTERNAL_ERROR
        )

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        """Open the connection and read the list of tools; `_client` is set meanwhile."""
        self._ended = False
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
                yield
            finally:
                self._client = None
                self.definitions = {}

    async def _watch(self) -> None:
        """Read the list of tools again when it may have changed; return when the connection has ended."""
        while not self._ended:
            # Not asyncio.wait_for: before Python 3.12 it may swallow a cancellation.
            with anyio.move_on_after(LISTING_INTERVAL_SECONDS):
                await self._wake.wait()
            self._wake.clear()
            if not self._ended:
                await self.list_tools()

    def _note_end(self) -> None:
        self._ended = True
        self._wake.set()

    async def _note_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._wake.set()

    def _transport(self) -> AbstractAsyncContextManager[Any]:
        if self.settings.command:
            command, *arguments = self.settings.command
            parameters = StdioServerParameters(
                command=command, args=arguments, env=self._env, cwd=self._folder / (self.settings.directory or os.curdir)
            )
            return stdio_client(parameters, errlog=sys.stderr)
        return self._http()

    @asynccontextmanager
    async def _http(self) -> AsyncIterator[Any]:
        timeout = httpx2.Timeout(CONNECT_SECONDS_MAX, read=None)  # `call` limits the time for an answer
        async with (
            httpx2.AsyncClient(headers=self._headers, timeout=timeout) as http_client,
            streamable_http_client(
                self.settings.url, http_client=http_client, max_sse_event_size=self.settings.result_bytes_max
            ) as streams,
        ):
            yield streams


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
        if cursor is None:
            break
    return tools


@asynccontextmanager
async def _within(seconds: float, client: Client) -> AsyncIterator[Client]:
    """Enter a client within a time. Raises TimeoutError."""
    with anyio.fail_after(seconds) as scope:
        async with client as connected:
            scope.deadline = float("inf")
            yield connected


def _innermost(error: BaseException) -> BaseException:
    """Return the first error in a group of errors."""
    while isinstance(error, BaseException) and getattr(error, "exceptions", None):
        error = error.exceptions[0]  # type: ignore[attr-defined]
    return error
