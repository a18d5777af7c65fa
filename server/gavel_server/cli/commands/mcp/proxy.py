"""`gavel mcp proxy`: stands between an MCP client and MCP servers."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gavel_server.cli.commands.mcp.options import ConfigFile, configuration_errors, load, mcp_extra, open_proxy_client
from gavel_server.cli.errors import CommandError, InvalidInputError
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Server

if TYPE_CHECKING:
    from gavel_client import GavelClient
    from gavel_client.mcp.configuration import Configuration
    from gavel_client.mcp.proxy import Proxy


def proxy(
    config: ConfigFile,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve streamable HTTP at /mcp here instead of stdio. Port 0: any free one.")
    ] = None,
    observe: Annotated[
        bool,
        typer.Option(
            "--observe", help="Decide and record every call, and let refused ones through. A call that cannot be recorded is not made."
        ),
    ] = False,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    debug: Debug = False,
) -> None:
    """Let Gavel decide about the calls that an MCP client makes to MCP servers.

    The client starts this command as an MCP server, or connects to it over HTTP. Reads are forwarded and witnessed. Calls with effects
    become proposals, and are forwarded if they are approved. Logs go to standard error.
    """
    from gavel_server.cli.consumer import run_until_signal

    mcp_extra()
    configuration = load(config)
    tokens = {} if listen is None else _tokens(configuration, config.parent)
    listener = None if listen is None else _listener(listen, configuration)

    async def run() -> None:
        from gavel_client.mcp.proxy import Proxy

        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(open_proxy_client(server, bus))
            logging.getLogger(__name__).info("gavel=%s bus=%s decides about the calls", server, bus)
            with configuration_errors():
                clients = await _agent_clients(stack, configuration, config.parent, server, bus)
                mcp_proxy = Proxy(configuration, config.parent, client, agent_clients=clients, observe=observe)
            await _serve(await stack.enter_async_context(mcp_proxy), tokens, listener)

    run_until_signal(run)


async def _agent_clients(
    stack: AsyncExitStack, configuration: Configuration, folder: Path, server: str, bus: str
) -> dict[str, GavelClient]:
    """Return a client for each agent that has a token of its own."""
    clients: dict[str, GavelClient] = {}
    for agent in configuration.all_agents:
        if agent.gavel_token is not None:
            clients[agent.id] = await stack.enter_async_context(open_proxy_client(server, bus, token=agent.gavel_token.read(folder)))
    return clients


async def _serve(proxy_: Proxy, tokens: Mapping[str, str], listener: socket.socket | None) -> None:
    import asyncio

    from gavel_client.mcp.server import ProxyServer
    from gavel_client.mcp.transports import PATH, serve_http, serve_stdio

    from gavel_server.cli.consumer import stop_on_signal
    from gavel_server.cli.rendering import output
    from gavel_server.process.build import VERSION

    server = ProxyServer(proxy_, VERSION)
    stopped = asyncio.Event()
    stop_on_signal(stopped.set)
    if listener is not None:
        host, port = listener.getsockname()[:2]
        output.print_line(f"gavel: ready on http://{f'[{host}]' if ':' in host else host}:{port}{PATH}")
        await serve_http(server, listener, tokens, stopped)
        return
    serving = asyncio.create_task(serve_stdio(server))
    stopping = asyncio.create_task(stopped.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        stopping.cancel()
        serving.result()
        return
    # A thread blocks in the read of stdin, which nothing can interrupt.
    await proxy_.close()
    os._exit(0)


def _tokens(configuration: Configuration, folder: Path) -> dict[str, str]:
    """Return the agent of each token. Raises InvalidInputError."""
    with configuration_errors():
        return configuration.tokens(folder)


def _listener(address: str, configuration: Configuration) -> socket.socket:
    """Return the listening socket of an address. Raises InvalidInputError, CommandError."""
    from gavel_client.mcp.transports import is_loopback

    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise InvalidInputError(f"{address!r} is not an address; give HOST:PORT, e.g. 127.0.0.1:8080 (--listen)")
    try:
        listener = socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise CommandError(f"cannot listen on {address}: {error.strerror} (--listen)") from error
    # The address decides, not the name: "127.example.com" may be any address.
    if not is_loopback(listener) and any(agent.token is None for agent in configuration.all_agents):
        listener.close()
        raise InvalidInputError(
            f"every host could call tools at {address}; give each agent of the configuration a token, or listen on 127.0.0.1"
        )
    return listener
