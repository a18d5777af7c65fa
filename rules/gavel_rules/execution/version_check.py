"""The check of versions when an attempt begins: what has drifted since the decision, and what the executor runs (constitution 000 §3)."""

from __future__ import annotations

from typing import NamedTuple

from gavel.v1.common_pb2 import VersionBinding
from gavel.v1.decision_pb2 import Warning as DecisionWarning

from gavel_rules.arbitration.drift import mismatch_drift, refuses, rule_set_drifts, trace_drifts, warn_of_drift
from gavel_rules.state.records import LiveDecision
from gavel_rules.state.state import State
from gavel_rules.state.versions import TraceVersions


class VersionCheck(NamedTuple):
    """The result of the check: the drift to warn of, and whether the executor's versions are refused, with the reason."""

    warnings: list[DecisionWarning]
    is_refused: bool = False
    message: str = ""


def check_start(state: State, live: LiveDecision, binding: VersionBinding | None) -> VersionCheck:
    """Return what has drifted since a decision. A rule set with `on_version_mismatch: fail` refuses an executor of other versions.

    A compensation repairs past effects, so drift does not refuse it.
    """
    if not state.semantics.binds_versions or live.compensates:
        return VersionCheck([])
    decision = live.decision.decision
    actions = state.actions_of(decision)
    if all(action.on_drift == "ignore" for action in actions):
        return VersionCheck([])
    versions = state.trace_versions.get(live.decision.trace_id) or TraceVersions(0)
    mismatches = [] if binding is None else versions.find_mismatches(binding, 0)
    own = [mismatch_drift(mismatch) for mismatch in mismatches]
    if any(refuses(action, mismatches) for action in actions):
        return VersionCheck([], True, "; ".join([drift.message for drift in own]))
    warnings: list[DecisionWarning] = []
    warn_of_drift(warnings, [*trace_drifts(state, versions), *own, *rule_set_drifts(state, decision, live.sequence_number)])
    return VersionCheck(warnings)
