"""What makes two proposals the same: action, params, subject and the events that they cite (seeds 002 §6.3).

Estimates, priority and times do not count: a proposal that was refused is not another one for being more urgent.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from google.protobuf.struct_pb2 import Struct

from gavel_rules.proposed import Proposed

_serialize: Final = Struct.SerializeToString


def fingerprint(asked: Proposed) -> str:
    """Return the SHA-256 of what a proposal is, as hex digits. The order of its citations does not matter."""
    params = _serialize(asked.struct, deterministic=True)
    # As Python writes such a tuple: no two that differ are written alike, and with `ascii` every version of Python writes the same.
    return sha256(ascii((asked.action_type, asked.subject, sorted(set(asked.citations)), params)).encode()).hexdigest()
