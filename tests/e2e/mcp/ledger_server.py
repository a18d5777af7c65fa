"""An MCP server whose effects, pauses and definitions a test controls by files in the folder of its argument.

`append` writes a line to `lines`, and then waits while there is a file `hold`. `description` holds the description of `append`, `argument`
the name of another argument, `broken` makes it report an error, and `peek` reads the lines. With a file `hold-list` the list of tools
waits, with `hold-peek` `peek` does. `peek` returns as many characters as the file `characters` says. The file `started` has a line for each
start. With a file `announces` the server tells subscribers of each new description.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool, ToolAnnotations

TEXT: dict[str, Any] = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}


def place(name: str) -> Path:
    """Return the path of a file in the folder."""
    return Path(sys.argv[1]) / name


def read(name: str) -> str:
    """Return the text of a file; "" without the file."""
    path = place(name)
    return path.read_text() if path.exists() else ""


async def hold(name: str) -> None:
    """Wait while there is a file."""
    while place(name).exists():  # noqa: ASYNC110  # the test is another process
        await asyncio.sleep(0.02)


async def list_tools(context: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
    """List the tools as the files have them now."""
    await hold("hold-list")
    description = read("description") or "Append a line."
    properties = TEXT["properties"] | ({read("argument"): {"type": "string"}} if read("argument") else {})
    return ListToolsResult(
        tools=[
            Tool(name="append", description=description, input_schema=TEXT | {"properties": properties}),
            Tool(
                name="peek",
                description="Read the lines.",
                input_schema={"type": "object"},
                annotations=ToolAnnotations(read_only_hint=True),
            ),
        ]
    )


async def call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
    """Append a line, or read the lines."""
    if params.name == "peek":
        await hold("hold-peek")
        return CallToolResult(content=[TextContent(text="x" * int(read("characters") or 0) or read("lines"))])
    if place("broken").exists():
        return CallToolResult(content=[TextContent(text="the ledger is full")], is_error=True)
    with place("lines").open("a") as file:
        file.write(f"{(params.arguments or {})['text']}\n")
    await hold("hold")
    return CallToolResult(content=[TextContent(text="appended")], structured_content={"lines": len(read("lines").splitlines())})


async def announce(bus: InMemorySubscriptionBus) -> None:
    """Tell subscribers of each new description."""
    description = read("description")
    while True:
        await asyncio.sleep(0.02)
        if read("description") != description:
            description = read("description")
            await bus.publish(ToolsListChanged())


async def serve() -> None:
    """Serve until the client closes stdin."""
    with place("started").open("a") as file:
        file.write("started\n")
    bus = InMemorySubscriptionBus()
    announces = place("announces").exists()
    listen = ListenHandler(bus) if announces else None
    server: Server[Any] = Server("ledger", version="1", on_list_tools=list_tools, on_call_tool=call_tool, on_subscriptions_listen=listen)
    announcing = asyncio.create_task(announce(bus)) if announces else None
    async with stdio_server() as (source, sink):
        await server.run(source, sink, server.create_initialization_options())
    if announcing is not None:
        announcing.cancel()


def main() -> None:
    """Run the server."""
    asyncio.run(serve())


if __name__ == "__main__":
    main()
