"""Authorization: whether the caller of a command may have it carried out, and the attestation that its event gets.

The grants in force at the command's place in the log decide. A replay handles the command again with the caller that the log attests, so it
comes to the same answer, or finds the log changed. Without grants the core allows everything; the server then lets only administrators
write.

Derived facts need no grant: the core derives each of them again, and records no other. Gavel's own commands have no caller and need no
grant either.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.identity_pb2 import Attestation

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
    Fault,
    FillCounter,
    OpenCounters,
    PublishEvent,
    RecordRefusals,
    RenewExecution,
    ReportExecution,
    ResolveReview,
    RevokeDecision,
    SubmitProposal,
    UpgradeBus,
)
from gavel_rules.derivation import is_derived
from gavel_rules.events.kinds import GAVEL
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.identity.access import Access, access_of, execution_access, explain_refusal, permits
from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_rules.identity.rights import Right
from gavel_rules.recorder import Recorder
from gavel_rules.state.records import GrantsInForce
from gavel_rules.state.state import State

# Commands that name a decision by its id alone.
_ABOUT_DECISIONS: Final = (BeginExecution, RenewExecution, ReportExecution, ResolveReview, RevokeDecision)
# Attestations of recent callers; building one takes longer than copying it.
_ATTESTATIONS_MAX: Final = 4_096
# Commands of Gavel's own, which have no caller.
_OF_GAVEL: Final = (RecordRefusals, OpenCounters, FillCounter)


def authorize(recorder: Recorder, command: Command, principal: Principal, decision: Envelope | None = None) -> Fault | None:
    """Give the recorder the caller's attestation and return None; or return the fault if the grants do not allow the command.

    `decision` is the decision that the command names, if the log has it.
    """
    state = recorder.state
    in_force = state.grants_in_force
    if not state.semantics.attests or (in_force is None and principal.is_anonymous) or isinstance(command, _OF_GAVEL):
        return None
    access = access_of_command(state, command, decision)
    is_bound = in_force is not None and (in_force.binds_anonymous or not principal.is_anonymous)
    if in_force is not None and is_bound and access is not None and not permits(in_force.grants, principal, access):
        hides_matter = isinstance(command, _ABOUT_DECISIONS) and "read" not in in_force.grants.rights_of(principal, state.bus)
        explanation = explain_refusal(in_force.grants, principal, access, hides_matter=hides_matter)
        return Fault(error_pb2.ERROR_REASON_RIGHT_LACKING, explanation)
    if not principal.is_anonymous:
        fault = _person_fault(command, principal)
        if fault is not None:
            return fault
        recorder.caller = principal.name
    recorder.attestation = _attestation(principal, "" if in_force is None else in_force.deployed.digest)
    return None


def preflight_fault(state: State, proposal: ProposalView, principal: Principal) -> Fault | None:
    """Return why the caller may not try a proposal; or None. The grants restrict a dry run as they restrict the proposal itself."""
    in_force = state.grants_in_force
    access = _proposal_access("preflight", state.bus, proposal)
    if in_force is None or is_allowed(in_force, access, principal):
        return None
    return Fault(error_pb2.ERROR_REASON_RIGHT_LACKING, explain_refusal(in_force.grants, principal, access))


def access_of_command(state: State, command: Command, ended: Envelope | None = None) -> Access | None:
    """Return what a command would do, as far as grants restrict it; None if it needs no grant.

    A command about a decision that the state does not know records nothing. `ended` is that decision, if the log has it: a refusal tells
    about it only to callers that may act on it. Without it the access has neither action nor subject.
    """
    bus = state.bus
    match command:
        case SubmitProposal():
            return _proposal_access("propose", bus, command.proposal)
        case PublishEvent():
            return None if is_derived(command.envelope.fact) else access_of(command.envelope, bus)
        case BeginExecution() | RenewExecution():
            live = state.live_decision(command.decision_id)
            decision = ended if live is None else live.decision
            if command.producer.id == GAVEL:
                # A replay does not know the executor of a begin that recorded only a decision of Gavel's.
                return _decision_access("execute", bus, decision)
            return execution_access(command.producer, bus, *_matter(decision))
        case ReportExecution():
            envelope = command.envelope
            reported = state.decision_for_report(envelope.execution.decision_id, 0)  # also if it is too late to report
            return execution_access(envelope.producer, bus, *_matter(ended if reported is None else reported.decision))
        case ResolveReview():
            review = state.reviews.get(command.envelope.fact.review_resolved.decision_id)
            return _decision_access("review", bus, ended if review is None else review.decision)
        case RevokeDecision():
            revoked = state.live_decision(command.envelope.fact.revocation_requested.decision_id)
            return _decision_access("revoke", bus, ended if revoked is None else revoked.decision)
        case DeployRuleSet():
            return Access("deploy", bus, actions=tuple(sorted(command.rule_set.actions)))
        case ActivateRuleSet():
            # Those of the version that it replaces, too: they lose their rules.
            deployed = state.rule_sets.get((command.policy_id, command.version))
            replaced = (state.shadows if command.shadow else state.active_rule_sets).get(command.policy_id)
            action_types = set(() if deployed is None else deployed.action_types)
            if replaced is not None:
                action_types.update(replaced.rule_set.actions)
            return Access("activate", bus, actions=tuple(sorted(action_types)))
        case DeactivateRuleSet():
            active = (state.shadows if command.shadow else state.active_rule_sets).get(command.policy_id)
            return Access("activate", bus, actions=() if active is None else tuple(sorted(active.rule_set.actions)))
        case DeployGrants():
            return Access("grant", bus)
        case ChangeTools():
            return Access("tools", bus)
        case AcceptClock() | AcceptLoss() | ChangeCrossCheck() | UpgradeBus():
            return Access("operate", bus)
    return None


def may_review(in_force: GrantsInForce | None, bus: str, decision: Envelope, principal: Principal) -> bool:
    """Return whether the grants in force let the caller vote in the review that a decision has requested."""
    return is_allowed(in_force, _decision_access("review", bus, decision), principal)


def is_allowed(in_force: GrantsInForce | None, access: Access, principal: Principal) -> bool:
    """Return whether the grants in force let the caller do something. Without grants they restrict nobody."""
    if in_force is None or (principal.is_anonymous and not in_force.binds_anonymous):
        return True
    return permits(in_force.grants, principal, access)


def attestation_of(principal: Principal) -> Attestation:
    """Return the attestation of a caller without grants."""
    return _attestation(principal, "")


def principal_of(envelope: Envelope) -> Principal:
    """Return the caller that a recorded event attests; ANONYMOUS if it attests none."""
    if not envelope.HasField("attestation"):
        return ANONYMOUS
    attestation = envelope.attestation
    return Principal(
        attestation.principal,
        attestation.method,  # type: ignore[arg-type]  # another method is no more than a name
        attestation.issuer,
        tuple(attestation.groups[:]),  # docs/performance.md#lists
        tuple(attestation.actors[:]),
        attestation.credential_id,
    )


def _proposal_access(right: Right, bus: str, proposal: ProposalView) -> Access:
    return Access(right, bus, proposal.producer_type, proposal.producer_id, (proposal.action_type,), proposal.subject)


def _decision_access(right: Right, bus: str, decision: Envelope | None) -> Access:
    action_type, subject = _matter(decision)
    return Access(right, bus, actions=(action_type,) if action_type else (), subject=subject)


def _matter(decision: Envelope | None) -> tuple[str, str]:
    """Return the action and subject of a decision."""
    return ("", "") if decision is None else (decision.decision.action_type, decision.subject)


def _person_fault(command: Command, principal: Principal) -> Fault | None:
    """Return a fault if a command of a person names another one than its authenticated caller."""
    match command:
        case ResolveReview():
            field, person = "reviewer", command.envelope.fact.review_resolved.reviewer
        case RevokeDecision():
            field, person = "revoked_by", command.envelope.fact.revocation_requested.revoked_by
        case AcceptClock():
            field, person = "accepted_by", command.accepted_by
        case AcceptLoss():
            field, person = "accepted_by", command.accepted.accepted_by
        case UpgradeBus():
            field, person = "upgraded_by", command.upgraded_by
        case _:
            return None
    if person == principal.name:
        return None
    return Fault(
        error_pb2.ERROR_REASON_FIELD_RESERVED,
        f"{field} is {person!r}, but the authenticated caller is {principal.name!r}; leave {field} empty",
    )


@lru_cache(_ATTESTATIONS_MAX)
def _attestation(principal: Principal, grants_digest: str) -> Attestation:
    return Attestation(
        principal=principal.name,
        method=principal.method,
        issuer=principal.issuer,
        actors=principal.actors,
        credential_id=principal.credential_id,
        grants_digest=grants_digest,
        groups=sorted(set(principal.groups)),
    )
