"""The hash chain that makes a log tamper-evident: the hash of each event covers its bytes and all events before it.

`h(0) = SHA-256("gavel.v1/" || bus)` and `h(n) = SHA-256(h(n-1) || e(n))`, where `e(n)` is the envelope exactly as the log
stores it, without `chain_hash`. Verifiers hash the stored bytes and never serialize again, because protobuf does not promise
the same bytes twice. The bus's name starts the chain, so that the log of one bus cannot pass for that of another.
"""

import hashlib
from typing import Final

# Bound once: docs/performance.md#module-constants.
_sha256: Final = hashlib.sha256


def genesis_hash(bus: str) -> bytes:
    """Return the chain hash of the empty log of a bus."""
    return _sha256(b"gavel.v1/" + bus.encode()).digest()


def chain(previous: bytes, envelope_bytes: bytes) -> bytes:
    """Return the chain hash of the event stored as `envelope_bytes`; `previous` is that of the event before it."""
    return _sha256(previous + envelope_bytes).digest()
