"""An auditor of logs: reads a bus from Redis or PostgreSQL and checks the invariants of every log.

It shares only the contract's messages with the code that it audits: it computes the hash chain itself, and follows event by event
which approval holds which conflict key.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import psycopg
import redis.asyncio
from gavel.v1 import decision_pb2, execution_pb2
from gavel.v1.decision_pb2 import Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel_server.log.stores import is_postgresql

# Outcomes that end an approval without an execution.
_FINAL_OUTCOMES = frozenset({decision_pb2.OUTCOME_EXPIRED, decision_pb2.OUTCOME_REVOKED})
# Statuses of a last report; after the others a person decides first.
_FINAL_STATUSES = frozenset({execution_pb2.EXECUTION_STATUS_SUCCESS, execution_pb2.EXECUTION_STATUS_ABORTED})


@dataclass(frozen=True)
class Ledger:
    """A bus's events in order, each with its chain hash, and the first decision of each proposal."""

    events: list[Envelope]
    first_decisions: dict[str, Envelope]
    """The first decision of each proposal, by the proposal's event_id."""

    @classmethod
    async def read(cls, url: str, bus: str) -> Ledger:
        """Read a bus and assert that it is gapless, chained and in time order, and that no proposal is decided and no key held twice."""
        rows: Any
        if is_postgresql(url):
            async with await psycopg.AsyncConnection.connect(url) as database:
                cursor = await database.execute(
                    "SELECT sequence_number, envelope, chain_hash FROM gavel.events WHERE bus = %s ORDER BY sequence_number", (bus,)
                )
                rows = [(f"{number}-0".encode(), {b"e": envelope, b"h": digest}) for number, envelope, digest in await cursor.fetchall()]
        else:
            async with redis.asyncio.Redis.from_url(url, protocol=2) as connection:
                rows = await connection.xrange(f"gavel:{{{bus}}}:log")
        events = _check_chain(bus, rows)
        _check_order(events)
        ledger = cls(events, _first_decisions(events))
        _check_holds(events)
        return ledger

    @property
    def head(self) -> tuple[int, bytes]:
        """The last event's sequence number and chain hash."""
        return self.events[-1].sequence_number, self.events[-1].chain_hash

    def of(self, payload: str) -> list[Envelope]:
        """Return the events with this payload, e.g. "execution"."""
        return [event for event in self.events if event.WhichOneof("payload") == payload]


def _check_chain(bus: str, rows: list[tuple[bytes, dict[bytes, bytes]]]) -> list[Envelope]:
    """Return the events; assert that each hashes to the stored chain hash."""
    events = []
    chain_hash = hashlib.sha256(b"gavel.v1/" + bus.encode()).digest()
    for number, (entry_id, fields) in enumerate(rows, start=1):
        assert f"{number}-0".encode() == entry_id
        chain_hash = hashlib.sha256(chain_hash + fields[b"e"]).digest()
        assert chain_hash == fields[b"h"], f"the chain breaks at event {number}"
        event = Envelope.FromString(fields[b"e"])
        assert (number, bus) == (event.sequence_number, event.bus)
        event.chain_hash = chain_hash
        events.append(event)
    return events


def _check_order(events: list[Envelope]) -> None:
    times = [event.recorded_at.ToNanoseconds() for event in events]
    assert sorted(times) == times
    assert len({event.event_id for event in events}) == len(events)


def _first_decisions(events: list[Envelope]) -> dict[str, Envelope]:
    """Return the first decision of each proposal; assert that it follows at once or, after a contest, not before its close."""
    proposals = {event.event_id: event for event in events if event.HasField("proposal")}
    decisions: dict[str, Envelope] = {}
    for event in events:
        if event.HasField("decision") and not event.decision.previous_decision_id:
            assert event.decision.proposal_id not in decisions, f"{event.decision.proposal_id} is decided twice"
            proposal = proposals[event.decision.proposal_id]
            if proposal.proposal.HasField("contest"):
                assert proposal.proposal.contest.closes_at.ToNanoseconds() <= event.recorded_at.ToNanoseconds()
            else:
                assert proposal.sequence_number + 1 == event.sequence_number
            decisions[event.decision.proposal_id] = event
    assert {proposal_id for proposal_id, event in proposals.items() if not event.proposal.HasField("contest")} <= decisions.keys()
    return decisions


def _check_holds(events: list[Envelope]) -> None:
    """Assert that an approval takes a free conflict key, and holds it until it ends or the facts of its execution are recorded.

    A compensation takes the key of the decision that it compensates, and holds it until the facts of both are recorded.
    """
    holders: dict[str, str] = {}
    keys: dict[str, str] = {}
    last_executions: dict[str, str] = {}
    complete: set[str] = set()  # all facts of the last report are recorded
    compensated: dict[str, str] = {}
    by_id = {event.event_id: event for event in events}
    facts = [event for event in events if event.fact.derivation_rule_id]
    rules = [(event.fact.execution_id, event.causation_id, event.fact.derivation_rule_id) for event in facts]
    assert len({*rules}) == len(rules), "derived twice"
    last = {(event.fact.decision_id, event.fact.execution_id): event.event_id for event in facts}
    for event in events:
        decision = event.decision
        if event.HasField("decision") and decision.outcome == decision_pb2.OUTCOME_APPROVED:
            compensated_id = decision.compensates_decision_id
            assert holders.get(decision.conflict_key, "") == compensated_id, f"event {event.sequence_number} approves on a key that is held"
            holders[decision.conflict_key] = event.event_id
            keys[event.event_id] = decision.conflict_key
            if compensated_id:
                compensated[event.event_id] = compensated_id
                last_executions[compensated_id] = by_id[event.causation_id].execution.execution_id
        elif decision.outcome in _FINAL_OUTCOMES:
            ended = by_id[decision.previous_decision_id].decision
            # The review of an execution ends the decision that was being executed.
            ended_id = decision.previous_decision_id if ended.outcome == decision_pb2.OUTCOME_APPROVED else ended.previous_decision_id
            assert ended_id == holders.pop(keys[ended_id]), Outcome.Name(decision.outcome)
        elif event.execution.status in _FINAL_STATUSES:
            last_executions[event.execution.decision_id] = event.execution.execution_id
        elif event.fact.decision_id in last_executions and event.event_id == last.get(
            (event.fact.decision_id, last_executions[event.fact.decision_id])
        ):
            # Facts of earlier attempts may follow the last report.
            complete.add(event.fact.decision_id)
            holder = holders[keys[event.fact.decision_id]]
            if holder in complete and compensated.get(holder, holder) in complete:
                del holders[keys[holder]]
