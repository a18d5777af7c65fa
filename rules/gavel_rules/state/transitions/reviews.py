"""Transitions of open reviews: votes, escalation, and the timer of the escalation."""

from __future__ import annotations

from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.state.records import Review
from gavel_rules.state.store import Store


def open_review(store: Store, review: Review) -> None:
    """Open a review, and schedule its escalation if its policy has one."""
    store.put(store.reviews, review.decision_id, review)
    if review.escalation_due_ms:
        store.schedule(store.timers, (review.escalation_due_ms, review.sequence_number, review.decision_id))


def close_review(store: Store, review: Review) -> None:
    """Close a review."""
    if review.escalation_due_ms:
        store.unschedule(store.timers, (review.escalation_due_ms, review.sequence_number, review.decision_id))
    store.drop(store.reviews, review.decision_id)


def add_vote(store: Store, vote: Envelope, decision_id: str) -> None:
    """Keep a vote to approve or a comment with its review."""
    review = store.reviews.get(decision_id)
    if review is not None:
        store.put(store.reviews, decision_id, review._replace(votes=(*review.votes, vote)))


def escalate_review(store: Store, decision_id: str) -> None:
    """Let more groups vote in a review."""
    review = store.reviews.get(decision_id)
    if review is not None and review.escalation_due_ms:
        store.unschedule(store.timers, (review.escalation_due_ms, review.sequence_number, decision_id))
        store.put(store.reviews, decision_id, review._replace(is_escalated=True))
