"""The table of traces in which refusals count. The store changes it (`transitions.traces`)."""

from __future__ import annotations

from typing import Final

from sortedcontainers import SortedList


class RefusedTraces:
    """Traces by trace_id and as a sorted list, and the number of them by producer.

    A trace is (`Semantics.refusals_key` of the producer that was refused there first, sequence number of that decision, trace_id).
    """

    def __init__(self) -> None:
        self.by_trace: Final[dict[str, tuple[str, int, str]]] = {}
        self.by_producer: Final[SortedList] = SortedList()
        self.counts: Final[dict[str, int]] = {}
