"""`gavel rules`: deploying, activating and reading rule sets on a server. `authoring` has what works offline, on files."""

from __future__ import annotations

from typing import Annotated

import typer

from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Server, connected, countable

rules = typer.Typer(help="Write, check, test, deploy, activate and read rule sets.", no_args_is_help=True)

RuleSetFile = Annotated[str, typer.Argument(metavar="FILE", help="A rule set in YAML or JSON; - is standard input.")]
PolicyId = Annotated[str, typer.Argument(metavar="POLICY_ID", help="The rule set.")]
ExpectedActiveVersion = Annotated[
    int | None,
    typer.Option(
        "--expected-active-version",
        metavar="VERSION",
        min=0,
        callback=countable,
        help="Refuse if another version than this is in force by now. 0: none is.",
    ),
]


@rules.command("deploy")
def deploy(
    file: RuleSetFile,
    activate: Annotated[bool, typer.Option("--activate", help="Put the version in force at once.")] = False,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Record a version of a rule set in the log. A version never changes; the same document again changes nothing."""
    from gavel_server.cli import documents, output

    document = documents.read_rule_set(file)
    with connected(server, bus, document=file) as client:
        was_empty = bus != BUS_DEFAULT and client.get_status().head_sequence_number == 1
        deployed = client.deploy_rule_set(document)
        name = f"{deployed.policy_id} version {deployed.version}"
        # Said first: if it cannot be put in force it is deployed all the same.
        if as_json:
            output.print_json(deployed)
        else:
            output.say(f"{name} is deployed at event {deployed.sequence_number}, {deployed.digest}")
        if was_empty:
            output.note(f"gavel: bus {bus} held nothing before; whoever names a bus opens it, so look whether the name is meant")
        if activate:
            activated = client.activate_rule_set(deployed.policy_id, deployed.version)
            (output.note if as_json else output.say)(f"{name} is in force from event {activated.sequence_number}")


@rules.command("activate")
def activate(
    policy_id: PolicyId,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, callback=countable, help="The deployed version.")],
    shadow: Annotated[bool, typer.Option("--shadow", help="Evaluate it beside the active one; it decides nothing.")] = False,
    expected_active_version: ExpectedActiveVersion = None,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Put a deployed version in force.

    It is in force for all replicas from one sequence number on.
    """
    from gavel.v1.fact_pb2 import ACTIVATION_MODE_ACTIVE, ACTIVATION_MODE_SHADOW

    from gavel_server.cli import output

    with connected(server, bus) as client:
        mode = ACTIVATION_MODE_SHADOW if shadow else ACTIVATION_MODE_ACTIVE
        response = client.activate_rule_set(policy_id, version, mode=mode, expected_active_version=expected_active_version)
    if as_json:
        output.print_json(response)
    else:
        output.say(f"{policy_id} version {version} is {'a shadow' if shadow else 'in force'} from event {response.sequence_number}")


@rules.command()
def deactivate(
    policy_id: PolicyId,
    shadow: Annotated[bool, typer.Option("--shadow", help="End its shadow; what is in force stays.")] = False,
    expected_active_version: ExpectedActiveVersion = None,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Take a rule set out of force.

    Its actions are refused with NO_ACTIVE_POLICY until another one governs them.
    """
    from gavel.v1.fact_pb2 import ACTIVATION_MODE_ACTIVE, ACTIVATION_MODE_SHADOW

    from gavel_server.cli import output

    with connected(server, bus) as client:
        mode = ACTIVATION_MODE_SHADOW if shadow else ACTIVATION_MODE_ACTIVE
        response = client.deactivate_rule_set(policy_id, mode=mode, expected_active_version=expected_active_version)
    if as_json:
        output.print_json(response)
    else:
        output.say(f"{policy_id} {'has no shadow' if shadow else 'is out of force'} from event {response.sequence_number}")


@rules.command("list")
def list_(server: Server = SERVER_DEFAULT, bus: Bus = BUS_DEFAULT, as_json: Json = False, debug: Debug = False) -> None:
    """Print every deployed version."""
    from gavel.v1.fact_pb2 import ACTIVATION_MODE_SHADOW, ActivationMode
    from gavel.v1.rule_set_service_pb2 import ListRuleSetsResponse
    from gavel_client.paging import sync_pages

    from gavel_server.cli import output
    from gavel_server.cli.describe import moment, short, short_digest

    listed = ListRuleSetsResponse()
    with connected(server, bus) as client:
        for page in sync_pages(client.list_rule_sets):
            listed.rule_sets.extend(page.rule_sets)
    if as_json:
        output.print_json(listed)
        return
    output.print_table(
        ("rule set", "version", "mode", "since", "would differ", "event", "deployed", "actions", "digest"),
        (
            (
                found.policy_id,
                str(found.version),
                short(ActivationMode, found.mode).lower() if found.mode else "-",
                f"#{found.activated_at_sequence_number}" if found.mode else "-",
                f"{found.shadow_differences} of {found.shadow_decisions}" if found.mode == ACTIVATION_MODE_SHADOW else "-",
                f"#{found.deployed_at_sequence_number}",
                moment(found.deployed_at),
                ", ".join(found.action_types),
                short_digest(found.digest),
            )
            for found in listed.rule_sets
        ),
        empty="No rule set is deployed; deploy one with gavel rules deploy FILE --activate",
    )


@rules.command("get")
def get(
    policy_id: PolicyId,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=0, callback=countable, help="0: the active one, else the newest.")] = 0,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print a deployed version as its author wrote it."""
    from gavel_server.cli import output

    with connected(server, bus) as client:
        response = client.get_rule_set(policy_id, version=version)
    if as_json:
        output.print_json(response)
    else:
        output.say(response.document.rstrip("\n"))
