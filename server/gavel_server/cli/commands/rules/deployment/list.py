"""`gavel rules list`: prints every deployed version."""

from __future__ import annotations

from gavel_server.cli.connection import connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Server


def list_rule_sets(server: Server = SERVER_DEFAULT, bus: Bus = BUS_DEFAULT, as_json: Json = False, debug: Debug = False) -> None:
    """Print every deployed version."""
    from gavel.v1.fact_pb2 import ACTIVATION_MODE_SHADOW, ActivationMode
    from gavel.v1.rule_set_service_pb2 import ListRuleSetsResponse
    from gavel_client.rpc.paging import sync_pages

    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.events import enum_name, format_time, short_digest

    response = ListRuleSetsResponse()
    with connect(server, bus) as client:
        for page in sync_pages(client.list_rule_sets):
            response.rule_sets.extend(page.rule_sets)
    if as_json:
        output.print_json(response)
        return
    output.print_table(
        ("rule set", "version", "mode", "since", "would differ", "event", "deployed", "actions", "digest"),
        (
            (
                rule_set.policy_id,
                str(rule_set.version),
                enum_name(ActivationMode, rule_set.mode).lower() if rule_set.mode else "-",
                f"#{rule_set.activated_at_sequence_number}" if rule_set.mode else "-",
                f"{rule_set.shadow_differences} of {rule_set.shadow_decisions}" if rule_set.mode == ACTIVATION_MODE_SHADOW else "-",
                f"#{rule_set.deployed_at_sequence_number}",
                format_time(rule_set.deployed_at),
                ", ".join(rule_set.action_types),
                short_digest(rule_set.digest),
            )
            for rule_set in response.rule_sets
        ),
        empty="No rule set is deployed; deploy one with gavel rules deploy FILE --activate",
    )
