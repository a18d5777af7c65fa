"""Compensation of half-done work, if the rule set of the decision declares one (constitution §7).

A compensation is a decision of its own: it rests on no facts, does not expire, takes over the conflict key, and ends by success alone. It
is not compensated itself.
"""

from __future__ import annotations

from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision, RuleSetReference
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules import reason_codes
from gavel_rules.arbitration.verdict import warn_of_violations
from gavel_rules.events.ids import derived_event_id
from gavel_rules.events.timestamps import timestamp
from gavel_rules.execution.lifecycle import call_person
from gavel_rules.recorder import Recorder
from gavel_rules.state.records import LiveDecision


def compensate(recorder: Recorder, live: LiveDecision, report: Envelope) -> None:
    """Record the compensation of a partial execution, or request a human review if there is none or its params are invalid."""
    approval = live.decision.decision
    rule_set = recorder.state.rule_set_of(approval)
    compensation = rule_set.actions[approval.action_type].compensation if rule_set is not None else None
    if compensation is None:
        call_person(recorder, live, reason_codes.PARTIAL_EXECUTION, report, "partial")
        return
    computed = compensation.params(report, live.decision, searches_long_texts=recorder.state.semantics.searches_long_texts)
    if computed.failures or computed.violations:
        warnings = Decision()
        for problem in computed.failures:
            warnings.warnings.add(code="COMPENSATION_PARAMS", message=problem)
        warn_of_violations(warnings, computed.violations)
        call_person(recorder, live, reason_codes.COMPENSATION_INVALID, report, "compensation-invalid", warnings.warnings)
        return
    decision = Decision(
        decision_id=derived_event_id(report.event_id, report.sequence_number, "compensation"),
        proposal_id=approval.proposal_id,
        previous_decision_id=live.decision_id,
        compensates_decision_id=live.decision_id,
        arbiter_version=recorder.state.semantics.arbiter_version,
        outcome=decision_pb2.OUTCOME_APPROVED,
        policy_id=approval.policy_id,
        policy_version=approval.policy_version,
        rule_set_digest=approval.rule_set_digest,
        active_policy_ids=[approval.policy_id],
        active_rule_sets=[RuleSetReference(policy_id=approval.policy_id, version=approval.policy_version, digest=approval.rule_set_digest)],
        action_type=compensation.action_type,
        params=computed.params,
        evaluated_at=timestamp(recorder.now_ms),
        state_version=recorder.state.head,
        conflict_key=approval.conflict_key,
        retry_policy=compensation.retry,
    )
    recorder.record_decision(
        recorder.new_decision(decision), causation_id=report.event_id, trace_id=live.decision.trace_id, subject=live.decision.subject
    )
