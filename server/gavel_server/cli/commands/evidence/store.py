"""The option `--store` of `gavel evidence`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gavel_server.cli.errors import CommandError, InvalidInputError

if TYPE_CHECKING:
    from gavel_client.evidence import EvidenceStore

Store = Annotated[
    str,
    typer.Option(
        "--store", envvar="GAVEL_EVIDENCE", metavar="URL", help="The evidence store: a directory, or a URL such as s3://bucket/path."
    ),
]


def open_store(url: str) -> EvidenceStore:
    """Return the store, to read it. Raises InvalidInputError, and CommandError if a package is missing."""
    from gavel_client.evidence import EvidenceStore

    try:
        store = EvidenceStore(url)
    except ImportError as error:
        raise CommandError(str(error)) from error
    except ValueError as error:
        raise InvalidInputError(f"{url} is not an evidence store: {error} (--store)") from error
    if store.is_absent():
        raise InvalidInputError(f"there is no directory {url}; name the store of the runtime that made the calls (--store)")
    return store
