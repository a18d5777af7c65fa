"""What a log is: the port that the sequencer, the readers and the tests speak, and the ways in which it fails.

One log holds one bus: a gapless, totally ordered sequence of events, each chained to the one before by its hash. It grows by
`append`, which names the head that it expects and is all or nothing. That comparison is the only lock there is: any number of
servers may write one bus, and the one whose view of the head is current wins. Nothing here decides anything, changes or
removes an event, looks into an envelope, or repeats an append on its own account.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from gavel_rules.chain import genesis_hash

from gavel_server.log.entries import Entry, Head, Record

# Entries one call of `read` returns unless told otherwise.
READ_LIMIT: Final = 1000
DAY_MS: Final = 24 * 60 * 60 * 1000


class IdEntry(NamedTuple):
    """Where an event_id stands in the log, and for a PROPOSAL its first decision (0: unknown when it was appended)."""

    sequence_number: int
    decision_sequence_number: int


class ConsumerGroup(NamedTuple):
    """A group that reads a work queue.

    `lag` counts entries not yet delivered to it, `pending` those delivered and not acknowledged, `members` its consumers.
    """

    group: str
    queue: str
    lag: int
    pending: int
    members: int


class LogError(Exception):
    """Something about a log went wrong; the message says what, where and what to do."""


class HeadMovedError(LogError):
    """Another writer appended first: nothing was appended. `actual` is the head now."""

    def __init__(self, expected: Head, actual: Head) -> None:
        self.expected = expected
        self.actual = actual
        super().__init__(f"the head is {describe(actual)}, not {describe(expected)}; read what is new and decide again")


class EventIdTakenError(LogError):
    """Some event_ids are in the log already: nothing was appended. `taken` says where each stands."""

    def __init__(self, taken: dict[str, IdEntry]) -> None:
        self.taken = taken
        first_id, first = next(iter(taken.items()))
        others = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
        super().__init__(f"event_id {first_id} is already event {first.sequence_number}{others}; answer from there")


class OutcomeUnknownError(LogError):
    """The append was sent and no answer came. Ask `head`: it settles for good whether the batch is in."""


class LogUnavailableError(LogError):
    """The log cannot be reached or refuses to serve; an append that raises this was certainly not applied."""


class NotReplicatedError(LogUnavailableError):
    """The batch IS in the log, but too few replicas confirmed it in time (GAVEL_ACK=replicas:N).

    Not an unknown outcome: the events stand, and appending them again is wrong. The promise made to callers is not kept yet,
    so they hear UNAVAILABLE; a retry by event_id gives the answer. Catch it before LogUnavailableError.
    """


class LogCorruptError(LogError):
    """The stored log contradicts itself. Nothing may be written to it until an operator has looked."""


class EventLog(Protocol):
    """One bus's log. Every method may raise LogUnavailableError or LogCorruptError; times are milliseconds since 1970."""

    bus: str

    async def head(self) -> Head:
        """The newest event, after checking that head and stored events agree.

        After an OutcomeUnknownError it first makes sure that the append in doubt can no longer arrive, so what it returns is
        final: if the batch is not in, it never will be.
        """

    async def append(self, expected: Head, entries: Sequence[Entry], recorded_at_ms: int, check_ids: Sequence[str]) -> None:
        """Append `entries`, which follow `expected` without a gap, all or nothing.

        `recorded_at_ms` is the time recorded in them. `check_ids` are the event_ids that producers chose: if one is known
        within the idempotency window, nothing is appended. Raises HeadMovedError, EventIdTakenError, OutcomeUnknownError,
        NotReplicatedError (the only one after which the entries are in), or ValueError if the entries leave a gap.
        """

    async def read(self, from_sequence_number: int, to_sequence_number: int, limit: int = READ_LIMIT) -> list[Record]:
        """The events from one number to the other, both included, ascending, at most `limit`.

        Events that were archived and trimmed are absent at the start; a hole after the first is LogCorruptError.
        """

    async def read_many(self, sequence_numbers: Sequence[int]) -> dict[int, Record]:
        """The events with these numbers; numbers that the log does not hold are absent."""

    async def find(self, event_ids: Sequence[str], now_ms: int) -> dict[str, IdEntry]:
        """Where these event_ids stand, if recorded within the idempotency window before `now_ms`; others are absent."""

    async def time_ms(self) -> int:
        """The clock of the store, against which servers check their own."""

    async def durability(self) -> list[str]:
        """Why acknowledged events might be lost, a sentence each; empty if they survive kill -9 and power loss."""

    async def consumers(self) -> list[ConsumerGroup]:
        """The groups that read the work queues."""

    async def ensure_groups(self) -> None:
        """Make sure that the work queues have their consumer groups: "executors" on decisions, "fdr" on executions."""

    async def close(self) -> None:
        """Let go of connections. The log itself stays."""


def empty_head(bus: str) -> Head:
    """The head of a log without events."""
    return Head(0, genesis_hash(bus))


def window_days(now_ms: int, window_ms: int) -> range:
    """The days (since 1970) whose event_ids count as known at `now_ms`: whole days, so ids stay known up to a day longer."""
    return range((now_ms - window_ms) // DAY_MS, now_ms // DAY_MS + 1)


def describe(head: Head) -> str:
    """A head as people read it: "12 (ab34cd56…)"."""
    return f"{head.sequence_number} ({head.chain_hash.hex()[:8]}…)"
