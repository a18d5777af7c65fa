"""An auditor of logs: reads a bus from Redis itself and checks, by means of its own, what must hold of every log.

It shares no code with what it audits but the contract's messages: the chain is hashed here again, and who holds which conflict key is
followed event by event.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from gavel.v1 import decision_pb2, execution_pb2
from gavel.v1.decision_pb2 import Outcome
from gavel.v1.envelope_pb2 import Envelope

# What ends an approval that was not carried out.
_ENDINGS = frozenset({decision_pb2.OUTCOME_EXPIRED, decision_pb2.OUTCOME_REVOKED})
# Reports after which nothing further happens; a person looks at the others first.
_DONE = frozenset({execution_pb2.EXECUTION_STATUS_SUCCESS, execution_pb2.EXECUTION_STATUS_ABORTED})


@dataclass(frozen=True)
class Ledger:
    """A bus's events in order, each with its chain hash filled in, and what they come to."""

    events: list[Envelope]
    first_decisions: dict[str, Envelope]
    """The first decision of each proposal, by the proposal's event_id."""

    @classmethod
    async def read(cls, redis_url: str, bus: str) -> Ledger:
        """Read a bus and check it: gapless, chained, in time order, decided once, and no conflict key held twice."""
        async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as connection:
            rows: Any = await connection.xrange(f"gavel:{{{bus}}}:log")
        events = _chained(bus, rows)
        _check_order(events)
        ledger = cls(events, _first_decisions(events))
        _check_holds(events)
        return ledger

    @property
    def head(self) -> tuple[int, bytes]:
        """The last event's number and chain hash."""
        return self.events[-1].sequence_number, self.events[-1].chain_hash

    def of(self, payload: str) -> list[Envelope]:
        """Return the events with this payload, e.g. "execution"."""
        return [event for event in self.events if event.WhichOneof("payload") == payload]


def _chained(bus: str, rows: list[tuple[bytes, dict[bytes, bytes]]]) -> list[Envelope]:
    """Return the events, each of which must hash to what is stored beside it."""
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
    """Return the first decision of each proposal: right behind it, or, if it competed, no earlier than its contest was to close."""
    proposals = {event.event_id: event for event in events if event.HasField("proposal")}
    decided: dict[str, Envelope] = {}
    for event in events:
        if event.HasField("decision") and not event.decision.previous_decision_id:
            assert event.decision.proposal_id not in decided, f"{event.decision.proposal_id} is decided twice"
            proposal = proposals[event.decision.proposal_id]
            if proposal.proposal.HasField("contest"):
                assert proposal.proposal.contest.closes_at.ToNanoseconds() <= event.recorded_at.ToNanoseconds()
            else:
                assert proposal.sequence_number + 1 == event.sequence_number
            decided[event.decision.proposal_id] = event
    assert {proposal_id for proposal_id, event in proposals.items() if not event.proposal.HasField("contest")} <= decided.keys()
    return decided


def _check_holds(events: list[Envelope]) -> None:
    """Follow the conflict keys: an approval takes one that is free, and holds it until it is ended or its facts are in.

    A compensation takes the key of what it makes good, and holds it until the facts of both are in.
    """
    holders: dict[str, str] = {}
    keys: dict[str, str] = {}
    done: dict[str, str] = {}
    over: set[str] = set()  # all facts of the last report are in
    compensated: dict[str, str] = {}
    by_id = {event.event_id: event for event in events}
    derived = [event for event in events if event.fact.derivation_rule_id]
    rules = [(event.fact.execution_id, event.causation_id, event.fact.derivation_rule_id) for event in derived]
    assert len({*rules}) == len(rules), "derived twice"
    last = {(event.fact.decision_id, event.fact.execution_id): event.event_id for event in derived}
    for event in events:
        decision = event.decision
        if event.HasField("decision") and decision.outcome == decision_pb2.OUTCOME_APPROVED:
            taken_from = decision.compensates_decision_id
            assert holders.get(decision.conflict_key, "") == taken_from, f"event {event.sequence_number} approves on a key that is held"
            holders[decision.conflict_key] = event.event_id
            keys[event.event_id] = decision.conflict_key
            if taken_from:
                compensated[event.event_id] = taken_from
                done[taken_from] = by_id[event.causation_id].execution.execution_id
        elif decision.outcome in _ENDINGS:
            ended = by_id[decision.previous_decision_id].decision
            # What a review of an execution ends is the decision that was being carried out.
            ended_id = decision.previous_decision_id if ended.outcome == decision_pb2.OUTCOME_APPROVED else ended.previous_decision_id
            assert ended_id == holders.pop(keys[ended_id]), Outcome.Name(decision.outcome)
        elif event.execution.status in _DONE:
            done[event.execution.decision_id] = event.execution.execution_id
        elif event.fact.decision_id in done and event.event_id == last.get((event.fact.decision_id, done[event.fact.decision_id])):
            # Facts of earlier attempts may come after the last report.
            over.add(event.fact.decision_id)
            holder = holders[keys[event.fact.decision_id]]
            if holder in over and compensated.get(holder, holder) in over:
                del holders[keys[holder]]
