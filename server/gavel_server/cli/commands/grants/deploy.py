"""`gavel grants deploy`: puts grants in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.errors import CommandError
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Reason, Server, check_int64

if TYPE_CHECKING:
    from gavel.v1.administration_service_pb2 import WhoAmIResponse
    from gavel_rules.identity.grants import CompiledGrants


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
    resign: Annotated[
        bool, typer.Option("--resign", help="Deploy them even if you may not replace them afterwards. There is no way back.")
    ] = False,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Put grants in force in place of the current ones. A version is immutable.

    Grants that take the right grant from you are refused, unless you --resign.
    """
    from gavel_server.cli import documents
    from gavel_server.cli.rendering import output

    document, grants = documents.read_grants(file)
    with connect(server, bus, document=file) as client:
        report = client.validate_grants(document)
        output.print_warnings(report.warnings, file)
        if not resign:
            _check_way_back(grants, client.who_am_i(), bus)
        deployed = client.deploy_grants(document, reason=reason, expected_version=expected_version)
    if as_json:
        output.print_json(deployed)
    else:
        output.print_line(
            f"{deployed.name} version {deployed.version} is in force from event {deployed.sequence_number}, {deployed.digest}"
        )


def _check_way_back(grants: CompiledGrants, caller: WhoAmIResponse, bus: str) -> None:
    """Raise CommandError if the caller could not replace the grants once they are in force."""
    from gavel_rules.identity.access import Access, explain_refusal, permits
    from gavel_rules.identity.principal import Method, Principal

    by = caller.principal
    principal = Principal(by.name, cast(Method, by.method), groups=tuple(by.groups), actors=tuple(by.actors))
    access = Access("grant", bus or BUS_DEFAULT)
    if principal.is_anonymous or permits(grants, principal, access):
        return
    raise CommandError(
        f"these grants would lock you out: {explain_refusal(grants, principal, access)}; give the right grant to {by.name!r}, or to one of "
        "its groups, or leave it to others with --resign"
    )
