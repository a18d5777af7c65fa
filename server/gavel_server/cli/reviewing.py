"""What people decide: `gavel reviews`, `gavel review approve|reject` and `gavel revoke`. All of it goes into the log, with who and why."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gavel_server.cli.errors import InvalidInputError
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, Debug, Json, Server, connected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gavel.v1.arbitration_service_pb2 import ResolveReviewResponse
    from gavel.v1.fact_pb2 import ReviewVerdict
    from gavel.v1.projection_service_pb2 import PendingReview
    from gavel_client import SyncGavelClient

PAGE_REVIEWS: Final = 1000

review = typer.Typer(help="Resolve what waits for a person; gavel reviews lists it.", no_args_is_help=True)

ReviewId = Annotated[str, typer.Argument(metavar="REVIEW", help="The decision that asked for a person, as gavel reviews shows it.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it goes into the log.")]
By = Annotated[
    str | None, typer.Option("--by", metavar="WHO", help="Who says so; it goes into the log. Without it, the name you are logged in by.")
]


def reviews(
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List what waits for a person, oldest first."""
    from gavel.v1.projection_service_pb2 import ListPendingReviewsResponse, ReviewKind

    from gavel_server.cli import output
    from gavel_server.cli.describe import moment, pending_line, printable, short

    with connected(server, bus) as client:
        found = list(_pending(client))
    if as_json:
        output.print_json(ListPendingReviewsResponse(reviews=found))
        return
    output.print_table(
        ("review", "of", "why", "since", "subject", "trace", "action"),
        (
            (
                pending.decision_id,
                short(ReviewKind, pending.kind).lower(),
                pending.reason_code,
                moment(pending.opened_at, "seconds"),
                printable(pending.subject),
                printable(pending.trace_id),
                pending_line(pending),
            )
            for pending in found
        ),
        empty="Nothing waits for a person.",
    )


@review.command("approve")
def approve(
    decision_id: ReviewId,
    reason: Reason,
    by: By = None,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Approve the action, one more attempt at it, or that the trace goes on. Evidence that is lacking is not overruled."""
    from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE

    _resolve(decision_id, REVIEW_VERDICT_APPROVE, reason, by, server, bus, as_json=as_json)


@review.command("reject")
def reject(
    decision_id: ReviewId,
    reason: Reason,
    by: By = None,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """End it: the trace for this action and subject, or the execution, whose conflict key is free again."""
    from gavel.v1.fact_pb2 import REVIEW_VERDICT_REJECT

    _resolve(decision_id, REVIEW_VERDICT_REJECT, reason, by, server, bus, as_json=as_json)


def revoke(
    decision_id: Annotated[str, typer.Argument(metavar="DECISION_ID", help="An approved decision that nobody has started.")],
    reason: Reason,
    by: By = None,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Take an approval back before its execution has begun."""
    from gavel_server.cli import output

    with connected(server, bus) as client:
        response = client.revoke_decision(decision_id, revoked_by=_person(by), reason=_reason(reason))
    if as_json:
        output.print_json(response)
        return
    decided = response.decision
    output.say(f"{decided.decision.previous_decision_id} is revoked (event {decided.sequence_number}); nobody can start it any more.")


def _resolve(
    decision_id: str, verdict: ReviewVerdict.ValueType, reason: str, by: str | None, server: str, bus: str, *, as_json: bool
) -> None:
    from gavel.v1.decision_pb2 import OUTCOME_NEEDS_HUMAN_REVIEW

    from gavel_server.cli import output

    with connected(server, bus) as client:
        response = client.resolve_review(decision_id, verdict, reviewer=_person(by), reason=_reason(reason))
    if as_json:
        output.print_json(response)
    else:
        _print_resolution(response)
    if response.decision.decision.outcome == OUTCOME_NEEDS_HUMAN_REVIEW:
        output.note("gavel: the review is still open; publish what is lacking and approve again, or reject it")


def _print_resolution(response: ResolveReviewResponse) -> None:
    from gavel_server.cli.proposing import print_decision

    decided = response.decision
    print_decision(decided.decision, [("decision", f"{decided.event_id} (event {decided.sequence_number})")])


def _pending(client: SyncGavelClient) -> Iterator[PendingReview]:
    from gavel_client.paging import sync_pages

    for page in sync_pages(client.list_pending_reviews, page_size=PAGE_REVIEWS):
        yield from page.reviews


def _person(by: str | None) -> str:
    """Return who speaks. An empty name is a mistake, such as a variable that is not set, and nobody else's word."""
    if by is not None:
        if not by.strip():
            raise InvalidInputError("--by is empty; say who, or leave it out to speak under the name you are logged in by")
        return by
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise InvalidInputError("who says so? this login has no name; give one with --by WHO") from error


def _reason(reason: str) -> str:
    if not reason.strip():
        raise InvalidInputError("--reason is empty; say why, for those who read the log later")
    return reason
