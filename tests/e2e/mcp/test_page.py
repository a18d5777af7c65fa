"""The session of docs/mcp.md, executed.

A program stands in for npx: it runs the pinned server, or the official client with the options of the inspector.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.documentation.sessions import ADDRESS, SESSION_TIMEOUT_SECONDS, assert_shown, blocks, free_address
from tests.support.paths import ROOT

# npx -y PACKAGE ARGUMENTS…; the inspector prints the result of a call as JSON, and fails if the tool reports an error.
NPX: Final = """#!{python}
import argparse, asyncio, json, os, sys

package, arguments = sys.argv[2], sys.argv[3:]
if package.startswith("@modelcontextprotocol/server-filesystem@"):
    os.execvp("node", ["node", "{servers}/server-filesystem/dist/index.js", *arguments])
assert package.startswith("@modelcontextprotocol/inspector@"), package

from mcp import Client, StdioServerParameters

parser = argparse.ArgumentParser()
parser.add_argument("--cli", action="store_true", required=True)
for name in ("--config", "--server", "--method"):
    parser.add_argument(name, required=True)
parser.add_argument("--tool-name")
parser.add_argument("--tool-arg", action="append", default=[])
options = parser.parse_args(arguments)


async def main():
    server = json.load(open(options.config))["mcpServers"][options.server]
    async with Client(StdioServerParameters(**server, env=dict(os.environ)), mode="legacy") as client:
        if options.method == "tools/list":
            return await client.list_tools()
        return await client.call_tool(options.tool_name, dict(pair.split("=", 1) for pair in options.tool_arg))


result = asyncio.run(main())
print(json.dumps(result.model_dump(mode="json", by_alias=True, exclude_none=True), indent=2))
sys.exit(5 if getattr(result, "is_error", False) else 0)
"""


@pytest.mark.long
@pytest.mark.timeout(SESSION_TIMEOUT_SECONDS + 20)
def test_page(npm_servers: Path, tmp_path: Path) -> None:
    """The page runs to its end, from nothing to a governed agent, and prints what it shows."""
    page = ROOT / "docs/mcp.md"
    address = free_address()
    script = "\n".join(blocks(page, "sh")).replace("$PWD/.venv/bin:", "").replace(ADDRESS, address)
    npx = NPX.replace("{python}", sys.executable).replace("{servers}", str(npm_servers))

    assert_shown(page, script, tmp_path, address, installed=False, programs={"npx": npx})
