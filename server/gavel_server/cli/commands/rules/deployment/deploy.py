"""`gavel rules deploy`: records a version of a rule set in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Reason, RuleSetFile, Server

if TYPE_CHECKING:
    from gavel_client import SyncGavelClient


def deploy(
    file: RuleSetFile,
    activate: Annotated[bool, typer.Option("--activate", help="Also put the version in force.")] = False,
    reason: Reason = "",
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Record a version of a rule set in the log. A version is immutable; deploying the same document again changes nothing."""
    from gavel_server.cli import documents
    from gavel_server.cli.rendering import output

    document = documents.read_rule_set(file)
    with connect(server, bus, document=file) as client:
        # The bus `default` always exists. The question needs the right `read`, which a caller that deploys need not have.
        is_new = bus != BUS_DEFAULT and not _bus_exists(client)
        deployed = client.deploy_rule_set(document, reason=reason)
        name = f"{deployed.policy_id} version {deployed.version}"
        # Printed before the activation, which may fail: the version is deployed all the same.
        if as_json:
            output.print_json(deployed)
        else:
            output.print_line(f"{name} is deployed at event {deployed.sequence_number}, {deployed.digest}")
        if is_new:
            output.print_note(f"gavel: the deployment created bus {bus}; check that its name is right")
        if activate:
            activated = client.activate_rule_set(deployed.policy_id, deployed.version, reason=reason)
            output.print_warnings(activated.warnings)
            (output.print_note if as_json else output.print_line)(f"{name} is in force from event {activated.sequence_number}")


def _bus_exists(client: SyncGavelClient) -> bool:
    from gavel_client import GavelError

    try:
        client.get_status()
    except GavelError as error:
        if error.reason == "BUS_NOT_FOUND":
            return False
        if error.reason != "RIGHT_LACKING":
            raise
    # Where a right can be lacking, no deployment creates a bus.
    return True
