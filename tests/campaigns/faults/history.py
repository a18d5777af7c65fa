"""Histories of clients: each call with its times and its result, as the checker in `go/linearizability` reads them.

An entry is one event that a client caused: the first decision of a proposal, a fact, the start of an attempt, a report. Clients choose
the ids of entries, so that a request that was repeated, or never answered, is recognized in the log.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from gavel.v1 import decision_pb2, execution_pb2
from gavel.v1.envelope_pb2 import Envelope

# The reason_code of the rule that keeps the limit (`callers.RULES`).
OVER_BUDGET: Final = "DAILY_WEIGHT"
CHECK_SECONDS_MAX: Final = 600


class HistoryError(AssertionError):
    """No order of the operations explains their results."""


@dataclass(frozen=True)
class Entry:
    """One event that a client caused. `checker`: type entry has the meaning of each field."""

    id: str
    position: int
    digest: str
    outcome: str = ""
    amount: float = 0.0
    claims: str = ""
    finishes: str = ""


def claim_id(decision_id: str, executor: str) -> str:
    """Return the id of the entry of an attempt's start, which the server names only in its answer."""
    return f"{decision_id}/{executor}"


def entry_of(event: Envelope) -> Entry | None:
    """Return the entry of a recorded event, None if no client's request names it."""
    position, digest = event.sequence_number, event.chain_hash.hex()
    match event.WhichOneof("payload"):
        case "decision" if not event.decision.previous_decision_id:
            decision = event.decision
            outcome = "over_budget" if decision.reason_code == OVER_BUDGET else "other"
            if decision.outcome == decision_pb2.OUTCOME_APPROVED:
                outcome = "approved"
            return Entry(decision.proposal_id, position, digest, outcome, decision.params.fields["weight"].number_value)
        case "execution" if event.execution.status == execution_pb2.EXECUTION_STATUS_STARTED:
            decision_id = event.execution.decision_id
            return Entry(claim_id(decision_id, event.producer.id), position, digest, claims=decision_id)
        case "execution":
            return Entry(event.event_id, position, digest, finishes=event.execution.decision_id)
        case "fact":
            return Entry(event.event_id, position, digest)
    return None


class History:
    """The operations of all clients so far, in one file. Times are those of one monotonic clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.operations = 0
        self.unanswered = 0
        self._file = path.open("w")
        self._written: defaultdict[str, set[str]] = defaultdict(set)

    def announce_write(self, bus: str, entry_id: str) -> None:
        """Declare the id of a write before it is called: other clients may read its entry before it returns."""
        self._written[bus].add(entry_id)

    def add_write(self, client: int, bus: str, entry_id: str, called: int, event: Envelope | None = None, *, answered: bool = True) -> None:
        """Add a write and the event that the answer showed, if any."""
        entries = [] if event is None else self._entries(bus, [event])
        self.unanswered += not answered
        self._add(client, bus, "write", called, now() if answered else 0, id=entry_id, entries=entries)

    def add_read(self, client: int, bus: str, called: int, after: int, events: Iterable[Envelope], *, complete: bool) -> None:
        """Add a read of the events behind the number `after`. `complete`: up to the head, else some first ones."""
        self._add(client, bus, "read", called, now(), after=after, complete=complete, entries=self._entries(bus, events))

    def add_refused_claim(self, client: int, bus: str, decision_id: str, called: int) -> None:
        """Add a claim that was refused because another one had come first."""
        self._add(client, bus, "refuse", called, now(), id=decision_id)

    def check(self, checker: Path, amount_max: float) -> str:
        """Return the checker's report. Raises HistoryError if it does not accept the history."""
        self._file.flush()
        return check_history(self.path, checker, amount_max)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _entries(self, bus: str, events: Iterable[Envelope]) -> list[Entry]:
        entries = [entry_of(event) for event in events]
        return [entry for entry in entries if entry is not None and entry.id in self._written[bus]]

    def _add(self, client: int, bus: str, kind: str, called: int, returned: int, **fields: object) -> None:
        operation: Mapping[str, object] = {"client": client, "bus": bus, "kind": kind, "call": called, "return": returned, **fields}
        self._file.write(json.dumps(operation, default=asdict) + "\n")
        self.operations += 1


def now() -> int:
    """Return the time of a call or of its return, in nanoseconds."""
    return time.monotonic_ns()


def check_history(path: Path, checker: Path, amount_max: float) -> str:
    """Return the checker's report on a file. Raises HistoryError if it does not accept the history."""
    command = [str(checker), str(path), str(amount_max)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_SECONDS_MAX, check=False)
    if done.returncode != 0:
        raise HistoryError(f"{' '.join(command)} exits with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout
