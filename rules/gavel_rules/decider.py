"""handle(state, command, references, now) -> events and an answer: the core's one entry.

Timers come first: every timer that is due by `now` is emitted, by (due, sequence number), before the command is looked
at. Every event is applied to the state as it is made, so the next one sees it; the caller undoes the state if the append
fails. `handle` is total: what cannot be carried out is a `Fault`, never an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any, Final

from gavel.v1 import decision_pb2, error_pb2, fact_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.decision_pb2 import Decision, Engine
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import BusOpened, CrossCheck, CrossCheckChanged, Fact, RuleSetActivated, RuleSetDeactivated, RuleSetDeployed

from gavel_rules import contest, execution, review, shadow
from gavel_rules.arbitration import Judge, arbitrate
from gavel_rules.commands import (
    NO_REFERENCES,
    ActivateRuleSet,
    BeginExecution,
    ChangeCrossCheck,
    Command,
    DeactivateRuleSet,
    DeployRuleSet,
    Fault,
    Handled,
    Nothing,
    OpenBus,
    PublishEvent,
    Recorded,
    References,
    RenewExecution,
    ReportExecution,
    ResolveReview,
    RevokeDecision,
    RuleSetAt,
    SubmitProposal,
    Tick,
    Waiting,
)
from gavel_rules.emission import Emission
from gavel_rules.events import ARBITER_VERSION, SYSTEM_FACT_KEY, SYSTEM_PRODUCER
from gavel_rules.first_decisions import record_first
from gavel_rules.language.agreement import described, disagreements
from gavel_rules.language.case import Case
from gavel_rules.language.ruleset import CompiledAction, Verdict
from gavel_rules.limits import RULE_SETS_PER_ACTION_MAX, SHADOWS_PER_ACTION_MAX
from gavel_rules.projection import State
from gavel_rules.publication import publish
from gavel_rules.records import DeployedRuleSet, OpenContest

_EVENTS_UNBOUNDED: Final = 1 << 62
_REFERENCE: Final = decision_pb2.ENGINE_REFERENCE
_ALWAYS: Final = fact_pb2.CROSS_CHECK_MODE_ALWAYS
_SAMPLE: Final = fact_pb2.CROSS_CHECK_MODE_SAMPLE
# Looked up once: to find a method of a message takes longer than to set a field.
_has_field: Final = Decision.HasField


def handle(
    state: State,
    command: Command,
    references: References = NO_REFERENCES,
    now_ms: int = 0,
    engine: Engine.ValueType = decision_pb2.ENGINE_RETE,
) -> Handled:
    """Return the events that a command makes at `now_ms` (milliseconds since the epoch), and its answer.

    `now_ms` is not below the state's `recorded_at_ms`. `engine` REFERENCE asks the second engine alone (replay).
    """
    emission = Emission(state, now_ms)
    if isinstance(command, Tick):
        _emit_timers(emission, command.limit, engine, command.unjudged)
        return Handled(emission.made, Nothing(), emission.failures)
    _emit_timers(emission, _EVENTS_UNBOUNDED, engine, ())
    answer = _HANDLERS[type(command)](emission, command, references, engine)
    return Handled(emission.made, answer, emission.failures)


def _emit_timers(emission: Emission, limit: int, engine: Engine.ValueType, unjudged: Container[str]) -> None:
    """Emit what falls due by now, by (due, sequence number): contests close, approvals expire, lapsed leases call a person.

    None of it may fail, for it would fail again with every command. A contest sees to that itself; the others evaluate nothing:
    neither rules nor schemas nor anything that a producer sent.
    """
    state = emission.state
    while len(emission.made) < limit:
        due = state.next_due(emission.now_ms)
        if due is None:
            return
        if isinstance(due, OpenContest):
            # All candidates are asked in one way, that of the first decision.
            contest.close(emission, due, judge(state, state.head + 1, engine), unjudged)
        else:
            execution.emit_timer(emission, due)


def judge(state: State, sequence_number: int, engine: Engine.ValueType) -> Judge:
    """Return how rules are asked for the decision with this sequence number: the bus's cross-check mode decides."""
    if engine == _REFERENCE:
        return _ask_reference
    mode = state.cross_check.mode
    both = mode == _ALWAYS or (mode == _SAMPLE and sequence_number % state.cross_check.sample_every == 0)
    return _ask_both if both else _ask_rete


def _ask_both(action: CompiledAction, case: Case) -> Verdict:
    return action.evaluate(case, True)


def _ask_rete(action: CompiledAction, case: Case) -> Verdict:
    return action.evaluate(case, False)


def _ask_reference(action: CompiledAction, case: Case) -> Verdict:
    return action.evaluate_reference(case)


def _submit_proposal(
    emission: Emission, command: SubmitProposal, references: References, engine: Engine.ValueType
) -> Recorded | Waiting | Fault:
    envelope = command.envelope
    state = emission.state
    asked = command.asked
    version = asked.projection_version
    if version is not None and version > state.head:
        return _ahead(version, state.head)
    fault = emission.claim_fault(envelope)
    if fault is not None:
        return fault
    if state.open_proposals:  # between commands: those that wait for contests
        waiting = contest.joined(state, envelope)
        if waiting is not None:
            return waiting
    decided = emission.decision_event()
    decision = decided.decision
    asking = judge(state, state.head + 2, engine)
    arbitrate(state, asked, references.cited, emission.now_ms, asking, into=decision)
    if _has_field(decision, "contest"):
        return contest.enter(emission, envelope, decision, references.cited)
    differences = shadow.differences(state, asked, references.cited, emission.now_ms, asking, decision) if state.shadowing else ()
    return Recorded(record_first(emission, decided, emission.propose(asked), differences))


def _ahead(version: int, head: int) -> Fault:
    message = f"projection_version {version} is ahead of the log, whose head is {head}"
    return Fault(error_pb2.ERROR_REASON_INVALID_REQUEST, message, (("envelope.proposal.projection_version", message),))


def _publish(emission: Emission, command: PublishEvent, references: References, engine: Engine.ValueType) -> Recorded | Fault:
    return publish(emission, command.envelope)


def _begin(emission: Emission, command: BeginExecution, references: References, engine: Engine.ValueType) -> Any:
    return execution.begin(emission, command, references)


def _renew(emission: Emission, command: RenewExecution, references: References, engine: Engine.ValueType) -> Any:
    return execution.renew(emission, command, references)


def _report(emission: Emission, command: ReportExecution, references: References, engine: Engine.ValueType) -> Any:
    return execution.report(emission, command, references)


def _resolve_review(emission: Emission, command: ResolveReview, references: References, engine: Engine.ValueType) -> Recorded | Fault:
    return review.resolve(emission, command, references)


def _revoke_decision(emission: Emission, command: RevokeDecision, references: References, engine: Engine.ValueType) -> Recorded | Fault:
    return review.revoke(emission, command, references)


def _open_bus(emission: Emission, command: OpenBus, references: References, engine: Engine.ValueType) -> Recorded | Fault:
    if emission.state.head:
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, "the bus is open already")
    fault = _sampling_fault(command.cross_check)
    if fault is not None:
        return fault
    opened = BusOpened(
        arbiter_version=ARBITER_VERSION, cross_check=command.cross_check, idempotency_window_ms=command.idempotency_window_ms
    )
    return Recorded(_system_fact(emission, command.event_id, "BusOpened", f"bus/{emission.state.bus}", bus_opened=opened))


def _change_cross_check(
    emission: Emission, command: ChangeCrossCheck, references: References, engine: Engine.ValueType
) -> Recorded | Fault:
    fault = _sampling_fault(command.cross_check)
    if fault is not None:
        return fault
    changed = CrossCheckChanged(cross_check=command.cross_check)
    subject = f"bus/{emission.state.bus}"
    return Recorded(_system_fact(emission, command.event_id, "CrossCheckChanged", subject, cross_check_changed=changed))


def _sampling_fault(cross_check: CrossCheck) -> Fault | None:
    if cross_check.mode == fact_pb2.CROSS_CHECK_MODE_SAMPLE and cross_check.sample_every < 1:
        problem = f"is {cross_check.sample_every}; to check a sample of the decisions, say every how many: at least 1"
        return Fault(error_pb2.ERROR_REASON_INVALID_REQUEST, f"sample_every {problem}", (("cross_check.sample_every", problem),))
    return None


def _deploy(emission: Emission, command: DeployRuleSet, references: References, engine: Engine.ValueType) -> RuleSetAt | Fault:
    rule_set = command.rule_set
    policy_id, version = rule_set.policy_id, rule_set.version
    deployed = emission.state.rule_sets.get((policy_id, version))
    if deployed is not None:
        if deployed.digest == rule_set.digest:
            return RuleSetAt(policy_id, version, rule_set.digest, deployed.sequence_number)
        return Fault(
            error_pb2.ERROR_REASON_VERSION_REUSED,
            f"version {version} of rule set {policy_id} is deployed with digest {deployed.digest}; "
            f"this document has {rule_set.digest}: give it a new version",
        )
    event = _system_fact(
        emission,
        command.event_id,
        "RuleSetDeployed",
        f"rule-set/{policy_id}",
        rule_set_deployed=RuleSetDeployed(
            policy_id=policy_id,
            version=version,
            digest=rule_set.digest,
            document=command.document,
            canonical_json=rule_set.canonical_json,
        ),
    )
    return RuleSetAt(policy_id, version, rule_set.digest, event.sequence_number)


def _activate(emission: Emission, command: ActivateRuleSet, references: References, engine: Engine.ValueType) -> RuleSetAt | Fault:
    state = emission.state
    policy_id, version = command.policy_id, command.version
    deployed = state.rule_sets.get((policy_id, version))
    if deployed is None:
        return Fault(error_pb2.ERROR_REASON_RULE_SET_NOT_FOUND, f"rule set {policy_id} has no deployed version {version}: deploy it first")
    active = state.active.get(policy_id)
    active_version = active.version if active else 0
    raced = _raced(policy_id, active_version, command.expected_active_version)
    if raced is not None:
        return raced
    before = state.shadows.get(policy_id) if command.shadow else active
    if before is not None and before.version == version:
        return RuleSetAt(policy_id, version, deployed.digest, before.sequence_number)
    fault = (
        (_in_force_already(policy_id, version, active_version) if command.shadow else None)
        or _crowd(state, policy_id, deployed, command.shadow)
        or _disagreement(state, deployed)
    )
    if fault is not None:
        return fault
    activated = RuleSetActivated(
        policy_id=policy_id,
        version=version,
        digest=deployed.digest,
        mode=fact_pb2.ACTIVATION_MODE_SHADOW if command.shadow else fact_pb2.ACTIVATION_MODE_ACTIVE,
        previous_version=before.version if before else 0,
    )
    event = _system_fact(emission, command.event_id, "RuleSetActivated", f"rule-set/{policy_id}", rule_set_activated=activated)
    return RuleSetAt(policy_id, version, deployed.digest, event.sequence_number)


def _in_force_already(policy_id: str, version: int, active_version: int) -> Fault | None:
    if version != active_version:
        return None
    message = f"version {version} of rule set {policy_id} is in force: as a shadow it would decide the same; name another version"
    return Fault(error_pb2.ERROR_REASON_WRONG_STATE, message)


def _crowd(state: State, policy_id: str, deployed: DeployedRuleSet, shadow: bool) -> Fault | None:
    """Return a fault if too many rule sets would govern, or watch, an action of this one."""
    for action_type in deployed.action_types:
        governing = {action.policy_id for action in state.governing.get(action_type, ())} | {policy_id}
        watching = {watching.policy_id for watching in state.shadowing.get(action_type, ())} | {policy_id}
        if len(governing) > RULE_SETS_PER_ACTION_MAX:
            problem = f"{RULE_SETS_PER_ACTION_MAX} other rule sets in force govern {action_type}, which is the limit"
        elif shadow and len(watching) > SHADOWS_PER_ACTION_MAX:
            problem = f"{SHADOWS_PER_ACTION_MAX} other shadows watch {action_type}, which is the limit"
        else:
            continue
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"rule set {policy_id}: {problem}; end one of them first")
    return None


def _disagreement(state: State, deployed: DeployedRuleSet) -> Fault | None:
    """Return a fault if a rule set wants an action that it would share otherwise than those in force: nobody could say what holds."""
    if not any(action_type in state.governing for action_type in deployed.action_types):
        return None
    found = disagreements(deployed.rule_set, (active.rule_set for active in state.active.values()))
    return Fault(error_pb2.ERROR_REASON_RULE_SETS_DISAGREE, described(found)) if found else None


def _deactivate(emission: Emission, command: DeactivateRuleSet, references: References, engine: Engine.ValueType) -> RuleSetAt | Fault:
    state = emission.state
    policy_id = command.policy_id
    active = state.active.get(policy_id)
    raced = _raced(policy_id, active.version if active else 0, command.expected_active_version)
    if raced is not None:
        return raced
    ended = state.shadows.get(policy_id) if command.shadow else active
    if ended is None:
        problem = "has no shadow" if command.shadow else "is not active"
        return Fault(error_pb2.ERROR_REASON_RULE_SET_NOT_FOUND, f"rule set {policy_id} {problem}")
    deactivated = RuleSetDeactivated(policy_id=policy_id, version=ended.version)
    if command.shadow:
        deactivated.mode = fact_pb2.ACTIVATION_MODE_SHADOW
    event = _system_fact(emission, command.event_id, "RuleSetDeactivated", f"rule-set/{policy_id}", rule_set_deactivated=deactivated)
    return RuleSetAt(policy_id, ended.version, ended.rule_set.digest, event.sequence_number)


def _raced(policy_id: str, active_version: int, expected: int | None) -> Fault | None:
    if expected is None or expected == active_version:
        return None
    return Fault(
        error_pb2.ERROR_REASON_ACTIVATION_RACED,
        f"rule set {policy_id}: expected active version {expected}, but it is {active_version} (0: none)",
    )


def _system_fact(emission: Emission, event_id: str, name: str, subject: str, **system: Any) -> Envelope:
    envelope = Envelope(
        event_id=event_id,
        event_name=name,
        trace_id=event_id,
        producer=Producer(),
        subject=subject,
        fact=Fact(key=SYSTEM_FACT_KEY[name], observed_from=fact_pb2.OBSERVED_FROM_HUMAN_INPUT, **system),
    )
    envelope.producer.CopyFrom(SYSTEM_PRODUCER)
    emission.record(envelope, "fact")
    return envelope


_HANDLERS: Final[Mapping[type, Callable[[Emission, Any, References, Engine.ValueType], Any]]] = {
    OpenBus: _open_bus,
    ChangeCrossCheck: _change_cross_check,
    SubmitProposal: _submit_proposal,
    PublishEvent: _publish,
    BeginExecution: _begin,
    RenewExecution: _renew,
    ReportExecution: _report,
    ResolveReview: _resolve_review,
    RevokeDecision: _revoke_decision,
    DeployRuleSet: _deploy,
    ActivateRuleSet: _activate,
    DeactivateRuleSet: _deactivate,
}
