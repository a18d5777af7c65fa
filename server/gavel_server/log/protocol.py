"""The port of the event log: its operations and its errors.

One log holds one bus: a gapless, totally ordered sequence of events, each chained to the one before by its hash. It grows by
`append`, which names the expected head and is all or nothing. That comparison is the only lock: any number of servers may write one
bus, and the server whose view of the head is current wins. A log never decides or changes an event, reads an envelope, or repeats an
append by itself. Events leave it by `trim` only, from its start, once an archive has them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from gavel_rules.events.hash_chain import genesis_hash
from gavel_rules.limits import BUS

from gavel_server.log.entries import Entry, Head, Record
from gavel_server.log.work.protocol import WorkQueues

# The default limit of `read`.
READ_LIMIT: Final = 1000
# The largest sequence number of the contract, an int64.
SEQUENCE_NUMBER_MAX: Final = 2**63 - 1
# The bytes of envelopes at which one read stops. The event that reaches them is still in the reply.
CHUNK_BYTES: Final = 1024 * 1024
# Events that are read at a time for long work. While Redis reads them, or the event loop parses them, decisions wait: with 512, the 99th
# percentile of proposals was 8 ms higher while counters were filled, and a replay was no faster.
PAGE_EVENTS_MAX: Final = 128
DAY_MS: Final = 24 * 60 * 60 * 1000
# The accepted losses that a log remembers: those of the highest numbers. A report of an earlier event counts as accepted.
ACCEPTED_LOSSES_MAX: Final = 32


class IdEntry(NamedTuple):
    """The sequence number of an event_id, and for a PROPOSAL that of its first decision (0: unknown at the append)."""

    sequence_number: int
    decision_sequence_number: int


class LogError(Exception):
    """An error of a log; the message says what is wrong, where, and what to do."""


class HeadMovedError(LogError):
    """Another writer appended first: nothing was appended. `actual` is the head now."""

    def __init__(self, expected: Head, actual: Head) -> None:
        self.expected = expected
        self.actual = actual
        super().__init__(f"the head is {describe(actual)}, not {describe(expected)}; read the new events and decide again")


class EventIdTakenError(LogError):
    """Some event_ids are in the log already: nothing was appended. `entries` holds theirs."""

    def __init__(self, entries: dict[str, IdEntry]) -> None:
        self.entries = entries
        first_id, first = next(iter(entries.items()))
        others = f" and {len(entries) - 1} more" if len(entries) > 1 else ""
        super().__init__(f"event_id {first_id} is already event {first.sequence_number}{others}; answer from the log")


class UntimelyError(LogError):
    """The batch is not dated by the store's clock: nothing was appended. Compare the clocks and decide again."""

    def __init__(self, date_ms: int, store_ms: int) -> None:
        side = "after" if date_ms > store_ms else "before"
        super().__init__(f"the batch is dated {abs(date_ms - store_ms)} ms {side} the log store's time")


class OutcomeUnknownError(LogError):
    """The append was sent and no reply came. Call `head`: its answer whether the batch is in the log is final."""


class LogUnavailableError(LogError):
    """The log cannot be reached or refuses to serve. An append that raises this was not applied."""


class LogUnreachableError(LogUnavailableError):
    """The log does not answer, or is loading or busy: it may come back by itself."""


class ArchiveUnavailableError(LogUnavailableError):
    """The archive cannot be read, so an event that left the log by `trim` is out of reach. The log itself serves."""


class LossReportedError(LogUnavailableError):
    """A server has reported that the log has lost acknowledged events (`EventLog.report_loss`): nothing was appended."""

    def __init__(self, bus: str) -> None:
        super().__init__(f"a server has reported that bus {bus} has lost acknowledged events; see gavel status")


class LogVolatileError(LogUnavailableError):
    """The log may lose acknowledged events; the message says why and what to do."""


class NotReplicatedError(LogUnavailableError):
    """The batch IS in the log, but too few replicas confirmed it in time (GAVEL_ACK).

    The outcome is known: the events are in the log and must not be appended again. Callers get UNAVAILABLE, because the
    promised durability is not reached yet; a retry with the event_id asks the replicas again. Catch it before LogUnavailableError.
    """


class Growth(NamedTuple):
    """Buses whose logs may hold further events, why that is unknown for others, and the buses whose store has not answered yet."""

    buses: Collection[str]
    failures: Mapping[str, LogError] = MappingProxyType({})
    pending: Collection[str] = ()


class LogCorruptError(LogError):
    """The stored log contradicts itself. Nothing may be written to it until an operator has examined it."""


class EventLog(Protocol):
    """One bus's log. Every method may raise LogUnavailableError or LogCorruptError; times are milliseconds since 1970."""

    bus: str

    @property
    def work(self) -> WorkQueues:
        """The work queues of the bus."""

    async def head(self) -> Head:
        """Return the newest event, after checking that the head and the stored events agree.

        After an OutcomeUnknownError it first makes sure that the append in doubt can no longer arrive. Its answer is therefore
        final: a batch that is not in the log now never will be.
        """

    async def append(
        self, expected: Head, entries: Sequence[Entry], recorded_at_ms: int, idempotency_keys: Sequence[str], date_ms: int | None = None
    ) -> None:
        """Append `entries`, which follow `expected` without a gap, all or nothing.

        `recorded_at_ms` is the time recorded in them. `idempotency_keys` are event_ids that producers chose: if the log has one of
        them within the idempotency window, nothing is appended. `date_ms` is the writer's clock when it dated the batch; unless the
        store's clock agrees (`clock.is_timely`), nothing is appended. None: the clocks are not compared.
        Raises HeadMovedError, LossReportedError, UntimelyError, EventIdTakenError, OutcomeUnknownError, NotReplicatedError (the only one
        after which the entries are in the log), or ValueError if the entries leave a gap.
        """

    def is_confirmed(self, sequence_number: int) -> bool:
        """Return whether the events up to this number are known to have the promised durability. Does not ask the store."""

    async def confirm(self, head: Head) -> None:
        """Wait until the events up to this one have the promised durability (GAVEL_ACK); return at once if `is_confirmed`.

        Raises NotReplicatedError if too few replicas confirm them in time, LogUnavailableError if the log has another event with this
        number: a failover has lost this one.
        """

    async def read(self, from_sequence_number: int, to_sequence_number: int, limit: int = READ_LIMIT) -> list[Record]:
        """Return the events between two sequence numbers, both included, ascending, at most `limit`.

        It stops after the event that reaches CHUNK_BYTES, so it returns at least one event if there is any.

        Archived and trimmed events are absent at the start; a gap after the first event raises LogCorruptError.
        """

    async def read_many(self, sequence_numbers: Sequence[int]) -> dict[int, Record]:
        """Return the events with these sequence numbers; numbers that the log does not hold are absent."""

    async def find(self, event_ids: Sequence[str], now_ms: int) -> dict[str, IdEntry]:
        """Return the entries of the event_ids recorded within the idempotency window before `now_ms`; others are absent."""

    async def time_ms(self) -> int:
        """Return the store's clock. Servers compare their own with it."""

    @property
    def lost_head(self) -> Head | None:
        """The last of the acknowledged events that servers have reported as lost, or None; as of the last `head`."""

    async def report_loss(self, lost_head: Head) -> None:
        """Let all servers know that the log has lost an acknowledged event: appends are refused until an entry accepts the loss.

        Nothing is reported about an event whose loss was accepted before, or about a log without events: its next event is the first one
        of another bus. A log that has ACCEPTED_LOSSES_MAX accepted losses also takes no report about an event before all of them.
        """

    async def trim(self, before: int) -> None:
        """Remove the events with smaller numbers, which must be in an archive. The newest event stays in any case."""

    async def published_checkpoint(self) -> bytes | None:
        """Return the signed note of the newest checkpoint that was published, or None. It is not part of the log."""

    async def publish_checkpoint(self, note: bytes, previous: bytes | None) -> bool:
        """Replace the published checkpoint if it is still `previous`, None: if there is none. Return whether it was."""

    async def durability(self) -> list[str]:
        """Return the reasons why acknowledged events might be lost, a sentence each; [] if they survive kill -9 and power loss."""

    async def ensure_groups(self) -> None:
        """Create the missing consumer groups of Gavel's own clients (GROUP_OF_QUEUE)."""

    async def close(self) -> None:
        """Close the connections. The log itself stays."""


def volatility_message(reasons: Sequence[str]) -> str:
    """Return the reasons of `EventLog.durability` as one message with the remedies; "" without reasons."""
    if not reasons:
        return ""
    return f"the log may lose acknowledged events: {'; '.join(reasons)}. Reconfigure its store, or accept the risk with --accept-volatile"


def check_bus_name(bus: str) -> None:
    """Raise ValueError if `bus` is not the name of a bus."""
    if not re.fullmatch(BUS, bus):
        raise ValueError(f"bus {bus!r} is not a name of 1 to 63 lower-case letters, digits and hyphens")


def empty_head(bus: str) -> Head:
    """Return the head of a log without events."""
    return Head(0, genesis_hash(bus))


async def has_event(log: EventLog, head: Head) -> bool:
    """Return whether a log has an event with this number and chain hash. Raises LogError."""
    record = (await log.read_many([head.sequence_number])).get(head.sequence_number)
    return record is not None and record.chain_hash == head.chain_hash


def window_days(now_ms: int, window_ms: int) -> range:
    """Return the days since 1970 whose event_ids count as known at `now_ms`: whole days, so ids stay known up to a day longer."""
    return range((now_ms - window_ms) // DAY_MS, now_ms // DAY_MS + 1)


def describe(head: Head) -> str:
    """Return a head for messages, e.g. "12 (ab34cd56…)"."""
    return f"{head.sequence_number} ({head.chain_hash.hex()[:8]}…)"
