"""Entries as `append.lua` is given them. Compiled, since it looks at every event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gavel_server.log.entries import Entry

_FLAG_OF_WORK: Final = {"": "-", "decisions": "d", "executions": "x"}


def flags_and_arguments(entries: Sequence[Entry]) -> tuple[str, list[str | int | bytes]]:
    """Return the letters of the entries' work queues, and envelope and chain hash of all, then event_id and value of all."""
    flags: list[str] = []
    stored: list[str | int | bytes] = []
    ids: list[str | int | bytes] = []
    for entry in entries:
        number = entry.sequence_number
        decision_number = entry.decision_sequence_number
        flags.append(_FLAG_OF_WORK[entry.work])
        stored.append(entry.envelope)
        stored.append(entry.chain_hash)
        ids.append(entry.event_id)
        ids.append(f"{number}:{decision_number}" if decision_number else number)
    return "".join(flags), stored + ids
