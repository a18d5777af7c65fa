"""Sessions of the documentation: the scripts of a page, run in a shell, and the output that the page shows."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.e2e.runs import forker
from tests.support.paths import ROOT
from tests.support.ports import free_port

BIN: Final = Path(sys.executable).parent
ADDRESS: Final = "127.0.0.1:9090"
# Only a session that hangs takes longer.
SESSION_TIMEOUT_SECONDS: Final = 500


def blocks(page: Path, language: str, section: str = "") -> list[str]:
    """Return the blocks of a language in a page, or in the section of it that has this heading."""
    text = page.read_text(encoding="utf-8")
    if section:
        level = section.partition(" ")[0]
        text = re.split(rf"^{level} ", text.partition(f"{section}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def free_address() -> str:
    """Return an address on which nothing listens."""
    return f"127.0.0.1:{free_port()}"


@contextmanager
def shell(
    script: str, directory: Path, address: str, installed: bool, programs: Mapping[str, str] = MappingProxyType({})
) -> Iterator[subprocess.Popen[str]]:
    """Run a script in a shell and kill everything that it started. `installed`: whether `gavel` is the installed program, or a fork of it.

    `programs` has more scripts for the path, by name.
    """
    # In long sessions the starts of the program would take most of the time.
    forked = f'#!/bin/sh\nexec {shlex.join(forker().command())} "$@"\n'
    tools = directory / "tools"
    tools.mkdir()
    for name, text in {**({} if installed else {"gavel": forked}), **programs}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GAVEL_")} | {
        "PATH": f"{tools}:{BIN}:{os.environ['PATH']}",
        "TMPDIR": str(directory),
        "XDG_CONFIG_HOME": str(directory / "config"),
        "COLUMNS": "200",
        "GAVEL_LISTEN": address,
        "GAVEL_SERVER": address,
    }
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def assert_shown(
    page: Path,
    script: str,
    directory: Path,
    address: str,
    *,
    installed: bool,
    section: str = "",
    programs: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run the script of a page, or of a section of it; its output must have the lines that the page shows, in their order.

    The page may cut a line short with "…" and lay columns out closer; times differ.
    """
    with shell(script, directory, address, installed, programs) as process:
        output, _ = process.communicate(timeout=SESSION_TIMEOUT_SECONDS)

    assert process.returncode == 0, output
    output_lines = iter(output.splitlines())
    page_lines = [line for block in blocks(page, "text", section) for line in block.splitlines() if line.strip("… ")]
    missing = [line for line in page_lines if not any(_pattern(line).match(one) for one in output_lines)]
    assert [] == missing[:1], output


def _pattern(shown: str) -> re.Pattern[str]:
    words = (r"\S+" if re.match(r"\d{4}-\d\d-", word) else ".*".join(map(re.escape, word.split("…"))) for word in shown.split())
    return re.compile(r"\s*" + r"\s+".join(words))
