"""`gavel rules shadow`: evaluates a version without letting it decide, and shows where it would decide differently."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.errors import CommandError, InvalidInputError
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, PolicyId, Server, check_int64

if TYPE_CHECKING:
    from gavel.v1.envelope_pb2 import Envelope
    from gavel.v1.rule_set_service_pb2 import RuleSet
    from gavel_client import SyncGavelClient
    from google.protobuf.message import Message

PAGE_EVENTS: Final = 1_000
# How many differences are printed; the latest are.
DIFFERENCES_SHOWN_MAX: Final = 20


def shadow(
    policy_id: PolicyId,
    version: Annotated[
        int | None, typer.Argument(metavar="VERSION", min=1, callback=check_int64, help="The deployed version to evaluate as a shadow.")
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="End the shadow.")] = False,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Evaluate a deployed version without using it.

    The shadow is evaluated on every proposal and decides nothing. Without VERSION, print the decisions that the current shadow would
    have made differently.
    """
    from gavel.v1.fact_pb2 import ACTIVATION_MODE_SHADOW

    from gavel_server.cli.rendering import output

    if end and version:
        raise InvalidInputError("--end takes no VERSION; it ends the current shadow")
    with connect(server, bus) as client:
        if version:
            activated = client.activate_rule_set(policy_id, version, mode=ACTIVATION_MODE_SHADOW)
            response: Message = activated
            message = f"{policy_id} version {version} is a shadow from event {activated.sequence_number}"
        elif end:
            ended = client.deactivate_rule_set(policy_id, mode=ACTIVATION_MODE_SHADOW)
            response, message = ended, f"{policy_id} has no shadow from event {ended.sequence_number}"
        else:
            rule_set, differences = _shadow_differences(client, policy_id)
            _print_differences(rule_set, differences, as_json)
            return
    if as_json:
        output.print_json(response)
    else:
        output.print_line(message)


def _shadow_differences(client: SyncGavelClient, policy_id: str) -> tuple[RuleSet, list[Envelope]]:
    """Return the shadow of a rule set and its latest differences from the recorded decisions. Raises CommandError."""
    from gavel.v1.common_pb2 import EVENT_CATEGORY_AGENT_DIAGNOSTIC_EVENT
    from gavel_client.rpc.paging import sync_pages

    rule_set = next((one for one in client.get_status().shadow_rule_sets if one.policy_id == policy_id), None)
    if rule_set is None:
        raise CommandError(f"{policy_id} has no shadow; start one with gavel rules shadow {policy_id} VERSION")
    differences: deque[Envelope] = deque(maxlen=DIFFERENCES_SHOWN_MAX)
    for page in sync_pages(
        client.list_events,
        categories=[EVENT_CATEGORY_AGENT_DIAGNOSTIC_EVENT],
        from_sequence_number=rule_set.activated_at_sequence_number,
        page_size=PAGE_EVENTS,
    ):
        differences.extend(event for event in page.envelopes if event.agent_diagnostic.shadow_difference.policy_id == policy_id)
    return rule_set, list(differences)


def _print_differences(rule_set: RuleSet, differences: list[Envelope], as_json: bool) -> None:
    from gavel_rules.text import printable

    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.events import shadow_verdict_line

    if as_json:
        output.print_json(rule_set, one_line=True)
        for event in differences:
            output.print_json(event, one_line=True)
        return
    output.print_table(
        ("#", "subject", "decided", "would be"),
        (
            (
                str(event.sequence_number),
                printable(event.subject),
                shadow_verdict_line(event.agent_diagnostic.shadow_difference.decided),
                shadow_verdict_line(event.agent_diagnostic.shadow_difference.shadowed),
            )
            for event in differences
        ),
    )
    count = rule_set.shadow_differences
    if count > len(differences):
        output.print_note(
            f"gavel: these are the latest {len(differences)} of {count}; print them all, among other diagnostics, with gavel log list "
            f"--category agent-diagnostic --from {rule_set.activated_at_sequence_number} --limit {count}"
        )
    output.print_line(
        f"{rule_set.policy_id} version {rule_set.version}, a shadow since event {rule_set.activated_at_sequence_number}, "
        f"would have made {count} of {rule_set.shadow_decisions} decisions differently"
    )
