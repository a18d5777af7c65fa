"""`gavel completion`: the script that teaches a shell to complete `gavel`.

The script calls `gavel` itself at each TAB, so it never lags behind the installed version.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import typer

# The script sets it when it calls the program.
COMPLETION_VARIABLE: Final = "_GAVEL_COMPLETE"


class Shell(StrEnum):
    """A shell that Typer has a completion script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="The shell.")]) -> None:
    """Print the completion script of a shell.

    bash: put `source <(gavel completion bash)` in ~/.bashrc. zsh: put `source <(gavel completion zsh)` in ~/.zshrc, after compinit.
    fish: run `gavel completion fish > ~/.config/fish/completions/gavel.fish`.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # Typer has no other way to get it

    from gavel_server.cli.rendering import output

    output.print_line(get_completion_script(prog_name="gavel", complete_var=COMPLETION_VARIABLE, shell=shell.value))
