"""Transitions of contests: proposals enter one and leave it (constitution §6.2)."""

from __future__ import annotations

from gavel_rules.events.recorded_event import RecordedEvent
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.state.keys import action_key, duplicate_key
from gavel_rules.state.records import OpenContest
from gavel_rules.state.store import Store


def enter_contest(store: Store, event: RecordedEvent) -> None:
    """Add a proposal to the contest that it names. The first one opens the contest and schedules its close."""
    tables = store.contest_tables
    proposal = event.envelope.proposal
    entry = proposal.contest
    name = action_key(proposal.action_type, entry.conflict_key)
    contest = tables.contests.get(name)
    if contest is None:
        number = event.sequence_number
        opened_at_ms, closes_at_ms = milliseconds(entry.opened_at), milliseconds(entry.closes_at)
        contest = OpenContest(name, proposal.action_type, entry.conflict_key, number, opened_at_ms, closes_at_ms, (), 0)
        store.schedule(store.timers, (closes_at_ms, number, name))
    candidates = (*contest.candidates, event.event_id)
    # The payload alone: arbitration checked the room for it before the envelope was complete.
    size_bytes = contest.size_bytes + proposal.ByteSize()
    store.put(tables.contests, name, contest._replace(candidates=candidates, size_bytes=size_bytes))
    store.put(store.subtable(tables.open_proposals_by_subject, event.subject), event.event_id, event.sequence_number)
    of_trace = store.subtable(tables.open_proposals_by_trace, event.trace_id)
    store.put(of_trace, duplicate_key(event.proposal, store.semantics, entry.conflict_key), event.event_id)


def rekey_candidates(store: Store) -> None:
    """Key all waiting proposals by the semantics that now hold.

    Later versions tell more proposals apart, so no two proposals get the same key.
    """
    tables = store.contest_tables
    for trace_id in list(tables.open_proposals_by_trace):
        store.drop(tables.open_proposals_by_trace, trace_id)
    for contest in tables.contests.values():
        for proposal_id in contest.candidates:
            event = tables.open_proposals[proposal_id]
            of_trace = store.subtable(tables.open_proposals_by_trace, event.trace_id)
            store.put(of_trace, duplicate_key(event.proposal, store.semantics, contest.conflict_key), proposal_id)


def leave_contest(store: Store, contest: OpenContest, event: RecordedEvent) -> None:
    """Remove a proposal that is decided from its contest. The last one ends the contest."""
    tables = store.contest_tables
    candidates = tuple([candidate for candidate in contest.candidates if candidate != event.event_id])
    if candidates:
        store.put(tables.contests, contest.name, contest._replace(candidates=candidates))
    else:
        store.drop(tables.contests, contest.name)
        store.unschedule(store.timers, (contest.closes_at_ms, contest.sequence_number, contest.name))
    store.drop_from(tables.open_proposals_by_subject, event.subject, event.event_id)
    key = duplicate_key(event.proposal, store.semantics, contest.conflict_key)
    store.drop_from(tables.open_proposals_by_trace, event.trace_id, key)
