"""The tables of contests and of the proposals in them. The store changes them (`transitions.contests`)."""

from __future__ import annotations

from typing import Final

from gavel_rules.events.recorded_event import RecordedEvent
from gavel_rules.state.keys import action_key
from gavel_rules.state.records import OpenContest


class ContestTables:
    """Proposals without a decision by event_id, and contests by `action_key` of the conflict key.

    `open_proposals_by_subject` has the sequence numbers of proposals that wait for a contest, by subject, then event_id;
    `open_proposals_by_trace` their event_ids, by trace, then `duplicate_key`.
    """

    def __init__(self) -> None:
        self.open_proposals: Final[dict[str, RecordedEvent]] = {}
        self.open_proposals_by_subject: Final[dict[str, dict[str, int]]] = {}
        self.open_proposals_by_trace: Final[dict[str, dict[str, str]]] = {}
        self.contests: Final[dict[str, OpenContest]] = {}

    def contest_of(self, event: RecordedEvent) -> OpenContest | None:
        """Return the contest that a recorded proposal waits for."""
        if not self.contests or not event.competes:
            return None
        proposal = event.proposal
        return self.contests.get(action_key(proposal.action_type, proposal.message.contest.conflict_key))
