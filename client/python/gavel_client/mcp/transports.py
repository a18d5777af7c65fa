"""The ways in which clients reach the proxy: stdio, and streamable HTTP with tokens."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, Final

import uvicorn
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend, RequireAuthMiddleware
from mcp.server.auth.provider import AccessToken
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.middleware.authentication import AuthenticationMiddleware

from gavel_client.mcp.server import ProxyServer

PATH: Final = "/mcp"
REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
STOP_SECONDS_MAX: Final = 10
# A connection that sends no request is closed after this time, and the oldest ones at once if there are more. They need no token, and would
# use up the descriptors of the process.
SILENT_SECONDS_MAX = 10.0  # not Final: tests change it
SILENT_CONNECTIONS_MAX = 256  # not Final: tests change it
CHECK_SECONDS = 0.5  # not Final: tests change it


async def serve_stdio(server: ProxyServer) -> None:
    """Serve the client at stdin and stdout until it closes stdin."""
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def serve_http(server: ProxyServer, listener: socket.socket, tokens: Mapping[str, str], stopped: asyncio.Event) -> None:
    """Serve clients at PATH of a listening socket until `stopped`.

    `tokens` has the agent of each token; without any, every client that reaches the socket is the proxy's agent.
    """
    application: Any = server.streamable_http_app(
        streamable_http_path=PATH, transport_security=_browser_protection(listener), max_request_body_size=REQUEST_BYTES_MAX
    )
    if tokens:
        application = _require_token(application, tokens)
    web = _WebServer(
        uvicorn.Config(application, log_config=None, access_log=False, timeout_graceful_shutdown=STOP_SECONDS_MAX, server_header=False)
    )
    serving = asyncio.create_task(web.serve(sockets=[listener]))
    stopping = asyncio.create_task(stopped.wait())
    closing = asyncio.create_task(close_silent_forever(web))
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    closing.cancel()
    server.close_subscriptions()
    web.should_exit = True
    stopping.cancel()
    await serving


async def close_silent_forever(web: uvicorn.Server) -> None:
    """Close the connections of a web server that send no request, until cancelled. uvicorn limits only those that have sent one."""
    silent_since: dict[Any, float] = {}
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        silent_since = close_silent(web, silent_since)


def close_silent(web: uvicorn.Server, silent_since: Mapping[Any, float]) -> dict[Any, float]:
    """Close the connections that have been silent for too long, and the oldest ones if there are too many.

    `silent_since` is the result of the check before: when each silent connection was first seen, in seconds of the loop's clock.
    """
    now = asyncio.get_running_loop().time()
    silent = {one: silent_since.get(one, now) for one in web.server_state.connections if getattr(one, "cycle", None) is None}
    surplus = max(0, len(silent) - SILENT_CONNECTIONS_MAX)
    for index, (connection, since) in enumerate(sorted(silent.items(), key=itemgetter(1))):
        if index < surplus or now - since >= SILENT_SECONDS_MAX:
            connection.transport.abort()
    return silent


def is_loopback(listener: socket.socket) -> bool:
    """Return whether only this machine reaches a listening socket."""
    return ipaddress.ip_address(str(listener.getsockname()[0]).partition("%")[0]).is_loopback


def _browser_protection(listener: socket.socket) -> TransportSecuritySettings:
    """Return which names of the host and which origins requests may name.

    A page in a browser on this machine must not reach a loopback address under a name of its own (DNS rebinding). Beyond the loopback
    interface every request has a token, which no foreign page knows.
    """
    if not is_loopback(listener):
        return TransportSecuritySettings(enable_dns_rebinding_protection=False)
    address = str(listener.getsockname()[0])
    hosts = [f"{host}:*" for host in dict.fromkeys(("127.0.0.1", "localhost", "[::1]", f"[{address}]" if ":" in address else address))]
    return TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=[f"http://{host}" for host in hosts])


class _WebServer(uvicorn.Server):
    """A web server that leaves signals to the program."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals: the caller of `serve_http` handles them."""
        yield


def _require_token(application: Any, tokens: Mapping[str, str]) -> Callable[..., Any]:
    """Return the application behind bearer tokens."""
    protected = AuthenticationMiddleware(RequireAuthMiddleware(application, []), backend=BearerAuthBackend(_Tokens(tokens)))

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await (application if scope["type"] == "lifespan" else protected)(scope, receive, send)

    return answer


class _Tokens:
    """Tokens of the configuration, compared in constant time."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._tokens: Final = [(token.encode(), agent) for token, agent in tokens.items()]

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the agent of a token."""
        presented_token = token.encode(errors="replace")
        agent = ""
        for expected, owner in self._tokens:
            if hmac.compare_digest(presented_token, expected):
                agent = owner
        return AccessToken(token=token, client_id=agent, scopes=[]) if agent else None
