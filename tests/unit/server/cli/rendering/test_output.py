"""The width of tables and texts, on a terminal and elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_server.cli.rendering import output


@pytest.fixture(autouse=True)
def _own_console() -> Iterator[None]:
    """Give each test a new console, because a console keeps the stdout that it was created with."""
    output.console.cache_clear()
    yield
    output.console.cache_clear()


@pytest.mark.parametrize("columns", [None, "", "0", "-5", "many"])
def test_one_line_per_row(columns: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal and a valid COLUMNS a row is one line, so that it can be searched."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    value = "delivered " * 50
    output.print_table(("fact", "value", "said by"), [("order.status", value, "orders-db" * 10)], fold="value")
    assert ["order.status", *value.split(), "orders-db" * 10] in [line.split() for line in capsys.readouterr().out.splitlines()]
    assert output.TEXT_WIDTH_MAX == output.text_width()


def test_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """COLUMNS limits the width of a table."""
    monkeypatch.setenv("COLUMNS", "40")
    output.print_table(("fact", "value"), [("order.status", "delivered " * 20)])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 40
    assert 40 == output.text_width()


@pytest.mark.parametrize("columns", [30, 40, 60, 80])
def test_narrow_terminal(columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a narrow terminal every column is folded; nothing is cut."""
    monkeypatch.setenv("COLUMNS", str(columns))
    row = ("execution.refund.create.status", '"SUCCESS"', "#13", "fact-derivation-reactor", "2026-11-21T00:10:43Z")
    names = ("fact", "value", "event", "said by", "occurred")
    output.print_table(names, [row], fold="value")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    shown = "".join(lines).replace(" ", "").replace("─", "")
    assert sorted("".join((*names, *row)).replace(" ", "")) == sorted(shown)


@pytest.mark.parametrize("one_line", [False, True])
def test_json_does_not_control_a_terminal(capsys: pytest.CaptureFixture[str], one_line: bool) -> None:
    """JSON escapes control, format and bidirectional characters of producers, keeps other text, and means the same."""
    text = "ü😀 \x1b[2J\x7f\x9b1m\u202e\u2066\u200f\U000e0001\n"
    output.print_json(Envelope(subject=text), one_line=one_line)
    printed = capsys.readouterr().out
    assert printed.replace("\n", "").isprintable()
    assert "ü😀" in printed
    assert text == json.loads(printed)["subject"]


def test_reports_do_not_control_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A report escapes what could control a terminal, and means the same."""
    report = {"text": "ü\x1b[2J\x9b1m\u202e\n"}
    output.print_report(report)
    printed = capsys.readouterr().out
    assert (True, True) == (printed.replace("\n", "").isprintable(), "ü" in printed)
    assert report == json.loads(printed)
