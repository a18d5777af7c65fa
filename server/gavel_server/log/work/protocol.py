"""The port of a bus's work queues: entries that every group of consumers takes at least once.

An append adds an event to a queue in the same step as to the log (`Entry.work`). Each group has a place in the queue; an entry that the
group has taken stays pending with one consumer until it is acknowledged. An entry whose consumer has been silent for a while can be
claimed by another one. A rejected entry waits until it is due, and a parked one until an operator decides.

An entry is a hint that there may be work; a queue that is lost harms nothing (ADR 0015). Times are measured by the store's clock. Every
method may raise LogUnavailableError. A missing group is created at the start of its queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol

from gavel_server.log.entries import Work

QueueName = Literal["decisions", "executions", "requests"]
QUEUES: Final[tuple[QueueName, ...]] = ("decisions", "executions", "requests")
# The diagnostics of Gavel's that enter the queue "requests": they ask somebody to act.
REQUEST_KINDS: Final = frozenset({"FactCollectionRequested", "NeedsHumanReview", "ReviewEscalated"})
# The groups of Gavel's own clients.
GROUP_OF_QUEUE: Final[Mapping[QueueName, str]] = {"decisions": "executors", "executions": "fdr"}

# Groups of a queue. At a limit, a group without members, pending and parked entries is removed for a new one.
GROUPS_MAX: Final = 64
# Those that one caller has created.
CALLER_GROUPS_MAX: Final = 16
# Places for the first groups of callers: a few callers with many groups leave them free.
FIRST_GROUPS_MIN: Final = 32
# Parked entries of a group.
PARKED_MAX: Final = 10_000
# Entries of the queue "requests": nobody may consume them, and no end of a decision removes them.
REQUESTS_MAX: Final = 10_000
# Bytes of envelopes that one call takes. The entry that reaches the limit is included.
TAKE_BYTES_MAX: Final = 1024 * 1024


class ConsumerGroup(NamedTuple):
    """A consumer group of a work queue.

    `lag` counts undelivered entries, `pending` those delivered and not acknowledged, `members` the consumers of the group, `parked` the
    entries that wait for an operator. `owner` is the caller that has created the group, "" if it is Gavel's own or older than owners.
    """

    group: str
    queue: str
    lag: int
    pending: int
    members: int
    parked: int = 0
    owner: str = ""

    @property
    def is_used(self) -> bool:
        """Whether the group has consumers, unfinished work or parked entries, or is one of Gavel's own clients."""
        is_own = any((queue, group) == (self.queue, self.group) for queue, group in GROUP_OF_QUEUE.items())
        return is_own or bool(self.members or self.pending or self.parked)


GroupsLimit = Literal["CALLER_GROUPS_MAX", "FIRST_GROUPS_MIN", "GROUPS_MAX"]


class GroupsFullError(Exception):
    """A queue has no place for another group of a caller. `limit` says why."""

    def __init__(self, limit: GroupsLimit) -> None:
        super().__init__(limit)
        self.limit: Final = limit


def group_to_remove(groups: Sequence[ConsumerGroup], owner: str) -> str:
    """Return the unused group of a queue that makes place for a new group of a caller, "" if there is place. Raises GroupsFullError."""
    own = [group for group in groups if owner and group.owner == owner]
    limit: GroupsLimit
    if len(own) >= CALLER_GROUPS_MAX:
        limit, removable = "CALLER_GROUPS_MAX", own
    elif len(groups) >= GROUPS_MAX:
        limit, removable = "GROUPS_MAX", [*groups]
    elif own and len(groups) >= GROUPS_MAX - FIRST_GROUPS_MIN:
        limit, removable = "FIRST_GROUPS_MIN", [*groups]
    else:
        return ""
    unused = next((group.group for group in removable if not group.is_used), "")
    if not unused:
        raise GroupsFullError(limit)
    return unused


def sort_groups(groups: Iterable[ConsumerGroup]) -> list[ConsumerGroup]:
    """Return groups in the order of QUEUES, and by name."""
    places: dict[str, int] = {queue: place for place, queue in enumerate(QUEUES)}
    return sorted(groups, key=lambda group: (places[group.queue], group.group))


class WorkEntry(NamedTuple):
    """An entry that a consumer has taken: its event, and how often it has been delivered, this time included.

    `envelope` and `chain_hash` are empty if the queue leaves them in the log, and the event was trimmed: an archive has them.
    """

    sequence_number: int
    envelope: bytes
    chain_hash: bytes
    deliveries: int


class ParkedEntry(NamedTuple):
    """A parked entry."""

    sequence_number: int
    event_id: str
    deliveries: int
    reason: str
    parked_at_ms: int


class WorkQueues(Protocol):
    """The work queues of one bus."""

    async def join(self, queue: QueueName, group: str, consumer: str, owner: str = "") -> None:
        """Make a consumer a member of a group. A new group belongs to `owner`, the caller. Raises GroupsFullError."""

    async def take_new(self, queue: QueueName, group: str, consumer: str, count: int) -> list[WorkEntry]:
        """Take up to `count` entries that no consumer of the group has taken."""

    async def take_due(self, queue: QueueName, group: str, consumer: str, count: int) -> list[WorkEntry]:
        """Take up to `count` rejected entries that are due, and parked ones that are to be retried."""

    async def idle(self, queue: QueueName, group: str, idle_ms: int, after: int, count: int) -> list[int]:
        """Return up to `count` pending entries beyond the number `after` whose consumers have been silent for `idle_ms`."""

    async def claim(self, queue: QueueName, group: str, consumer: str, numbers: Sequence[int], idle_ms: int) -> list[WorkEntry]:
        """Take those of the entries whose consumers have been silent for `idle_ms`; forget those that the queue has lost."""

    async def renew(self, queue: QueueName, group: str, consumer: str, numbers: Sequence[int]) -> list[int]:
        """Note that the consumer is not silent. Return the entries that it still holds."""

    async def transfer(self, queue: QueueName, group: str, consumer: str, number: int, receiver: str) -> bool:
        """Give an entry to another consumer. Return whether the consumer held it."""

    async def acknowledge(self, queue: QueueName, group: str, numbers: Sequence[int]) -> None:
        """End the work of the group on entries. Unknown ones are skipped."""

    async def release(self, queue: QueueName, group: str, consumer: str, deliveries: Mapping[int, int], idle_ms: int) -> None:
        """Give up entries that the consumer holds, with their numbers of deliveries: others can claim them at once, with `idle_ms`."""

    async def reject(self, queue: QueueName, group: str, consumer: str, number: int, deliveries: int, delay_ms: int) -> bool:
        """Return an entry to the group, due after a delay. Return whether the consumer held it."""

    async def park(self, queue: QueueName, group: str, consumer: str, parked: ParkedEntry) -> bool:
        """Park an entry; the store sets the time. Return False, and change nothing, if the group has PARKED_MAX.

        An entry that the consumer does not hold is left alone. Parked entries that the queue has lost do not count.
        """

    async def read_parked(self, queue: QueueName, group: str, after: int, limit: int) -> list[ParkedEntry]:
        """Return up to `limit` parked entries beyond the number `after`, ascending. A missing group has none, and is not created.

        Those that the queue has lost are dropped.
        """

    async def retry_parked(self, queue: QueueName, group: str, numbers: Sequence[int] | None) -> int:
        """Make parked entries (None: all) due at once, with no deliveries counted. Return how many there were.

        Those that the queue has lost are dropped, and do not count.
        """

    async def discard_parked(self, queue: QueueName, group: str, numbers: Sequence[int]) -> int:
        """Drop parked entries. Return how many there were."""

    async def groups(self) -> list[ConsumerGroup]:
        """Return all groups, by queue and name."""

    async def leave(self, queue: QueueName, group: str, consumer: str) -> None:
        """Remove a consumer from its group, unless it holds entries."""

    async def remove_silent(self, queue: QueueName, group: str, silent_ms: int) -> None:
        """Remove the consumers that hold no entry and have been silent for `silent_ms`: their servers were killed."""

    async def numbers(self, queue: QueueName, after: int, count: int) -> list[int]:
        """Return up to `count` entries of a queue beyond the number `after`, ascending.

        A page may be shorter although others follow it; an empty one is the end.
        """

    async def remove(self, queue: QueueName, numbers: Sequence[int]) -> None:
        """Remove entries for all groups, pending and parked ones included: their work has ended in the log."""


def as_queue(work: Work) -> QueueName | None:
    """Return the queue of an entry's `work`, None for none."""
    return work or None
