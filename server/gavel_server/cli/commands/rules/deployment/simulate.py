"""`gavel rules simulate`: lists the past decisions that a candidate rule set would change."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, RuleSetFile, Server, check_int64


def simulate(
    file: RuleSetFile,
    from_sequence_number: Annotated[
        int,
        typer.Option("--from", min=0, callback=check_int64, metavar="N", help="First decision to list. Earlier events build the state."),
    ] = 0,
    to_sequence_number: Annotated[
        int, typer.Option("--to", min=0, callback=check_int64, metavar="N", help="Last event to replay. 0: the head.")
    ] = 0,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the decisions that a candidate would change.

    The server replays its log with the candidate in place of the active version, and lists the reports too from which other facts would
    be derived. Nothing is written. Exit status: 0 nothing would change, 1 a decision or a derived fact would.
    """
    from gavel_server.cli import documents
    from gavel_server.cli.rendering import simulation

    text = documents.read_rule_set(file)
    candidate = documents.compile_document(text, file)
    responses = simulation.simulate_on_server(server, bus, file, text, from_sequence_number, to_sequence_number)
    asyncio.run(simulation.print_simulation(responses, candidate, as_json))
