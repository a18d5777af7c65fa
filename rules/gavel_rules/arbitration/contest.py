"""Contests: proposals of one action that compete for one conflict key (constitution §6.2).

If an action declares a window, the first proposal that passes does not take its key at once. It opens a contest, and proposals of the same
action that pass within the window join it. When the window closes, all candidates are arbitrated again with the rule sets and the evidence
of that moment. Of those that pass, the one with the highest score is approved. The order of arrival only breaks ties: of equal scores, the
earlier proposal wins.

A PROPOSAL records the contest that it enters and what its citations resolve to. The state therefore follows from the events alone, and a
close looks nothing up in the log, even after a restart or on another server. A close is one timer that makes all its decisions in one
commit; contests are bounded for that reason.

Judging 64 candidates by costly rules takes long. An `EarlyJudgement` judges them ahead, one at a time, on the state of the close.

A bug in a close would reach no caller and would block the whole bus. A close therefore always ends: a candidate whose arbitration fails is
left to a person (NOT_JUDGED); if the close itself fails, all candidates are. A replay cannot derive such a failure from the log. The log
therefore records which candidates failed, and a replay reads them from it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final, NamedTuple

from gavel.v1 import error_pb2
from gavel.v1.decision_pb2 import Contest, Decision
from gavel.v1.diagnostic_pb2 import ShadowDifference
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.identity_pb2 import Attestation
from gavel.v1.proposal_pb2 import Proposal

from gavel_rules import reason_codes
from gavel_rules.arbitration import shadow
from gavel_rules.arbitration.evaluation import Evaluate
from gavel_rules.arbitration.first_decision import record_first
from gavel_rules.arbitration.pipeline import arbitrate_candidate, leave_to_person
from gavel_rules.arbitration.rejection_limit import count_rejection
from gavel_rules.arbitration.retry_hint import complete
from gavel_rules.arbitration.review_policy import assign_policy
from gavel_rules.arbitration.verdict import hold, outrank
from gavel_rules.commands import ContestEntry, Failure, Fault
from gavel_rules.events.citation import CitedEvent
from gavel_rules.events.kinds import FACT, OBSERVATION, OUTCOME_APPROVED, OUTCOME_NEEDS_HUMAN_REVIEW
from gavel_rules.events.timestamps import milliseconds, set_timestamp
from gavel_rules.identity.attestation import caller_identity
from gavel_rules.language.rule_set import CompiledAction
from gavel_rules.limits import (
    CONTEST_BYTES_MAX,
    CONTEST_BYTES_OF_PRODUCER_MAX,
    CONTEST_CANDIDATES_MAX,
    CONTEST_CANDIDATES_OF_PRODUCER_MAX,
    CONTEST_CITATIONS_BYTES_MAX,
    MESSAGE_BYTES_MAX,
)
from gavel_rules.recorder import Recorder
from gavel_rules.state.keys import action_key
from gavel_rules.state.records import ActionShadow, OpenContest
from gavel_rules.state.state import State

_NO_JUDGEMENTS: Final[Mapping[tuple[int, str], Decision]] = {}


class CandidateDecision(NamedTuple):
    """A candidate and its decision at the close of the contest, before a rejection is counted."""

    proposal: Envelope
    decision: Decision


def find_entry(state: State, envelope: Envelope, caller: Attestation | None) -> ContestEntry | Fault | None:
    """Return the entry of the candidate with the proposal's event_id: a fault if the two proposals or their callers differ, None if no
    candidate has that event_id.

    `caller` is the attestation of the proposal's caller.
    """
    waiting = state.open_proposals.get(envelope.event_id)
    if waiting is None:
        return None
    is_same_caller = caller_identity(waiting.envelope.attestation) == caller_identity(caller)
    if is_same_caller and _is_same_proposal(waiting.envelope, envelope):
        return ContestEntry(waiting.envelope)
    message = f"event_id {envelope.event_id} is taken; choose a new event_id"
    return Fault(error_pb2.ERROR_REASON_EVENT_ID_REUSED, message)


def enter(recorder: Recorder, envelope: Envelope, approval: Decision, cited_events: Mapping[int, CitedEvent]) -> ContestEntry | Fault:
    """Record a proposal that has to compete, or return a fault if it is too large to, or its contest is full.

    `approval` is the decision that the proposal would get now without a contest.
    """
    state = recorder.state
    proposal = envelope.proposal
    state.on_undo(lambda: proposal.ClearField("contest"))
    entry = proposal.contest
    entry.conflict_key = approval.conflict_key
    entry.opened_at.CopyFrom(approval.contest.opened_at)
    entry.closes_at.CopyFrom(approval.contest.closed_at)
    for reference in proposal.based_on_events:
        citation = cited_events[reference.sequence_number]
        entry.citations.add(subject=citation.subject, keys=citation.keys, evidence_ref=citation.evidence_ref)
    fault = (_size_fault(proposal) if state.semantics.limits_candidates else None) or _crowd_fault(state, envelope, recorder.now_ms)
    if fault is not None:
        proposal.ClearField("contest")
        return fault
    return ContestEntry(recorder.record(envelope, "proposal"))


class EarlyJudgement:
    """Judges the candidates of a contest that is due, ahead of its close, one with each `step`.

    `judgements` hold until the state changes. A key is an index and the event_id of the proposal. Index 0 is the decision; from 1 on the
    index counts the shadows. A candidate whose arbitration fails is left out: the close arbitrates it again.
    """

    def __init__(self, state: State, contest: OpenContest, now_ms: int, evaluate: Evaluate) -> None:
        self.judgements: dict[tuple[int, str], Decision] = {}
        self._state = state
        self._now_ms = now_ms
        self._evaluate = evaluate
        shadows = state.shadows_by_action.get(contest.action_type, ())
        all_actions = [state.active_actions.get(contest.action_type, ()), *[each.actions for each in shadows]]
        proposals = candidates(state, contest)
        self._waiting = [
            (index, all_actions[index], proposal)
            for index in range(len(all_actions))
            if not index or not shadows[index - 1].disagrees
            for proposal in proposals
        ]

    def step(self) -> bool:
        """Judge the next candidate. Return False if there is none."""
        if not self._waiting:
            return False
        index, actions, proposal = self._waiting.pop()
        try:
            decision = arbitrate_candidate(self._state, proposal, _recorded_citations(proposal), self._now_ms, self._evaluate, actions)
        except Exception:  # noqa: BLE001  # the close meets the bug again, and reports it
            return True
        self.judgements[index, proposal.event_id] = decision
        return True


def close(
    recorder: Recorder,
    contest: OpenContest,
    evaluate: Evaluate,
    unjudged: Container[str] = (),
    judgements: Mapping[tuple[int, str], Decision] = _NO_JUDGEMENTS,
) -> None:
    """Decide every candidate of a contest that is due, the winner first.

    `unjudged` are the event_ids of candidates whose arbitration failed, as a replay knows from the log. `judgements` are those of an
    EarlyJudgement.
    """
    state = recorder.state
    mark, count = state.mark(), len(recorder.events)
    try:
        _close(recorder, contest, evaluate, unjudged, judgements)
    except Exception as error:  # noqa: BLE001  # a bug would recur with every command, and the bus would never decide again
        state.undo(mark)
        del recorder.events[count:]
        recorder.failures.extend(Failure(proposal_id, error) for proposal_id in contest.candidates)
        _close(recorder, contest, evaluate, contest.candidates, _NO_JUDGEMENTS)


def candidates(state: State, contest: OpenContest) -> list[Envelope]:
    """Return the proposals that compete, in the order of the log."""
    return [state.open_proposals[proposal_id].envelope for proposal_id in contest.candidates]


def rank(
    state: State,
    proposals: Sequence[Envelope],
    now_ms: int,
    evaluate: Evaluate,
    actions: tuple[CompiledAction, ...],
    unjudged: Container[str],
    failures: list[Failure],
    judgements: Mapping[tuple[int, str], Decision] = _NO_JUDGEMENTS,
    index: int = 0,
) -> list[CandidateDecision]:
    """Return the decision on each candidate if the contest closes now.

    Approved candidates come first, by score; the others follow in the order of `proposals`. `judgements` has earlier decisions, by
    `index` and event_id. Candidates whose event_id is in `unjudged` are left to a person. So are candidates whose arbitration fails; each
    failure is appended to `failures`.
    """
    decisions: list[CandidateDecision] = []
    for proposal in proposals:
        decision = judgements.get((index, proposal.event_id))
        if decision is None:
            decision = _arbitrate(state, proposal, now_ms, evaluate, actions, unjudged, failures)
        decisions.append(CandidateDecision(proposal, decision))
    passing = [item for item in decisions if item.decision.outcome == OUTCOME_APPROVED]
    passing.sort(key=lambda item: (-_score(item), item.proposal.sequence_number))
    ranking = passing + [item for item in decisions if item.decision.outcome != OUTCOME_APPROVED]
    contest = Contest(opened_at=proposals[0].proposal.contest.opened_at)
    set_timestamp(contest.closed_at, now_ms)
    for item in ranking:
        contest.candidates.add(
            proposal_id=item.proposal.event_id,
            sequence_number=item.proposal.sequence_number,
            score=_score(item),
            reason_code="" if item.decision.outcome == OUTCOME_APPROVED else item.decision.reason_code,
        )
    for item in ranking:
        item.decision.contest.CopyFrom(contest)
    for item in passing[1:]:
        outrank(item.decision, passing[0].proposal.event_id, milliseconds(passing[0].decision.valid_until) - now_ms)
    return ranking


def settle(decision: Decision, state: State, proposal: Envelope, now_ms: int, actions: tuple[CompiledAction, ...]) -> None:
    """Adjust a candidate's decision to those that the same close has given its producer in the trace, and count its rejection."""
    producer = proposal.producer
    if decision.outcome != OUTCOME_APPROVED and state.open_review(proposal.trace_id, producer.type, producer.id):
        hold(decision)
    count_rejection(decision, state, proposal.trace_id, producer.type, producer.id, now_ms, actions)
    complete(decision, state)
    if decision.outcome == OUTCOME_NEEDS_HUMAN_REVIEW:
        assign_policy(decision, state, actions)


def _size_fault(proposal: Proposal) -> Fault | None:
    """Return a fault if a proposal is too large for any contest: it would be even if it opened one."""
    citations_bytes = sum([citation.ByteSize() for citation in proposal.contest.citations])
    size_bytes = proposal.ByteSize()
    if citations_bytes > CONTEST_CITATIONS_BYTES_MAX:
        field = "envelope.proposal.based_on_events"
        problem = f"names events whose subjects and keys take {citations_bytes} bytes; a proposal that competes may cite"
        problem = f"{problem} {CONTEST_CITATIONS_BYTES_MAX} bytes: cite fewer events, or events with fewer keys"
    elif size_bytes > MESSAGE_BYTES_MAX:
        field = "envelope.proposal"
        problem = f"takes {size_bytes} bytes together with the subjects and keys of the events that it cites"
        problem = f"{problem}; the limit is {MESSAGE_BYTES_MAX}: shorten the proposal, or cite fewer events"
    else:
        return None
    return Fault(error_pb2.ERROR_REASON_INVALID_REQUEST, f"{field} {problem}", ((field, problem),))


def _crowd_fault(state: State, envelope: Envelope, now_ms: int) -> Fault | None:
    """Return a fault if the contest of a proposal is open and has no room for it."""
    entry = envelope.proposal.contest
    contest = state.contests.get(action_key(envelope.proposal.action_type, entry.conflict_key))
    problem = _crowd_problem(state, contest, envelope) if contest is not None else ""
    if not problem:
        return None
    wait_ms = milliseconds(entry.closes_at) - now_ms
    message = f"{problem}. Propose again when the contest has closed, in {wait_ms} ms"
    return Fault(error_pb2.ERROR_REASON_QUEUE_FULL, message, retry_after_ms=wait_ms)


def _crowd_problem(state: State, contest: OpenContest, envelope: Envelope) -> str:
    """Return why a contest has no room for one more proposal, or ""."""
    competing = len(contest.candidates)
    size_bytes = envelope.proposal.ByteSize()
    if competing >= CONTEST_CANDIDATES_MAX or contest.size_bytes + size_bytes > CONTEST_BYTES_MAX:
        return (
            f"{competing} proposals already compete for {contest.conflict_key}; "
            f"a contest has room for {CONTEST_CANDIDATES_MAX} proposals and {CONTEST_BYTES_MAX} bytes"
        )
    is_large = state.semantics.limits_candidates and contest.size_bytes + size_bytes > CONTEST_BYTES_OF_PRODUCER_MAX
    if competing < CONTEST_CANDIDATES_OF_PRODUCER_MAX and not is_large:
        return ""  # even if all candidates are of this producer
    producer_id = envelope.producer.id
    own = [candidate.proposal for candidate in candidates(state, contest) if candidate.producer.id == producer_id]
    if len(own) >= CONTEST_CANDIDATES_OF_PRODUCER_MAX:
        share = f"{CONTEST_CANDIDATES_OF_PRODUCER_MAX} of the {CONTEST_CANDIDATES_MAX} places"
    elif is_large and sum([proposal.ByteSize() for proposal in own]) + size_bytes > CONTEST_BYTES_OF_PRODUCER_MAX:
        share = f"{CONTEST_BYTES_OF_PRODUCER_MAX} of the {CONTEST_BYTES_MAX} bytes"
    else:
        return ""
    return (
        f"{len(own)} proposals of producer {producer_id} already compete for {contest.conflict_key}; "
        f"a producer may have {share} of a contest"
    )


def _close(
    recorder: Recorder,
    contest: OpenContest,
    evaluate: Evaluate,
    unjudged: Container[str],
    judgements: Mapping[tuple[int, str], Decision],
) -> None:
    state = recorder.state
    now_ms = recorder.now_ms
    proposals = candidates(state, contest)
    actions = state.active_actions.get(contest.action_type, ())
    ranking = rank(state, proposals, now_ms, evaluate, actions, unjudged, recorder.failures, judgements)
    # If nothing can be judged, shadows are not evaluated either.
    is_any_judged = any(item.decision.reason_code != reason_codes.NOT_JUDGED for item in ranking)
    shadows = state.shadows_by_action.get(contest.action_type, ()) if state.shadows_by_action and is_any_judged else ()
    alternatives = [
        (each, _decide_by_shadow(state, proposals, now_ms, evaluate, each, judgements, index)) for index, each in enumerate(shadows, 1)
    ]
    for proposal, decision in ranking:
        settle(decision, state, proposal, now_ms, actions)
        differences: list[ShadowDifference] = []
        for each, decisions in alternatives:
            settle(decisions[proposal.event_id], state, proposal, now_ms, each.actions)
            differences.extend(shadow.compare(each, decision, decisions[proposal.event_id]))
        record_first(recorder, recorder.new_decision(decision), state.open_proposals[proposal.event_id], differences)


def _arbitrate(
    state: State,
    proposal: Envelope,
    now_ms: int,
    evaluate: Evaluate,
    actions: tuple[CompiledAction, ...],
    unjudged: Container[str],
    failures: list[Failure],
) -> Decision:
    if proposal.event_id not in unjudged:
        try:
            return arbitrate_candidate(state, proposal, _recorded_citations(proposal), now_ms, evaluate, actions)
        except Exception as error:  # noqa: BLE001  # a bug costs this candidate, not the others
            failures.append(Failure(proposal.event_id, error))
    return leave_to_person(state, proposal, now_ms, actions)


def _decide_by_shadow(
    state: State,
    proposals: Sequence[Envelope],
    now_ms: int,
    evaluate: Evaluate,
    action_shadow: ActionShadow,
    judgements: Mapping[tuple[int, str], Decision],
    index: int,
) -> dict[str, Decision]:
    """Return the decision on each candidate under a shadow, by the proposal's event_id."""
    if action_shadow.disagrees:
        return {proposal.event_id: shadow.failed_decision(state) for proposal in proposals}
    try:
        ranking = rank(state, proposals, now_ms, evaluate, action_shadow.actions, (), [], judgements, index)
        return {
            item.proposal.event_id: shadow.failed_decision(state) if item.decision.reason_code == reason_codes.NOT_JUDGED else item.decision
            for item in ranking
        }
    except Exception:  # noqa: BLE001  # an engine's bug under a shadow must not cost the decisions
        return {proposal.event_id: shadow.failed_decision(state) for proposal in proposals}


def _recorded_citations(proposal: Envelope) -> dict[int, CitedEvent]:
    """Return what the proposal's citations resolved to when it entered the contest, by sequence number."""
    references = zip(proposal.proposal.based_on_events, proposal.proposal.contest.citations, strict=True)
    return {
        reference.sequence_number: CitedEvent(
            reference.sequence_number,
            reference.event_id,
            OBSERVATION if citation.evidence_ref else FACT,
            citation.subject,
            tuple(citation.keys),
            citation.evidence_ref,
        )
        for reference, citation in references
    }


def _is_same_proposal(open_proposal: Envelope, envelope: Envelope) -> bool:
    """Return whether a proposal repeats one that waits: same producer, subject, cause, and payload as sent."""
    sent = Proposal()
    sent.CopyFrom(open_proposal.proposal)
    sent.ClearField("contest")
    return (
        open_proposal.producer == envelope.producer
        and open_proposal.subject == envelope.subject
        and open_proposal.causation_id == envelope.causation_id
        and sent == envelope.proposal
    )


def _score(item: CandidateDecision) -> float:
    contest = item.decision.contest
    return contest.candidates[0].score if contest.candidates else 0.0
