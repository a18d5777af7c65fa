"""The world of the proxy's tests: real proxies on a real server of Gavel, real MCP servers, and the official client.

Proxies over stdio and ledgers are forks of programs (see `forking`); the tests of HTTP and of npm's servers start the installed ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient
from mcp import Client, StdioServerParameters
from mcp.client.extension import ClientExtension
from mcp.client.session import MessageHandlerFnT
from mcp_types import CallToolResult

from tests.e2e.runs import forker
from tests.e2e.world import WAIT_SECONDS_MAX, Server

# A real MCP server, installed beside the interpreter.
GIT_SERVER: Final = str(Path(sys.executable).with_name("mcp-server-git"))

PROXY: Final = "tests.e2e.mcp.proxy_program"
AGENT: Final = "coding-agent"
LEDGER_RULES: Final = """
gavel: v1
rule_set: ledger
version: 1
actions:
  ledger.append:
    params: {type: object, required: [text], properties: {text: {type: string}}}
    facts:
      definition: {key: ledger.append.digest, type: string, min_trust: 2, max_age_ms: 86400000, sources: [ledger.tools/list]}
      open: {key: ledger.open, type: boolean, max_age_ms: 86400000, sources: [office], optional: true}
    decision_ttl_ms: 600000
rules:
  - {id: closed, action: ledger.append, priority: 30, when: 'has(facts.open) && !facts.open', effect: reject, reason_code: LEDGER_CLOSED}
  - {id: careful, action: ledger.append, priority: 20, when: 'params.text.startsWith("careful")', effect: review, reason_code: CAREFUL}
  - {id: plain, action: ledger.append, priority: 10, when: 'facts.definition != ""', effect: approve}
"""


@dataclass(frozen=True)
class World:
    """A folder with a proxy's files, on a bus of its own."""

    folder: Path
    server: Server
    bus: str
    client: GavelClient

    @property
    def lines(self) -> list[str]:
        """The lines of the ledger: the effects that calls have had."""
        path = self.folder / "lines"
        return path.read_text().splitlines() if path.exists() else []

    def configure(self, servers: dict[str, Any], **settings: Any) -> None:
        """Write the configuration of the proxy."""
        document = {"servers": servers, **({} if "agents" in settings else {"agent": {"id": AGENT}}), **settings}
        (self.folder / "proxy.yaml").write_text(json.dumps(document))

    def configure_ledger(self, append: dict[str, Any] | None = None, **settings: Any) -> None:
        """Configure the ledger as the only server."""
        command = [*forker().command("tests.e2e.mcp.ledger_server"), str(self.folder)]
        tools = {"append": append or {}, "peek": {"mode": "read", "fields": {"ledger.text": "result.text"}}}
        self.configure({"ledger": {"command": command, "tools": tools}}, **settings)

    async def deploy(self, rules: str) -> None:
        """Put a rule set in force."""
        deployed = await self.client.deploy_rule_set(rules)
        await self.client.activate_rule_set(deployed.policy_id, deployed.version)

    def arguments(self, *options: str) -> list[str]:
        """Return the arguments of the command that runs the proxy."""
        return ["mcp", "proxy", "--config", "proxy.yaml", "--server", self.server.address, "--bus", self.bus, *options]

    @asynccontextmanager
    async def connect(
        self,
        *options: str,
        mode: str = "auto",
        extensions: Sequence[ClientExtension] = (),
        message_handler: MessageHandlerFnT | None = None,
    ) -> AsyncIterator[Client]:
        """Start the proxy and connect the official client to it over stdio."""
        command, *words = forker().command(PROXY)
        arguments = [*words, *self.arguments(*options)]
        parameters = StdioServerParameters(command=command, args=arguments, env=dict(os.environ), cwd=self.folder)
        async with Client(parameters, mode=mode, extensions=extensions, message_handler=message_handler, cache=None) as client:
            yield client

    async def events(self, payload: str) -> list[Envelope]:
        """Return the events of the bus with a payload, e.g. "tool_call", in order."""
        page = await self.client.list_events(page_size=1000)
        return [envelope for envelope in page.envelopes if envelope.WhichOneof("payload") == payload]


def text_of(result: CallToolResult) -> str:
    """Return the text of a result."""
    return "\n".join(getattr(part, "text", "") for part in result.content)


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    """Wait for a condition. Raises AssertionError, with `what`, if it does not come."""
    try:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while True:
                answer = condition()
                if answer if isinstance(answer, bool) else await answer:
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(what) from None
