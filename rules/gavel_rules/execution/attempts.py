"""Attempts at an approved decision: begin one under a lease, renew the lease (constitution §4.4, §7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gavel.v1 import decision_pb2, error_pb2, execution_pb2
from gavel.v1.decision_pb2 import Warning as DecisionWarning
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution, ExecutionError

from gavel_rules import reason_codes
from gavel_rules.commands import AttemptRefusal, BeginExecution, EventAnswer, Fault, LeasedAttempt, References, RenewExecution
from gavel_rules.events.ids import derived_event_id, execution_id_of
from gavel_rules.events.kinds import EXECUTION, EXECUTION_NAME, EXECUTION_RENEWED
from gavel_rules.events.timestamps import timestamp
from gavel_rules.execution.evidence_recheck import CHANGE_MESSAGES, EvidenceChange, check_evidence
from gavel_rules.execution.faults import coming_end_reason, end_reason, ended_fault, holder_fault
from gavel_rules.execution.lifecycle import call_person
from gavel_rules.execution.reports import read_counters, record_failed_derivations
from gavel_rules.execution.version_check import check_start
from gavel_rules.recorder import Recorder
from gavel_rules.state.records import APPROVED, AWAITING_FACTS, UNDER_REVIEW, LiveDecision

_MESSAGES: Final = CHANGE_MESSAGES | {
    reason_codes.RETRY_FACTS_CHANGED: "the facts changed after an attempt had started; a person has to look at what was done",
    reason_codes.EXPIRED: "the approval was not started in time; propose again",
    reason_codes.REVOKED: "the approval was taken back by a person",
    reason_codes.ALREADY_RUNNING: "an attempt is running under a lease",
    reason_codes.ALREADY_FINISHED: "the decision has been carried out or given up",
    reason_codes.NOT_APPROVED: "the decision is not an approval",
    reason_codes.UNDER_REVIEW: "a person has to look at this decision's execution first",
}


def begin(recorder: Recorder, command: BeginExecution, references: References) -> LeasedAttempt | AttemptRefusal | Fault:
    """Lease an attempt if the decision and its evidence still hold, or return why not."""
    state = recorder.state
    live = state.live_decision(command.decision_id)
    if live is None:
        return _refuse_ended(command.decision_id, references, recorder.now_ms)
    if live.phase == UNDER_REVIEW:
        return _refuse(reason_codes.UNDER_REVIEW)
    if live.phase == AWAITING_FACTS:
        return _refuse_awaiting_facts(live)
    if live.attempt in live.unreported_attempts and recorder.now_ms < live.lease_until_ms:
        # Its executor may be at work, even if a human review has been requested meanwhile and grants another attempt.
        return _refuse(reason_codes.ALREADY_RUNNING, live.lease_until_ms - recorder.now_ms)
    versions = check_start(state, live, command.version_binding)
    if versions.is_refused:
        return AttemptRefusal(reason_codes.EXECUTION_VERSION_MISMATCH, versions.message)
    change = check_evidence(state, live, recorder.now_ms)
    if change is not None and live.phase == APPROVED:
        _abort(recorder, live, command, change)
        return AttemptRefusal(change.reason_code, change.message)
    if change is not None:
        warning = DecisionWarning(code=change.reason_code, message=change.message)
        call_person(recorder, live, reason_codes.RETRY_FACTS_CHANGED, live.basis, f"facts-changed-{live.attempt}", (warning,))
        return _refuse(reason_codes.RETRY_FACTS_CHANGED)
    envelope = _record_start(recorder, live, command, live.attempt + 1, versions.warnings)
    return LeasedAttempt(envelope, live.decision)


def renew(recorder: Recorder, command: RenewExecution, references: References) -> EventAnswer | Fault:
    """Extend the lease of the running attempt, counted from now. A lapsed lease cannot be renewed."""
    live = recorder.state.live_decision(command.decision_id)
    if live is None:
        return ended_fault(command.decision_id, references, recorder.now_ms)
    if live.execution_id != command.execution_id or not live.is_running:
        message = f"{command.execution_id} is not the running attempt of decision {command.decision_id}; stop acting on it"
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, message)
    fault = holder_fault(live, live.attempt, command.producer, recorder.attestation)
    if fault is not None:
        return fault
    if recorder.now_ms >= live.lease_until_ms:
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"the lease of {command.execution_id} has lapsed; stop acting on it")
    return EventAnswer(_record_start(recorder, live, command, live.attempt))


def _record_start(
    recorder: Recorder,
    live: LiveDecision,
    command: BeginExecution | RenewExecution,
    attempt: int,
    warnings: Sequence[DecisionWarning] = (),
) -> Envelope:
    """Record STARTED: the first of an attempt, or a renewal."""
    execution = Execution(
        decision_id=live.decision_id,
        execution_id=execution_id_of(live.decision_id, attempt),
        attempt=attempt,
        lease_until=timestamp(recorder.now_ms + command.lease_ms),
        status=execution_pb2.EXECUTION_STATUS_STARTED,
        warnings=warnings,
    )
    event_id = derived_event_id(live.decision_id, live.sequence_number, "started", live.starts)
    event_name = EXECUTION_NAME[execution.status]
    if recorder.state.semantics.has_request_ids:
        if attempt == live.attempt:
            event_name = EXECUTION_RENEWED
        if command.request_id:
            # The log refuses a second event with this id, so a repeated request never starts a second attempt.
            event_id = execution.request_id = command.request_id
    return recorder.record(_new_execution(recorder, live, command, execution, event_id, event_name), "execution")


def _abort(recorder: Recorder, live: LiveDecision, command: BeginExecution, change: EvidenceChange) -> None:
    """Record that a decision is given up before any attempt, and which of its facts no longer hold (constitution §4.4)."""
    execution = Execution(
        decision_id=live.decision_id,
        execution_id=execution_id_of(live.decision_id, 0),
        status=execution_pb2.EXECUTION_STATUS_ABORTED,
        reason_code=change.reason_code,
        error=ExecutionError(code=change.reason_code, message=change.message),
    )
    event_id = derived_event_id(live.decision_id, live.sequence_number, "aborted")
    envelope = _new_execution(recorder, live, command, execution, event_id, EXECUTION_NAME[execution.status])
    read_counters(recorder, live, envelope)
    recorder.record(envelope, "execution")
    record_failed_derivations(recorder, live, envelope)


def _new_execution(
    recorder: Recorder,
    live: LiveDecision,
    command: BeginExecution | RenewExecution,
    execution: Execution,
    event_id: str,
    event_name: str,
) -> Envelope:
    binding = None
    if isinstance(command, BeginExecution) and recorder.state.semantics.binds_versions:
        binding = command.version_binding
    return Envelope(
        event_id=event_id,
        event_category=EXECUTION,
        event_name=event_name,
        trace_id=live.decision.trace_id,
        causation_id=live.decision_id,
        producer=command.producer,
        subject=live.decision.subject,
        traceparent=command.traceparent,
        version_binding=binding,
        execution=execution,
    )


def _refuse(reason_code: str, retry_after_ms: int = 0) -> AttemptRefusal:
    return AttemptRefusal(reason_code, _MESSAGES[reason_code], retry_after_ms)


def _refuse_awaiting_facts(live: LiveDecision) -> AttemptRefusal:
    reason = coming_end_reason(live)
    if reason in CHANGE_MESSAGES:
        return AttemptRefusal(reason, live.awaited_facts[0].execution.execution.error.message)
    return _refuse(reason or reason_codes.ALREADY_FINISHED)


def _refuse_ended(decision_id: str, references: References, now_ms: int) -> AttemptRefusal | Fault:
    decision = references.decision
    if decision is None:
        return ended_fault(decision_id, references, now_ms)
    if decision.decision.outcome != decision_pb2.OUTCOME_APPROVED:
        return _refuse(reason_codes.NOT_APPROVED)
    return _refuse(end_reason(references, now_ms) or reason_codes.ALREADY_FINISHED)
