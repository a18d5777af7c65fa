"""`gavel rules deactivate`: takes a rule set out of force."""

from __future__ import annotations

from typing import Annotated

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, ExpectedActiveVersion, Json, PolicyId, Reason, Server


def deactivate(
    policy_id: PolicyId,
    shadow: Annotated[bool, typer.Option("--shadow", help="End its shadow; the active version stays in force.")] = False,
    expected_active_version: ExpectedActiveVersion = None,
    reason: Reason = "",
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Take a rule set out of force.

    Proposals of its actions are rejected with NO_ACTIVE_POLICY until another rule set governs them.
    """
    from gavel.v1.fact_pb2 import ACTIVATION_MODE_ACTIVE, ACTIVATION_MODE_SHADOW

    from gavel_server.cli.rendering import output

    with connect(server, bus) as client:
        mode = ACTIVATION_MODE_SHADOW if shadow else ACTIVATION_MODE_ACTIVE
        response = client.deactivate_rule_set(policy_id, mode=mode, expected_active_version=expected_active_version, reason=reason)
    if as_json:
        output.print_json(response)
    else:
        output.print_line(f"{policy_id} {'has no shadow' if shadow else 'is out of force'} from event {response.sequence_number}")
