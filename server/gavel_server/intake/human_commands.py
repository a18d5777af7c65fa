"""Commands of people: verdicts and comments on reviews, revocations of approvals, and acceptances of a bus's time or losses.

Each becomes a FACT by `system` (human_input: who, what, why). The person is the
authenticated caller; without authentication the request names the person. Only the form of the request is checked here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gavel.v1 import fact_pb2
from gavel.v1.administration_service_pb2 import UpgradeBusRequest
from gavel.v1.arbitration_service_pb2 import ResolveReviewRequest, RevokeDecisionRequest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import AcceptClockRequest, AcceptLossRequest
from gavel.v1.fact_pb2 import DataLossAccepted, Fact, ReviewResolved, RevocationRequested
from gavel_rules.commands import AcceptClock, AcceptLoss, ResolveReview, RevokeDecision, UpgradeBus
from gavel_rules.events.ids import is_uuid, uuid_problem
from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_rules.limits import PERSON_LENGTH_MAX
from gavel_rules.values import text_problem

from gavel_server.errors import invalid
from gavel_server.intake.event_ids import new_event_id
from gavel_server.log import Head

_VERDICTS: Final = frozenset({fact_pb2.REVIEW_VERDICT_APPROVE, fact_pb2.REVIEW_VERDICT_REJECT, fact_pb2.REVIEW_VERDICT_COMMENT})


def resolution(request: ResolveReviewRequest, principal: Principal = ANONYMOUS) -> ResolveReview:
    """Return the command for a verdict on a review. An authenticated caller is the reviewer. Raises ServiceError with every violation."""
    reviewer = request.reviewer or _name_of(principal)
    violations = list(_violations(request.decision_id, ("reviewer", reviewer), request.reason, request.event_id, principal))
    if request.verdict not in _VERDICTS:
        violations.append(("verdict", "is not APPROVE, REJECT or COMMENT"))
    elif request.verdict == fact_pb2.REVIEW_VERDICT_COMMENT and not request.reason.strip():
        violations.append(("reason", "is required: the text of the comment"))
    if violations:
        raise invalid(violations)
    resolved = ReviewResolved(decision_id=request.decision_id, verdict=request.verdict, reviewer=reviewer, reason=request.reason)
    return ResolveReview(Envelope(event_id=request.event_id or new_event_id(), fact=Fact(review_resolved=resolved)))


def revocation(request: RevokeDecisionRequest, principal: Principal = ANONYMOUS) -> RevokeDecision:
    """Return the command for a revocation. An authenticated caller is who revokes. Raises ServiceError with every violation."""
    revoked_by = request.revoked_by or _name_of(principal)
    violations = list(_violations(request.decision_id, ("revoked_by", revoked_by), request.reason, request.event_id, principal))
    if violations:
        raise invalid(violations)
    requested = RevocationRequested(decision_id=request.decision_id, revoked_by=revoked_by, reason=request.reason)
    return RevokeDecision(Envelope(event_id=request.event_id or new_event_id(), fact=Fact(revocation_requested=requested)))


def clock_acceptance(request: AcceptClockRequest, clock_ms: int, principal: Principal = ANONYMOUS) -> AcceptClock:
    """Return the command to accept the time of a bus at the server's clock. Raises ServiceError with every violation."""
    accepted_by = request.accepted_by or _name_of(principal)
    violations = list(_person_violations(("accepted_by", accepted_by), request.reason, principal))
    if violations:
        raise invalid(violations)
    return AcceptClock(new_event_id(), clock_ms, accepted_by, request.reason)


def loss_acceptance(request: AcceptLossRequest, lost_head: Head, head: Head, principal: Principal = ANONYMOUS) -> AcceptLoss:
    """Return the command to accept the loss of `lost_head` by a log that ends at `head`. Raises ServiceError with every violation."""
    accepted_by = request.accepted_by or _name_of(principal)
    violations = list(_person_violations(("accepted_by", accepted_by), request.reason, principal))
    if violations:
        raise invalid(violations)
    accepted = DataLossAccepted(
        acknowledged_sequence_number=lost_head.sequence_number,
        acknowledged_chain_hash=lost_head.chain_hash,
        accepted_by=accepted_by,
        reason=request.reason,
        head_sequence_number=request.head_sequence_number,
        head_chain_hash=head.chain_hash,
    )
    return AcceptLoss(new_event_id(), accepted)


def bus_upgrade(request: UpgradeBusRequest, principal: Principal = ANONYMOUS) -> UpgradeBus:
    """Return the command to change the arbiter version of a bus. Raises ServiceError with every violation."""
    upgraded_by = request.upgraded_by or _name_of(principal)
    violations = list(_person_violations(("upgraded_by", upgraded_by), request.reason, principal))
    violations += [
        (field, "is not a version, which is 1 or more")
        for field in ("from_arbiter_version", "arbiter_version")
        if getattr(request, field) < 1
    ]
    if violations:
        raise invalid(violations)
    return UpgradeBus(new_event_id(), request.from_arbiter_version, request.arbiter_version, upgraded_by, request.reason)


def reason_violations(reason: str) -> list[tuple[str, str]]:
    """Return the violations of an operator's reason, which may be empty."""
    problem = text_problem(reason)
    return [("reason", problem)] if problem else []


def _name_of(principal: Principal) -> str:
    return "" if principal.is_anonymous else principal.name


def _violations(decision_id: str, person: tuple[str, str], reason: str, event_id: str, principal: Principal) -> Iterator[tuple[str, str]]:
    if not is_uuid(decision_id):
        yield "decision_id", "is not a UUID in canonical form"
    yield from _person_violations(person, reason, principal)
    problem = uuid_problem(event_id) if event_id else ""
    if problem:
        yield "event_id", problem


def _person_violations(person: tuple[str, str], reason: str, principal: Principal) -> Iterator[tuple[str, str]]:
    """Yield the violations of a person's name and reason. The name of an authenticated caller may be longer than one that is sent."""
    field, name = person
    if (name != _name_of(principal) and not 1 <= len(name) <= PERSON_LENGTH_MAX) or not name.strip():
        yield field, f"is required: the person's name, 1 to {PERSON_LENGTH_MAX} characters"
    for text_field, text in (person, ("reason", reason)):
        problem = text_problem(text)
        if problem:
            yield text_field, problem
