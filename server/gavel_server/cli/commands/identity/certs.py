"""`gavel certs dev`: certificates to try out TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gavel_server.cli.errors import InvalidInputError
from gavel_server.cli.options import Debug

HOSTS_DEFAULT = ["localhost", "127.0.0.1", "::1"]
CLIENTS_DEFAULT = ["client"]


def dev(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of the files; it is created if it does not exist.")],
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="A name or address of the server. Default: this machine's loopback."),
    ] = None,
    client: Annotated[
        list[str] | None, typer.Option("--client", metavar="NAME", help="A client's name, for its file and certificate. Default: client.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Make an authority, a server's certificate and clients' certificates, for trying out TLS. They are valid for 30 days.

    The files are ca.pem, server.pem, client.pem, each with its key in NAME-key.pem. Existing files are kept, so that the command adds
    a client to a directory. Use an authority of your organisation in production.
    """
    from gavel_server.cli.rendering import output
    from gavel_server.identity.development_certificates import make_certificates

    try:
        files = make_certificates(directory, host or HOSTS_DEFAULT, client or CLIENTS_DEFAULT)
    except ValueError as error:
        raise InvalidInputError(str(error)) from error
    for path in files:
        output.print_line(str(path))
    if not files:
        output.print_note(f"gavel: {directory} has all these certificates; delete a file to make it again")
