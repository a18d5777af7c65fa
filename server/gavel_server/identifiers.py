"""Event ids that the server makes when a producer gave none: UUIDv7 (RFC 9562 §5.7), made once, at admission."""

from __future__ import annotations

import os
import time
from typing import Final

# The digit that holds the variant: its upper two bits become 10.
_VARIANT: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def new_event_id() -> str:
    """Return a fresh UUIDv7 in canonical form: 48 bits of wall clock in milliseconds, then 74 random bits."""
    now = f"{time.time_ns() // 1_000_000:012x}"
    random = os.urandom(10).hex()
    return f"{now[:8]}-{now[8:]}-7{random[:3]}-{_VARIANT[random[3]]}{random[4:7]}-{random[7:19]}"
