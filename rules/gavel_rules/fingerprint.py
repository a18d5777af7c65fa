"""What makes two proposals the same: action, params, subject and the events that they cite (seeds 002 §6.3).

Estimates, priority and times do not count: a proposal that was refused is not another one for being more urgent.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from google.protobuf.struct_pb2 import Struct

from gavel_rules.proposed import Proposed
from gavel_rules.serialized import varint

_serialize: Final = Struct.SerializeToString


def fingerprint(asked: Proposed) -> str:
    """Return the SHA-256 of what a proposal is, as hex digits. The order of its citations does not matter."""
    said = _framed(asked.action_type.encode()) + _framed(asked.subject.encode()) + _framed(_serialize(asked.struct, deterministic=True))
    for sequence_number, event_id in sorted(set(asked.citations)):
        said = said + _framed(f"{sequence_number} {event_id}".encode())
    return sha256(said).hexdigest()


def _framed(content: bytes) -> bytes:
    """Return something with its length before it, so that nothing else that follows one another reads the same."""
    return varint(len(content)) + content
