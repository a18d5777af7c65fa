"""`gavel rules upgrade`: how it writes files."""

from __future__ import annotations

from pathlib import Path

import pytest
from gavel_server.cli.main import run

from tests.unit.server.cli.commands.rules.authoring.untidy import TIDY, fail_at_sync


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that cannot be written as a whole stays as it was; another run upgrades it."""
    file = tmp_path / "parcels.yaml"
    file.write_text(TIDY)
    fail_at_sync(1, monkeypatch)
    assert 1 == run(["rules", "upgrade", str(file)])
    assert (TIDY, f"gavel: cannot write {file}: No space left on device\n") == (file.read_text(), capsys.readouterr().err)
    assert 0 == run(["rules", "upgrade", str(file)])
    assert file.read_text().startswith("gavel: v2\n")
