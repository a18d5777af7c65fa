"""`gavel pending`: the approved decisions that have not ended."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final

import typer

from gavel_server.cli.connection import connect
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Server

PAGE_DECISIONS: Final = 1000


class Phase(Enum):
    """A phase of a pending decision, by its name on the command line."""

    APPROVED = "approved"
    EXECUTING = "executing"
    AWAITING_FACTS = "awaiting-facts"
    UNDER_REVIEW = "under-review"


PHASES: Final = ", ".join(phase.value for phase in Phase)


def pending(
    phase: Annotated[
        list[Phase], typer.Option("--phase", metavar="PHASE", help=f"Only decisions in this phase: {PHASES}. May be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    action: Annotated[
        list[str], typer.Option("--action", metavar="ACTION", help="Only decisions on this action type. May be repeated.")
    ] = [],  # noqa: B006
    lost_work: Annotated[bool, typer.Option("--lost-work", help="Only decisions whose item is not in the work queue any more.")] = False,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the approved decisions that have not ended, oldest first."""
    from gavel.v1.projection_service_pb2 import ListPendingDecisionsResponse, PendingPhase
    from gavel_client.rpc.paging import sync_pages

    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.projection import print_pending_decisions

    with connect(server, bus) as client:
        pages = list(
            sync_pages(
                client.list_pending_decisions,
                phases=[PendingPhase.Value(f"PENDING_PHASE_{one.name}") for one in phase],
                action_types=action,
                lost_work=lost_work,
                page_size=PAGE_DECISIONS,
            )
        )
    decisions = [decision for page in pages for decision in page.decisions]
    if as_json:
        output.print_json(ListPendingDecisionsResponse(decisions=decisions, projection_version=pages[-1].projection_version))
    else:
        print_pending_decisions(decisions, empty="No decision is pending.", with_subject=True)
