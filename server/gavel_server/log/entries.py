"""The values that a log takes and returns: its head, entries to append, records of events.

Each decision creates two entries, so entries and records are plain classes (docs/performance.md#plain-classes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

Work = Literal["", "decisions", "executions", "requests"]


class Head(NamedTuple):
    """The newest event of a log: its number (0: the log is empty) and its chain hash (then the bus's genesis hash)."""

    sequence_number: int
    chain_hash: bytes


class Record:
    """One stored event: the envelope's bytes as appended, without `chain_hash`, and its chain hash."""

    def __init__(self, sequence_number: int, envelope: bytes, chain_hash: bytes) -> None:
        self.sequence_number: Final = sequence_number
        self.envelope: Final = envelope
        self.chain_hash: Final = chain_hash

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same event with the same bytes."""
        if not isinstance(other, Record):
            return NotImplemented
        return (self.sequence_number, self.envelope, self.chain_hash) == (other.sequence_number, other.envelope, other.chain_hash)

    def __hash__(self) -> int:
        return hash((self.sequence_number, self.chain_hash))


class Entry(Record):
    """One event to append: its record, and the values by which the log indexes it.

    `work` names the work queue that the event also enters: "decisions" for executors, "executions" for the fact derivation
    reactor, "requests" for collectors of facts and people, or "". `decision_sequence_number` is the number of a PROPOSAL's
    first decision if that is known, else 0; `find` returns it. `deploys_grants`: the event holds the grants in force from then on, and
    the log can tell its number without being opened. `accepts_loss`: the event ends a report of lost events (`EventLog.report_loss`).
    """

    def __init__(
        self,
        sequence_number: int,
        envelope: bytes,
        chain_hash: bytes,
        event_id: str,
        work: Work,
        decision_sequence_number: int = 0,
        *,
        deploys_grants: bool = False,
        accepts_loss: bool = False,
    ) -> None:
        super().__init__(sequence_number, envelope, chain_hash)
        self.event_id: Final = event_id
        self.work: Final = work
        self.decision_sequence_number = decision_sequence_number
        self.deploys_grants: Final = deploys_grants
        self.accepts_loss: Final = accepts_loss


def check_sequence(expected: Head, entries: Sequence[Entry]) -> None:
    """Raise ValueError unless the entries follow `expected` without a gap."""
    if not entries:
        raise ValueError("append needs at least one entry")
    number = expected.sequence_number
    for entry in entries:
        number += 1
        if entry.sequence_number != number:
            raise ValueError(f"entry {entry.sequence_number} is where entry {number} is expected; number entries without a gap")
