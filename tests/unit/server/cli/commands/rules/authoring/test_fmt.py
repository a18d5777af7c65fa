"""`gavel rules fmt`: which files it writes, and what it says of them."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from gavel_server.cli.main import run

from tests.unit.server.cli.commands.rules.authoring.untidy import TIDY, UNTIDY, fail_at_sync


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two files to format."""
    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for file in files:
        file.write_text(UNTIDY)
    return files


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_missing_file(files: list[Path], options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A path that names no file is exit status 2, and no other file is written."""
    assert 2 == run(["rules", "fmt", *map(str, files), str(files[0].with_name("missing.yaml")), *options])
    assert [UNTIDY] * 2 == [file.read_text() for file in files]
    assert "missing.yaml: No such file" in capsys.readouterr().err


def test_written_files_are_named(files: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that was written before a later one cannot be is named."""
    fail_at_sync(2, monkeypatch)
    assert 1 == run(["rules", "fmt", *map(str, files)])
    assert [TIDY, UNTIDY] == [file.read_text() for file in files]
    expected = f"{files[0]} was formatted\ngavel: cannot write {files[1]}: No space left on device\n"
    assert expected == capsys.readouterr().err


def test_one_document_on_stdout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard input is not formatted with --json, whose report has stdout; --check takes both."""
    for options, status in ((["--json"], 2), (["--json", "--check"], 1)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(UNTIDY.encode())))
        assert status == run(["rules", "fmt", "-", *options])
    printed = capsys.readouterr()
    assert '{\n  "changed": [\n    "-"\n  ],\n  "invalid": []\n}\n' == printed.out
    assert printed.err.startswith("gavel: with --json the report takes standard output, ")


def test_full_disk(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be written as a whole stays as it was."""
    fail_at_sync(1, monkeypatch)
    assert 1 == run(["rules", "fmt", str(files[0])])
    assert UNTIDY == files[0].read_text()
