"""Reports of attempts, and what follows from them (constitution §7).

A report of the running attempt is recorded as an EXECUTION; a later one, of an attempt that others have superseded, as a diagnostic. Both
may request a human review or record a compensation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gavel.v1 import error_pb2, execution_pb2
from gavel.v1.decision_pb2 import CounterReading
from gavel.v1.diagnostic_pb2 import AgentDiagnostic, LateExecution
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules import reason_codes
from gavel_rules.commands import EventAnswer, Fault, References, ReportExecution
from gavel_rules.derivation import applicable_rules, failed_rules
from gavel_rules.events.ids import derived_event_id, execution_id_of
from gavel_rules.events.timestamps import set_timestamp
from gavel_rules.execution.compensation import compensate
from gavel_rules.execution.faults import ended_fault, holder_fault
from gavel_rules.execution.lifecycle import call_person
from gavel_rules.language.derivation_rules import SUBJECT, CounterKey
from gavel_rules.recorder import Recorder
from gavel_rules.state.records import UNDER_REVIEW, LiveDecision
from gavel_rules.state.state import State
from gavel_rules.values import python_to_value

# Final statuses that leave the work undone.
_INCOMPLETE: Final = (execution_pb2.EXECUTION_STATUS_PARTIAL, execution_pb2.EXECUTION_STATUS_ABORTED)
_RETRIABLE: Final = (execution_pb2.EXECUTION_STATUS_FAILED, execution_pb2.EXECUTION_STATUS_TIMEOUT)


def report(recorder: Recorder, command: ReportExecution, references: References) -> EventAnswer | Fault:
    """Record an executor's report of an attempt."""
    envelope = command.envelope
    sent = envelope.execution
    live = recorder.state.decision_for_report(sent.decision_id, recorder.now_ms)
    if live is None:
        return ended_fault(sent.decision_id, references, recorder.now_ms)
    fault = recorder.clock_fault(envelope) or _identity_fault(live, envelope)
    if fault is not None:
        return fault
    attempt = _attempt_of(live, sent.execution_id)
    if attempt == 0:
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"{sent.execution_id} is not an attempt of decision {sent.decision_id}")
    if sent.attempt not in (0, attempt):
        field, problem = "envelope.execution.attempt", f"is {sent.attempt}, but {sent.execution_id} is attempt {attempt}"
        return Fault(error_pb2.ERROR_REASON_INVALID_REQUEST, f"{field} {problem}", ((field, problem),))
    fault = holder_fault(live, attempt, envelope.producer, recorder.attestation)
    if fault is not None:
        return fault
    if attempt not in live.unreported_attempts:
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"attempt {attempt} of decision {sent.decision_id} has been reported")
    _complete(recorder, live, envelope, attempt)
    if live.is_running and attempt == live.attempt:
        return _record_report(recorder, live, envelope)
    return _record_late_report(recorder, live, envelope)


def record_failed_derivations(recorder: Recorder, live: LiveDecision, envelope: Envelope) -> None:
    """Record which derivations of the rule set have no value for a report: their facts will not come (constitution §7.2)."""
    state = recorder.state
    facts = [fact.envelope for fact in state.decisions[live.decision_id].awaited_facts if fact.execution is envelope]
    derived = [fact.fact.derivation_rule_id for fact in facts if fact is not None]
    for rule, problem in failed_rules(envelope, live.decision, state.rule_set_of(live.decision.decision), derived):
        diagnostic = AgentDiagnostic(kind="DerivationFailed")
        attributes = {"derivation_rule_id": rule.id, "derivation_rule_version": rule.version, "key": rule.key}
        if problem == SUBJECT:
            attributes["problem"] = problem
        diagnostic.attributes.CopyFrom(python_to_value(attributes).struct_value)
        recorder.record_diagnostic(
            diagnostic,
            event_id=derived_event_id(envelope.event_id, envelope.sequence_number, f"derivation-failed:{rule.id}"),
            causation_id=envelope.event_id,
            trace_id=envelope.trace_id,
            subject=envelope.subject,
        )


def read_counters(recorder: Recorder, live: LiveDecision, envelope: Envelope) -> None:
    """Fill the numbers of the counters that derivations read for a report, the report itself included.

    A counter that gives no number is left out: its derivation then gives no fact.
    """
    envelope.execution.ClearField("counters")
    state = recorder.state
    rules = applicable_rules(envelope, live.decision, state.rule_set_of(live.decision.decision))
    keys = {(key.counter.name, key.key): key for rule in rules for key in rule.counter_keys(envelope, live.decision)}
    if not keys:
        return
    readings: list[CounterReading] = []

    def read() -> None:
        readings.extend(read_keys(state, live.decision.decision.policy_id, keys.values(), recorder.now_ms))

    recorder.preview(envelope, "execution", read)
    envelope.execution.counters.extend(readings)
    state.on_undo(lambda: envelope.execution.ClearField("counters"))


def read_keys(state: State, policy_id: str, keys: Iterable[CounterKey], now_ms: int) -> list[CounterReading]:
    """Return the numbers of counters of a rule set at a time, each key once, sorted. A counter that gives no number is left out."""
    by_name = {(key.counter.name, key.key): key for key in keys}
    readings: list[CounterReading] = []
    for name, group in sorted(by_name):
        table = state.counters.get(by_name[name, group].counter.digest)
        counter_value = table.read(group, now_ms) if table is not None else None
        if counter_value is not None:
            reading = CounterReading(policy_id=policy_id, counter=name, key=group, value=counter_value.value)
            if counter_value.frees_at_ms:
                set_timestamp(reading.frees_at, counter_value.frees_at_ms)
            readings.append(reading)
    return readings


def _complete(recorder: Recorder, live: LiveDecision, envelope: Envelope, attempt: int) -> None:
    """Fill what the server knows: the decision's subject and trace, the attempt, and whether another one follows.

    An attempt that a person granted may be reported under the grant's id; the log records every attempt under the approval's.
    """
    execution = envelope.execution
    sent_decision_id = execution.decision_id
    if sent_decision_id != live.decision_id:
        execution.decision_id = live.decision_id
        recorder.state.on_undo(lambda: setattr(execution, "decision_id", sent_decision_id))
    envelope.subject = live.decision.subject
    envelope.trace_id = live.decision.trace_id
    if not envelope.causation_id:
        envelope.causation_id = live.decision_id
        recorder.state.on_undo(lambda: envelope.ClearField("causation_id"))
    execution.attempt = attempt
    execution.will_retry = execution.status in _RETRIABLE and attempt < live.basis.decision.retry_policy.max_attempts
    if not execution.HasField("finished_at"):
        set_timestamp(execution.finished_at, recorder.now_ms)
        recorder.state.on_undo(lambda: execution.ClearField("finished_at"))


def _record_report(recorder: Recorder, live: LiveDecision, envelope: Envelope) -> EventAnswer:
    read_counters(recorder, live, envelope)
    recorder.record(envelope, "execution")
    record_failed_derivations(recorder, live, envelope)
    execution = envelope.execution
    if live.compensates:
        # A compensation ends by success alone; any other final status leaves work half done.
        if execution.status != execution_pb2.EXECUTION_STATUS_SUCCESS and not execution.will_retry:
            call_person(recorder, live, reason_codes.COMPENSATION_FAILED, envelope, "compensation-failed")
    elif execution.status == execution_pb2.EXECUTION_STATUS_PARTIAL:
        compensate(recorder, live, envelope)
    elif execution.status in _RETRIABLE and not execution.will_retry:
        call_person(recorder, live, reason_codes.ATTEMPTS_EXHAUSTED, envelope, "attempts-exhausted")
    current = recorder.state.decisions[live.decision_id]
    if current.unreported_attempts and current.phase != UNDER_REVIEW and execution.status in _INCOMPLETE:
        # An earlier attempt that never reported may have acted, or may still act; this report says nothing about that attempt.
        call_person(recorder, live, reason_codes.EXECUTION_ABANDONED, envelope, "unreported")
    return EventAnswer(envelope)


def _record_late_report(recorder: Recorder, live: LiveDecision, envelope: Envelope) -> EventAnswer:
    """Record a superseded attempt's report as a diagnostic with its event_id, and request a human review: two attempts may have acted."""
    execution = envelope.execution
    execution.will_retry = False
    diagnostic = recorder.record_diagnostic(
        AgentDiagnostic(
            kind="LateExecutionReport",
            late_execution=LateExecution(execution=execution, executor_id=envelope.producer.id, executor_version=envelope.producer.version),
        ),
        event_id=envelope.event_id,
        causation_id=live.decision_id,
        trace_id=live.decision.trace_id,
        subject=live.decision.subject,
        traceparent=envelope.traceparent,
    )
    if live.phase != UNDER_REVIEW:
        call_person(recorder, live, reason_codes.LATE_EXECUTION_REPORT, diagnostic, "late-report")
    return EventAnswer(diagnostic)


def _attempt_of(live: LiveDecision, execution_id: str) -> int:
    """Return the number of the attempt with an execution_id, or 0."""
    for attempt in range(live.attempt, 0, -1):
        if execution_id_of(live.decision_id, attempt) == execution_id:
            return attempt
    return 0


def _identity_fault(live: LiveDecision, envelope: Envelope) -> Fault | None:
    """Return a fault if the report names another subject or trace than its decision."""
    violations = tuple(
        (f"envelope.{name}", f"is {sent}, but the decision has {expected}")
        for name, sent, expected in (
            ("subject", envelope.subject, live.decision.subject),
            ("trace_id", envelope.trace_id, live.decision.trace_id),
        )
        if sent and sent != expected
    )
    if violations:
        return Fault(error_pb2.ERROR_REASON_INVALID_REQUEST, " ".join(violations[0]), violations)
    return None
