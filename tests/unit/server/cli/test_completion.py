"""Shell completion of `gavel`, as a shell asks for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gavel_server.cli.main import run

BIN = Path(sys.executable).parent
# What Bash does at TAB: call the function that `complete -F` names, with the words of the line, and take COMPREPLY.
TAB = """
source <(gavel completion bash)
COMP_WORDS=(%s)
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
"$(complete -p gavel | sed 's/.*-F \\([^ ]*\\).*/\\1/')" gavel
printf '%%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("gavel pr", ["propose", "preflight", "projection"]),
        ("gavel rules de", ["deploy", "deactivate"]),
        ("gavel propose --e", ["--exit-code"]),
        ("gavel log list --category tool", ["tool-call", "tool-result"]),
        ("gavel completion f", ["fish"]),
        ("gavel serve --front n", ["native", "none"]),
        ("gavel serve --log-level w", ["warning"]),
    ],
)
def test_bash(line: str, expected: list[str]) -> None:
    """Bash completes commands, commands of groups, options and their values."""
    script = TAB % " ".join(f"'{word}'" for word in line.split())
    environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    process = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert ("", sorted(expected)) == (process.stderr, sorted(process.stdout.split()))


@pytest.mark.parametrize(
    ("shell", "part"),
    [
        ("bash", "complete -o default -F _gavel_completion gavel"),
        ("zsh", "compdef _gavel_completion gavel"),
        ("fish", "complete --command gavel"),
    ],
)
def test_script(shell: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each shell has a script that registers the program."""
    assert 0 == run(["completion", shell])
    assert part in capsys.readouterr().out


def test_unknown_shell(capsys: pytest.CaptureFixture[str]) -> None:
    """Another shell is wrong usage, and the message names those that there are."""
    assert 2 == run(["completion", "tcsh"])
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err
