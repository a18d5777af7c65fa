"""Event ids that the server assigns at admission, for producers that gave none: UUIDv7 (RFC 9562 §5.7)."""

from __future__ import annotations

import os
import time

from gavel_rules.events.ids import uuid7


def new_event_id() -> str:
    """Return a new UUIDv7 by the wall clock."""
    return uuid7(time.time_ns() // 1_000_000, os.urandom(10))
