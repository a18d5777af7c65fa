"""`gavel reviews` and `gavel review approve|reject|comment`: what waits for people, and their votes, which the log records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from gavel_server.cli.connection import as_person, connect
from gavel_server.cli.errors import InvalidInputError
from gavel_server.cli.options import BUS_DEFAULT, SERVER_DEFAULT, Bus, By, Debug, Json, Reason, Server, check_reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gavel.v1.fact_pb2 import ReviewVerdict
    from gavel.v1.projection_service_pb2 import PendingReview
    from gavel_client import SyncGavelClient

PAGE_REVIEWS: Final = 1000

review = typer.Typer(help="Resolve a review; gavel reviews lists them.", no_args_is_help=True)

ReviewId = Annotated[str, typer.Argument(metavar="REVIEW", help="The decision that needs review, as gavel reviews shows it.")]


def reviews(
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List what waits for a person, oldest first."""
    from gavel.v1.fact_pb2 import ReviewVerdict
    from gavel.v1.projection_service_pb2 import ListPendingReviewsResponse, ReviewKind
    from gavel_rules.text import clip, printable

    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.events import TEXT_LENGTH_MAX, enum_name, format_time, pending_line, voters_text, votes_text

    with connect(server, bus) as client:
        pending_reviews = list(_pending_reviews(client))
    if as_json:
        output.print_json(ListPendingReviewsResponse(reviews=pending_reviews))
        return
    output.print_table(
        ("review", "of", "reason", "since", "subject", "trace", "votes", "who may vote", "you may vote", "action"),
        (
            (
                pending.decision_id,
                enum_name(ReviewKind, pending.kind).lower(),
                pending.reason_code,
                format_time(pending.opened_at, "seconds"),
                printable(pending.subject),
                printable(pending.trace_id),
                votes_text(pending),
                voters_text(pending.review_policy, escalated=pending.escalated),
                "yes" if pending.may_vote else "no",
                pending_line(pending),
            )
            for pending in pending_reviews
        ),
        empty="Nothing waits for a person.",
    )
    comments = [(pending.decision_id, vote) for pending in pending_reviews for vote in pending.votes]
    output.print_table(
        ("review", "at", "who", "vote", "reason"),
        (
            (
                decision_id,
                format_time(vote.voted_at, "seconds"),
                printable(vote.reviewer),
                enum_name(ReviewVerdict, vote.verdict),
                printable(clip(vote.reason, TEXT_LENGTH_MAX)),
            )
            for decision_id, vote in comments
        ),
        title="Votes and comments",
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
    """Vote to approve the action, one more attempt at it, or the continuation of the trace. Missing evidence cannot be overruled."""
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
    """Close the action on this subject for the trace, or end the execution, which frees its conflict key."""
    from gavel.v1.fact_pb2 import REVIEW_VERDICT_REJECT

    _resolve(decision_id, REVIEW_VERDICT_REJECT, reason, by, server, bus, as_json=as_json)


@review.command("comment")
def comment(
    decision_id: ReviewId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The comment, which the log keeps with the review.")],
    by: By = None,
    server: Server = SERVER_DEFAULT,
    bus: Bus = BUS_DEFAULT,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Comment on the review without a vote."""
    from gavel.v1.fact_pb2 import REVIEW_VERDICT_COMMENT

    if not text.strip():
        raise InvalidInputError("the comment is empty")
    _resolve(decision_id, REVIEW_VERDICT_COMMENT, text, by, server, bus, as_json=as_json)


def _resolve(
    decision_id: str, verdict: ReviewVerdict.ValueType, reason: str, by: str | None, server: str, bus: str, *, as_json: bool
) -> None:
    from gavel.v1.decision_pb2 import OUTCOME_NEEDS_HUMAN_REVIEW

    from gavel_server.cli.rendering import output
    from gavel_server.cli.rendering.decision import print_decision
    from gavel_server.cli.rendering.events import vote_line

    checked_reason = check_reason(reason)
    with connect(server, bus) as client:
        response = as_person(by, lambda reviewer: client.resolve_review(decision_id, verdict, reviewer=reviewer, reason=checked_reason))
    envelope = response.decision
    if as_json:
        output.print_json(response)
    elif response.HasField("vote"):
        output.print_line(f"{vote_line(response.vote.fact.review_voted)} (event {response.vote.sequence_number})")
    else:
        print_decision(envelope.decision, [("decision", f"{envelope.event_id} (event {envelope.sequence_number})")])
    if envelope.decision.outcome == OUTCOME_NEEDS_HUMAN_REVIEW:
        output.print_note("gavel: the review is still open; publish the required facts and approve again, or reject it")


def _pending_reviews(client: SyncGavelClient) -> Iterator[PendingReview]:
    from gavel_client.rpc.paging import sync_pages

    for page in sync_pages(client.list_pending_reviews, page_size=PAGE_REVIEWS):
        yield from page.reviews
