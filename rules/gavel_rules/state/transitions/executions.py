"""Transitions by executions: starts, renewals, reports, late reports, and the facts derived from reports."""

from __future__ import annotations

from gavel.v1 import execution_pb2
from gavel.v1.execution_pb2 import Execution

from gavel_rules import derivation
from gavel_rules.events.recorded_event import RecordedEvent
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.identity.attestation import caller_identity
from gavel_rules.state.records import AWAITING_FACTS, EXECUTING, AwaitedFact, Holder, LiveDecision
from gavel_rules.state.store import Store
from gavel_rules.state.transitions.approvals import end_decision_if_complete, reopen_decision, update_decision
from gavel_rules.state.transitions.reservations import settle


def apply_execution(store: Store, event: RecordedEvent) -> None:
    """Apply a start, a renewal or a report of an attempt."""
    execution = event.envelope.execution
    live = store.decisions.get(execution.decision_id)
    if live is None:
        return
    if execution.status == execution_pb2.EXECUTION_STATUS_STARTED:
        _start(store, event, execution, live)
    else:
        _report(store, event, execution, live)


def _start(store: Store, event: RecordedEvent, execution: Execution, live: LiveDecision) -> None:
    """Lease an attempt, or extend its lease."""
    lease_until_ms = milliseconds(execution.lease_until)
    policy = live.basis.decision.retry_policy
    patience_ms = policy.human_takeover_after_ms if execution.attempt < policy.max_attempts else 0
    producer = event.envelope.producer
    executor: Holder = (producer.type, producer.id)
    holder = executor + caller_identity(event.envelope.attestation)
    attempts = live.unreported_attempts
    update_decision(
        store,
        live,
        event,
        phase=EXECUTING,
        holders=(*live.holders[: execution.attempt - 1], holder),
        unreported_attempts=(*attempts, execution.attempt) if execution.attempt > live.attempt else attempts,
        attempt=execution.attempt,
        starts=live.starts + 1,
        is_running=True,
        execution_id=execution.execution_id,
        executor_type=producer.type,
        executor_id=producer.id,
        executor_version=producer.version,
        lease_until_ms=lease_until_ms,
        timer_due_ms=lease_until_ms + patience_ms,
        status=execution.status,
        status_event_id=event.event_id,
        status_sequence_number=event.sequence_number,
    )


def _report(store: Store, event: RecordedEvent, execution: Execution, live: LiveDecision) -> None:
    """End an attempt and await its derived facts. The last attempt ends the execution."""
    decision = live.decision.decision
    rule_set = store.rule_set(decision.policy_id, decision.policy_version) if decision.rule_set_digest else None
    facts = derivation.derive(event.envelope, live.decision, rule_set)
    if store.counters:
        settle(store, live, execution)
    update_decision(
        store,
        live,
        event,
        phase=live.phase if execution.will_retry else AWAITING_FACTS,
        timer_due_ms=live.timer_due_ms if execution.will_retry else 0,
        is_running=False,
        unreported_attempts=_without(live.unreported_attempts, execution.attempt),
        awaited_facts=(*live.awaited_facts, *[AwaitedFact(fact.event_id, event.envelope, fact) for fact in facts]),
        status=execution.status,
        status_event_id=event.event_id,
        status_sequence_number=event.sequence_number,
    )


def apply_late_report(store: Store, event: RecordedEvent) -> None:
    """Apply the report of a superseded attempt. If the decision has ended it is reopened, for a person to look at."""
    execution = event.envelope.agent_diagnostic.late_execution.execution
    ended = store.ended_decisions.get(execution.decision_id)
    live = reopen_decision(store, ended) if ended is not None else store.decisions.get(execution.decision_id)
    if live is not None:
        if store.counters:
            settle(store, live, execution, is_late=True)
        update_decision(store, live, event, unreported_attempts=_without(live.unreported_attempts, execution.attempt))


def receive_derived_fact(store: Store, event: RecordedEvent, decision_id: str) -> None:
    """Strike a derived fact from those that a decision awaits."""
    live = store.decisions.get(decision_id)
    if live is None:
        return
    awaited = tuple([fact for fact in live.awaited_facts if fact.event_id != event.event_id])
    end_decision_if_complete(store, update_decision(store, live, event, awaited_facts=awaited))


def _without(attempts: tuple[int, ...], attempt: int) -> tuple[int, ...]:
    return tuple([other for other in attempts if other != attempt])
