"""Contests: proposals of one action that compete for one conflict key (seeds 002 §6.2).

Where an action declares a window, the first proposal that could be approved does not take its key at once: it opens a contest,
and those that follow within the window join. When the window closes all of them are judged again, by the rule sets and the
evidence of that moment, and the highest score among those that still pass is approved. So it does not matter who came first,
only who is better; of equals the earlier one wins.

What a PROPOSAL enters stands in the PROPOSAL itself, with what its citations were found to be: the state follows from the
events alone, and whoever closes the contest, after a restart or on another server, reads nothing again. A close is one
timer: all its decisions are made in one go, which is why a contest is bounded.

A close has no caller who could be told of a bug, and everything else on the bus waits behind it. So it always comes to an end:
a candidate whose judgement fails is left to a person (NOT_JUDGED), and where the close itself fails all of them are. Which
ones those are is no consequence of the log; it stands in the log, and a replay takes it from there.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from gavel.v1 import decision_pb2, error_pb2
from gavel.v1.decision_pb2 import Contest, Decision
from gavel.v1.diagnostic_pb2 import ShadowDifference
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.proposal_pb2 import Proposal

from gavel_rules import reasons, shadow
from gavel_rules.arbitration import Judge, leave_to_person, weigh
from gavel_rules.budget import count_rejection
from gavel_rules.commands import Failure, Fault, Waiting
from gavel_rules.emission import Emission
from gavel_rules.events import FACT, OBSERVATION, milliseconds, set_timestamp
from gavel_rules.evidence import Cited
from gavel_rules.first_decisions import record_first
from gavel_rules.language.ruleset import CompiledAction
from gavel_rules.limits import CONTEST_BYTES_MAX, CONTEST_CANDIDATES_MAX, CONTEST_CANDIDATES_OF_PRODUCER_MAX
from gavel_rules.outcomes import close_trace, outrank
from gavel_rules.projection import State
from gavel_rules.records import OpenContest, Shadowing
from gavel_rules.tables import action_on


class Ranked(NamedTuple):
    """A candidate and what it comes to, rejections not counted yet."""

    proposal: Envelope
    decision: Decision


def joined(state: State, envelope: Envelope) -> Waiting | Fault | None:
    """Return the wait that a proposal joins by its event_id: it changes nothing. None: no proposal with that event_id waits."""
    waiting = state.open_proposals.get(envelope.event_id)
    if waiting is None:
        return None
    if _is_repeated(waiting.envelope, envelope):
        return Waiting(waiting.envelope)
    message = f"event_id {envelope.event_id} is that of another proposal, which waits for its contest; choose a new event_id"
    return Fault(error_pb2.ERROR_REASON_EVENT_ID_REUSED, message)


def enter(emission: Emission, envelope: Envelope, would_be: Decision, known: Mapping[int, Cited]) -> Waiting | Fault:
    """Record a proposal that has to compete, or say why there is no room for it. `would_be` is its approval as of now."""
    state = emission.state
    proposal = envelope.proposal
    state.on_undo(lambda: proposal.ClearField("contest"))
    entry = proposal.contest
    entry.conflict_key = would_be.conflict_key
    entry.opened_at.CopyFrom(would_be.contest.opened_at)
    entry.closes_at.CopyFrom(would_be.contest.closed_at)
    for reference in proposal.based_on_events:
        citation = known[reference.sequence_number]
        entry.citations.add(subject=citation.subject, keys=citation.keys, evidence_ref=citation.evidence_ref)
    contest = state.contests.get(action_on(proposal.action_type, entry.conflict_key))
    crowded = _crowded(state, contest, envelope) if contest is not None else ""
    if crowded:
        wait_ms = milliseconds(entry.closes_at) - emission.now_ms
        proposal.ClearField("contest")
        message = f"{crowded}: propose again when the contest has closed, in {wait_ms} ms"
        return Fault(error_pb2.ERROR_REASON_QUEUE_FULL, message, retry_after_ms=wait_ms)
    return Waiting(emission.record(envelope, "proposal"))


def _crowded(state: State, contest: OpenContest, envelope: Envelope) -> str:
    """Say why a contest has no room for one more proposal; "" if it has. A proposal alone always fits."""
    competing = len(contest.candidates)
    if competing >= CONTEST_CANDIDATES_MAX or contest.size_bytes + envelope.proposal.ByteSize() > CONTEST_BYTES_MAX:
        return (
            f"{competing} proposals compete for {contest.conflict_key} already; "
            f"a contest has room for {CONTEST_CANDIDATES_MAX} of together {CONTEST_BYTES_MAX} bytes"
        )
    if competing >= CONTEST_CANDIDATES_OF_PRODUCER_MAX:
        producer_id = envelope.producer.id
        own = sum([one.producer.id == producer_id for one in candidates(state, contest)])
        if own >= CONTEST_CANDIDATES_OF_PRODUCER_MAX:
            return (
                f"{own} proposals of producer {producer_id} compete for {contest.conflict_key} already; "
                f"of the {CONTEST_CANDIDATES_MAX} places of a contest a producer may have {CONTEST_CANDIDATES_OF_PRODUCER_MAX}"
            )
    return ""


def close(emission: Emission, contest: OpenContest, judge: Judge, unjudged: Container[str] = ()) -> None:
    """Decide every candidate of a contest that is due, the winner first. `unjudged`: those that a replay knows were not judged."""
    state = emission.state
    mark, before = state.mark(), len(emission.made)
    try:
        _close(emission, contest, judge, unjudged)
    except Exception as error:  # noqa: BLE001  # a bug: it would come again with every command, and nothing would be decided any more
        state.undo(mark)
        del emission.made[before:]
        emission.failures.extend(Failure(proposal_id, error) for proposal_id in contest.candidates)
        _close(emission, contest, judge, contest.candidates)


def _close(emission: Emission, contest: OpenContest, judge: Judge, unjudged: Container[str]) -> None:
    state = emission.state
    now_ms = emission.now_ms
    proposals = candidates(state, contest)
    governing = state.governing.get(contest.action_type, ())
    ranked = rank(state, proposals, now_ms, judge, governing, unjudged, emission.failures)
    # Where nothing could be judged shadows are not asked either: least is done where most is broken.
    is_any_judged = any(one.decision.reason_code != reasons.NOT_JUDGED for one in ranked)
    shadows = state.shadowing.get(contest.action_type, ()) if state.shadowing and is_any_judged else ()
    shadowed = [(one, _as_shadow(state, proposals, now_ms, judge, one)) for one in shadows]
    for proposal, decision in ranked:
        settle(decision, state, proposal, now_ms, governing)
        differences: list[ShadowDifference] = []
        for one, decisions in shadowed:
            settle(decisions[proposal.event_id], state, proposal, now_ms, one.governing)
            differences.extend(shadow.difference(one, decision, decisions[proposal.event_id]))
        record_first(emission, emission.decision_event(decision), state.open_proposals[proposal.event_id], differences)


def candidates(state: State, contest: OpenContest) -> list[Envelope]:
    """Return the proposals that compete, in the order of the log."""
    return [state.open_proposals[proposal_id].envelope for proposal_id in contest.candidates]


def rank(
    state: State,
    proposals: Sequence[Envelope],
    now_ms: int,
    judge: Judge,
    governing: tuple[CompiledAction, ...],
    unjudged: Container[str],
    failures: list[Failure],
) -> list[Ranked]:
    """Return what each candidate comes to if the contest closes now: the best first, behind those that pass the others by age.

    Those in `unjudged`, by event_id, are left to a person, and so are those whose judgement fails, which goes to `failures`.
    """
    judged = [Ranked(proposal, _weighed(state, proposal, now_ms, judge, governing, unjudged, failures)) for proposal in proposals]
    passing = [one for one in judged if one.decision.outcome == decision_pb2.OUTCOME_APPROVED]
    passing.sort(key=lambda one: (-_score(one), one.proposal.sequence_number))
    ranked = passing + [one for one in judged if one.decision.outcome != decision_pb2.OUTCOME_APPROVED]
    contest = Contest(opened_at=proposals[0].proposal.contest.opened_at)
    set_timestamp(contest.closed_at, now_ms)
    for one in ranked:
        contest.candidates.add(
            proposal_id=one.proposal.event_id,
            sequence_number=one.proposal.sequence_number,
            score=_score(one),
            reason_code="" if one.decision.outcome == decision_pb2.OUTCOME_APPROVED else one.decision.reason_code,
        )
    for one in ranked:
        one.decision.contest.CopyFrom(contest)
    for one in passing[1:]:
        outrank(one.decision, passing[0].proposal.event_id, milliseconds(passing[0].decision.valid_until) - now_ms)
    return ranked


def settle(decision: Decision, state: State, proposal: Envelope, now_ms: int, governing: tuple[CompiledAction, ...]) -> None:
    """Take into account what earlier decisions of the same close have done to the proposal's trace."""
    if decision.outcome != decision_pb2.OUTCOME_APPROVED and state.open_review(proposal.trace_id):
        close_trace(decision)
    count_rejection(decision, state, proposal.trace_id, now_ms, governing)


def _is_repeated(waiting: Envelope, envelope: Envelope) -> bool:
    """Whether a proposal is the same again as one that waits, by producer, subject, cause and payload as sent."""
    sent = Proposal()
    sent.CopyFrom(waiting.proposal)
    sent.ClearField("contest")
    return (
        waiting.producer == envelope.producer
        and waiting.subject == envelope.subject
        and waiting.causation_id == envelope.causation_id
        and sent == envelope.proposal
    )


def _weighed(
    state: State,
    proposal: Envelope,
    now_ms: int,
    judge: Judge,
    governing: tuple[CompiledAction, ...],
    unjudged: Container[str],
    failures: list[Failure],
) -> Decision:
    if proposal.event_id not in unjudged:
        try:
            return weigh(state, proposal, _known(proposal), now_ms, judge, governing)
        except Exception as error:  # noqa: BLE001  # a broken engine or a bug: it costs this candidate, not those that wait with it
            failures.append(Failure(proposal.event_id, error))
    return leave_to_person(proposal, now_ms, governing)


def _known(proposal: Envelope) -> dict[int, Cited]:
    """Return what the proposal cites, as it was found when the proposal entered."""
    cited = zip(proposal.proposal.based_on_events, proposal.proposal.contest.citations, strict=True)
    return {
        reference.sequence_number: Cited(
            reference.sequence_number,
            reference.event_id,
            OBSERVATION if citation.evidence_ref else FACT,
            citation.subject,
            tuple(citation.keys),
            citation.evidence_ref,
        )
        for reference, citation in cited
    }


def _score(one: Ranked) -> float:
    contest = one.decision.contest
    return contest.candidates[0].score if contest.candidates else 0.0


def _as_shadow(state: State, proposals: Sequence[Envelope], now_ms: int, judge: Judge, watching: Shadowing) -> dict[str, Decision]:
    """Return what each candidate would come to under a shadow, by the proposal's event_id."""
    if watching.disagrees:
        return {proposal.event_id: shadow.failed() for proposal in proposals}
    try:
        ranked = rank(state, proposals, now_ms, judge, watching.governing, (), [])
        return {
            one.proposal.event_id: shadow.failed() if one.decision.reason_code == reasons.NOT_JUDGED else one.decision for one in ranked
        }
    except Exception:  # noqa: BLE001  # a bug in an engine; it would cost the decisions that the shadow only watches
        return {proposal.event_id: shadow.failed() for proposal in proposals}
