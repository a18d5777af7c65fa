"""`gavel evidence get`: prints a piece of evidence."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from gavel_rules.text import printable

from gavel_server.cli.commands.evidence.store import Store, open_store
from gavel_server.cli.errors import CommandError, InvalidInputError
from gavel_server.cli.options import Debug


def get_evidence(
    content_hash: Annotated[str, typer.Argument(metavar="HASH", help="The evidence_hash of a TOOL_RESULT: sha256: and 64 hex digits.")],
    store: Store,
    debug: Debug = False,
) -> None:
    """Print the bytes with a hash, after hashing them again. On a terminal control characters are escaped."""
    from gavel_client.evidence.store import EvidenceError

    from gavel_server.cli.rendering import output

    try:
        content = open_store(store).get(content_hash)
    except EvidenceError as error:
        raise CommandError(f"{error} (--store {store})") from error
    except ValueError as error:
        raise InvalidInputError(str(error)) from error
    if sys.stdout.isatty():  # what a tool returned must not control the terminal
        content = "\n".join(map(printable, content.decode(errors="replace").split("\n"))).encode()
    output.print_bytes(content)
