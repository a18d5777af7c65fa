"""`gavel mcp scaffold`: how it writes files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gavel_server.cli.main import run

from tests.unit.server.cli.commands.rules.authoring.untidy import fail_at_sync


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that --force cannot replace as a whole stays as it was."""

    async def list_tools(servers: object, folder: Path) -> list[Any]:
        return []

    monkeypatch.setattr("gavel_server.cli.commands.mcp.scaffold.list_tools", list_tools)
    config = tmp_path / "proxy.yaml"
    config.write_text("by hand")
    fail_at_sync(1, monkeypatch)
    rules = str(tmp_path / "rules.yaml")
    assert 1 == run(["mcp", "scaffold", "--server", "fs=server", "--rules", rules, "--config", str(config), "--force"])
    assert ("by hand", f"gavel: cannot write {config}: No space left on device\n") == (config.read_text(), capsys.readouterr().err)
