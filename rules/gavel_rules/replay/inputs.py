"""From a recorded input event back to the command that recorded it.

An input is an event that a command records for its own sake; every other event follows from an input in the same commit, or from a timer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gavel.v1 import common_pb2, execution_pb2, fact_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import Fact, ReviewResolved, RuleSetActivated, RuleSetDeactivated

from gavel_rules import reason_codes
from gavel_rules.commands import (
    NO_REFERENCES,
    AcceptClock,
    AcceptLoss,
    ActivateRuleSet,
    BeginExecution,
    ChangeCrossCheck,
    ChangeTools,
    Command,
    DeactivateRuleSet,
    DeployGrants,
    DeployRuleSet,
    FillCounter,
    OpenBus,
    OpenCounters,
    PublishEvent,
    RecordRefusals,
    References,
    RenewExecution,
    ReportExecution,
    ResolveReview,
    RevokeDecision,
    SubmitProposal,
    UpgradeBus,
)
from gavel_rules.events.citation import CitedEvent
from gavel_rules.events.kinds import GAVEL
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.identity.grants import compile_grants
from gavel_rules.language.rule_set import CompiledRuleSet
from gavel_rules.state.state import State

# Bound once: docs/performance.md#module-constants.
_clear_field: Final = Envelope.ClearField


def command_of(
    envelope: Envelope, state: State, cited_events: Mapping[int, CitedEvent], compile_document: Callable[[str], CompiledRuleSet]
) -> tuple[Command | None, References]:
    """Return the command that recorded an input event, with its references; None if no command records such an event.

    The command takes the envelope over and changes it. Raises DocumentError if recorded rule sets or grants do not compile.
    """
    match envelope.WhichOneof("payload"):
        case "fact" if envelope.fact.WhichOneof("system") is not None:
            return _system_command(envelope, compile_document), References(cited_events=cited_events)
        case "agent_diagnostic" if is_late_report(envelope):
            return _late_report_command(envelope), NO_REFERENCES
        case "agent_diagnostic" if is_refusal_notice(envelope):
            return RecordRefusals(envelope.event_id, envelope.agent_diagnostic.access_refused), NO_REFERENCES
        case "decision" if envelope.decision.reason_code == reason_codes.RETRY_FACTS_CHANGED:
            # The only decision that a command makes without an input event: the begin of another attempt.
            return BeginExecution(envelope.decision.previous_decision_id, envelope.producer, 1), NO_REFERENCES
        case _ if envelope.producer.id == GAVEL:
            return None, NO_REFERENCES  # no producer publishes in Gavel's name
        case "proposal":
            envelope.proposal.ClearField("contest")
            return SubmitProposal(ProposalView(_as_sent(envelope))), References(cited_events=cited_events)
        case "fact" | "observation" | "tool_call" | "tool_result" | "agent_diagnostic":
            return PublishEvent(_as_sent(envelope)), NO_REFERENCES
        case "execution":
            return _execution_command(envelope, state), NO_REFERENCES
    return None, NO_REFERENCES


def is_consequence(envelope: Envelope) -> bool:
    """Return whether Gavel records such an event as the consequence of another one in the same commit."""
    if envelope.HasField("decision"):
        return True
    return (
        envelope.HasField("agent_diagnostic")
        and envelope.producer.id == GAVEL
        and not (is_late_report(envelope) or is_refusal_notice(envelope))
    )


def is_late_report(envelope: Envelope) -> bool:
    """Return whether a diagnostic holds the report of a superseded attempt."""
    return envelope.agent_diagnostic.WhichOneof("detail") == "late_execution"


def is_refusal_notice(envelope: Envelope) -> bool:
    """Return whether a diagnostic counts calls that were refused for lack of credentials or rights."""
    return envelope.agent_diagnostic.WhichOneof("detail") == "access_refused" and envelope.producer.id == GAVEL


def unjudged_candidates(envelope: Envelope) -> frozenset[str]:
    """Return the candidates whose arbitration failed when a contest closed, from the first decision of the close."""
    rows = envelope.decision.contest.candidates
    return frozenset(row.proposal_id for row in rows if row.reason_code == reason_codes.NOT_JUDGED)


def _late_report_command(envelope: Envelope) -> Command:
    late = envelope.agent_diagnostic.late_execution
    report = Envelope(event_id=envelope.event_id, traceparent=envelope.traceparent, execution=late.execution)
    report.producer.type = common_pb2.PRODUCER_TYPE_EXECUTOR
    report.producer.id = late.executor_id
    report.producer.version = late.executor_version
    return ReportExecution(report)


def _as_sent(envelope: Envelope) -> Envelope:
    """Remove the fields that Gavel alone sets."""
    _clear_field(envelope, "sequence_number")
    _clear_field(envelope, "recorded_at")
    _clear_field(envelope, "attestation")
    return envelope


def _execution_command(envelope: Envelope, state: State) -> Command:
    execution = envelope.execution
    live = state.decisions.get(execution.decision_id)
    if execution.status == execution_pb2.EXECUTION_STATUS_STARTED:
        lease_ms = milliseconds(execution.lease_until) - milliseconds(envelope.recorded_at)
        if live is not None and live.attempt == execution.attempt:
            return RenewExecution(
                execution.decision_id, execution.execution_id, envelope.producer, lease_ms, envelope.traceparent, execution.request_id
            )
        binding = envelope.version_binding if envelope.HasField("version_binding") else None
        return BeginExecution(execution.decision_id, envelope.producer, lease_ms, envelope.traceparent, execution.request_id, binding)
    if execution.status == execution_pb2.EXECUTION_STATUS_ABORTED and execution.attempt == 0:
        binding = envelope.version_binding if envelope.HasField("version_binding") else None
        return BeginExecution(execution.decision_id, envelope.producer, 1, envelope.traceparent, version_binding=binding)
    return ReportExecution(_as_sent(envelope))


def _system_command(envelope: Envelope, compile_document: Callable[[str], CompiledRuleSet]) -> Command | None:
    """Return the command that recorded a system fact."""
    fact = envelope.fact
    trace = envelope.traceparent
    match fact.WhichOneof("system"):
        case "bus_opened":
            opened = fact.bus_opened
            return OpenBus(envelope.event_id, opened.cross_check, opened.idempotency_window_ms, opened.arbiter_version)
        case "arbiter_version_changed":
            changed = fact.arbiter_version_changed
            from_version, to_version = changed.from_arbiter_version, changed.arbiter_version
            return UpgradeBus(envelope.event_id, from_version, to_version, changed.upgraded_by, changed.reason)
        case "cross_check_changed":
            return ChangeCrossCheck(envelope.event_id, fact.cross_check_changed.cross_check)
        case "clock_accepted":
            accepted = fact.clock_accepted
            return AcceptClock(envelope.event_id, milliseconds(accepted.clock), accepted.accepted_by, accepted.reason)
        case "data_loss_accepted":
            return AcceptLoss(envelope.event_id, fact.data_loss_accepted)
        case "rule_set_deployed":
            deployed = fact.rule_set_deployed
            return DeployRuleSet(envelope.event_id, compile_document(deployed.document), deployed.document, deployed.reason, trace)
        case "rule_set_activated":
            activated = fact.rule_set_activated
            is_shadow = _is_shadow(activated)
            return ActivateRuleSet(envelope.event_id, activated.policy_id, activated.version, None, is_shadow, activated.reason, trace)
        case "counters_opened":
            return OpenCounters(envelope.event_id, fact.counters_opened.policy_id, fact.counters_opened.version)
        case "counter_filled":
            return FillCounter(envelope.event_id, fact.counter_filled)
        case "rule_set_deactivated":
            deactivated = fact.rule_set_deactivated
            is_shadow = _is_shadow(deactivated)
            return DeactivateRuleSet(envelope.event_id, deactivated.policy_id, None, is_shadow, deactivated.reason, trace)
        case "grants_deployed":
            grants = fact.grants_deployed
            return DeployGrants(envelope.event_id, compile_grants(grants.document), grants.document, grants.reason, None, trace)
        case "tool_contract_registered" | "tool_provider_registered" | "tool_bound" | "tool_unbound" as kind:
            return ChangeTools(_verdict(envelope, Fact(**{kind: getattr(fact, kind)})))
        case "review_resolved":
            return ResolveReview(_verdict(envelope, Fact(review_resolved=fact.review_resolved)))
        case "review_voted":
            voted = fact.review_voted
            resolved = ReviewResolved(decision_id=voted.decision_id, verdict=voted.verdict, reviewer=voted.reviewer, reason=voted.reason)
            return ResolveReview(_verdict(envelope, Fact(review_resolved=resolved)))
        case "revocation_requested":
            return RevokeDecision(_verdict(envelope, Fact(revocation_requested=fact.revocation_requested)))
    return None


def _verdict(envelope: Envelope, fact: Fact) -> Envelope:
    return Envelope(event_id=envelope.event_id, traceparent=envelope.traceparent, fact=fact)


def _is_shadow(event: RuleSetActivated | RuleSetDeactivated) -> bool:
    return event.mode == fact_pb2.ACTIVATION_MODE_SHADOW
