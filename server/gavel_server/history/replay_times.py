"""How long a replay takes, for the note of `gavel replay`."""

from __future__ import annotations


class ReplayTimes:
    """How long a replay took: in all, and for recomputing alone. The rest is reading and checking the log."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.recomputing_seconds = 0.0
