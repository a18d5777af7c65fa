"""`gavel rules rollback`: puts the previous version of a rule set back in force."""

from __future__ import annotations

from typing import Annotated

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.errors import CommandError
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


def rollback(
    policy_id: PolicyId,
    to: Annotated[int, typer.Option("--to", min=0, callback=check_int64, metavar="VERSION", help="The version. 0: the previous one.")] = 0,
    expected: ExpectedActiveVersion = None,
    reason: Reason = "",
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Put the version back in force that the active one replaced.

    After a rollback that would be the newer version again, so a second rollback needs --to, or --expected-active-version as a
    confirmation. The command fails if another version comes into force meanwhile.
    """
    from gavel.v1.fact_pb2 import ACTIVATION_MODE_ACTIVE

    from gavel_server.cli.rendering import output

    with connect(server, bus) as client:
        current = client.get_rule_set(policy_id).rule_set
        if current.mode != ACTIVATION_MODE_ACTIVE:
            raise CommandError(f"no version of {policy_id} is in force; put one in force with gavel rules activate {policy_id} VERSION")
        version = to or current.previous_version
        if not version:
            raise CommandError(f"{policy_id} version {current.version} replaced no other version; name one with --to VERSION")
        if not to and expected is None and version > current.version:
            raise CommandError(
                f"{policy_id} version {current.version} is in force in place of the newer version {version}, as after a rollback; name a "
                f"version with --to, or bring {version} back with --expected-active-version {current.version}"
            )
        expected_version = current.version if expected is None else expected
        response = client.activate_rule_set(policy_id, version, expected_active_version=expected_version, reason=reason)
    output.print_warnings(response.warnings)
    if as_json:
        output.print_json(response)
    else:
        change = f", in place of {current.version}" if version != current.version else " already"
        output.print_line(f"{policy_id} version {version} is in force from event {response.sequence_number}{change}")
