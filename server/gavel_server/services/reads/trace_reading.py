"""Derives from a trace's events: pairs of tool calls and results, the versions that they name, and their drift since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gavel.v1.common_pb2 import VersionBinding
from gavel.v1.decision_pb2 import Decision
from gavel.v1.drift_pb2 import Drift
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import ToolPair
from gavel_rules.arbitration.drift import rule_set_drifts, trace_drifts
from gavel_rules.state.state import State
from gavel_rules.state.versions import TraceVersions

from gavel_server.services.reads.tool_pairs import tool_pairs

# The most drifts of an answer, and the most different versions of one kind that it looks at.
DRIFTS_MAX: Final = 100
VERSIONS_MAX: Final = 128


class TraceReading(NamedTuple):
    """The reading of a trace."""

    pairs: list[ToolPair]
    versions: TraceVersions
    decisions: list[tuple[int, Decision]]  # first decisions that consulted different rule sets, with their sequence numbers

    @property
    def version_binding(self) -> VersionBinding:
        """The versions that the trace is bound to."""
        return VersionBinding(**{bound.field: bound.version for bound in self.versions.bound})

    def drifts(self, state: State) -> list[Drift]:
        """Return where the trace's versions differ from those in a state of the bus; at most DRIFTS_MAX."""
        drifts = trace_drifts(state, self.versions)
        for number, decision in self.decisions:
            drifts += rule_set_drifts(state, decision, number)
        return drifts[:DRIFTS_MAX]


def read_trace(events: Sequence[Envelope]) -> TraceReading:
    """Read a trace's events, which come in log order; they may be read in part (`PartialEnvelope`)."""
    versions = TraceVersions(0)
    decisions: dict[tuple[str, ...], tuple[int, Decision]] = {}
    for event in events:
        payload = event.WhichOneof("payload")
        versions = versions.with_event(event, payload or "", VERSIONS_MAX)
        decision = event.decision
        if payload == "decision" and not decision.previous_decision_id and not decision.compensates_decision_id:
            consulted = [f"{reference.policy_id} {reference.version}" for reference in decision.active_rule_sets]
            decisions.setdefault((decision.action_type, *consulted), (event.sequence_number, decision))
    return TraceReading(tool_pairs(events), versions, list(decisions.values())[:VERSIONS_MAX])
