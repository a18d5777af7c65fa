"""The hash chain that makes a log tamper-evident: each event's hash covers its bytes and everything before it.

`h(0) = SHA-256("gavel.v1/" || bus)` and `h(n) = SHA-256(h(n-1) || e(n))`, where `e(n)` is the envelope exactly as the log
stores it, without `chain_hash`. Verifiers hash the stored bytes and never serialize again, because protobuf does not promise
the same bytes twice. The bus's name starts the chain so that one bus's log cannot pass for another's.
"""

import hashlib
from typing import Final

# Once: compiled, a name is looked up in another module at every call.
_sha256: Final = hashlib.sha256


def genesis_hash(bus: str) -> bytes:
    """The chain hash of the empty log of `bus`: what the first event is chained to."""
    return _sha256(b"gavel.v1/" + bus.encode()).digest()


def chain(previous: bytes, envelope_bytes: bytes) -> bytes:
    """The chain hash of the event stored as `envelope_bytes`, after the event whose chain hash is `previous`."""
    return _sha256(previous + envelope_bytes).digest()
