"""`gavel audit trace|decision`: who and what led to decisions, and whether they come out the same, on one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.event_names import find_decision_id
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Server

if TYPE_CHECKING:
    from gavel.v1.audit_service_pb2 import AuditDecisionResponse, AuditTraceResponse

audit = typer.Typer(help="Answer an auditor's questions about a decision or a trace.", no_args_is_help=True)

WithoutRecomputation = Annotated[
    bool, typer.Option("--without-recomputation", help="Make no decision again. Needs the right read alone, and half the time.")
]


@audit.command("trace")
def audit_trace(
    trace_id: Annotated[str, typer.Argument(metavar="TRACE_ID", help="The trace.")],
    without_recomputation: WithoutRecomputation = False,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print which models, tools, rules, facts and people led to the decisions of a trace, and whether they come out the same."""
    with connect(server, bus) as client:
        _print(client.audit_trace(trace_id, without_recomputation=without_recomputation), as_json)


@audit.command("decision")
def audit_decision(
    decision: Annotated[str, typer.Argument(metavar="ID_OR_NUMBER", help="The decision's id or sequence number.")],
    without_recomputation: WithoutRecomputation = False,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print which models, tools, rules, facts and people led to a decision, and whether it comes out the same."""
    with connect(server, bus) as client:
        _print(client.audit_decision(find_decision_id(client, decision), without_recomputation=without_recomputation), as_json)


def _print(response: AuditTraceResponse | AuditDecisionResponse, as_json: bool) -> None:
    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.audit import print_audit

    if as_json:
        output.print_json(response)
    else:
        print_audit(response.audit)
