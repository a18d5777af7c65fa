"""The provider `bridge-local`: the same tools as `workspace` and `workspace-command`, and the shell of this machine if a profile says so.

`shell.exec` (alias `bash.exec`) runs a script, so it may do whatever the user of this process may. It is off by default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gavel_client.tools.errors import ARGS, PERMISSION, ToolError
from gavel_client.tools.invocation import ToolData, ToolInvocation
from gavel_client.tools.providers.processes import OUTPUT_BYTES_MAX
from gavel_client.tools.providers.workspace import FILE_BYTES_MAX, Workspace
from gavel_client.tools.providers.workspace_command import ENVIRONMENT_DEFAULT, WorkspaceCommand

SHELL: Final = "shell.exec"
SHELL_ALIAS: Final = "bash.exec"
_SHELL_PROGRAM: Final = "/bin/sh"


class BridgeLocal:
    """Serves the fs tools and command.run on a directory; with `allow_shell` also the command shell.exec."""

    provider_id: Final = "bridge-local"
    version: Final = "1"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        commands: Mapping[str, Sequence[str]] | None = None,
        *,
        allow_shell: bool = False,
        aliases: bool = True,
        environment: Mapping[str, str] = ENVIRONMENT_DEFAULT,
        file_bytes_max: int = FILE_BYTES_MAX,
        output_bytes_max: int = OUTPUT_BYTES_MAX,
    ) -> None:
        """Serve `directory`, which must exist. Without `aliases`, bash.exec is not known."""
        self._files: Final = Workspace(directory, file_bytes_max=file_bytes_max)
        shell_names = ((SHELL, SHELL_ALIAS) if aliases else (SHELL,)) if allow_shell else ()
        self._commands: Final = _ShellCommands(
            directory, commands or {}, shell_names, environment=environment, output_bytes_max=output_bytes_max
        )
        self.tools: Final = (*self._files.tools, *self._commands.tools)

    async def invoke(self, invocation: ToolInvocation) -> ToolData:
        """Carry out a call. Raises ToolError."""
        provider = self._commands if invocation.canonical_tool in self._commands.tools else self._files
        return await provider.invoke(invocation)

    async def close(self) -> None:
        """Release the directory."""
        await self._files.close()
        await self._commands.close()


class _ShellCommands(WorkspaceCommand):
    """Listed commands, and the shell under `shell_names`."""

    def __init__(
        self, directory: str | os.PathLike[str], commands: Mapping[str, Sequence[str]], shell_names: Sequence[str], **options: Any
    ) -> None:
        super().__init__(directory, commands, **options)
        self._shell_names: Final = shell_names

    def _program(self, command_id: str, argv: list[str]) -> list[str]:
        if command_id not in self._shell_names:
            if command_id in (SHELL, SHELL_ALIAS):
                raise ToolError(PERMISSION, f"{command_id} is off; a profile turns it on with `shell: true`")
            return super()._program(command_id, argv)
        if not argv:
            raise ToolError(ARGS, "argv is empty; its first item is the script")
        # A script, its name as $0, and its arguments.
        return [_SHELL_PROGRAM, "-c", argv[0], "sh", *argv[1:]]
