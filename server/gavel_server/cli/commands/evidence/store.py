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
    """Return the store. Raises InvalidInputError, and CommandError if a package is missing."""
    from gavel_client.evidence import EvidenceStore

    try:
        return EvidenceStore(url)
    except ImportError as error:
        raise CommandError(str(error)) from error
    except ValueError as error:
        raise InvalidInputError(f"{url} is not an evidence store: {error} (--store)") from error
