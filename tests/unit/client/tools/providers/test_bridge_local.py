"""The shell of this machine: off by default, and then under its names only. tests/contract has the rest of the provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gavel_client.tools import ToolContext, ToolError, ToolInvocation, errors
from gavel_client.tools.contracts import shipped_contracts
from gavel_client.tools.providers.bridge_local import BridgeLocal

RUN = next(contract for contract in shipped_contracts() if contract.name == "command.run")


async def run(provider: BridgeLocal, command_id: str, *argv: str) -> Any:
    """Return what a command wrote, or its code."""
    arguments = {"commandId": command_id, "argv": list(argv)}
    try:
        answer = await provider.invoke(ToolInvocation("bash", RUN, "bridge-local", "exec_000000000000", arguments, ToolContext("host/1")))
    except ToolError as error:
        return error.code
    finally:
        await provider.close()
    return answer.data["stdout"]


async def test_the_shell_runs_a_script_with_arguments(tmp_path: Path) -> None:
    """The first item of argv is the script, the others its arguments; the directory is the workspace."""
    script = 'mkdir a; cd a; echo "$1 in $(basename $PWD)"'
    assert "b in a\n" == await run(BridgeLocal(tmp_path, allow_shell=True), "shell.exec", script, "b")


@pytest.mark.parametrize(
    ("options", "command_id", "expected"),
    [
        ({}, "shell.exec", errors.PERMISSION),
        ({"allow_shell": True}, "bash.exec", "hello\n"),
        ({"allow_shell": True, "aliases": False}, "bash.exec", errors.PERMISSION),
        ({"allow_shell": True, "aliases": False}, "shell.exec", "hello\n"),
    ],
)
async def test_names_of_the_shell(tmp_path: Path, options: dict[str, Any], command_id: str, expected: str) -> None:
    """The shell needs to be turned on, and its alias goes with the aliases."""
    assert expected == await run(BridgeLocal(tmp_path, **options), command_id, "echo hello")


async def test_a_script_is_required(tmp_path: Path) -> None:
    """Without a script there is nothing to run."""
    assert errors.ARGS == await run(BridgeLocal(tmp_path, allow_shell=True), "shell.exec")


@pytest.mark.parametrize("program", ["git status", [], [""], [1]])
def test_programs_are_lists(tmp_path: Path, program: Any) -> None:
    """A program that is no list of texts is refused at once."""
    with pytest.raises(ValueError, match="command git"):
        BridgeLocal(tmp_path, {"git.status": program})
