"""Event ids that the server makes when a producer gave none: UUIDv7 (RFC 9562 §5.7), made once, at admission."""

from __future__ import annotations

import os
import time


def new_event_id() -> str:
    """Return a fresh UUIDv7 in canonical form: 48 bits of wall clock in milliseconds, then 74 random bits."""
    random_bits = int.from_bytes(os.urandom(10), "big")
    now_ms = time.time_ns() // 1_000_000
    number = (now_ms << 80) | random_bits
    text = f"{(number & ~(0xF << 76) & ~(0x3 << 62)) | (0x7 << 76) | (0x2 << 62):032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
