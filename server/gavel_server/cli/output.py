"""What commands print: JSON for machines, tables and lines for people. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, TextIO

from gavel_server.cli.errors import OutputClosedError

if TYPE_CHECKING:
    from gavel.v1.envelope_pb2 import Envelope
    from google.protobuf.message import Message
    from rich.console import Console
    from rich.progress import Progress

# Where running text is wrapped at the latest.
TEXT_WIDTH_MAX: Final = 100
# A table that does not go to a terminal is as wide as it needs, unless COLUMNS says otherwise: a row is a line, for grep and awk.
UNBOUNDED_WIDTH: Final = 100_000
# A folded column narrower than this is no longer read.
FOLDED_WIDTH_MIN: Final = 12
# What stands between two columns.
_GAP: Final = "  "


def say(line: str) -> None:
    """Print a line of the result, as it is. Raises OutputClosedError."""
    _print(line, sys.stdout)


def note(line: str) -> None:
    """Print a line about the run, for people, on stderr. Raises OutputClosedError."""
    _print(line, sys.stderr)


def print_json(message: Message, *, one_line: bool = False) -> None:
    """Print a message of the contract as protobuf JSON with its own field names.

    Fields at their default are there too: a program that reads it finds the same shape every time.
    """
    from google.protobuf.json_format import MessageToJson

    say(
        MessageToJson(
            message,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            ensure_ascii=False,
            indent=None if one_line else 2,
        )
    )


@cache
def console() -> Console:
    """Return the console of stdout. It shows text as it is: what comes from the log is never taken for markup."""
    from rich.console import Console

    class Stdout(Console):
        """Raises OutputClosedError, as `say` does."""

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
    """Print a table; the column `fold`, else the last, is folded to fit, never cut. Without rows, the sentence `empty` instead.

    Where the others alone would take nearly all of the width, every column is folded.
    """
    from rich.box import SIMPLE
    from rich.cells import cell_len
    from rich.table import Table

    cells = list(rows)
    if not cells:
        if empty:
            say(empty)
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
        say("")
        console().print(title, style="bold")
    console().print(table)


def _print(line: str, stream: TextIO) -> None:
    try:
        print(line, file=stream, flush=True)
    except BrokenPipeError as error:
        # Not left to the libraries: they would end the process with 1, which says that documents differ or tests fail.
        raise OutputClosedError from error


def print_fields(rows: Iterable[tuple[str, str]]) -> None:
    """Print names with their values, aligned."""
    named = list(rows)
    width = max(len(name) for name, _ in named)
    for name, value in named:
        say(f"{name:<{width}}  {value}")


def print_event_line(envelope: Envelope) -> None:
    """Print one event as one line, whatever its length: lines can be searched and counted."""
    from gavel_server.cli.describe import describe, moment, printable, producer_name

    say(
        f"{envelope.sequence_number:>6}  {moment(envelope.recorded_at)}  {printable(envelope.event_name):<20}  "
        f"{printable(envelope.subject)}  {producer_name(envelope)}  {describe(envelope)}"
    )


def progress_bar() -> Progress:
    """Return a progress bar on stderr; it shows only on a terminal and leaves nothing behind."""
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
