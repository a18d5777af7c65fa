"""Recording what producers say: facts, observations, tool events, diagnostics.

An observation's trust tier is fixed here and written into the event, so whoever reads it later needs no other event. A
derived fact is derived again and refused if it differs.
"""

from __future__ import annotations

from typing import Final

from gavel.v1 import common_pb2, error_pb2
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.commands import Fault, Recorded
from gavel_rules.derivation import derive, is_derived
from gavel_rules.emission import Emission, ahead_fault
from gavel_rules.events import milliseconds, set_timestamp
from gavel_rules.limits import CLOCK_AHEAD_MS_MAX
from gavel_rules.projection import State
from gavel_rules.records import ToolEvidence

_DERIVED_FIELDS: Final = (
    "event_id",
    "event_name",
    "occurred_at",
    "trace_id",
    "causation_id",
    "producer",
    "subject",
    "version_binding",
    "fact",
)


def publish(emission: Emission, envelope: Envelope) -> Recorded | Fault:
    """Record a producer's event, or say why not."""
    fault = emission.claim_fault(envelope)
    if fault is None:
        match envelope.WhichOneof("payload"):
            case "fact":
                fault = _derivation_fault(emission.state, envelope) if is_derived(envelope.fact) else None
            case "observation":
                fault = _complete_observation(emission, envelope)
    if fault is not None:
        return fault
    return Recorded(emission.record(envelope))


def _derivation_fault(state: State, envelope: Envelope) -> Fault | None:
    """Return why a derived fact is refused: the server derives it again from the same two events."""
    live = state.decisions.get(envelope.fact.decision_id)
    execution = None
    if live is not None:
        execution = next((source for event_id, source in live.awaited_facts if event_id == envelope.event_id), None)
    if live is None or execution is None:
        return Fault(
            error_pb2.ERROR_REASON_DERIVATION_MISMATCH,
            f"no fact with event_id {envelope.event_id} is awaited from decision {envelope.fact.decision_id}",
        )
    rule_set = state.rule_set_of(live.decision.decision)
    expected = next(fact for fact in derive(execution, live.decision, rule_set) if fact.event_id == envelope.event_id)
    differing = [name for name in _DERIVED_FIELDS if getattr(expected, name) != getattr(envelope, name)]
    if differing:
        return Fault(
            error_pb2.ERROR_REASON_DERIVATION_MISMATCH,
            f"the fact is not what execution {execution.event_id} derives; differing: {', '.join(differing)}",
        )
    return None


def _complete_observation(emission: Emission, envelope: Envelope) -> Fault | None:
    observation = envelope.observation
    if observation.HasField("observed_at"):
        ahead_ms = milliseconds(observation.observed_at) - emission.now_ms
        if ahead_ms > CLOCK_AHEAD_MS_MAX:
            return ahead_fault("envelope.observation.observed_at", ahead_ms)
    else:
        set_timestamp(observation.observed_at, emission.now_ms)
        emission.state.on_undo(lambda: observation.ClearField("observed_at"))
    observation.ClearField("evidence_recorded_at")
    evidence = _matching_evidence(emission, envelope)
    if evidence is None:
        observation.trust_tier = common_pb2.TRUST_TIER_3_AGENT_INFERENCE
    else:
        observation.trust_tier = common_pb2.TRUST_TIER_2_TOOL_OBSERVATION
        set_timestamp(observation.evidence_recorded_at, evidence.recorded_at_ms)
    return None


def _matching_evidence(emission: Emission, envelope: Envelope) -> ToolEvidence | None:
    """Return the tool result that an observation rests on, if it is of its trace and matches in every respect."""
    observation = envelope.observation
    state = emission.state
    evidence = state.tool_evidence(envelope.trace_id, observation.evidence_ref, emission.now_ms)
    if (
        evidence is None
        or evidence.is_error
        or not evidence.execution_id
        or evidence.execution_id not in state.tool_calls.get(envelope.trace_id, {})
        or evidence.content_hash != observation.evidence_hash
        or evidence.tool_name != observation.source_tool
    ):
        return None
    return evidence
