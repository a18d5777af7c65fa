"""Publication of producers' events: facts, observations, tool events, diagnostics.

The trust tier of an observation is determined here and written into the event, so that readers need no other event. A derived fact is
derived again, and refused if it differs.
"""

from __future__ import annotations

from typing import Final

from gavel.v1 import common_pb2, error_pb2
from gavel.v1.common_pb2 import TRUST_TIER_1_SYSTEM_FACT
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.identity_pb2 import Attestation

from gavel_rules.commands import EventAnswer, Fault
from gavel_rules.derivation import derive, is_derived
from gavel_rules.events.timestamps import milliseconds, set_timestamp
from gavel_rules.identity.attestation import caller_identity, participants
from gavel_rules.language.document.canonical_form import compute_digest, to_canonical_json
from gavel_rules.limits import CLOCK_AHEAD_MS_MAX, READINGS_PER_RESULT_MAX, SOURCES_PER_KEY_MAX, TRACE_TOOL_RESULTS_MAX
from gavel_rules.recorder import Recorder, ahead_fault
from gavel_rules.state.records import ToolEvidence
from gavel_rules.state.state import State
from gavel_rules.tool_events import complete_call, complete_result
from gavel_rules.values import struct_to_dict

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


def publish(recorder: Recorder, envelope: Envelope) -> EventAnswer | Fault:
    """Record a producer's event."""
    fault = recorder.clock_fault(envelope)
    payload = str(envelope.WhichOneof("payload"))
    if fault is None:
        match payload:
            case "fact" if is_derived(envelope.fact):
                fault = _derivation_fault(recorder.state, envelope)
            case "fact":
                fault = _sources_fault(recorder.state, envelope.subject, envelope.fact.key, TRUST_TIER_1_SYSTEM_FACT, envelope.producer.id)
            case "observation":
                fault = _complete_observation(recorder, envelope) or _readings_fault(recorder.state, envelope)
            case "tool_call":
                fault = _attempt_fault(recorder, envelope) or complete_call(recorder, envelope)
            case "tool_result":
                fault = _result_fault(recorder, envelope.trace_id)
                if fault is None:
                    complete_result(recorder, envelope)
    if fault is not None:
        return fault
    return EventAnswer(recorder.record(envelope, payload))


def _derivation_fault(state: State, envelope: Envelope) -> Fault | None:
    """Return a fault if a derived fact is not what its report and decision derive."""
    live = state.decisions.get(envelope.fact.decision_id)
    awaited = None
    if live is not None:
        awaited = next((fact for fact in live.awaited_facts if fact.event_id == envelope.event_id), None)
    if live is None or awaited is None:
        return Fault(
            error_pb2.ERROR_REASON_DERIVATION_MISMATCH,
            f"no fact with event_id {envelope.event_id} is awaited from decision {envelope.fact.decision_id}",
        )
    expected = awaited.envelope
    if expected is None:
        facts = derive(awaited.execution, live.decision, state.rule_set_of(live.decision.decision))
        expected = next(fact for fact in facts if fact.event_id == envelope.event_id)
    if envelope == expected:
        return None  # the usual case; comparing the fields one by one takes ten times as long
    differing = [name for name in _DERIVED_FIELDS if getattr(expected, name) != getattr(envelope, name)]
    if differing:
        return Fault(
            error_pb2.ERROR_REASON_DERIVATION_MISMATCH,
            f"the fact is not what execution {awaited.execution.event_id} derives; these fields differ: {', '.join(differing)}",
        )
    return None


def _attempt_fault(recorder: Recorder, envelope: Envelope) -> Fault | None:
    """Return a fault if a tool call that carries out a decision is not of the attempt that runs, or not with the decision's params.

    A tool runtime acts for any executor, and an agent only for its own caller, which began the attempt as another producer, an executor.
    """
    call = envelope.tool_call
    if not call.decision_id or not recorder.state.semantics.has_tools:
        return None
    live = recorder.state.decisions.get(call.decision_id)
    if live is None or not live.is_running or live.attempt != call.attempt or recorder.now_ms >= live.lease_until_ms:
        message = f"attempt {call.attempt} of decision {call.decision_id} does not run under its lease; stop acting on it"
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, message)
    begun_by = live.holders[call.attempt - 1][2:]
    if envelope.producer.type == common_pb2.PRODUCER_TYPE_AGENT and begun_by and begun_by != caller_identity(recorder.attestation):
        message = f"attempt {call.attempt} of decision {call.decision_id} was begun by another caller; only that caller may act on it"
        return Fault(error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED, message)
    if call.arguments_hash != compute_digest(to_canonical_json(struct_to_dict(live.decision.decision.params))):
        message = f"the arguments are not the params of decision {call.decision_id}; call the tool with exactly these"
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, message)
    return None


def _result_fault(recorder: Recorder, trace_id: str) -> Fault | None:
    """Return a fault if the trace is at its limit of tool results that observations rest on."""
    if recorder.state.has_room_for_result(trace_id, recorder.now_ms):
        return None
    message = f"trace {trace_id} has {TRACE_TOOL_RESULTS_MAX} tool results that observations rest on; continue in a new trace"
    return Fault(error_pb2.ERROR_REASON_WRONG_STATE, message)


def _readings_fault(state: State, envelope: Envelope) -> Fault | None:
    """Return a fault if the observation exceeds the limit of readings of its tool result, or of sources of one of its keys."""
    observation = envelope.observation
    fields = sorted(observation.extracted_fields)
    if not state.has_room_for_readings(observation.evidence_ref, envelope.subject, fields):
        message = f"{READINGS_PER_RESULT_MAX} values have been read in {observation.evidence_ref}; call the tool again for the rest"
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, message)
    for key in fields:
        fault = _sources_fault(state, envelope.subject, key, observation.trust_tier, observation.source_tool)
        if fault is not None:
            return fault
    return None


def _sources_fault(state: State, subject: str, key: str, trust_tier: int, source: str) -> Fault | None:
    """Return a fault if a key of a subject has the greatest number of other sources at a tier.

    No source is forgotten to make room for a new one: its evidence may rule out an approval.
    """
    if state.has_room_for_source(subject, key, trust_tier, source):
        return None
    message = (
        f"{SOURCES_PER_KEY_MAX} other sources have stated {key} of {subject} at tier {trust_tier}, which is the limit; "
        "state it as one of them, or at a better tier"
    )
    return Fault(error_pb2.ERROR_REASON_WRONG_STATE, message)


def _complete_observation(recorder: Recorder, envelope: Envelope) -> Fault | None:
    """Fill an observation's time and trust tier, or return a fault if its time is ahead of the bus's clock."""
    observation = envelope.observation
    if observation.HasField("observed_at"):
        ahead_ms = milliseconds(observation.observed_at) - recorder.now_ms
        if ahead_ms > CLOCK_AHEAD_MS_MAX:
            return ahead_fault("envelope.observation.observed_at", ahead_ms)
    else:
        set_timestamp(observation.observed_at, recorder.now_ms)
        recorder.state.on_undo(lambda: observation.ClearField("observed_at"))
    observation.ClearField("evidence_recorded_at")
    evidence = _matching_evidence(recorder, envelope)
    if evidence is None:
        observation.trust_tier = common_pb2.TRUST_TIER_3_AGENT_INFERENCE
    else:
        observation.trust_tier = common_pb2.TRUST_TIER_2_TOOL_OBSERVATION
        set_timestamp(observation.evidence_recorded_at, evidence.recorded_at_ms)
    return None


def _matching_evidence(recorder: Recorder, envelope: Envelope) -> ToolEvidence | None:
    """Return the tool result that an observation rests on, if it belongs to its trace and matches in every field."""
    observation = envelope.observation
    state = recorder.state
    evidence = state.tool_evidence(envelope.trace_id, observation.evidence_ref, recorder.now_ms)
    if (
        evidence is None
        or evidence.is_error
        or not evidence.execution_id
        or not _answers_call(state, envelope.trace_id, evidence)
        or evidence.content_hash != observation.evidence_hash
        or evidence.tool_name != observation.source_tool
        or (state.semantics.requires_witness and not _is_witnessed(evidence, recorder.attestation))
    ):
        return None
    return evidence


def _answers_call(state: State, trace_id: str, evidence: ToolEvidence) -> bool:
    """Return whether a tool result answers a remembered call of its trace, of the same tool."""
    call = state.tool_call(trace_id, evidence.execution_id)
    return call is not None and (call.tool_name == evidence.tool_name or not state.semantics.pairs_tool_calls)


def _is_witnessed(evidence: ToolEvidence, observer: Attestation | None) -> bool:
    """Return whether the tool result of an observation has a witness: an agent's own word for its reading is not evidence.

    Without authentication nobody can tell the agent from the witness, and none is needed. If only one of the two events has an
    authenticated caller, the other one may be by the same caller.
    """
    observers = participants(observer)
    recorders = evidence.recorders
    if not observers and not recorders:
        return True
    return bool(observers) and bool(recorders) and evidence.is_from_tool_runtime and not set(observers) & set(recorders)
