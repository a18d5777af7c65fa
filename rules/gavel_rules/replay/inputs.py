"""From a recorded input event back to the command that recorded it.

An input is an event that a command records for its own sake; every other event follows from an input in the same commit, or from a timer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gavel.v1 import common_pb2, execution_pb2, fact_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import Fact, ReviewResolved, RuleSetActivated, RuleSetDeactivated

from gavel_rules import reason_codes
from gavel_rules.commands import (
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
)
from gavel_rules.events.citation import CitedEvent
from gavel_rules.events.kinds import GAVEL
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.identity.grants import compile_grants
from gavel_rules.language.rule_set import CompiledRuleSet
from gavel_rules.state.state import State


def command_of(
    recorded: Envelope, state: State, cited_events: Mapping[int, CitedEvent], compile_document: Callable[[str], CompiledRuleSet]
) -> tuple[Command | None, References]:
    """Return the command that recorded an input event, with its references; None if no command records such an event.

    Raises DocumentError if recorded rule sets or grants do not compile.
    """
    sent = Envelope()
    sent.CopyFrom(recorded)
    sent.ClearField("sequence_number")
    sent.ClearField("recorded_at")
    sent.ClearField("attestation")
    match recorded.WhichOneof("payload"):
        case "fact" if recorded.fact.WhichOneof("system") is not None:
            return _system_command(recorded, compile_document), References(cited_events=cited_events)
        case "agent_diagnostic" if is_late_report(recorded):
            return _late_report_command(recorded), References()
        case "agent_diagnostic" if is_refusal_notice(recorded):
            return RecordRefusals(recorded.event_id, recorded.agent_diagnostic.access_refused), References()
        case "decision" if recorded.decision.reason_code == reason_codes.RETRY_FACTS_CHANGED:
            # The only decision that a command makes without an input event: the begin of another attempt.
            return BeginExecution(recorded.decision.previous_decision_id, recorded.producer, 1), References()
        case _ if recorded.producer.id == GAVEL:
            return None, References()  # no producer publishes in Gavel's name
        case "proposal":
            sent.proposal.ClearField("contest")
            return SubmitProposal(ProposalView(sent)), References(cited_events=cited_events)
        case "fact" | "observation" | "tool_call" | "tool_result" | "agent_diagnostic":
            return PublishEvent(sent), References()
        case "execution":
            return _execution_command(recorded, sent, state), References()
    return None, References()


def is_consequence(recorded: Envelope) -> bool:
    """Return whether Gavel records such an event as the consequence of another one in the same commit."""
    if recorded.HasField("decision"):
        return True
    return (
        recorded.HasField("agent_diagnostic")
        and recorded.producer.id == GAVEL
        and not (is_late_report(recorded) or is_refusal_notice(recorded))
    )


def is_late_report(recorded: Envelope) -> bool:
    """Return whether a diagnostic holds the report of a superseded attempt."""
    return recorded.agent_diagnostic.WhichOneof("detail") == "late_execution"


def is_refusal_notice(recorded: Envelope) -> bool:
    """Return whether a diagnostic counts calls that were refused for lack of credentials or rights."""
    return recorded.agent_diagnostic.WhichOneof("detail") == "access_refused" and recorded.producer.id == GAVEL


def unjudged_candidates(recorded: Envelope) -> frozenset[str]:
    """Return the candidates whose arbitration failed when a contest closed, from the first decision of the close."""
    rows = recorded.decision.contest.candidates
    return frozenset(row.proposal_id for row in rows if row.reason_code == reason_codes.NOT_JUDGED)


def _late_report_command(recorded: Envelope) -> Command:
    late = recorded.agent_diagnostic.late_execution
    report = Envelope(event_id=recorded.event_id, traceparent=recorded.traceparent, execution=late.execution)
    report.producer.type = common_pb2.PRODUCER_TYPE_EXECUTOR
    report.producer.id = late.executor_id
    report.producer.version = late.executor_version
    return ReportExecution(report)


def _execution_command(recorded: Envelope, sent: Envelope, state: State) -> Command:
    execution = recorded.execution
    live = state.decisions.get(execution.decision_id)
    if execution.status == execution_pb2.EXECUTION_STATUS_STARTED:
        lease_ms = milliseconds(execution.lease_until) - milliseconds(recorded.recorded_at)
        if live is not None and live.attempt == execution.attempt:
            return RenewExecution(
                execution.decision_id, execution.execution_id, recorded.producer, lease_ms, recorded.traceparent, execution.request_id
            )
        binding = recorded.version_binding if recorded.HasField("version_binding") else None
        return BeginExecution(execution.decision_id, recorded.producer, lease_ms, recorded.traceparent, execution.request_id, binding)
    if execution.status == execution_pb2.EXECUTION_STATUS_ABORTED and execution.attempt == 0:
        binding = recorded.version_binding if recorded.HasField("version_binding") else None
        return BeginExecution(execution.decision_id, recorded.producer, 1, recorded.traceparent, version_binding=binding)
    return ReportExecution(sent)


def _system_command(recorded: Envelope, compile_document: Callable[[str], CompiledRuleSet]) -> Command | None:
    """Return the command that recorded a system fact."""
    fact = recorded.fact
    trace = recorded.traceparent
    match fact.WhichOneof("system"):
        case "bus_opened":
            opened = fact.bus_opened
            return OpenBus(recorded.event_id, opened.cross_check, opened.idempotency_window_ms, opened.arbiter_version)
        case "cross_check_changed":
            return ChangeCrossCheck(recorded.event_id, fact.cross_check_changed.cross_check)
        case "clock_accepted":
            accepted = fact.clock_accepted
            return AcceptClock(recorded.event_id, milliseconds(accepted.clock), accepted.accepted_by, accepted.reason)
        case "data_loss_accepted":
            return AcceptLoss(recorded.event_id, fact.data_loss_accepted)
        case "rule_set_deployed":
            deployed = fact.rule_set_deployed
            return DeployRuleSet(recorded.event_id, compile_document(deployed.document), deployed.document, deployed.reason, trace)
        case "rule_set_activated":
            activated = fact.rule_set_activated
            is_shadow = _is_shadow(activated)
            return ActivateRuleSet(recorded.event_id, activated.policy_id, activated.version, None, is_shadow, activated.reason, trace)
        case "counters_opened":
            return OpenCounters(recorded.event_id, fact.counters_opened.policy_id, fact.counters_opened.version)
        case "counter_filled":
            return FillCounter(recorded.event_id, fact.counter_filled)
        case "rule_set_deactivated":
            deactivated = fact.rule_set_deactivated
            is_shadow = _is_shadow(deactivated)
            return DeactivateRuleSet(recorded.event_id, deactivated.policy_id, None, is_shadow, deactivated.reason, trace)
        case "grants_deployed":
            grants = fact.grants_deployed
            return DeployGrants(recorded.event_id, compile_grants(grants.document), grants.document, grants.reason, None, trace)
        case "tool_contract_registered" | "tool_provider_registered" | "tool_bound" | "tool_unbound" as kind:
            return ChangeTools(_verdict(recorded, Fact(**{kind: getattr(fact, kind)})))
        case "review_resolved":
            return ResolveReview(_verdict(recorded, Fact(review_resolved=fact.review_resolved)))
        case "review_voted":
            voted = fact.review_voted
            resolved = ReviewResolved(decision_id=voted.decision_id, verdict=voted.verdict, reviewer=voted.reviewer, reason=voted.reason)
            return ResolveReview(_verdict(recorded, Fact(review_resolved=resolved)))
        case "revocation_requested":
            return RevokeDecision(_verdict(recorded, Fact(revocation_requested=fact.revocation_requested)))
    return None


def _verdict(recorded: Envelope, fact: Fact) -> Envelope:
    return Envelope(event_id=recorded.event_id, traceparent=recorded.traceparent, fact=fact)


def _is_shadow(event: RuleSetActivated | RuleSetDeactivated) -> bool:
    return event.mode == fact_pb2.ACTIVATION_MODE_SHADOW
