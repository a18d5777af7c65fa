"""Carrying out approved decisions: leases, reports, and what happens when nobody reports (seeds 002 §4.4, §7).

A decision's life: approved -> executing -> awaiting facts -> gone, with a person called where work may be half done. Its
conflict key is held all the while. Leases are events, so every replica and every replay knows them.

What was half done is made good by a compensation, where the rule set that decided declares one: another decision, which rests
on no facts, does not expire, takes over the key and ends by its success alone. A compensation is not compensated. One that nobody
begins calls a person.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gavel.v1 import decision_pb2, error_pb2, execution_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.decision_pb2 import Decision, RuleSetReference
from gavel.v1.decision_pb2 import Warning as DecisionWarning
from gavel.v1.diagnostic_pb2 import AgentDiagnostic, LateExecution
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution, ExecutionError

from gavel_rules import reasons
from gavel_rules.commands import (
    BeginExecution,
    Fault,
    NotStarted,
    Recorded,
    References,
    RenewExecution,
    ReportExecution,
    Started,
)
from gavel_rules.derivation import failures
from gavel_rules.emission import Emission
from gavel_rules.endings import ended_fault, ending_of
from gavel_rules.events import (
    ARBITER_VERSION,
    EXECUTION,
    EXECUTION_NAME,
    GAVEL,
    derived_event_id,
    execution_id_of,
    set_timestamp,
    timestamp,
)
from gavel_rules.grounds import Changed, changed_facts
from gavel_rules.outcomes import warn_of_violations
from gavel_rules.records import APPROVED, AWAITING_FACTS, UNDER_REVIEW, LiveDecision
from gavel_rules.values import python_to_value

_MESSAGES: Final = {
    reasons.RETRY_FACTS_CHANGED: "the facts changed after an attempt had started; a person has to look at what was done",
    reasons.EXPIRED: "the approval was not started in time; propose again",
    reasons.REVOKED: "the approval was taken back by a person",
    reasons.ALREADY_RUNNING: "an attempt is running under a lease",
    reasons.ALREADY_FINISHED: "the decision has been carried out or given up",
    reasons.NOT_APPROVED: "the decision is not an approval",
    reasons.UNDER_REVIEW: "a person has to look at this decision's execution first",
}

# Reports after which nobody is to do what was approved any more, although it has not been done.
_UNDONE: Final = (execution_pb2.EXECUTION_STATUS_PARTIAL, execution_pb2.EXECUTION_STATUS_ABORTED)


def emit_timer(emission: Emission, live: LiveDecision) -> None:
    """Emit what falls due for a decision: an approval expires; a lapsed lease, or what nobody begins but must be done, calls a person."""
    if live.phase == APPROVED and not live.compensates:
        expired_id = derived_event_id(live.decision_id, live.sequence_number, "expired")
        emit_later(emission, live, decision_pb2.OUTCOME_EXPIRED, reasons.APPROVAL_EXPIRED, live.decision, expired_id)
    else:
        exhausted = live.attempt >= live.basis.decision.retry_policy.max_attempts
        reason_code = reasons.ATTEMPTS_EXHAUSTED if exhausted else reasons.EXECUTION_ABANDONED
        _call_person(emission, live, reason_code, live.basis, f"lease-lapsed-{live.attempt}")


def begin(emission: Emission, command: BeginExecution, references: References) -> Started | NotStarted | Fault:
    """Lease an attempt if the decision and every fact it rests on still hold, else say why not."""
    state = emission.state
    live = state.live(command.decision_id)
    if live is None:
        return _begin_ended(command.decision_id, references, emission.now_ms)
    if live.phase == UNDER_REVIEW:
        return _not_started(reasons.UNDER_REVIEW)
    if live.phase == AWAITING_FACTS:
        return _not_started(reasons.REVOKED if live.revoked and not live.carried_out else reasons.ALREADY_FINISHED)
    if live.attempt in live.unreported and emission.now_ms < live.lease_until_ms:
        # Its executor may be at work, even if a person has been called meanwhile and grants another attempt.
        return _not_started(reasons.ALREADY_RUNNING, live.lease_until_ms - emission.now_ms)
    changed = changed_facts(state, live, emission.now_ms)
    if changed is not None and live.phase == APPROVED:
        _abort(emission, live, command.producer, changed)
        return NotStarted(changed.reason_code, changed.message)
    if changed is not None:
        warning = DecisionWarning(code=changed.reason_code, message=changed.message)
        _call_person(emission, live, reasons.RETRY_FACTS_CHANGED, live.basis, f"facts-changed-{live.attempt}", (warning,))
        return _not_started(reasons.RETRY_FACTS_CHANGED)
    envelope = _start(emission, live, command.producer, live.attempt + 1, command.lease_ms)
    return Started(envelope, live.decision)


def renew(emission: Emission, command: RenewExecution, references: References) -> Recorded | Fault:
    """Move the lease of a running attempt, counted from now. A lapsed lease cannot be renewed."""
    live = emission.state.live(command.decision_id)
    if live is None:
        return _ended_fault(command.decision_id, references, emission.now_ms)
    if live.execution_id != command.execution_id or not live.running:
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"{command.execution_id} is not the running attempt of {command.decision_id}")
    fault = _holder_fault(live, live.attempt, command.producer)
    if fault is not None:
        return fault
    if emission.now_ms >= live.lease_until_ms:
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"the lease of {command.execution_id} has lapsed; stop acting on it")
    return Recorded(_start(emission, live, command.producer, live.attempt, command.lease_ms))


def report(emission: Emission, command: ReportExecution, references: References) -> Recorded | Fault:
    """Record how an attempt ended. A report of an attempt that is no longer the running one is kept as a diagnostic."""
    envelope = command.envelope
    sent = envelope.execution
    live = emission.state.reportable(sent.decision_id, emission.now_ms)
    if live is None:
        return _ended_fault(sent.decision_id, references, emission.now_ms)
    fault = emission.claim_fault(envelope) or _identity_fault(live, envelope)
    if fault is not None:
        return fault
    attempt = _attempt_of(live, sent.execution_id)
    if attempt == 0:
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"{sent.execution_id} is not an attempt of decision {sent.decision_id}")
    if sent.attempt not in (0, attempt):
        problem = f"is {sent.attempt}, but {sent.execution_id} is attempt {attempt}"
        return Fault(error_pb2.ERROR_REASON_INVALID_REQUEST, problem, (("envelope.execution.attempt", problem),))
    fault = _holder_fault(live, attempt, envelope.producer)
    if fault is not None:
        return fault
    if attempt not in live.unreported:
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"attempt {attempt} of decision {sent.decision_id} has been reported")
    _complete_report(emission, live, envelope, attempt)
    if live.running and attempt == live.attempt:
        return _record_report(emission, live, envelope)
    return _keep_late(emission, live, envelope)


def _record_report(emission: Emission, live: LiveDecision, envelope: Envelope) -> Recorded:
    emission.record(envelope, "execution")
    _note_failed_derivations(emission, live, envelope)
    execution = envelope.execution
    if live.compensates:
        # It ends by success alone: whatever else is final leaves something half done.
        if execution.status != execution_pb2.EXECUTION_STATUS_SUCCESS and not execution.will_retry:
            _call_person(emission, live, reasons.COMPENSATION_FAILED, envelope, "compensation-failed")
    elif execution.status == execution_pb2.EXECUTION_STATUS_PARTIAL:
        _compensate(emission, live, envelope)
    elif execution.status in (execution_pb2.EXECUTION_STATUS_FAILED, execution_pb2.EXECUTION_STATUS_TIMEOUT) and not execution.will_retry:
        _call_person(emission, live, reasons.ATTEMPTS_EXHAUSTED, envelope, "attempts-exhausted")
    current = emission.state.decisions[live.decision_id]
    if current.unreported and current.phase != UNDER_REVIEW and execution.status in _UNDONE:
        # An attempt that never reported may have acted, or act still: who gave up or came half way does not speak for it.
        _call_person(emission, live, reasons.EXECUTION_ABANDONED, envelope, "unreported")
    return Recorded(envelope)


def _compensate(emission: Emission, live: LiveDecision, report: Envelope) -> None:
    """Record the compensation of what was half done, as the rule set of the decision declares it; without one, call a person."""
    approved = live.decision.decision
    rule_set = emission.state.rule_set_of(approved)
    compensation = rule_set.actions[approved.action_type].compensation if rule_set is not None else None
    if compensation is None:
        _call_person(emission, live, reasons.PARTIAL_EXECUTION, report, "partial")
        return
    made = compensation.params(report, live.decision)
    if made.failed or made.violations:
        warnings = Decision()
        for problem in made.failed:
            warnings.warnings.add(code="COMPENSATION_PARAMS", message=problem)
        warn_of_violations(warnings, made.violations)
        _call_person(emission, live, reasons.COMPENSATION_INVALID, report, "compensation-invalid", warnings.warnings)
        return
    decision = Decision(
        decision_id=derived_event_id(report.event_id, report.sequence_number, "compensation"),
        proposal_id=approved.proposal_id,
        previous_decision_id=live.decision_id,
        compensates_decision_id=live.decision_id,
        arbiter_version=ARBITER_VERSION,
        outcome=decision_pb2.OUTCOME_APPROVED,
        policy_id=approved.policy_id,
        policy_version=approved.policy_version,
        rule_set_digest=approved.rule_set_digest,
        active_policy_ids=[approved.policy_id],
        active_rule_sets=[RuleSetReference(policy_id=approved.policy_id, version=approved.policy_version, digest=approved.rule_set_digest)],
        action_type=compensation.action_type,
        params=made.params,
        evaluated_at=timestamp(emission.now_ms),
        state_version=emission.state.head,
        conflict_key=approved.conflict_key,
        retry_policy=compensation.retry,
    )
    emission.decide(
        emission.decision_event(decision), causation_id=report.event_id, trace_id=live.decision.trace_id, subject=live.decision.subject
    )


def _complete_report(emission: Emission, live: LiveDecision, envelope: Envelope, attempt: int) -> None:
    """Fill what the server knows: the decision's subject and trace, the attempt, whether another one follows.

    An attempt that a person granted may be reported under the grant's id; the log has it under the approval's, like all of them.
    """
    execution = envelope.execution
    named = execution.decision_id
    if named != live.decision_id:
        execution.decision_id = live.decision_id
        emission.state.on_undo(lambda: setattr(execution, "decision_id", named))
    envelope.subject = live.decision.subject
    envelope.trace_id = live.decision.trace_id
    if not envelope.causation_id:
        envelope.causation_id = live.decision_id
        emission.state.on_undo(lambda: envelope.ClearField("causation_id"))
    execution.attempt = attempt
    retriable = execution.status in (execution_pb2.EXECUTION_STATUS_FAILED, execution_pb2.EXECUTION_STATUS_TIMEOUT)
    execution.will_retry = retriable and attempt < live.basis.decision.retry_policy.max_attempts
    if not execution.HasField("finished_at"):
        set_timestamp(execution.finished_at, emission.now_ms)
        emission.state.on_undo(lambda: execution.ClearField("finished_at"))


def _keep_late(emission: Emission, live: LiveDecision, envelope: Envelope) -> Recorded:
    """Keep a superseded attempt's report whole, under its own event_id, and call a person if none is looking: both may have acted."""
    execution = envelope.execution
    execution.will_retry = False
    kept = emission.diagnose(
        AgentDiagnostic(
            kind="LateExecutionReport",
            late_execution=LateExecution(execution=execution, executor_id=envelope.producer.id, executor_version=envelope.producer.version),
        ),
        event_id=envelope.event_id,
        causation_id=live.decision_id,
        trace_id=live.decision.trace_id,
        subject=live.decision.subject,
    )
    if live.phase != UNDER_REVIEW:
        _call_person(emission, live, reasons.LATE_EXECUTION_REPORT, kept, "late-report")
    return Recorded(kept)


def _start(emission: Emission, live: LiveDecision, producer: Producer, attempt: int, lease_ms: int) -> Envelope:
    """Record STARTED: the first of an attempt, or a renewal."""
    execution = Execution(
        decision_id=live.decision_id,
        execution_id=execution_id_of(live.decision_id, attempt),
        attempt=attempt,
        lease_until=timestamp(emission.now_ms + lease_ms),
        status=execution_pb2.EXECUTION_STATUS_STARTED,
    )
    return _record_execution(
        emission, live, producer, execution, derived_event_id(live.decision_id, live.sequence_number, "started", live.starts)
    )


def _abort(emission: Emission, live: LiveDecision, producer: Producer, changed: Changed) -> None:
    """Record that a decision was given up before any attempt: its facts no longer hold, and which (seeds 002 §4.4)."""
    execution = Execution(
        decision_id=live.decision_id,
        execution_id=execution_id_of(live.decision_id, 0),
        status=execution_pb2.EXECUTION_STATUS_ABORTED,
        reason_code=changed.reason_code,
        error=ExecutionError(code=changed.reason_code, message=changed.message),
    )
    envelope = _record_execution(emission, live, producer, execution, derived_event_id(live.decision_id, live.sequence_number, "aborted"))
    _note_failed_derivations(emission, live, envelope)


def _note_failed_derivations(emission: Emission, live: LiveDecision, envelope: Envelope) -> None:
    """Record which derivations of the rule set have no value for a report: their facts will not come (seeds 002 §7.2)."""
    for rule in failures(envelope, live.decision, emission.state.rule_set_of(live.decision.decision)):
        diagnostic = AgentDiagnostic(kind="DerivationFailed")
        attributes = {"derivation_rule_id": rule.id, "derivation_rule_version": rule.version, "key": rule.key}
        diagnostic.attributes.CopyFrom(python_to_value(attributes).struct_value)
        emission.diagnose(
            diagnostic,
            event_id=derived_event_id(envelope.event_id, envelope.sequence_number, f"derivation-failed:{rule.id}"),
            causation_id=envelope.event_id,
            trace_id=envelope.trace_id,
            subject=envelope.subject,
        )


def _record_execution(emission: Emission, live: LiveDecision, producer: Producer, execution: Execution, event_id: str) -> Envelope:
    return emission.record(
        Envelope(
            event_id=event_id,
            event_category=EXECUTION,
            event_name=EXECUTION_NAME[execution.status],
            trace_id=live.decision.trace_id,
            causation_id=live.decision_id,
            producer=producer,
            subject=live.decision.subject,
            execution=execution,
        ),
        "execution",
    )


def _call_person(
    emission: Emission, live: LiveDecision, reason_code: str, cause: Envelope, kind: str, warnings: Iterable[DecisionWarning] = ()
) -> None:
    current = emission.state.decisions[live.decision_id]
    event_id = derived_event_id(cause.event_id, cause.sequence_number, kind)
    emit_later(emission, current, decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW, reason_code, cause, event_id, warnings)


def emit_later(
    emission: Emission,
    live: LiveDecision,
    outcome: decision_pb2.Outcome.ValueType,
    reason_code: str,
    cause: Envelope,
    event_id: str,
    warnings: Iterable[DecisionWarning] = (),
) -> Envelope:
    """Record a decision that ends or moves an approved one, and return it."""
    approved = live.decision.decision
    decision = Decision(
        decision_id=event_id,
        proposal_id=approved.proposal_id,
        previous_decision_id=live.review or live.decision_id,
        arbiter_version=ARBITER_VERSION,
        outcome=outcome,
        reason_code=reason_code,
        policy_id=GAVEL,
        policy_version=ARBITER_VERSION,
        action_type=approved.action_type,
        params=approved.params,
        evaluated_at=timestamp(emission.now_ms),
        state_version=emission.state.head,
        conflict_key=approved.conflict_key,
        warnings=warnings,
    )
    return emission.decide(
        emission.decision_event(decision), causation_id=cause.event_id, trace_id=live.decision.trace_id, subject=live.decision.subject
    )


def _attempt_of(live: LiveDecision, execution_id: str) -> int:
    """Return which attempt an execution_id names, latest first, or 0."""
    for attempt in range(live.attempt, 0, -1):
        if execution_id_of(live.decision_id, attempt) == execution_id:
            return attempt
    return 0


def _identity_fault(live: LiveDecision, envelope: Envelope) -> Fault | None:
    """Return a fault if the report names another subject or trace than its decision."""
    violations = tuple(
        (f"envelope.{name}", f"is {sent}, but the decision has {known}")
        for name, sent, known in (
            ("subject", envelope.subject, live.decision.subject),
            ("trace_id", envelope.trace_id, live.decision.trace_id),
        )
        if sent and sent != known
    )
    if violations:
        return Fault(error_pb2.ERROR_REASON_INVALID_REQUEST, "the report contradicts its decision", violations)
    return None


def _holder_fault(live: LiveDecision, attempt: int, producer: Producer) -> Fault | None:
    """Return a fault unless this producer began the attempt: nobody speaks for another executor, not even too late."""
    holder = live.holders[attempt - 1]
    if (producer.type, producer.id) == holder:
        return None
    return Fault(error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED, f"attempt {attempt} of {live.decision_id} was leased to {holder[1]}")


def _not_started(reason_code: str, retry_after_ms: int = 0) -> NotStarted:
    return NotStarted(reason_code, _MESSAGES[reason_code], retry_after_ms)


def _begin_ended(decision_id: str, references: References, now_ms: int) -> NotStarted | Fault:
    decision = references.decision
    if decision is None:
        return _ended_fault(decision_id, references, now_ms)
    if decision.decision.outcome != decision_pb2.OUTCOME_APPROVED:
        return _not_started(reasons.NOT_APPROVED)
    return _not_started(ending_of(references, now_ms) or reasons.ALREADY_FINISHED)


def _ended_fault(decision_id: str, references: References, now_ms: int) -> Fault:
    return ended_fault(decision_id, references, now_ms, "to carry out", "being carried out")
