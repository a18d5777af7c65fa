"""What makes two proposals the same: action, params, subject and the events that they cite (seeds 002 §6.3).

Estimates, priority and times do not count: a proposal that was refused is not another one for being more urgent.
"""

from __future__ import annotations

import hashlib
import json

from gavel.v1.envelope_pb2 import Envelope


def fingerprint(envelope: Envelope) -> str:
    """Return the SHA-256 of what a proposal is, as hex digits. The order of its citations does not matter."""
    proposal = envelope.proposal
    cited = sorted({(reference.sequence_number, reference.event_id) for reference in proposal.based_on_events})
    params = proposal.params.SerializeToString(deterministic=True).hex()
    return hashlib.sha256(json.dumps([proposal.action_type, envelope.subject, cited, params]).encode()).hexdigest()
