"""`gavel grants deploy`: puts grants in force."""

from __future__ import annotations

from typing import Annotated

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Reason, Server, check_int64


def deploy_grants(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Grants in YAML or JSON; - is standard input.")],
    reason: Reason = "",
    expected_version: Annotated[
        int | None,
        typer.Option(
            "--expected-version",
            metavar="VERSION",
            min=0,
            callback=check_int64,
            help="Fail if another version is in force. 0: if any version is.",
        ),
    ] = None,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Put grants in force in place of the current ones. A version is immutable."""
    from gavel_server.cli import documents
    from gavel_server.cli.rendering import output

    document = documents.read_document(file)
    with connect(server, bus, document=file) as client:
        report = client.validate_grants(document)
        for warning in report.warnings:
            output.print_note(f"gavel: warning: {file}:{warning.line}:{warning.column}: {warning.code}: {warning.message}")
        deployed = client.deploy_grants(document, reason=reason, expected_version=expected_version)
    if as_json:
        output.print_json(deployed)
    else:
        output.print_line(
            f"{deployed.name} version {deployed.version} is in force from event {deployed.sequence_number}, {deployed.digest}"
        )
