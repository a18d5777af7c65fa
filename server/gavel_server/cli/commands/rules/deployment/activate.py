"""`gavel rules activate`: puts a deployed version of a rule set in force."""

from __future__ import annotations

from typing import Annotated

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.options import (
    BUS_DEFAULT,
    SERVER_DEFAULT,
    Bus,
    Debug,
    ExpectedActiveVersion,
    Json,
    PolicyId,
    Reason,
    Server,
    check_int64,
)


def activate(
    policy_id: PolicyId,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, callback=check_int64, help="The deployed version.")],
    shadow: Annotated[bool, typer.Option("--shadow", help="Evaluate it as a shadow, which decides nothing.")] = False,
    expected_active_version: ExpectedActiveVersion = None,
    reason: Reason = "",
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Put a deployed version in force.

    It is in force on all replicas from the same sequence number on.
    """
    from gavel.v1.fact_pb2 import ACTIVATION_MODE_ACTIVE, ACTIVATION_MODE_SHADOW

    from gavel_server.cli.rendering import output

    with connect(server, bus) as client:
        mode = ACTIVATION_MODE_SHADOW if shadow else ACTIVATION_MODE_ACTIVE
        response = client.activate_rule_set(policy_id, version, mode=mode, expected_active_version=expected_active_version, reason=reason)
    output.print_warnings(response.warnings)
    if as_json:
        output.print_json(response)
    else:
        output.print_line(f"{policy_id} version {version} is {'a shadow' if shadow else 'in force'} from event {response.sequence_number}")
