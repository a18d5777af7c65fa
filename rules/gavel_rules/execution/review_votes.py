"""Votes in a review: who may vote, who has, and how many votes are missing.

A review's policy is in the decision that opened it. The voter is the authenticated principal of the attestation, with the groups that it
had at the time. Without authentication the voter is whom the request names: names can be counted, but nobody's groups are known, and nobody
can be told apart from the proposer. A policy with groups or separation then allows no approval. A rejection stays possible, because it lets
nothing happen.
"""

from __future__ import annotations

from typing import Final

from gavel.v1 import error_pb2, fact_pb2
from gavel.v1.fact_pb2 import ReviewResolved
from gavel.v1.identity_pb2 import Attestation

from gavel_rules.commands import Fault
from gavel_rules.identity.attestation import participants
from gavel_rules.limits import REVIEW_COMMENTS_BYTES_MAX, REVIEW_COMMENTS_MAX
from gavel_rules.state.records import Review

APPROVE: Final = fact_pb2.REVIEW_VERDICT_APPROVE
COMMENT: Final = fact_pb2.REVIEW_VERDICT_COMMENT


def vote_fault(review: Review, resolution: ReviewResolved, voter: Attestation | None) -> Fault | None:
    """Return why a vote or comment cannot be taken, or None. `voter` is the caller; None or anonymous without authentication."""
    if resolution.verdict == COMMENT:
        return _comment_fault(review, resolution.reason)
    is_approval = resolution.verdict == APPROVE
    fault = _eligibility_fault(review, is_approval, voter)
    if fault is None and is_approval and resolution.reviewer in approvers(review):
        problem = f"{resolution.reviewer} has voted to approve already; it takes {missing_votes(review)} more, by other persons"
        return _wrong_state(review, problem)
    return _delegation_fault(review, voter) if fault is None and is_approval else fault


def approvers(review: Review) -> list[str]:
    """Return who has voted to approve, in the order of the votes."""
    votes = [vote.fact.review_voted for vote in review.votes]
    return [vote.reviewer for vote in votes if vote.verdict == APPROVE]


def missing_votes(review: Review) -> int:
    """Return how many votes to approve an open review are missing.

    At least 1: if the evidence did not allow the last vote, it has to be given again.
    """
    return max(1, review.policy.quorum - len(approvers(review)))


def voting_groups(review: Review) -> list[str]:
    """Return the groups whose members may vote now; empty: everybody may."""
    policy = review.policy
    if not policy.groups or not review.is_escalated:
        return list(policy.groups)
    return sorted({*policy.groups, *policy.escalate_to})


def _eligibility_fault(review: Review, is_approval: bool, voter: Attestation | None) -> Fault | None:
    """Return why the voter may not vote, or None."""
    policy = review.policy
    voters = participants(voter)
    if voter is None or not voters:
        if is_approval and (policy.groups or policy.separation):
            problem = f"it is for {_electorate(review)}, but this server does not authenticate its callers"
            return _wrong_state(review, f"{problem}; set up authentication, or reject the review")
        return None
    groups = voting_groups(review)
    if groups and not set(groups) & set(voter.groups):
        return _lacks_right(review, f"it is for members of {' or '.join(groups)}, and {voter.principal} is in none of these groups")
    if not policy.separation:
        return None
    proposers = participants(review.proposal.attestation)
    if not proposers and is_approval:
        problem = "its proposal was recorded without authentication, so a voter cannot be distinguished from the proposer"
        return _wrong_state(review, f"{problem}; reject the review, and propose again")
    if set(proposers) & set(voters):
        return _lacks_right(review, f"{voter.principal} made the proposal or had a part in it; others have to decide")
    return None


def _delegation_fault(review: Review, voter: Attestation | None) -> Fault | None:
    """Return a fault if the voter acts for an earlier approver, or one of these acted for the voter: that would be one person twice."""
    person, *actors = participants(voter) or ("",)
    for vote in review.votes:
        if vote.fact.review_voted.verdict != APPROVE:
            continue
        earlier, *earlier_actors = participants(vote.attestation) or ("",)
        if person and person in earlier_actors:
            problem = f"{person} has voted to approve already, in the name of {earlier}"
        elif earlier and earlier in actors:
            problem = f"{earlier} has voted to approve already, and now acts for {person}"
        else:
            continue
        return _wrong_state(review, f"{problem}; it takes {missing_votes(review)} more, by other persons")
    return None


def _comment_fault(review: Review, text: str) -> Fault | None:
    """Return why a comment cannot be kept, or None. Comments are bounded, and votes need no room beside them."""
    comments = [vote.fact.review_voted.reason for vote in review.votes if vote.fact.review_voted.verdict == COMMENT]
    if len(comments) >= REVIEW_COMMENTS_MAX:
        return _wrong_state(review, f"it has {REVIEW_COMMENTS_MAX} comments, which is the limit; vote, or continue elsewhere")
    size_bytes = sum([len(comment.encode()) for comment in comments]) + len(text.encode())
    if size_bytes > REVIEW_COMMENTS_BYTES_MAX:
        problem = f"its comments would have {size_bytes} bytes; the limit is {REVIEW_COMMENTS_BYTES_MAX}"
        return _wrong_state(review, f"{problem}; shorten the comment, or continue elsewhere")
    return None


def _electorate(review: Review) -> str:
    """Return who may vote, for a message about a policy with groups or separation."""
    groups = voting_groups(review)
    voters = f"members of {' or '.join(groups)}" if groups else "persons"
    return f"{voters} other than the proposer" if review.policy.separation else voters


def _wrong_state(review: Review, problem: str) -> Fault:
    return Fault(error_pb2.ERROR_REASON_WRONG_STATE, f"review {review.decision_id} cannot take this: {problem}")


def _lacks_right(review: Review, problem: str) -> Fault:
    return Fault(error_pb2.ERROR_REASON_RIGHT_LACKING, f"review {review.decision_id} cannot take this: {problem}")
