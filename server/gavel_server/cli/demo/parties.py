"""The parties of the demo: a process with a token of its own for each, and the grants that say what each may do."""

from __future__ import annotations

import asyncio
import sys
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from gavel.v1.envelope_pb2 import Envelope

from gavel_server.cli.errors import CommandError
from gavel_server.process.private_files import make_directory

OPERATOR: Final = "ada"
ORDERS: Final = "orders-db"
AGENT: Final = "refund-agent"
OTHER_AGENT: Final = "billing-agent"
TOOLS: Final = "fraud-tools"
EXECUTOR: Final = "demo-executor"
PARTIES: Final = (ORDERS, AGENT, OTHER_AGENT, TOOLS, EXECUTOR)
# In the data directory.
TOKENS: Final = "demo-tokens"
ANSWER_SECONDS_MAX: Final = 120
STOP_SECONDS_MAX: Final = 10

GRANTS: Final = f"""
gavel: v1
name: demo
version: 1
grants:
  - {{to: [{OPERATOR}], may: [deploy, activate, grant, operate, read, subscribe, replay, review]}}
  # The order system opens the traces of its orders, in which the others take part.
  - {{to: [{ORDERS}], may: [publish], produce: {{types: [database_snapshot], ids: [{ORDERS}]}}, facts: ["order.*"]}}
  - {{to: [{AGENT}], may: [propose, publish], produce: {{types: [agent], ids: [{AGENT}]}}, actions: [refund.create], joins: [{ORDERS}]}}
  - {{to: [{OTHER_AGENT}], may: [propose], produce: {{types: [agent], ids: [{OTHER_AGENT}]}}, actions: [refund.create]}}
  - {{to: [{TOOLS}], may: [publish], produce: {{types: [tool_runtime], ids: [{TOOLS}]}}, joins: [{ORDERS}]}}
  - {{to: [{EXECUTOR}], may: [execute], produce: {{types: [executor], ids: [{EXECUTOR}]}}, actions: [refund.create]}}
"""


def token_file(data: Path) -> Path:
    """Return the path of the server's token file."""
    return data / TOKENS / "tokens.toml"


def token_path(data: Path, name: str) -> Path:
    """Return the path of the token of a party."""
    return data / TOKENS / f"{name}.token"


def create_tokens(data: Path) -> str:
    """Write a new token file for the server, and the token of each party; return the operator's token. Raises CommandError."""
    from gavel_server.identity.tokens import add_token

    file = token_file(data)
    try:
        make_directory(file.parent)
        file.unlink(missing_ok=True)
        for name in (OPERATOR, *PARTIES):
            path = token_path(data, name)
            path.unlink(missing_ok=True)
            path.touch(mode=0o600)
            path.write_text(add_token(file, name, (), None))
    except OSError as error:
        raise CommandError(f"cannot write {file.parent}: {error.strerror}; give another directory with --data") from error
    return token_path(data, OPERATOR).read_text()


class Party:
    """One party, which publishes events and proposes as the story tells it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self._name = name
        self._process = process

    async def say(self, envelope: Envelope) -> Envelope:
        """Publish an event, or propose; return the recorded event, or the decision. Raises CommandError."""
        return Envelope.FromString(b64decode(await self.tell(b64encode(envelope.SerializeToString()).decode())))

    async def tell(self, line: str) -> str:
        """Send a line and return the answer. Raises CommandError."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None  # noqa: S101, PT018  # for the type checker: both are pipes
        stdin.write(f"{line}\n".encode())
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                answer = (await stdout.readline()).decode().strip()
        except TimeoutError:
            answer = f"error no answer within {ANSWER_SECONDS_MAX} s"
        if not answer or answer.startswith("error"):
            raise CommandError(f"the process of {self._name} failed: {answer.removeprefix('error ') or 'it has ended'}")
        return answer

    async def stop(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def run_parties(address: str, bus: str, data: Path) -> AsyncIterator[Mapping[str, Party]]:
    """Run all parties; stop them with the block."""
    async with AsyncExitStack() as stack:
        parties: dict[str, Party] = {}
        for name in PARTIES:
            command = (sys.executable, "-m", "gavel_server.cli.demo.party", name, address, bus, str(token_path(data, name)))
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**24
            )
            parties[name] = Party(name, process)
            stack.push_async_callback(parties[name].stop)
        yield parties
