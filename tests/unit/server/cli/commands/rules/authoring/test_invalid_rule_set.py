"""The offline commands on an invalid rule set."""

from __future__ import annotations

from pathlib import Path

import pytest
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set
from gavel_server.cli.main import run


@pytest.mark.parametrize("command", [["diff", "{good}", "{bad}"], ["graph", "{bad}"], ["bench", "{bad}"]])
def test_mistakes(command: list[str], versions: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An invalid rule set is exit status 2; each mistake is on stderr with its place, and stdout is empty."""
    bad = tmp_path / "bad.yaml"
    bad.write_text(shipped_rule_set("refunds").replace("params.amount > 500", "params.amuont > 500"), encoding="utf-8")
    assert 2 == run(["rules", *(part.format(good=versions[0], bad=bad) for part in command)])
    printed = capsys.readouterr()
    assert ("", True) == (
        printed.out,
        printed.err.startswith(f"gavel: {bad} is not a valid rule set; fix these mistakes and try again\n{bad}:"),
    )
    assert "unknown-name" in printed.err
