"""Event ids: the form that producers must use, and the ids that Gavel derives.

The id of an event of Gavel's own is a hash of its cause, so that a replay derives the same id.
"""

from __future__ import annotations

import hashlib
from typing import Final

# The hex digit with the variant: its upper two bits become 10.
_VARIANT: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
# Bound once: docs/performance.md#module-constants.
_sha256: Final = hashlib.sha256
# Maps every hex digit to zero, so that one comparison checks the form of a UUID.
_DIGITS_AS_ZERO: Final = bytes.maketrans(b"0123456789abcdef", b"0" * 16)
_UUID_SHAPE: Final = b"00000000-0000-0000-0000-000000000000"


def derived_event_id(cause_event_id: str, cause_sequence_number: int, kind: str, ordinal: int = 0) -> str:
    """Return the UUIDv8 of an event of Gavel's own: a SHA-256 over its cause, kind and ordinal (RFC 9562 §5.8)."""
    digest = _sha256(f"{cause_event_id}\n{cause_sequence_number}\n{kind}\n{ordinal}".encode()).hexdigest()
    # Version 8 in bits 48..51, variant 10 in bits 64..65.
    return f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-{_VARIANT[digest[16]]}{digest[17:20]}-{digest[20:32]}"


def uuid7(unix_ms: int, random_bytes: bytes) -> str:
    """Return a UUIDv7 in canonical form (RFC 9562 §5.7): 48 bits of Unix time in milliseconds, then bits of 10 random bytes."""
    time_digits = f"{unix_ms:012x}"
    random_digits = random_bytes.hex()
    return (
        f"{time_digits[:8]}-{time_digits[8:]}-7{random_digits[:3]}-{_VARIANT[random_digits[3]]}{random_digits[4:7]}-{random_digits[7:19]}"
    )


def execution_id_of(decision_id: str, attempt: int) -> str:
    """Return the id of an attempt: "exec_" and 12 hex digits of SHA-256(decision_id, attempt) (constitution 001)."""
    return "exec_" + _sha256(f"{decision_id}\n{attempt}".encode()).hexdigest()[:12]


def tool_execution_id(event_id: str) -> str:
    """Return the execution_id of a tool call whose producer gave it none, from the event_id of the call (constitution 001)."""
    return "exec_" + _sha256(f"{event_id}\ntool-call".encode()).hexdigest()[:12]


def is_uuid(text: str) -> bool:
    """Return whether a text is a UUID of any version in canonical form: lower-case hex digits, 8-4-4-4-12."""
    return len(text) == len(_UUID_SHAPE) and text.isascii() and text.encode().translate(_DIGITS_AS_ZERO) == _UUID_SHAPE


def uuid_problem(text: str) -> str:
    """Return the problem of a producer's event_id, or "". It must be canonical; version 8 is reserved for Gavel."""
    if not is_uuid(text) or text[14] not in "12345678" or text[19] not in "89ab":
        return "is not a UUID in canonical form: RFC 9562, lower case, with hyphens"
    if text[14] == "8":
        return "is a UUIDv8, which is reserved for events that Gavel makes"
    return ""
