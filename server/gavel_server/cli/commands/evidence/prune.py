"""`gavel evidence prune`: removes old evidence."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from gavel_server.cli.commands.evidence.store import Store, open_store
from gavel_server.cli.errors import CommandError
from gavel_server.cli.options import Debug

_DURATION: Final = re.compile(r"([1-9][0-9]{0,4})([dh])\Z")


def _parse_duration(text: str) -> timedelta:
    """Return a duration such as 90d. Raises BadParameter."""
    match = _DURATION.match(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a number of days or hours, at most 99999; write it as 90d or 12h")
    return timedelta(days=int(match[1])) if match[2] == "d" else timedelta(hours=int(match[1]))


def prune_evidence(
    store: Store,
    keep: Annotated[
        timedelta,
        typer.Option("--keep", parser=_parse_duration, metavar="AGE", help="Keep what a call returned within this time: 90d, 12h."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing; print what would be removed.")] = False,
    debug: Debug = False,
) -> None:
    """Remove evidence that no call has returned for a time, and print each piece.

    Events keep their hashes, so the trace shows what was there; `verify` reports it as missing.
    """
    from gavel_client.evidence.pruning import prune
    from gavel_client.evidence.store import EvidenceError

    from gavel_server.cli.rendering import output

    count = size_bytes = 0
    try:
        for evidence in prune(open_store(store), datetime.now(UTC) - keep, dry_run=dry_run):
            count += 1
            size_bytes += evidence.size_bytes
            output.print_line(f"{evidence.hash}  {evidence.size_bytes} bytes  {evidence.written_at:%Y-%m-%dT%H:%M:%SZ}")
    except EvidenceError as error:
        raise CommandError(f"{error}; {count} pieces of evidence were removed before (--store {store})") from error
    output.print_line(f"{'would remove' if dry_run else 'removed'} {count} pieces, {size_bytes} bytes")
