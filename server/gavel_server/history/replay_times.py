"""How long a replay takes, for the note of `gavel replay`."""

from __future__ import annotations

from time import perf_counter


class ReplayTimes:
    """How long a replay took: in all, and for recomputing alone. The rest is reading and checking the log.

    If several processes could not prove a log, only the replay by one process counts.
    """

    def __init__(self) -> None:
        self.began = perf_counter()
        self.seconds = 0.0
        self.recomputing_seconds = 0.0
