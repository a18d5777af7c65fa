"""What makes two proposals the same: action, params, subject and the events that they cite (seeds 002 §6.3).

Estimates, priority and times do not count: a proposal that was refused is not another one for being more urgent.
"""

from __future__ import annotations

import hashlib

from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.language.lowering import text_json
from gavel_rules.proposed import citations_in


def fingerprint(envelope: Envelope) -> str:
    """Return the SHA-256 of what a proposal is, as hex digits. The order of its citations does not matter."""
    proposal = envelope.proposal
    cited = sorted(set(citations_in(proposal)))
    params = proposal.params.SerializeToString(deterministic=True).hex()
    # As json.dumps writes such a list, for a fraction of its cost.
    events = ", ".join([f"[{sequence_number}, {text_json(event_id)}]" for sequence_number, event_id in cited])
    text = f'[{text_json(proposal.action_type)}, {text_json(envelope.subject)}, [{events}], "{params}"]'
    return hashlib.sha256(text.encode()).hexdigest()
