"""Payouts of the simulated world: a clerk proposes them, people with groups vote on them, and grants that change say who may do so.

The other actors are not authenticated, so the grants do not bind them. Grants of odd versions permit everything below; those of even
versions forbid the clerk to propose, and all but the leads to review.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from typing import Final

from gavel.v1 import error_pb2
from gavel.v1.arbitration_service_pb2 import ResolveReviewRequest
from gavel.v1.common_pb2 import Producer
from gavel.v1.decision_pb2 import OUTCOME_APPROVED, OUTCOME_NEEDS_HUMAN_REVIEW
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE, REVIEW_VERDICT_COMMENT, REVIEW_VERDICT_REJECT
from gavel_rules.commands import ActivateRuleSet, DeployGrants, DeployRuleSet, ResolveReview, SubmitProposal
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.identity.grants import compile_grants
from gavel_rules.identity.principal import Principal
from gavel_server.bus.request import CommittedAnswer
from gavel_server.errors import ServiceError
from gavel_server.intake.human_commands import resolution

from tests.simulation.world import RETRIABLE, World
from tests.support.driver import AGENT, compile_cached, document, proposal_envelope
from tests.support.histories.plays import FACTS

ACTION: Final = "payout.create"
CLERK: Final = Principal("clerk", "token", groups=("clerks", "risk"))
ANN: Final = Principal("ann", "token", groups=("risk",))
BOB: Final = Principal("bob", "jwt", issuer="https://idp", groups=("risk",))
LEA: Final = Principal("lea", "token", groups=("leads",))
VOTERS: Final = (ANN, ANN, BOB, BOB, LEA, CLERK)
QUORUM: Final = 2
RULES: Final = document(
    FACTS,
    [{"id": "check", "when": "facts.status != 'cancelled'", "effect": "review", "reason_code": "CHECK"}],
    rule_set="payouts",
    action_type=ACTION,
    review={"quorum": QUORUM, "groups": ["risk"], "separation": True, "escalate_after_ms": 4_000, "escalate_to": ["leads"]},
)
# Of a vote that comes too late, twice, or from somebody who may not vote.
_REFUSALS: Final = frozenset(
    {error_pb2.ERROR_REASON_RIGHT_LACKING, error_pb2.ERROR_REASON_WRONG_STATE, error_pb2.ERROR_REASON_DECISION_NOT_FOUND}
)


def _grants(version: int) -> str:
    is_generous = version % 2 == 1
    return json.dumps(
        {
            "gavel": "v1",
            "name": "payouts",
            "version": version,
            "grants": [
                {"to": ["clerk"], "may": ["propose" if is_generous else "read"]},
                {"to": ["group:leads", *(["group:risk"] if is_generous else [])], "may": ["review"]},
            ],
        }
    )


async def administrator(world: World, randomness: random.Random, versions: int) -> None:
    """Put the rules in force, and one version of the grants after the other."""
    await world.send(DeployRuleSet(world.new_id(), compile_cached(RULES), RULES), randomness)
    await world.send(ActivateRuleSet(world.new_id(), "payouts", 1, None), randomness)
    for version in range(1, versions + 1):
        text = _grants(version)
        await world.send(DeployGrants(world.new_id(), compile_grants(text), text, "the next"), randomness)
        await asyncio.sleep(randomness.uniform(0, 8.0 if version % 2 else 3.0))


async def clerk(world: World, randomness: random.Random, rounds: int) -> None:
    """Propose payouts on the facts of an order."""
    producer = Producer(type=AGENT.type, id="clerk")
    for number in range(rounds):
        await asyncio.sleep(randomness.uniform(0, 1.5))
        events = await world.events()
        facts = [event for event in events if event.fact.key == "order.status" and event.producer.id in FACTS["status"]["sources"]]
        if not facts:
            continue
        proposal = proposal_envelope(
            [facts[-1]], subject=facts[-1].subject, trace_id=f"payout-{number}", action_type=ACTION, producer=producer
        )
        await _send(world, SubmitProposal(ProposalView(world.admitted(proposal))), randomness, CLERK)


async def voters(world: World, randomness: random.Random, rounds: int) -> None:
    """Vote on open reviews of payouts, also as somebody who may not, twice, or too late."""
    for _ in range(rounds):
        await asyncio.sleep(randomness.uniform(0, 0.8))
        events = await world.events()
        ended = {event.decision.previous_decision_id for event in events if event.HasField("decision")}
        opened = [event for event in events if _is_review(event) and (event.event_id not in ended or randomness.random() < 0.02)]
        if not opened:
            continue
        voter = randomness.choice(VOTERS)
        request = ResolveReviewRequest(
            decision_id=randomness.choice(opened[-2:]).event_id,
            verdict=randomness.choice((*[REVIEW_VERDICT_APPROVE] * 8, REVIEW_VERDICT_COMMENT, REVIEW_VERDICT_REJECT)),
            reason="seen",
            event_id=world.new_id(),
        )
        await _send(world, resolution(request, voter), randomness, voter)


async def _send(world: World, command: SubmitProposal | ResolveReview, randomness: random.Random, principal: Principal) -> None:
    """Send a command of a principal; record a failure if it is refused for another reason than those of these actors."""
    result = await world.send(command, randomness, principal=principal)
    if isinstance(result, ServiceError) and result.reason not in _REFUSALS | RETRIABLE:
        world.failures.append(f"{type(command).__name__} of {principal.name} was refused: {result.message}")
    if isinstance(result, CommittedAnswer) and result.record is not None:
        attested = Envelope.FromString(result.record.envelope)
        if not attested.HasField("decision") and attested.attestation.principal != principal.name:
            world.failures.append(f"event {attested.sequence_number} of {principal.name} attests {attested.attestation.principal!r}")


def approvals_have_their_votes(events: Sequence[Envelope]) -> Iterator[str]:
    """An approved payout has the votes of QUORUM different people who were eligible at the time, and nobody's rejection."""
    proposers = {event.event_id: event.attestation.principal for event in events if event.HasField("proposal")}
    reviews = {event.event_id: event for event in events if _is_review(event)}
    escalated: set[str] = set()
    votes: dict[str, list[str]] = {}
    rejected: set[str] = set()
    for event in events:
        escalated.add(event.agent_diagnostic.review_escalated.decision_id)
        vote = event.fact.review_voted if event.fact.HasField("review_voted") else event.fact.review_resolved
        review = reviews.get(vote.decision_id)
        if review is not None and vote.verdict != REVIEW_VERDICT_COMMENT:
            electorate = {"risk", "leads"} if vote.decision_id in escalated else {"risk"}
            is_member = bool(electorate & {*event.attestation.groups}) and vote.reviewer != proposers[review.decision.proposal_id]
            # Nobody knows who a caller without credentials is; its rejection lets nothing happen.
            is_harmless = event.attestation.method in ("", "anonymous") and vote.verdict == REVIEW_VERDICT_REJECT
            if not is_member and not is_harmless:
                yield f"event {event.sequence_number} is a vote of {vote.reviewer}, who may not vote"
            if vote.verdict == REVIEW_VERDICT_REJECT:
                rejected.add(vote.decision_id)
            else:
                votes.setdefault(vote.decision_id, []).append(vote.reviewer)
        review_id = event.decision.previous_decision_id
        if event.decision.outcome == OUTCOME_APPROVED and review_id in reviews:
            people = {*votes.get(review_id, [])}
            if len(people) < QUORUM or review_id in rejected:
                yield f"decision {event.sequence_number} approves a payout with the votes of {sorted(people)}"
        elif event.decision.outcome == OUTCOME_APPROVED and event.decision.action_type == ACTION:
            yield f"decision {event.sequence_number} approves a payout without a review"


def events_were_granted(events: Sequence[Envelope]) -> Iterator[str]:
    """Each event of an authenticated caller attests the grants in force, and these permit it."""
    version, digest = 0, ""
    for event in events:
        attestation = event.attestation
        if attestation.principal and attestation.method != "anonymous":
            if attestation.grants_digest != digest:
                yield f"event {event.sequence_number} attests other grants than version {version}"
            is_permitted = version % 2 == 1 or version == 0 or "leads" in attestation.groups
            if not is_permitted:
                yield f"event {event.sequence_number} of {attestation.principal} was not permitted by version {version}"
        if event.fact.HasField("grants_deployed"):
            version, digest = event.fact.grants_deployed.version, event.fact.grants_deployed.digest


def _is_review(event: Envelope) -> bool:
    return event.decision.outcome == OUTCOME_NEEDS_HUMAN_REVIEW and event.decision.action_type == ACTION
