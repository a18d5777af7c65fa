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
source %s
COMP_WORDS=(%s)
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
"$(complete -p gavel | sed 's/.*-F \\([^ ]*\\).*/\\1/')" gavel
printf '%%s\\n' "${COMPREPLY[@]}"
"""


ENVIRONMENT = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the script for bash."""
    file = tmp_path_factory.mktemp("completion") / "gavel.bash"
    file.write_bytes(subprocess.run(["gavel", "completion", "bash"], env=ENVIRONMENT, capture_output=True, check=True).stdout)
    return file


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("gavel pr", ["propose", "preflight", "projection", "proof"]),
        ("gavel rules de", ["deploy", "deactivate"]),
        ("gavel propose --e", ["--exit-code"]),
        ("gavel log list --category tool", ["tool-call", "tool-result"]),
        ("gavel completion f", ["fish"]),
        ("gavel serve --front n", ["native", "none"]),
        ("gavel serve --log-level w", ["warning"]),
    ],
)
def test_bash(bash_script: Path, line: str, expected: list[str]) -> None:
    """Bash completes commands, commands of groups, options and their values."""
    script = TAB % (bash_script, " ".join(f"'{word}'" for word in line.split()))
    process = subprocess.run(["bash", "-c", script], env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=True)
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
