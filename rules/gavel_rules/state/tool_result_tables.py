"""The tables of tool results and of what observations read in them. The store changes them (`transitions.evidence`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gavel_rules.state.records import ToolEvidence


class ToolResultTables:
    """Tool results by trace, then event_id. The other tables have the event_id of a tool result as their key.

    `readings` has the values that were read in a result, by `reading_key`; `contradictions` the `reading_key` of a value that was read
    differently; `candidate_counts` the number of candidates that were read in it. `outliving_results` have evidence although their
    traces have lapsed.
    """

    def __init__(self) -> None:
        self.tool_results: Final[dict[str, dict[str, ToolEvidence]]] = {}
        self.readings: Final[dict[str, dict[str, str]]] = {}
        self.contradictions: Final[dict[str, str]] = {}
        self.candidate_counts: Final[dict[str, int]] = {}
        self.outliving_results: Final[dict[str, bool]] = {}

    def unread_results(self, results: Mapping[str, ToolEvidence]) -> list[str]:
        """Return the older half of the tool results that no observation has read: they may be forgotten.

        Without its tool result a later observation is only inference. A result that has been read must stay, or another reading could
        contradict it unnoticed.
        """
        unread = [event_id for event_id in results if not self.readings.get(event_id)]
        return sorted(unread, key=lambda event_id: results[event_id].sequence_number)[: len(unread) // 2]
