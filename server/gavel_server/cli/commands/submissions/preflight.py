"""`gavel preflight`: the decision that a proposal would get now."""

from __future__ import annotations

from typing import Annotated

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, EnvelopeFile, ExitCode, Json, Server


def preflight(
    file: EnvelopeFile,
    explain: Annotated[bool, typer.Option("--explain", help="Show every rule of the action and the values in its condition.")] = False,
    rules: Annotated[str, typer.Option("--rules", metavar="FILE", help="A rule set to use in place of the active one of its name.")] = "",
    exit_code: ExitCode = False,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the decision that a proposal would get now. Nothing is written or counted.

    The exit status is 0 whatever the outcome. With --exit-code it is 0 only for an approval, 10 if the proposal would be rejected,
    and 11 if it would need human review.
    """
    from gavel_server.cli import documents
    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.decision import exit_status, print_decision, print_explanations

    envelope = documents.read_envelope(file)
    rule_set_override = documents.read_rule_set(rules) if rules else ""
    with connect(server, bus, document=rules) as client:
        response = client.preflight(envelope, rule_set_override=rule_set_override, explain=explain)
    if as_json:
        output.print_json(response)
    else:
        print_decision(response.decision, [("evaluated at", f"event {response.evaluated_at_sequence_number}; nothing was written")])
        if explain:
            print_explanations(list(response.explanations))
    if exit_code:
        raise typer.Exit(exit_status(response.decision))
