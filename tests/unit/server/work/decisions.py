"""Decisions in a log of a test."""

from __future__ import annotations

from gavel.v1.envelope_pb2 import Envelope
from gavel_server.log import Entry, EventLog, chain

from tests.support.entries import NOW_MS


async def append_decisions(log: EventLog, count: int) -> None:
    """Append decisions of the action kind-N, where N is their number."""
    head = await log.head()
    chain_hash = head.chain_hash
    entries = []
    for number in range(head.sequence_number + 1, head.sequence_number + count + 1):
        envelope = Envelope(event_id=f"id-{number}", subject=f"order/{number}")
        envelope.decision.action_type = f"kind-{number}"
        stored = envelope.SerializeToString(deterministic=True)
        chain_hash = chain(chain_hash, stored)
        entries.append(Entry(number, stored, chain_hash, envelope.event_id, "decisions", 0))
    if entries:
        await log.append(head, entries, NOW_MS, [])
