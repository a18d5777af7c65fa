"""Transitions by proposals and decisions: approvals, refusals, reviews and their resolution."""

from __future__ import annotations

from gavel.v1.decision_pb2 import Decision

from gavel_rules.events.fingerprint import fingerprint
from gavel_rules.events.kinds import OUTCOME_APPROVED, OUTCOME_NEEDS_HUMAN_REVIEW
from gavel_rules.events.recorded_event import RecordedEvent
from gavel_rules.events.stored_event import pack_event
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.reason_codes import NO_FEASIBLE_PROPOSAL, arms_fingerprint
from gavel_rules.state.records import (
    AWAITING_FACTS,
    EXECUTING,
    NO_REJECTIONS,
    UNDER_REVIEW,
    LiveDecision,
    Rejections,
    Review,
)
from gavel_rules.state.store import Store
from gavel_rules.state.transitions.approvals import approve, end_decision, end_decision_if_complete, free_conflict_key, update_decision
from gavel_rules.state.transitions.contests import enter_contest, leave_contest
from gavel_rules.state.transitions.reservations import release, reserve_again
from gavel_rules.state.transitions.reviews import close_review, open_review
from gavel_rules.state.transitions.traces import close_action, count_rejections, end_review


def apply_proposal(store: Store, event: RecordedEvent) -> None:
    """Open a proposal until it is decided."""
    store.put(store.contest_tables.open_proposals, event.event_id, event)
    if event.competes:
        enter_contest(store, event)


def apply_decision(store: Store, event: RecordedEvent) -> None:
    """Apply the first decision on a proposal, or a later one."""
    decision = event.envelope.decision
    if decision.previous_decision_id:
        _apply_later_decision(store, event, decision)
        return
    proposal_id = decision.proposal_id
    tables = store.contest_tables
    proposal = tables.open_proposals[proposal_id]
    store.drop(tables.open_proposals, proposal_id)
    contest = tables.contest_of(proposal)
    if contest is not None:
        leave_contest(store, contest, proposal)
    if event.outcome == OUTCOME_APPROVED:
        approve(store, event, decision, proposal.stored)
        count_rejections(store, proposal, NO_REJECTIONS, "", "")
    else:
        _refuse(store, event, decision, proposal)
    if store.shadows_by_action:
        for action_shadow in store.shadows_by_action.get(decision.action_type, ()):
            shadow = store.shadows[action_shadow.policy_id]
            store.put(store.shadows, action_shadow.policy_id, shadow._replace(decisions=shadow.decisions + 1))


def _refuse(store: Store, event: RecordedEvent, decision: Decision, proposal: RecordedEvent) -> None:
    """Reject a proposal, or open its review."""
    reason_code = decision.reason_code
    review = refusal_fingerprint = ""
    if event.outcome == OUTCOME_NEEDS_HUMAN_REVIEW:
        review = event.event_id
        open_review(store, Review(review, event.sequence_number, event.envelope, "", proposal.envelope))
    elif arms_fingerprint(reason_code) and not decision.counters:  # what its counters give may have changed at the next proposal
        refusal_fingerprint = fingerprint(proposal.proposal)
    rejections = NO_REJECTIONS
    if decision.consecutive_rejections:
        counts = decision.rejection_counts
        rejections = Rejections(counts.evidence, counts.policy, counts.conflict)
    if reason_code != NO_FEASIBLE_PROPOSAL and decision.terminal:
        close_action(store, event, decision, by_person=False)
    count_rejections(store, proposal, rejections, review, refusal_fingerprint)


def _apply_later_decision(store: Store, event: RecordedEvent, decision: Decision) -> None:
    review = store.reviews.get(decision.previous_decision_id)
    if review is not None:
        # Another NEEDS_HUMAN_REVIEW means that the evidence does not allow the person's approval: the review stays open.
        if event.outcome != OUTCOME_NEEDS_HUMAN_REVIEW:
            _resolve_review(store, event, decision, review)
        return
    live = store.decisions.get(decision.previous_decision_id)
    if live is None:
        return
    if decision.compensates_decision_id:
        update_decision(store, live, event, compensation=event.event_id)
        approve(store, event, decision, live.stored_proposal)  # the compensation takes over the conflict key
    elif event.outcome == OUTCOME_NEEDS_HUMAN_REVIEW:
        update_decision(store, live, event, phase=UNDER_REVIEW, is_running=False, timer_due_ms=0, review=event.event_id)
        review = Review(event.event_id, event.sequence_number, event.envelope, live.decision_id, live.proposal)
        open_review(store, review)
        if live.conflict_key not in store.conflict_keys:
            # The decision had ended. It holds its key again, so that nothing else acts during the review.
            store.put(store.conflict_keys, live.conflict_key, live.decision_id)
    else:
        end_decision(store, live)


def _resolve_review(store: Store, event: RecordedEvent, decision: Decision, review: Review) -> None:
    """Close a review with the decision that follows from a person's verdict."""
    close_review(store, review)
    end_review(store, event.trace_id, review.proposal.producer, review.decision_id)
    if review.approved_decision_id:
        _resolve_execution_review(store, event, decision, store.decisions[review.approved_decision_id])
    elif event.outcome == OUTCOME_APPROVED:
        approve(store, event, decision, pack_event(review.proposal))
    elif decision.terminal:
        close_action(store, event, decision, by_person=True)


def _resolve_execution_review(store: Store, event: RecordedEvent, decision: Decision, live: LiveDecision) -> None:
    """Grant one more attempt, or revoke the decision."""
    if event.outcome == OUTCOME_APPROVED:
        store.put(store.grants, event.event_id, live.decision_id)
        if store.counters:
            reserve_again(store, live, event.event_id)
        # Its compensation may have held the key and been given up.
        store.put(store.conflict_keys, live.conflict_key, live.decision_id)
        due_ms = milliseconds(decision.valid_until)
        grant_ids = (*live.grant_ids, event.event_id)
        update_decision(store, live, event, phase=EXECUTING, timer_due_ms=due_ms, review="", grant=event.envelope, grant_ids=grant_ids)
    else:
        # The key is free, but facts derived from reports may still come (constitution §7.2).
        free_conflict_key(store, live)
        if store.counters:
            release(store, live)
        end_decision_if_complete(store, update_decision(store, live, event, phase=AWAITING_FACTS, review="", grant=None, is_revoked=True))
