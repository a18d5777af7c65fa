"""The contracts of the tools that ship, on every provider: same arguments, same results, same codes (constitution 004 §14)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from gavel.v1.tool_pb2 import ToolContract
from gavel_client.tools import Provider, ToolContext, ToolError, ToolInvocation, errors
from gavel_client.tools.contracts import shipped_contracts
from gavel_client.tools.providers.bridge_local import BridgeLocal
from gavel_client.tools.providers.workspace import Workspace
from gavel_client.tools.providers.workspace_command import WorkspaceCommand
from gavel_client.tools.schemas import Schemas

CONTRACTS = {contract.name: contract for contract in shipped_contracts()}
FILE_BYTES_MAX = 100
OUTPUT_BYTES_MAX = 1000
COMMANDS = {
    "text.echo": ["echo"],
    "text.cat": ["cat"],
    "process.sleep": ["sleep"],
    "process.script": ["sh", "-c"],
    "none.such": ["/no/such/program"],
    "not.executable": ["/etc/passwd"],
}
Open = Callable[[Path], Provider]
FILE_PROVIDERS: dict[str, Open] = {
    "workspace": lambda directory: Workspace(directory, file_bytes_max=FILE_BYTES_MAX),
    "bridge-local": lambda directory: BridgeLocal(directory, file_bytes_max=FILE_BYTES_MAX),
}
COMMAND_PROVIDERS: dict[str, Open] = {
    "workspace-command": lambda directory: WorkspaceCommand(directory, COMMANDS, output_bytes_max=OUTPUT_BYTES_MAX),
    "bridge-local": lambda directory: BridgeLocal(directory, COMMANDS, output_bytes_max=OUTPUT_BYTES_MAX),
}
PATH = "/workspace/src/a.txt"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A workspace with a file, beside a file outside and a link to it."""
    inside = tmp_path / "inside"
    (inside / "src").mkdir(parents=True)
    (inside / "src/a.txt").write_text("one two two\n")
    (inside / "src/binary").write_bytes(b"\xff")
    (tmp_path / "secret").write_text("secret")
    (inside / "src/link").symlink_to(tmp_path / "secret")
    (inside / "linked").symlink_to(tmp_path)
    (inside / "src/second").hardlink_to(tmp_path / "secret")
    return inside


@pytest.fixture(params=list(FILE_PROVIDERS))
async def files(request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[Provider]:
    """Every provider of the fs tools."""
    provider = FILE_PROVIDERS[request.param](directory)
    yield provider
    await provider.close()


@pytest.fixture(params=list(COMMAND_PROVIDERS))
async def commands(request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[Provider]:
    """Every provider of command.run."""
    provider = COMMAND_PROVIDERS[request.param](directory)
    yield provider
    await provider.close()


async def answer(provider: Provider, tool: str, **arguments: Any) -> Any:
    """Return the data of a call, which must match the contract, or its code."""
    contract: ToolContract = CONTRACTS[tool]
    invocation = ToolInvocation(tool, contract, provider.provider_id, "exec_000000000000", arguments, ToolContext("file/a"))
    try:
        data = (await provider.invoke(invocation)).data
    except ToolError as error:
        return error.code
    assert "" == Schemas().problem(contract.result_schema, data, "result")
    return data


READ = {"path": PATH, "text": "one two two\n", "offset": 0, "total": 12, "truncated": False}
FILE_CASES: list[tuple[str, dict[str, Any], Any]] = [
    ("fs.read_text", {"path": PATH}, READ),
    ("fs.read_text", {"path": PATH, "offset": 4, "limit": 3}, {**READ, "text": "two", "offset": 4, "truncated": True}),
    ("fs.read_text", {"path": PATH, "offset": 99}, {**READ, "text": "", "offset": 99}),
    ("fs.read_text", {"path": PATH, "offset": -1}, errors.ARGS),
    ("fs.read_text", {"path": "/workspace/src/none"}, errors.PATH),
    ("fs.read_text", {"path": "/workspace/src"}, errors.PATH),
    ("fs.read_text", {"path": "/workspace/../secret"}, errors.PATH),
    ("fs.read_text", {"path": "/etc/passwd"}, errors.PATH),
    ("fs.read_text", {"path": "src/a.txt"}, errors.PATH),
    ("fs.read_text", {}, errors.PATH),
    ("fs.read_text", {"path": "/workspace/src/link"}, errors.PERMISSION),
    ("fs.read_text", {"path": "/workspace/src/second"}, errors.PERMISSION),
    ("fs.read_text", {"path": "/workspace/linked/secret"}, errors.PATH),
    ("fs.read_text", {"path": "/workspace/src/binary"}, errors.TOOL),
    ("fs.write_text", {"path": "/workspace/src/b.txt", "text": "é"}, {"path": "/workspace/src/b.txt", "bytes": 2}),
    ("fs.write_text", {"path": PATH, "text": "!", "mode": "append"}, {"path": PATH, "bytes": 13}),
    ("fs.write_text", {"path": PATH, "text": "!", "mode": "create"}, errors.CONFLICT),
    ("fs.write_text", {"path": PATH, "text": "!", "mode": "truncate"}, errors.ARGS),
    ("fs.write_text", {"path": PATH, "text": "x" * (FILE_BYTES_MAX + 1)}, errors.QUOTA),
    ("fs.write_text", {"path": PATH}, errors.ARGS),
    ("fs.write_text", {"path": "/workspace/no/b.txt", "text": "x"}, errors.PATH),
    ("fs.write_text", {"path": "/workspace/src/link", "text": "x"}, errors.PERMISSION),
    ("fs.patch_text", {"path": PATH, "find": "one", "replace": "1"}, {"path": PATH, "replacements": 1}),
    ("fs.patch_text", {"path": PATH, "old": "one", "new": "1"}, {"path": PATH, "replacements": 1}),
    ("fs.patch_text", {"path": PATH, "find": "two", "replace": "2", "all": True}, {"path": PATH, "replacements": 2}),
    ("fs.patch_text", {"path": PATH, "find": "two", "replace": "2"}, errors.CONFLICT),
    ("fs.patch_text", {"path": PATH, "old": "three", "new": "3"}, errors.CONFLICT),
    ("fs.patch_text", {"path": PATH, "find": "", "replace": "2"}, errors.ARGS),
    ("fs.patch_text", {"path": PATH, "find": "one"}, errors.ARGS),
    ("fs.patch_text", {"path": "/workspace/src/none", "find": "a", "replace": "b"}, errors.PATH),
]


@pytest.mark.parametrize(("tool", "arguments", "expected"), FILE_CASES)
async def test_files(files: Provider, tool: str, arguments: dict[str, Any], expected: object) -> None:
    """The fs tools answer as their contracts say."""
    assert expected == await answer(files, tool, **arguments)


def output(stdout: str = "", exit_code: int = 0, stderr: str = "", truncated: bool = False, timeout_hit: bool = False) -> dict[str, object]:
    """Return the data of a command."""
    return {"exitCode": exit_code, "stdout": stdout, "stderr": stderr, "truncated": truncated, "timeoutHit": timeout_hit}


COMMAND_CASES: list[tuple[dict[str, Any], Any]] = [
    ({"commandId": "text.echo", "argv": ["a b", "$HOME"]}, output("a b $HOME\n")),
    ({"commandId": "text.echo"}, output("\n")),
    ({"commandId": "text.cat", "argv": ["a.txt"], "cwd": "/workspace/src"}, output("one two two\n")),
    ({"commandId": "process.script", "argv": ["pwd -P | sed 's#.*/##'; exit 3"]}, output("inside\n", 3)),
    ({"commandId": "process.script", "argv": ["echo no >&2; kill -TERM $$"]}, output("", 143, "no\n")),
    ({"commandId": "process.script", "argv": ["env | grep -v ^GIT_CONFIG | sort | cut -d= -f1 | head -1"]}, output("HOME\n")),
    ({"commandId": "process.script", "argv": ["head -c 5000 /dev/zero | tr '\\0' x"]}, output("x" * OUTPUT_BYTES_MAX, truncated=True)),
    ({"commandId": "process.sleep", "argv": ["3600"], "timeoutMs": 50}, output("", 137, timeout_hit=True)),
    ({"commandId": "process.script", "argv": ["cat"]}, output("")),
    ({"commandId": "process.script", "argv": ["sleep 3600 & echo started"]}, output("started\n")),
    ({"commandId": "text.echo", "argv": ["a\0b"]}, errors.ARGS),
    ({"commandId": "text.echo", "argv": "a"}, errors.ARGS),
    ({"commandId": "text.echo", "timeoutMs": 0}, errors.ARGS),
    ({"commandId": "text.echo", "cwd": "/workspace/none"}, errors.PATH),
    ({"commandId": "text.echo", "cwd": "/workspace/src/a.txt"}, errors.PATH),
    ({"commandId": "text.echo", "cwd": "/workspace/.."}, errors.PATH),
    ({"commandId": "text.echo", "cwd": "/usr"}, errors.PATH),
    ({"commandId": "text.cat", "argv": ["secret"], "cwd": "/workspace/linked"}, errors.PATH),
    ({"commandId": "rm"}, errors.PERMISSION),
    ({"commandId": "shell.exec", "argv": ["echo hello"]}, errors.PERMISSION),
    ({"commandId": "bash.exec", "argv": ["echo hello"]}, errors.PERMISSION),
    ({"commandId": "none.such"}, errors.TOOL),
    ({"commandId": "not.executable"}, errors.PERMISSION),
    ({}, errors.ARGS),
]


@pytest.mark.parametrize(("arguments", "expected"), COMMAND_CASES)
async def test_commands(commands: Provider, arguments: dict[str, Any], expected: object) -> None:
    """command.run runs what is allowed, in the workspace, and answers as its contract says."""
    assert expected == await answer(commands, "command.run", **arguments)


async def test_output_is_passed_on_while_the_command_runs(commands: Provider) -> None:
    """Each part of the output reaches `emit` before the command ends."""
    parts: list[tuple[str, str]] = []
    arrival = asyncio.Event()

    def emit(stream: str, text: str) -> None:
        parts.append((stream, text))
        arrival.set()
        raise RuntimeError("a receiver that fails must not matter")

    arguments = {"commandId": "process.script", "argv": ["echo one; echo two >&2; sleep 3600"]}
    context = ToolContext("file/a", emit=emit)
    call = ToolInvocation("bash", CONTRACTS["command.run"], commands.provider_id, "exec_000000000000", arguments, context)
    calling = asyncio.create_task(commands.invoke(call))
    while len(parts) < 2:
        arrival.clear()
        await arrival.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert {("stdout", "one\n"), ("stderr", "two\n")} == set(parts)


async def test_no_process_outlives_its_call(commands: Provider, directory: Path) -> None:
    """At the timeout, when the program has ended, and when the call is cancelled, the whole process group is gone."""
    script = "sh -c 'echo $$ >> pids; sleep 3600' & sh -c 'echo $$ >> pids; sleep 3600' & {}"
    pids = directory / "pids"
    await answer(commands, "command.run", commandId="process.script", argv=[script.format("wait")], timeoutMs=400)
    await answer(commands, "command.run", commandId="process.script", argv=[script.format("while [ $(wc -l < pids) -lt 4 ]; do :; done")])
    calling = asyncio.create_task(answer(commands, "command.run", commandId="process.script", argv=[script.format("wait")]))
    while len(pids.read_text().split()) < 6:  # noqa: ASYNC110  # other processes write the file
        await asyncio.sleep(0.01)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    ends_at = time.monotonic() + 30
    while alive := [pid for pid in pids.read_text().split() if _is_alive(int(pid))]:
        assert time.monotonic() < ends_at, f"{alive} outlive their calls"
        await asyncio.sleep(0.01)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" != Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
