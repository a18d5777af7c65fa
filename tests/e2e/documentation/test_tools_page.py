"""The first call in docs/tools.md works as shown."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.e2e.cli.programs import gavel
from tests.e2e.world import Server, run_servers
from tests.support.paths import ROOT


def test_the_first_call(tmp_path: Path) -> None:
    """The profile and the commands of the page call a tool, show its trace and verify its evidence."""
    page = (ROOT / "docs/tools.md").read_text()
    profile = re.search(r"```yaml\n# tools\.yaml\n(.*?)```", page, re.DOTALL)
    first = page.partition("## A first call")[2].partition("In Python:")[0]
    commands = [line.strip() for line in first.splitlines() if line.startswith("    ")]
    assert profile is not None
    assert "mkdir work && echo hello > work/a.txt" == commands.pop(0)
    (tmp_path / "work").mkdir()
    (tmp_path / "work/a.txt").write_text("hello\n")
    (tmp_path / "tools.yaml").write_text(profile[1])
    server = Server(tmp_path / "data")
    outputs = {}
    directory = Path.cwd()
    os.chdir(tmp_path)
    try:
        with run_servers(server):
            for command in commands:
                program, *arguments = re.findall(r"'[^']*'|\S+", command)
                assert "gavel" == program
                result = gavel(*(argument.strip("'") for argument in arguments), GAVEL_SERVER=server.address)
                assert 0 == result.returncode, (command, result.stderr)
                outputs[" ".join(arguments[:2])] = result.stdout
    finally:
        os.chdir(directory)
    assert '"text": "hello\\n"' in outputs["tools call"]
    assert "ToolCalled" in outputs["trace t-1"]
    assert "verified" in outputs["evidence verify"]
