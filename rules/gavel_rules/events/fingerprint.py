"""The fingerprint of a proposal: equal fingerprints mean the same proposal again (constitution §6.3).

It covers the action, params, subject and cited events. Estimates, priority and times are left out: a rejected proposal stays the same
when it becomes more urgent.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from google.protobuf.struct_pb2 import Struct

from gavel_rules.codec.fields import length_prefixed
from gavel_rules.events.proposal_view import ProposalView

_serialize: Final = Struct.SerializeToString


def fingerprint(proposal: ProposalView) -> str:
    """Return the SHA-256 of a proposal's content as hex digits. The order of its citations does not matter."""
    # Lengths in front keep different parts from reading the same: "ab" + "c" is not "a" + "bc".
    content = length_prefixed(proposal.action_type.encode()) + length_prefixed(proposal.subject.encode())
    content = content + length_prefixed(_serialize(proposal.struct, deterministic=True))
    for sequence_number, event_id in sorted(set(proposal.citations)):
        content = content + length_prefixed(f"{sequence_number} {event_id}".encode())
    return sha256(content).hexdigest()
