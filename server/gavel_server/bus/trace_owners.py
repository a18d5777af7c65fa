"""The owners of the traces of a bus: the producers that opened them, and the principals that called.

The first proposal of a trace opens it. The trace belongs to that producer until it has had no proposal for TRACE_LAPSE_MS. A proposal or
observation of another producer in the trace has to name a cause in it: nobody takes part in another's work by its trace_id alone. Where
grants are in force, another principal also needs a grant that lets it join the owner's traces, and a producer of its own. It thus never
uses up the owner's budget of rejections.

The owners come from the log alone. Their number is limited. Beyond the limit, the producer with the most traces loses those that it used
least recently. Of producers with equally many, the one whose next trace has been unused for longest loses it. A producer thus loses traces
only while none has more, and those in use last, even if another caller imitates it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heapreplace
from itertools import islice
from typing import Any, Final, cast

from gavel.internal.v1 import state_snapshot_pb2
from gavel.internal.v1.state_snapshot_pb2 import StateSnapshot, TraceOwner
from gavel.v1 import error_pb2
from gavel_rules.identity.access import may_join
from gavel_rules.identity.grants import CompiledGrants
from gavel_rules.identity.principal import Method, Principal
from gavel_rules.limits import TRACE_LAPSE_MS

from gavel_server.errors import ServiceError

TRACES_MAX: Final = 50_000
# How many traces are forgotten at once: finding the producers with the most traces takes longer than forgetting one.
FORGOTTEN_AT_ONCE: Final = 1_000
# Rows of one part of a snapshot.
PART_ROWS: Final = 512


# A producer's type and id, and the caller that named it; "" for callers without authentication.
PartyKey = tuple[int, str, str]


class TraceParty:
    """A participant of a trace: a producer, and the principal that called."""

    def __init__(self, producer_type: int, producer_id: str, principal: Principal) -> None:
        self.producer_type: Final = producer_type
        self.producer_id: Final = producer_id
        self.principal: Final = principal
        caller = "" if principal.is_anonymous else f"{principal.method}:{principal.issuer}:{principal.name}"
        self.key: Final[PartyKey] = (producer_type, producer_id, caller)


class _Owner:
    """An owner of traces. One object for all of them: a bus remembers many."""

    def __init__(self, party: TraceParty) -> None:
        self.party: Final = party
        self.traces: Final[dict[str, None]] = {}  # trace_ids, the most recently used last


class _Ownership:
    """A trace's owner, and the time of its last proposal."""

    def __init__(self, owner: _Owner, last_proposal_ms: int) -> None:
        self.owner: Final = owner
        self.last_proposal_ms = last_proposal_ms


class TraceOwners:
    """The owners of traces by trace_id."""

    def __init__(self, traces_max: int = TRACES_MAX) -> None:
        """`traces_max` is at least FORGOTTEN_AT_ONCE."""
        self._traces_max = traces_max
        self._owned: dict[str, _Ownership] = {}
        self._owners: dict[PartyKey, _Owner] = {}

    @property
    def tables(self) -> tuple[dict[Any, Any], ...]:
        """Its tables, to be freed."""
        return self._owned, *[owner.traces for owner in self._owners.values()], self._owners

    def note(self, trace_id: str, party: TraceParty, now_ms: int) -> None:
        """Note a proposal that is in the log, recorded at `now_ms`."""
        owned = self._owned.get(trace_id)
        if owned is not None:
            if now_ms - owned.last_proposal_ms <= TRACE_LAPSE_MS:
                owned.last_proposal_ms = now_ms
                del owned.owner.traces[trace_id]
                owned.owner.traces[trace_id] = None
                return
            self._forget(owned.owner, trace_id)
        owner = self._owners.get(party.key)
        if owner is None:
            owner = self._owners[party.key] = _Owner(party)
        self._owned[trace_id] = _Ownership(owner, now_ms)
        owner.traces[trace_id] = None
        if len(self._owned) > self._traces_max:
            self._forget_least_recent()

    def owner(self, trace_id: str, now_ms: Callable[[], int]) -> TraceParty | None:
        """Return whom a trace belongs to; None if nobody is known to own it. The clock is read only if the trace is known."""
        owned = self._owned.get(trace_id)
        return owned.owner.party if owned is not None and now_ms() - owned.last_proposal_ms <= TRACE_LAPSE_MS else None

    def parts(self) -> Iterator[StateSnapshot]:
        """Yield the owners as parts of a snapshot, each with its traces in the order of their last use."""
        # The compiled build makes lists of generator expressions.
        rows = iter([self._row(trace_id) for owner in self._owners.values() for trace_id in owner.traces])
        while chunk := list(islice(rows, PART_ROWS)):
            yield StateSnapshot(trace_owners=chunk)

    def add_rows(self, rows: Iterable[TraceOwner]) -> None:
        """Add owners from a snapshot, in its order."""
        for row in rows:
            caller = row.principal
            principal = Principal(
                caller.name, cast("Method", caller.method), caller.issuer, tuple(caller.groups), tuple(caller.actors), caller.credential_id
            )
            self.note(row.trace_id, TraceParty(row.producer_type, row.producer_id, principal), row.last_proposal_ms)

    def _row(self, trace_id: str) -> TraceOwner:
        owned = self._owned[trace_id]
        party = owned.owner.party
        caller = party.principal
        return TraceOwner(
            trace_id=trace_id,
            last_proposal_ms=owned.last_proposal_ms,
            producer_type=party.producer_type,
            producer_id=party.producer_id,
            principal=state_snapshot_pb2.Principal(
                name=caller.name,
                method=caller.method,
                issuer=caller.issuer,
                groups=caller.groups,
                actors=caller.actors,
                credential_id=caller.credential_id,
            ),
        )

    def _forget_least_recent(self) -> None:
        """Forget FORGOTTEN_AT_ONCE traces, one after the other: the one used least recently of the producer that then has the most."""
        owners = list(self._owners.values())
        owned = self._owned
        # Among producers with equally many traces, the one whose next trace has been unused for longest comes first.
        largest = [(-len(owner.traces), owned[next(iter(owner.traces))].last_proposal_ms, index) for index, owner in enumerate(owners)]
        heapify(largest)
        for _ in range(FORGOTTEN_AT_ONCE):
            count, _, index = largest[0]
            traces = owners[index].traces
            self._forget(owners[index], next(iter(traces)))
            last_proposal_ms = owned[next(iter(traces))].last_proposal_ms if traces else 0
            heapreplace(largest, (count + 1, last_proposal_ms, index))

    def _forget(self, owner: _Owner, trace_id: str) -> None:
        del self._owned[trace_id]
        del owner.traces[trace_id]
        if not owner.traces:
            del self._owners[owner.party.key]


def trace_refusal(
    trace_id: str, owner: TraceParty | None, party: TraceParty, cause_trace_id: str, grants: CompiledGrants | None
) -> ServiceError | None:
    """Return why a party may not take part in a trace, or None. `cause_trace_id` is the trace of the event that it names as the cause."""
    if owner is None or owner.key == party.key:
        return None
    if cause_trace_id != trace_id:
        message = f"trace {trace_id} was opened by another producer; to continue it, set causation_id to an event of that trace"
        return ServiceError(error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED, message)
    if grants is None or owner.key[2] == party.key[2]:
        return None
    if owner.key[:2] == party.key[:2]:
        message = f"trace {trace_id} was opened by another caller under the same producer; join it under a producer id of your own"
        return ServiceError(error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED, message)
    if not may_join(grants, party.principal, owner.principal):
        # Without the owner's name, which only readers of the bus may know.
        message = (
            f"no grant of {grants.name} version {grants.version} lets {party.principal.name!r} join traces of the caller that opened "
            f"trace {trace_id}"
        )
        return ServiceError(error_pb2.ERROR_REASON_RIGHT_LACKING, message)
    return None
