"""Tables and texts as they leave the program: their width, on a terminal and elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gavel_server.cli import output


@pytest.fixture(autouse=True)
def _own_console() -> Iterator[None]:
    """A console for each test: it keeps the stdout that it was made with."""
    output.console.cache_clear()
    yield
    output.console.cache_clear()


@pytest.mark.parametrize("columns", [None, "", "0", "-5", "many"])
def test_a_row_is_a_line(columns: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where no terminal and no sensible COLUMNS limit it, a row stands on one line, so that it can be searched and cut."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    value = "delivered " * 50
    output.print_table(("fact", "value", "said by"), [("order.status", value, "orders-db" * 10)], fold="value")
    assert ["order.status", *value.split(), "orders-db" * 10] in [line.split() for line in capsys.readouterr().out.splitlines()]
    assert output.TEXT_WIDTH_MAX == output.text_width()


def test_columns_limit_the_width(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """COLUMNS folds a table that is wider."""
    monkeypatch.setenv("COLUMNS", "40")
    output.print_table(("fact", "value"), [("order.status", "delivered " * 20)])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 40
    assert 40 == output.text_width()


@pytest.mark.parametrize("columns", [30, 40, 60, 80])
def test_nothing_is_cut(columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a narrow terminal every column is folded rather than cut or left out."""
    monkeypatch.setenv("COLUMNS", str(columns))
    row = ("execution.refund.create.status", '"SUCCESS"', "#13", "fact-derivation-reactor", "2026-11-21T00:10:43Z")
    names = ("fact", "value", "event", "said by", "occurred")
    output.print_table(names, [row], fold="value")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    shown = "".join(lines).replace(" ", "").replace("─", "")
    assert sorted("".join((*names, *row)).replace(" ", "")) == sorted(shown)
