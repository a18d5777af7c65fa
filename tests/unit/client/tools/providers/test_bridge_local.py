"""The shell of this machine: off by default, and then under its names only. tests/contract has the rest of the provider."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from gavel_client.tools import ToolContext, ToolError, ToolInvocation, errors
from gavel_client.tools.contracts import shipped_contracts
from gavel_client.tools.providers.bridge_local import BridgeLocal
from gavel_client.tools.providers.workspace_command import ENVIRONMENT_DEFAULT

RUN = next(contract for contract in shipped_contracts() if contract.name == "command.run")


async def run(provider: BridgeLocal, command_id: str, *argv: str, cwd: str = "/workspace") -> Any:
    """Return what a command wrote, or its code."""
    arguments = {"commandId": command_id, "argv": list(argv), "cwd": cwd}
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


@pytest.mark.parametrize(
    "environment", [{}, {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.bareRepository", "GIT_CONFIG_VALUE_0": "all"}]
)
@pytest.mark.parametrize("cwd", ["fixtures/repo.git", "src"])
async def test_git_reads_no_configuration_that_an_agent_wrote(tmp_path: Path, environment: Mapping[str, str], cwd: str) -> None:
    """Git takes no directory for a repository because of its content, whatever environment is configured."""
    workspace = _with_repositories(tmp_path)
    programs = {"git.status": ["git", "status"]}

    assert "" == await run(
        BridgeLocal(workspace, programs, environment={**ENVIRONMENT_DEFAULT, **environment}), "git.status", cwd=f"/workspace/{cwd}"
    )
    assert not (tmp_path / "ran").exists()
    assert "On branch main" in await run(BridgeLocal(workspace, programs), "git.status")
    _git(workspace / cwd, "status")
    assert (tmp_path / "ran").exists(), "the repositories of this test run nothing, even without a guard"


def test_the_settings_of_git_in_the_environment_are_counted(tmp_path: Path) -> None:
    """An environment with an unusable number of settings is refused at once."""
    with pytest.raises(ValueError, match="GIT_CONFIG_COUNT"):
        BridgeLocal(tmp_path, environment={"GIT_CONFIG_COUNT": "some"})


def _with_repositories(folder: Path) -> Path:
    """Return a workspace of Git with two directories that git takes for repositories, and whose configuration runs a program."""
    workspace = folder / "work"
    (workspace / "src").mkdir(parents=True)
    _git(workspace, "init", "-q", "-b", "main", ".")
    _git(workspace, "config", "extensions.worktreeConfig", "true")
    _git(workspace, "init", "-q", "--bare", "fixtures/repo.git")
    runs = f'fsmonitor = "touch {folder / "ran"}"\n'
    (workspace / "fixtures/repo.git/config").write_text(f"[core]\nrepositoryformatversion = 0\nbare = false\nworktree = ../..\n{runs}")
    (workspace / "src/HEAD").write_text("ref: refs/heads/main\n")
    (workspace / "src/commondir").write_text("../.git\n")
    (workspace / "src/config.worktree").write_text(f"[core]\nworktree = ..\n{runs}")
    return workspace


def _git(directory: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=directory, env=ENVIRONMENT_DEFAULT, check=True, capture_output=True)
