"""The output of commands: JSON for programs, tables and lines for people. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Final, TextIO

from gavel_rules.text import printable_json

from gavel_server.cli.errors import OutputClosedError

if TYPE_CHECKING:
    from gavel.v1.envelope_pb2 import Envelope
    from gavel.v1.rule_set_service_pb2 import DocumentMessage
    from google.protobuf.message import Message
    from rich.console import Console
    from rich.progress import Progress

# The greatest width of running text.
TEXT_WIDTH_MAX: Final = 100
# Unless COLUMNS is set, a table that does not go to a terminal has one line per row, for grep and awk.
UNBOUNDED_WIDTH: Final = 100_000
# A folded column that is narrower than this is unreadable.
FOLDED_WIDTH_MIN: Final = 12
# Between two columns.
_GAP: Final = "  "


def print_line(line: str) -> None:
    """Print a line of the result on stdout. Raises OutputClosedError."""
    _print(line, sys.stdout)


def print_note(line: str) -> None:
    """Print a line about the run on stderr. Raises OutputClosedError."""
    _print(line, sys.stderr)


def print_warnings(warnings: Iterable[DocumentMessage], file: str = "") -> None:
    """Print the warnings of an answer on stderr, with their places in the file, if it is given. Raises OutputClosedError."""
    for warning in warnings:
        place = f"{file}:{warning.line}:{warning.column}: " if file else ""
        print_note(f"gavel: warning: {place}{warning.code}: {warning.message}")


# Whether `--json` prints the contract's field names (snake_case) in place of those of protobuf JSON (lowerCamelCase).
_prints_contract_names: Final = ContextVar("prints_contract_names", default=False)

JSON: Final = "--json"
JSON_SNAKE: Final = "--json=snake"


def read_json_names(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command with --json in place of --json=snake, and remember the form of the names in JSON.

    Typer has no option with an optional value.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    _prints_contract_names.set(JSON_SNAKE in arguments[:end])
    return [JSON if argument == JSON_SNAKE else argument for argument in arguments[:end]] + list(arguments[end:])


def print_json(message: Message, *, one_line: bool = False) -> None:
    """Print a message as protobuf JSON (https://protobuf.dev/programming-guides/json/), for --json.

    Fields with default values are included, so that programs always find the same shape.
    """
    from google.protobuf.json_format import MessageToJson

    text = MessageToJson(
        message,
        preserving_proto_field_name=_prints_contract_names.get(),
        always_print_fields_with_no_presence=True,
        ensure_ascii=False,
        indent=None if one_line else 2,
    )
    print_line(printable_json(text))


def print_report(report: object) -> None:
    """Print plain values as JSON, for --json of a command whose report is no message. Raises OutputClosedError."""
    print_line(printable_json(json.dumps(report, indent=2, ensure_ascii=False)))


def print_bytes(content: bytes) -> None:
    """Print bytes of the result on stdout, as they are. Raises OutputClosedError."""
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except BrokenPipeError as error:
        raise OutputClosedError from error


@cache
def console() -> Console:
    """Return the console of stdout. It never interprets text from the log as markup."""
    from rich.console import Console

    class Stdout(Console):
        """Raises OutputClosedError on a broken pipe, as `print_line` does."""

        def on_broken_pipe(self) -> None:
            raise OutputClosedError

    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) > 0 else UNBOUNDED_WIDTH
    return Stdout(width=None if sys.stdout.isatty() else width, markup=False, highlight=False, emoji=False)


def text_width() -> int:
    """Return how many columns running text may take."""
    return min(console().width, TEXT_WIDTH_MAX)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", empty: str = "", fold: str | None = None
) -> None:
    """Print a table, or the sentence `empty` if there are no rows.

    The column `fold`, by default the last, is folded to fit the width; nothing is cut. If the other columns leave it too little room,
    every column is folded.
    """
    from rich.box import SIMPLE
    from rich.cells import cell_len
    from rich.table import Table

    cells = list(rows)
    if not cells:
        if empty:
            print_line(empty)
        return
    folded = len(columns) - 1 if fold is None else columns.index(fold)
    widths = [max(map(cell_len, texts)) + len(_GAP) for texts in zip(columns, *cells, strict=True)]
    cramped = sum(widths) - widths[folded] + FOLDED_WIDTH_MIN > console().width
    table = Table(box=SIMPLE, pad_edge=False, show_edge=False, collapse_padding=True)
    for index, column in enumerate(columns):
        no_wrap = index != folded and not cramped
        table.add_column(column, overflow="fold", no_wrap=no_wrap, justify="right" if column == "#" else "left")
    for row in cells:
        table.add_row(*row)
    if title:
        print_line("")
        console().print(title, style="bold")
    console().print(table)


def _print(line: str, stream: TextIO) -> None:
    try:
        print(line, file=stream, flush=True)
    except BrokenPipeError as error:
        # Libraries would end the process with 1, which means that documents differ or tests fail.
        raise OutputClosedError from error


def print_fields(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two aligned columns."""
    named = list(rows)
    width = max(len(name) for name, _ in named)
    for name, value in named:
        print_line(f"{name:<{width}}  {value}")


def print_event_line(envelope: Envelope) -> None:
    """Print one event as one line of any length, so that lines can be searched and counted."""
    from gavel_rules.text import printable

    from gavel_server.cli.rendering.events import describe, format_time, producer_name

    line = (
        f"{envelope.sequence_number:>6}  {format_time(envelope.recorded_at)}  {printable(envelope.event_name):<20}  "
        f"{printable(envelope.subject)}  {producer_name(envelope)}  {describe(envelope, beside_name=True)}"
    )
    print_line(line.rstrip())


def progress_bar() -> Progress:
    """Return a progress bar on stderr, which shows only on a terminal and is erased at its end."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
