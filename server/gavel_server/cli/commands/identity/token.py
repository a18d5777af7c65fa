"""`gavel token create`: a token for a caller, whose digest the server's token file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gavel_server.cli.errors import InvalidInputError
from gavel_server.cli.options import Debug


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The caller's name, e.g. orders-agent.")],
    group: Annotated[list[str] | None, typer.Option("--group", metavar="GROUP", help="A group of the caller; may be repeated.")] = None,
    token_file: Annotated[
        Path, typer.Option(envvar="GAVEL_TOKEN_FILE", metavar="FILE", help="The server's token file. It is created if it does not exist.")
    ] = Path("tokens.toml"),
    days: Annotated[int | None, typer.Option(metavar="N", min=1, max=3650, help="Days until the token expires. Default: never.")] = None,
    debug: Debug = False,
) -> None:
    """Add a token to the server's token file and print it. The file holds only its digest, so it cannot be printed again.

    A running server accepts the token within two seconds. To revoke a token, delete its entry from the file.
    """
    from datetime import UTC, datetime, timedelta

    from gavel_server.cli.rendering import output
    from gavel_server.identity.errors import IdentityFileError
    from gavel_server.identity.tokens import add_token

    expires_at = None if days is None else datetime.now(UTC) + timedelta(days=days)
    try:
        token = add_token(token_file, name, tuple(group or ()), expires_at)
    except IdentityFileError as error:
        raise InvalidInputError(str(error)) from error
    output.print_line(token)
    output.print_note(f"gavel: {token_file} has the digest of the token of {name}; this is the only time that the token is shown")
