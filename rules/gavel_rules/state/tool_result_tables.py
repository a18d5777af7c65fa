"""The tables of tool results and of the readings in them. The store changes them (`transitions.evidence`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gavel_rules.state.packed_evidence import unpack_outliving_result
from gavel_rules.state.paged_table import PagedTable
from gavel_rules.state.records import OutlivingResult, ToolEvidence


class ToolResultTables:
    """Tool results by trace, then event_id. The other tables have the event_id of a tool result as their key.

    `trace_of_result` has the trace of a result; it is empty if several traces may have one (`Semantics.keeps_readings`). `readings` has
    the values that were read in a result, by `reading_key`; `contradictions` the `reading_key` of a value that was read differently;
    `candidate_counts` the number of candidates that were read in it. When the trace of a result lapses, its rows move to
    `outliving_results` if it has candidates; otherwise they are dropped.
    """

    def __init__(self) -> None:
        self.tool_results: Final[dict[str, dict[str, ToolEvidence]]] = {}
        self.trace_of_result: Final[dict[str, str]] = {}
        self.readings: Final[dict[str, dict[str, str]]] = {}
        self.contradictions: Final[dict[str, str]] = {}
        self.candidate_counts: Final[dict[str, int]] = {}
        self.outliving_results: Final = PagedTable(unpack_outliving_result, _newest_number)

    def outliving_result(self, event_id: str) -> OutlivingResult | None:
        """Return a tool result that has evidence although its trace has lapsed."""
        result: OutlivingResult | None = self.outliving_results.get(event_id)
        return None if result is None or not result.candidate_count else result

    def readings_of(self, event_id: str) -> Mapping[str, str] | None:
        """Return the values that were read in a tool result, by `reading_key`; None if the result is not remembered."""
        readings = self.readings.get(event_id)
        if readings is not None:
            return readings
        outliving = self.outliving_result(event_id) if event_id else None
        return None if outliving is None else outliving.readings

    def contradiction_of(self, event_id: str) -> str:
        """Return the `reading_key` of a value that was read differently in a tool result, or ""."""
        contradiction = self.contradictions.get(event_id)
        if contradiction is not None:
            return contradiction
        outliving = self.outliving_result(event_id)
        return "" if outliving is None else outliving.contradiction

    def unread_results(self, results: Mapping[str, ToolEvidence]) -> list[str]:
        """Return the older half of the tool results that no observation has read: they may be forgotten.

        Without its tool result a later observation is only inference. A result that has been read must stay, or another reading could
        contradict it unnoticed.
        """
        unread = [event_id for event_id in results if not self.readings.get(event_id)]
        return sorted(unread, key=lambda event_id: results[event_id].sequence_number)[: len(unread) // 2]


def _newest_number(result: OutlivingResult) -> int:
    return result.sequence_number
