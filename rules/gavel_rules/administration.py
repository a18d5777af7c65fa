"""Commands of operators: opening a bus, its cross-check and time, the life of rule sets (constitution §6.4), and grants.

Each command that succeeds records one system fact with everything that a replay needs. A version of a rule set is deployed once. An
activation takes effect from its place in the log on. This module never compiles a document: the command carries the compiled rule set.
"""

from __future__ import annotations

from gavel.v1 import error_pb2, fact_pb2
from gavel.v1.diagnostic_pb2 import AgentDiagnostic
from gavel.v1.fact_pb2 import (
    ArbiterVersionChanged,
    BusOpened,
    ClockAccepted,
    CountersOpened,
    CrossCheck,
    CrossCheckChanged,
    GrantsDeployed,
    RuleSetActivated,
    RuleSetDeactivated,
    RuleSetDeployed,
)

from gavel_rules.commands import (
    AcceptClock,
    AcceptLoss,
    ActivateRuleSet,
    ChangeCrossCheck,
    DeactivateRuleSet,
    DeployGrants,
    DeployRuleSet,
    EventAnswer,
    Fault,
    FillCounter,
    GrantsPosition,
    OpenBus,
    OpenCounters,
    RecordRefusals,
    RuleSetPosition,
    UnfilledCounters,
    UpgradeBus,
)
from gavel_rules.events.arbiter_versions import implemented_versions, is_implemented, semantics_of
from gavel_rules.events.timestamps import timestamp
from gavel_rules.language.shared_action_settings import find_disagreements, format_disagreements
from gavel_rules.limits import RULE_SETS_PER_ACTION_MAX, SHADOWS_PER_ACTION_MAX
from gavel_rules.recorder import Recorder
from gavel_rules.state.records import DeployedRuleSet
from gavel_rules.state.snapshot.encoding import state_sha256
from gavel_rules.state.state import State


def open_bus(recorder: Recorder, command: OpenBus) -> EventAnswer | Fault:
    """Record BusOpened, the first event of a bus."""
    if recorder.state.head:
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, "the bus is already open")
    fault = _sampling_fault(command.cross_check)
    if fault is not None:
        return fault
    opened = BusOpened(
        arbiter_version=command.arbiter_version,
        cross_check=command.cross_check,
        idempotency_window_ms=command.idempotency_window_ms,
    )
    subject = f"bus/{recorder.state.bus}"
    system = semantics_of(command.arbiter_version).system  # the state has no semantics yet
    return EventAnswer(recorder.record_system_fact(command.event_id, "BusOpened", subject, system, bus_opened=opened))


def change_cross_check(recorder: Recorder, command: ChangeCrossCheck) -> EventAnswer | Fault:
    """Record on which decisions both engines evaluate the rules from now on."""
    fault = _sampling_fault(command.cross_check)
    if fault is not None:
        return fault
    changed = CrossCheckChanged(cross_check=command.cross_check)
    subject = f"bus/{recorder.state.bus}"
    return EventAnswer(recorder.record_system_fact(command.event_id, "CrossCheckChanged", subject, cross_check_changed=changed))


def accept_clock(recorder: Recorder, command: AcceptClock) -> EventAnswer | Fault:
    """Record that the bus is ahead of the clocks, and how far: its time runs at half speed until they have caught up."""
    state = recorder.state
    if state.recorded_at_ms <= state.time_ms(command.clock_ms):
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"the last event of bus {state.bus} is not ahead of this server's clock")
    accepted = ClockAccepted(clock=timestamp(command.clock_ms), accepted_by=command.accepted_by, reason=command.reason)
    return EventAnswer(recorder.record_system_fact(command.event_id, "ClockAccepted", f"bus/{state.bus}", clock_accepted=accepted))


def accept_loss(recorder: Recorder, command: AcceptLoss) -> EventAnswer | Fault:
    """Record that acknowledged events are lost, and where the log goes on: after its last event, which the operator has named."""
    state = recorder.state
    accepted = command.accepted
    if accepted.head_sequence_number != state.head:
        message = f"the log of bus {state.bus} ends at event {state.head}, not at event {accepted.head_sequence_number}"
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, message)
    return EventAnswer(recorder.record_system_fact(command.event_id, "DataLossAccepted", f"bus/{state.bus}", data_loss_accepted=accepted))


def upgrade_bus(recorder: Recorder, command: UpgradeBus) -> EventAnswer | Fault:
    """Record that a later arbiter version decides from now on, with the digest of the state under the earlier one."""
    state = recorder.state
    current, later = state.arbiter_version, command.to_version
    if command.from_version != current:
        message = f"bus {state.bus} has arbiter version {current}, not {command.from_version}: read it again, and look at the plan"
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, message)
    if later <= current:
        message = f"bus {state.bus} has arbiter version {current}: a bus gets a later version, never the same or an earlier one"
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, message)
    if not is_implemented(later):
        message = f"arbiter version {later} is unknown; this build implements {implemented_versions()}: use a build that implements it"
        return Fault(error_pb2.ERROR_REASON_ARBITER_VERSION_NOT_IMPLEMENTED, message)
    changed = ArbiterVersionChanged(
        arbiter_version=later,
        from_arbiter_version=current,
        state_digest=f"sha256:{state_sha256(state.store).hex()}",
        upgraded_by=command.upgraded_by,
        reason=command.reason,
    )
    subject = f"bus/{state.bus}"
    return EventAnswer(recorder.record_system_fact(command.event_id, "ArbiterVersionChanged", subject, arbiter_version_changed=changed))


def deploy(recorder: Recorder, command: DeployRuleSet) -> RuleSetPosition | Fault:
    """Record a version of a rule set. Deploying the same digest again changes nothing."""
    rule_set = command.rule_set
    policy_id, version = rule_set.policy_id, rule_set.version
    deployed = recorder.state.rule_sets.get((policy_id, version))
    if deployed is not None:
        if deployed.digest == rule_set.digest:
            return RuleSetPosition(policy_id, version, rule_set.digest, deployed.sequence_number)
        return Fault(
            error_pb2.ERROR_REASON_VERSION_REUSED,
            f"version {version} of rule set {policy_id} is deployed with digest {deployed.digest}; "
            f"this document has {rule_set.digest}: give it a new version, or a name of its own if it is another rule set",
        )
    event = recorder.record_system_fact(
        command.event_id,
        "RuleSetDeployed",
        f"rule-set/{policy_id}",
        traceparent=command.traceparent,
        rule_set_deployed=RuleSetDeployed(
            policy_id=policy_id,
            version=version,
            digest=rule_set.digest,
            document=command.document,
            canonical_json=rule_set.canonical_json,
            principal=recorder.caller,
            reason=command.reason,
        ),
    )
    return RuleSetPosition(policy_id, version, rule_set.digest, event.sequence_number)


def activate(recorder: Recorder, command: ActivateRuleSet) -> RuleSetPosition | UnfilledCounters | Fault:
    """Activate a deployed version, or make it a shadow. Activating what is active changes nothing.

    The counters of the version have to hold their past first. If one does not, the server fills it and sends the command again.
    """
    state = recorder.state
    policy_id, version = command.policy_id, command.version
    deployed = state.rule_sets.get((policy_id, version))
    if deployed is None:
        return Fault(error_pb2.ERROR_REASON_RULE_SET_NOT_FOUND, f"rule set {policy_id} has no deployed version {version}: deploy it first")
    active = state.active_rule_sets.get(policy_id)
    active_version = active.version if active else 0
    race = _version_conflict_fault(policy_id, active_version, command.expected_active_version)
    if race is not None:
        return race
    before = state.shadows.get(policy_id) if command.shadow else active
    if before is not None and before.version == version:
        return RuleSetPosition(policy_id, version, deployed.digest, before.sequence_number)
    fault = (
        (_idle_shadow_fault(policy_id, version, active_version) if command.shadow else None)
        or _limit_fault(state, command, deployed)
        or _disagreement_fault(state, deployed)
        or _review_fault(state, policy_id, deployed)
        or _derivation_fault(state, policy_id, deployed)
    )
    if fault is not None:
        return fault
    activated = RuleSetActivated(
        policy_id=policy_id,
        version=version,
        digest=deployed.digest,
        mode=fact_pb2.ACTIVATION_MODE_SHADOW if command.shadow else fact_pb2.ACTIVATION_MODE_ACTIVE,
        previous_version=before.version if before else 0,
        principal=recorder.caller,
        reason=command.reason,
    )
    subject = f"rule-set/{policy_id}"
    unfilled = unfilled_counters(state, deployed)
    if unfilled:
        return UnfilledCounters(unfilled)
    event = recorder.record_system_fact(
        command.event_id, "RuleSetActivated", subject, traceparent=command.traceparent, rule_set_activated=activated
    )
    return RuleSetPosition(policy_id, version, deployed.digest, event.sequence_number)


def open_counters(recorder: Recorder, command: OpenCounters) -> EventAnswer | Fault:
    """Record that the counters of a deployed version count from now on.

    Counters that were opened before but are not filled yet begin once more.
    """
    state = recorder.state
    deployed = state.rule_sets.get((command.policy_id, command.version))
    digests = unfilled_counters(state, deployed) if deployed is not None else ()
    if not digests:
        message = f"rule set {command.policy_id} version {command.version} has no counters to open"
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, message)
    opened = CountersOpened(policy_id=command.policy_id, version=command.version, digests=digests)
    subject = f"rule-set/{command.policy_id}"
    return EventAnswer(recorder.record_system_fact(command.event_id, "CountersOpened", subject, counters_opened=opened))


def fill_counter(recorder: Recorder, command: FillCounter) -> EventAnswer | Fault:
    """Record entries of a counter from before it was opened."""
    table = recorder.state.counters.get(command.filled.digest)
    if table is None or table.is_filled or table.opened_at != command.filled.opened_at:
        message = "another activation of the rule set has opened or dropped its counters meanwhile; try again when it has ended"
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, message)
    subject = f"rule-set/{table.policy_id}"
    return EventAnswer(recorder.record_system_fact(command.event_id, "CounterFilled", subject, counter_filled=command.filled))


def unfilled_counters(state: State, deployed: DeployedRuleSet) -> tuple[str, ...]:
    """Return the digests of a rule set's counters that do not hold their past, sorted."""
    digests = {counter.digest for counter in deployed.rule_set.counters.values()}
    return tuple(sorted(digest for digest in digests if (table := state.counters.get(digest)) is None or not table.is_filled))


def deactivate(recorder: Recorder, command: DeactivateRuleSet) -> RuleSetPosition | Fault:
    """Deactivate a rule set, or end its shadow."""
    state = recorder.state
    policy_id = command.policy_id
    active = state.active_rule_sets.get(policy_id)
    race = _version_conflict_fault(policy_id, active.version if active else 0, command.expected_active_version)
    if race is not None:
        return race
    current = state.shadows.get(policy_id) if command.shadow else active
    if current is None:
        problem = "has no shadow" if command.shadow else "is not active"
        return Fault(error_pb2.ERROR_REASON_RULE_SET_NOT_FOUND, f"rule set {policy_id} {problem}")
    deactivated = RuleSetDeactivated(policy_id=policy_id, version=current.version, principal=recorder.caller, reason=command.reason)
    if command.shadow:
        deactivated.mode = fact_pb2.ACTIVATION_MODE_SHADOW
    subject = f"rule-set/{policy_id}"
    event = recorder.record_system_fact(
        command.event_id, "RuleSetDeactivated", subject, traceparent=command.traceparent, rule_set_deactivated=deactivated
    )
    return RuleSetPosition(policy_id, current.version, current.rule_set.digest, event.sequence_number)


def deploy_grants(recorder: Recorder, command: DeployGrants) -> GrantsPosition | Fault:
    """Record a version of the grants, which is in force from its event on. Deploying what is in force changes nothing."""
    state = recorder.state
    grants = command.grants
    if not state.semantics.attests:
        message = f"bus {state.bus} has arbiter version {state.arbiter_version}, which has no grants; deploy them on a new bus"
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, message)
    in_force = state.grants_in_force
    version = in_force.deployed.version if in_force is not None else 0
    if command.expected_version is not None and command.expected_version != version:
        message = f"expected version {command.expected_version} of the grants, but version {version} is in force (0: none)"
        return Fault(error_pb2.ERROR_REASON_ACTIVATION_RACED, message)
    if in_force is not None and in_force.deployed.digest == grants.digest:
        return GrantsPosition(grants.name, grants.version, grants.digest, in_force.deployed.sequence_number)
    known = state.grants_versions.get(grants.version)
    if known is not None and known.digest != grants.digest:
        return Fault(
            error_pb2.ERROR_REASON_VERSION_REUSED,
            f"version {grants.version} of the grants is deployed with digest {known.digest}; "
            f"this document has {grants.digest}: give it a new version",
        )
    deployed = GrantsDeployed(
        name=grants.name,
        version=grants.version,
        digest=grants.digest,
        document=command.document,
        canonical_json=grants.canonical_json,
        principal=recorder.caller,
        reason=command.reason,
    )
    subject = f"bus/{state.bus}"
    event = recorder.record_system_fact(
        command.event_id, "GrantsDeployed", subject, traceparent=command.traceparent, grants_deployed=deployed
    )
    return GrantsPosition(grants.name, grants.version, grants.digest, event.sequence_number)


def record_refusals(recorder: Recorder, command: RecordRefusals) -> EventAnswer | Fault:
    """Record refused calls as a diagnostic."""
    if not recorder.state.head:
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, "the bus is not open")
    return EventAnswer(
        recorder.record_diagnostic(
            AgentDiagnostic(kind="AccessRefused", access_refused=command.refused),
            event_id=command.event_id,
            causation_id="",
            trace_id=command.event_id,
            subject=f"bus/{recorder.state.bus}",
        )
    )


def _sampling_fault(cross_check: CrossCheck) -> Fault | None:
    if cross_check.mode == fact_pb2.CROSS_CHECK_MODE_SAMPLE and cross_check.sample_every < 1:
        problem = f"is {cross_check.sample_every}; a sample needs a number of decisions, at least 1"
        return Fault(error_pb2.ERROR_REASON_INVALID_REQUEST, f"sample_every {problem}", (("cross_check.sample_every", problem),))
    return None


def _version_conflict_fault(policy_id: str, active_version: int, expected: int | None) -> Fault | None:
    """Return a fault if another operator changed the active version meanwhile."""
    if expected is None or expected == active_version:
        return None
    return Fault(
        error_pb2.ERROR_REASON_ACTIVATION_RACED,
        f"rule set {policy_id}: expected active version {expected}, but it is {active_version} (0: none)",
    )


def _idle_shadow_fault(policy_id: str, version: int, active_version: int) -> Fault | None:
    """Return a fault if the version to shadow is the active one."""
    if version != active_version:
        return None
    message = f"version {version} of rule set {policy_id} is active: a shadow of it would decide the same; name another version"
    return Fault(error_pb2.ERROR_REASON_WRONG_STATE, message)


def _limit_fault(state: State, command: ActivateRuleSet, deployed: DeployedRuleSet) -> Fault | None:
    """Return a fault if too many rule sets would govern, or shadow, one of the actions that the activation concerns."""
    policy_id, is_shadowed, action_types = command.policy_id, command.shadow, deployed.action_types
    if state.semantics.limits_all_shadows:
        # A shadow also watches the actions of the active version of its rule set.
        shadow, active = state.shadows.get(policy_id), state.active_rule_sets.get(policy_id)
        if not command.shadow:
            is_shadowed = shadow is not None and shadow.version != command.version
        elif active is not None:
            action_types = tuple(sorted({*action_types, *active.rule_set.actions}))
    for action_type in action_types:
        policy_ids = {action.policy_id for action in state.active_actions.get(action_type, ())} | {policy_id}
        shadow_ids = {watcher.policy_id for watcher in state.shadows_by_action.get(action_type, ())}
        if len(policy_ids) > RULE_SETS_PER_ACTION_MAX:
            problem = f"{RULE_SETS_PER_ACTION_MAX} other active rule sets govern {action_type}, which is the limit"
        elif is_shadowed and policy_id not in shadow_ids and len(shadow_ids) >= SHADOWS_PER_ACTION_MAX:
            problem = f"{SHADOWS_PER_ACTION_MAX} other shadows watch {action_type}, which is the limit"
        else:
            continue
        return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"rule set {policy_id}: {problem}; deactivate one of them first")
    return None


def _disagreement_fault(state: State, deployed: DeployedRuleSet) -> Fault | None:
    """Return a fault if the rule set's settings of a shared action differ from those of the active rule sets."""
    if not any(action_type in state.active_actions for action_type in deployed.action_types):
        return None
    active = (active.rule_set for active in state.active_rule_sets.values())
    disagreements = find_disagreements(deployed.rule_set, active, compares_counters=state.semantics.compares_counters)
    return Fault(error_pb2.ERROR_REASON_RULE_SETS_DISAGREE, format_disagreements(disagreements)) if disagreements else None


def _derivation_fault(state: State, policy_id: str, deployed: DeployedRuleSet) -> Fault | None:
    """Return a fault if a derivation reads or says more than the semantics of the bus know."""
    if state.semantics.derives_from_evidence:
        return None
    for rule in deployed.rule_set.derivations:
        if rule.needs_evidence:
            problem = f"derivation {rule.id} reads facts or counters, or names a subject, which bus {state.bus}"
            problem = f"{problem} of arbiter version {state.arbiter_version} does not know"
            return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"rule set {policy_id}: {problem}; use a bus of a later arbiter version")
    return None


def _review_fault(state: State, policy_id: str, deployed: DeployedRuleSet) -> Fault | None:
    """Return a fault if the rule set says who resolves reviews, and the semantics of the bus do not know that."""
    if state.semantics.has_review_policies:
        return None
    for action in deployed.rule_set.actions.values():
        if action.review_policy is not None or action.review_policies:
            problem = f"{action.action_type} has a review policy, which bus {state.bus} of arbiter version {state.arbiter_version} ignores"
            return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"rule set {policy_id}: {problem}; use a bus of a later arbiter version")
    return None
