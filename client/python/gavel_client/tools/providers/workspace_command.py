"""The provider `workspace-command`: runs listed commands in a workspace (constitution 004 §8).

A command is named by what it does, and the list says which program does it. The list is the policy: a program on it may do whatever the
user of this process may, so list programs that stay in the workspace whatever their arguments.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gavel_client.tools.errors import ARGS, PERMISSION, ToolError
from gavel_client.tools.invocation import ToolData, ToolInvocation
from gavel_client.tools.providers.git import explicit_repositories
from gavel_client.tools.providers.jail import ROOT, Jail
from gavel_client.tools.providers.processes import OUTPUT_BYTES_MAX, run_process

COMMAND_TIMEOUT_MS_DEFAULT: Final = 30_000
# Of the time of a call, the part in which a command that is overdue is ended and its output is read.
_STOP_MS: Final = 1_000
ENVIRONMENT_DEFAULT: Final[Mapping[str, str]] = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent"}


class WorkspaceCommand:
    """Serves command.run: `commands` gives the program and its first arguments by commandId. Linux only.

    The programs get `environment` and nothing of this process's own, which may hold secrets. Git, among them, does not take a directory for
    a repository because of its content: an agent can choose the directory, and may have written the content.
    """

    provider_id = "workspace-command"
    version: Final = "1"
    tools: tuple[str, ...] = ("command.run",)

    def __init__(
        self,
        directory: str | os.PathLike[str],
        commands: Mapping[str, Sequence[str]],
        *,
        environment: Mapping[str, str] = ENVIRONMENT_DEFAULT,
        output_bytes_max: int = OUTPUT_BYTES_MAX,
    ) -> None:
        """Run commands under `directory`, which must exist. Each of stdout and stderr has at most `output_bytes_max` bytes."""
        for command_id, program in commands.items():
            if not program or isinstance(program, str) or not all(isinstance(part, str) and part for part in program):
                raise ValueError(f"the program of the command {command_id} is not a list of texts, e.g. [git, status]")
        self._jail: Final = Jail(directory)
        self._commands: Final = {command_id: tuple(program) for command_id, program in commands.items()}
        self._environment: Final = explicit_repositories(environment)
        self._output_bytes_max: Final = output_bytes_max

    async def invoke(self, invocation: ToolInvocation) -> ToolData:
        """Run a command. Raises ToolError: E_PERMISSION for a commandId that is not listed, E_PATH for its cwd."""
        invocation.require_effect("process")
        arguments = invocation.arguments
        command_id, argv = arguments.get("commandId"), arguments.get("argv", [])
        if not isinstance(command_id, str) or not isinstance(argv, list) or not all(isinstance(one, str) for one in argv):
            raise ToolError(ARGS, "commandId is not a text, or argv is not a list of texts")
        if any("\0" in one for one in argv):
            raise ToolError(ARGS, "argv holds a NUL character")
        program = self._program(command_id, argv)
        with self._jail.directory(_text(arguments, "cwd", ROOT)) as directory:
            data = await run_process(
                program,
                directory,
                environment=self._environment,
                timeout_ms=_timeout_ms(arguments, invocation.context.timeout_ms),
                output_bytes_max=self._output_bytes_max,
                emit=invocation.emit,
            )
        ended = "ended at its timeout" if data["timeoutHit"] else f"ended with {data['exitCode']}"
        return ToolData(data, summary=f"{command_id} {ended}")

    async def close(self) -> None:
        """Release the directory."""
        self._jail.close()

    def _program(self, command_id: str, argv: list[str]) -> list[str]:
        """Return the program to run and its arguments. Raises ToolError E_PERMISSION."""
        program = self._commands.get(command_id)
        if program is None:
            raise ToolError(
                PERMISSION, f"the command {command_id!r} is not allowed here; allowed: {', '.join(sorted(self._commands)) or 'none'}"
            )
        return [*program, *argv]


def _text(arguments: Mapping[str, Any], name: str, default: str) -> str:
    value = arguments.get(name, default)
    if not isinstance(value, str):
        raise ToolError(ARGS, f"{name} is not a text")
    return value


def _timeout_ms(arguments: Mapping[str, Any], call_ms: int) -> int:
    """Return the time of the command: as the arguments say, within that of the call."""
    timeout_ms = arguments.get("timeoutMs", COMMAND_TIMEOUT_MS_DEFAULT)
    if isinstance(timeout_ms, bool) or not isinstance(timeout_ms, int | float) or timeout_ms < 1:
        raise ToolError(ARGS, "timeoutMs is not a number of milliseconds, 1 or more")
    return max(1, min(int(timeout_ms), call_ms - _STOP_MS))
