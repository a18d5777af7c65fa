"""How a rule set comes into force on a server: tried on the past, watching as a shadow, and back to what was before.

Commands of `gavel rules`, like those in `rules`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gavel_server.cli.errors import CommandError, InvalidInputError
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Server, connected, countable
from gavel_server.cli.rules import PolicyId, RuleSetFile

if TYPE_CHECKING:
    from gavel.v1.envelope_pb2 import Envelope
    from gavel.v1.rule_set_service_pb2 import RuleSet
    from gavel_client import SyncGavelClient
    from google.protobuf.message import Message

PAGE_EVENTS: Final = 1_000
# Differences of a shadow that are printed: the latest.
DIFFERENCES_SHOWN_MAX: Final = 20


def simulate(
    file: RuleSetFile,
    from_sequence_number: Annotated[
        int, typer.Option("--from", min=0, callback=countable, metavar="N", help="List from here; what comes before builds the state.")
    ] = 0,
    to_sequence_number: Annotated[
        int, typer.Option("--to", min=0, callback=countable, metavar="N", help="Stop after this. 0: the head.")
    ] = 0,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the past decisions that a candidate rule set would change.

    It is tried on every proposal of the server's log, everything else exactly as it was. Nothing is written.
    """
    from gavel_server.cli import documents, impact

    text = documents.read_rule_set(file)
    candidate = documents.compiled(text, file)
    responses = impact.simulated_by_server(server, bus, file, text, from_sequence_number, to_sequence_number)
    asyncio.run(impact.show(responses, candidate, as_json))


def shadow(
    policy_id: PolicyId,
    version: Annotated[
        int | None, typer.Argument(metavar="VERSION", min=1, callback=countable, help="The deployed version that is to watch.")
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="End the shadow.")] = False,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Let a deployed version watch: it is asked about every proposal and decides nothing.

    Without a version, print what the shadow would have decided otherwise so far.
    """
    from gavel.v1.fact_pb2 import ACTIVATION_MODE_SHADOW

    from gavel_server.cli import output

    if end and version:
        raise InvalidInputError("--end ends whichever shadow there is; leave the version out")
    with connected(server, bus) as client:
        if version:
            activated = client.activate_rule_set(policy_id, version, mode=ACTIVATION_MODE_SHADOW)
            response: Message = activated
            said = f"{policy_id} version {version} is a shadow from event {activated.sequence_number}"
        elif end:
            ended = client.deactivate_rule_set(policy_id, mode=ACTIVATION_MODE_SHADOW)
            response, said = ended, f"{policy_id} has no shadow from event {ended.sequence_number}"
        else:
            found, differences = _watched(client, policy_id)
            _print_differences(found, differences, as_json)
            return
    if as_json:
        output.print_json(response)
    else:
        output.say(said)


def rollback(
    policy_id: PolicyId,
    to: Annotated[
        int, typer.Option("--to", min=0, callback=countable, metavar="VERSION", help="The version. 0: the one that was in force before.")
    ] = 0,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Put the version in force that the present one replaced.

    A second rollback therefore goes forward again. Refused if another version has come into force meanwhile.
    """
    from gavel.v1.fact_pb2 import ACTIVATION_MODE_ACTIVE

    from gavel_server.cli import output

    with connected(server, bus) as client:
        current = client.get_rule_set(policy_id).rule_set
        if current.mode != ACTIVATION_MODE_ACTIVE:
            raise CommandError(f"no version of {policy_id} is in force; put one in force with gavel rules activate {policy_id} VERSION")
        version = to or current.previous_version
        if not version:
            raise CommandError(f"{policy_id} version {current.version} replaced no other; name the version: --to VERSION")
        response = client.activate_rule_set(policy_id, version, expected_active_version=current.version)
    if as_json:
        output.print_json(response)
    else:
        instead = f", in place of {current.version}" if version != current.version else " already"
        output.say(f"{policy_id} version {version} is in force from event {response.sequence_number}{instead}")


def _watched(client: SyncGavelClient, policy_id: str) -> tuple[RuleSet, list[Envelope]]:
    """Return the shadow of a rule set and the latest decisions that it would have made otherwise."""
    from gavel.v1.common_pb2 import EVENT_CATEGORY_AGENT_DIAGNOSTIC_EVENT
    from gavel_client.paging import sync_pages

    found = next((one for one in client.get_status().shadow_rule_sets if one.policy_id == policy_id), None)
    if found is None:
        raise CommandError(f"{policy_id} has no shadow; name the deployed version that is to watch")
    differences: deque[Envelope] = deque(maxlen=DIFFERENCES_SHOWN_MAX)
    for page in sync_pages(
        client.list_events,
        categories=[EVENT_CATEGORY_AGENT_DIAGNOSTIC_EVENT],
        from_sequence_number=found.activated_at_sequence_number,
        page_size=PAGE_EVENTS,
    ):
        differences.extend(event for event in page.envelopes if event.agent_diagnostic.shadow_difference.policy_id == policy_id)
    return found, list(differences)


def _print_differences(found: RuleSet, differences: list[Envelope], as_json: bool) -> None:
    from gavel_server.cli import output
    from gavel_server.cli.describe import printable, shadow_verdict_line

    if as_json:
        output.print_json(found, one_line=True)
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
    if found.shadow_differences > len(differences):
        output.note(f"gavel: these are the latest; gavel log list --category agent-diagnostic has all {found.shadow_differences}")
    output.say(
        f"{found.policy_id} version {found.version}, a shadow since event {found.activated_at_sequence_number}, "
        f"would have made {found.shadow_differences} of {found.shadow_decisions} decisions otherwise"
    )
