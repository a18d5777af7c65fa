"""An MCP server whose effects, pauses and definitions a test controls by files in the folder of its argument.

`append` writes a line to `lines`, and then waits while there is a file `hold`. `description` holds the description of `append`, `broken`
makes it report an error, and `peek` reads the lines. The file `started` has a line for each start.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool, ToolAnnotations

FOLDER = Path(sys.argv[1])
TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}


async def list_tools(context: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
    """List the tools as the files have them now."""
    changed = FOLDER / "description"
    description = changed.read_text() if changed.exists() else "Append a line."
    return ListToolsResult(
        tools=[
            Tool(name="append", description=description, input_schema=TEXT),
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
    lines = FOLDER / "lines"
    if params.name == "peek":
        return CallToolResult(content=[TextContent(text=lines.read_text() if lines.exists() else "")])
    if (FOLDER / "broken").exists():
        return CallToolResult(content=[TextContent(text="the ledger is full")], is_error=True)
    with lines.open("a") as file:
        file.write(f"{(params.arguments or {})['text']}\n")
    while (FOLDER / "hold").exists():  # noqa: ASYNC110  # the test is another process
        await asyncio.sleep(0.02)
    return CallToolResult(content=[TextContent(text="appended")], structured_content={"lines": len(lines.read_text().splitlines())})


async def main() -> None:
    """Serve until the client closes stdin."""
    with (FOLDER / "started").open("a") as file:
        file.write("started\n")
    server: Server[Any] = Server("ledger", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


asyncio.run(main())
