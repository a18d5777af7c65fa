"""The event_ids of a loop's events: each follows from its cause, so that a repeated run sends the same events again.

A process that repeats a run, after a crash or at the same time, derives the same ids. The log accepts one event under an id, so the
run continues where it was interrupted. All ids are UUIDv5 (RFC 9562 §5.5).
"""

from __future__ import annotations

import json
import uuid
from typing import Final

from gavel.v1.common_pb2 import Producer

RUN_KEY_LENGTH_MAX: Final = 1024

_RUNS: Final = uuid.UUID("7d0c6c0e-5f0f-4a43-8d7b-0f3a3a6f2a51")
_ROUNDS: Final = uuid.UUID("c2b1f6a4-9b39-4c0e-9a55-4e1d1f6f7d02")


def first_event_id(producer: Producer, run_key: str) -> str:
    """Return the event_id of the first proposal of a run. Producers have separate keys."""
    if not 0 < len(run_key) <= RUN_KEY_LENGTH_MAX:
        raise ValueError(f"run_key has {len(run_key)} characters; it must have 1 to {RUN_KEY_LENGTH_MAX}")
    # JSON, because any separator may be part of an id or a key.
    return str(uuid.uuid5(_RUNS, json.dumps([producer.type, producer.id, run_key])))


def next_event_id(decision_id: str) -> str:
    """Return the event_id of the step that follows a rejection: the next proposal, or the adoption of another one."""
    return str(uuid.uuid5(_ROUNDS, decision_id))
