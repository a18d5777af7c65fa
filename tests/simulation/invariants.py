"""What must be true of every log, judged by the log alone and by other code than that which wrote it.

Each check takes the log's events in order and returns what it found wrong. They know the rules of the simulated world
(`plays.VERSIONS`): which facts an approval rests on, from whom, and how old they may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gavel.v1 import decision_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.values import value_to_python

from tests.unit.core.driver import ABORTED, PARTIAL, STARTED
from tests.unit.core.plays import FACTS

APPROVED: Final = decision_pb2.OUTCOME_APPROVED
REVIEW: Final = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
OUTCOME_OF: Final = {"reject": decision_pb2.OUTCOME_REJECTED, "review": REVIEW, "approve": APPROVED}
STATUS: Final = FACTS["status"]


def one_decision_per_proposal(events: Sequence[Envelope]) -> Iterator[str]:
    """Every proposal is followed at once by its first decision, or by its contest's close, and has no other first decision."""
    decided: dict[str, int] = {}
    for event in events:
        if event.HasField("decision") and not event.decision.previous_decision_id:
            decided[event.decision.proposal_id] = decided.get(event.decision.proposal_id, 0) + 1
    for event in events:
        if event.proposal.HasField("contest"):
            open_still = events[-1].recorded_at.ToMilliseconds() < event.proposal.contest.closes_at.ToMilliseconds()
            if decided.pop(event.event_id, 0) != (0 if open_still else 1):
                yield f"proposal {event.sequence_number}, which competes, has not exactly one first decision when its contest has closed"
        elif event.HasField("proposal"):
            after = events[event.sequence_number] if event.sequence_number < len(events) else Envelope()
            if decided.pop(event.event_id, 0) != 1 or after.decision.proposal_id != event.event_id:
                yield f"proposal {event.sequence_number} has not exactly one first decision right after it"
    if decided:
        yield f"decisions on proposals that are not in the log: {sorted(decided)}"


def every_id_once(events: Sequence[Envelope]) -> Iterator[str]:
    """No event_id stands in the log twice, however often it was sent."""
    seen: set[str] = set()
    for event in events:
        if event.event_id in seen:
            yield f"event {event.sequence_number} repeats {event.event_id}"
        seen.add(event.event_id)


def one_live_approval_per_key(events: Sequence[Envelope]) -> Iterator[str]:
    """A conflict key has one holder at a time."""
    _, problems = holders(events)
    yield from problems


@dataclass
class _Held:
    """An approved decision that has not come to its end, as far as its conflict key goes."""

    key: str
    compensates: str
    awaited: set[str] = field(default_factory=set)  # reports without their fact
    final: bool = False  # the last report is in
    review: str = ""
    ended: bool = False  # a person has ended it: its key is free, its facts may still come


def holders(events: Sequence[Envelope]) -> tuple[dict[str, str], list[str]]:
    """Who holds each conflict key in the end, and where two held one at once.

    A key is held from approval until expiry, until a person ends it, or until the facts of all reports are in and no person is
    needed. A compensation takes it over, and keeps it until what it makes good is over as well.
    """
    holder: dict[str, str] = {}
    live: dict[str, _Held] = {}
    gone: dict[str, _Held] = {}  # a late report of an attempt takes them up again
    of_review: dict[str, str] = {}  # by review of an execution
    problems = []
    for event in events:
        decision = event.decision
        before = decision.previous_decision_id if event.HasField("decision") else ""
        about = of_review.get(before, before)
        if event.HasField("decision") and decision.outcome == APPROVED:
            expected = decision.compensates_decision_id or (about if about in live else "")
            if holder.get(decision.conflict_key, expected if about in live else "") != expected:
                problems.append(f"decision {event.sequence_number} approves while {holder.get(decision.conflict_key)} holds the key")
            if before in of_review:  # one more attempt
                live[about].final, live[about].review = False, ""
            else:
                about = event.event_id
                live[about] = _Held(decision.conflict_key, decision.compensates_decision_id)
            holder[decision.conflict_key] = about
        elif (about in live or about in gone) and decision.outcome == REVIEW:
            live.setdefault(about, gone.get(about, _Held("", "")))
            of_review.setdefault(event.event_id if before not in of_review else before, about)
            live[about].review = live[about].review or event.event_id
            live[about].ended = False
            holder.setdefault(live[about].key, about)
        elif about in live and event.HasField("decision"):
            live[about].review, live[about].ended = "", True  # by a person, or expired
            if holder.get(live[about].key) == about:
                del holder[live[about].key]
        elif event.HasField("execution") and event.execution.status != STARTED:
            held = live[event.execution.decision_id]
            held.awaited.add(event.event_id)
            held.final = not event.execution.will_retry
        elif event.fact.decision_id:
            live[event.fact.decision_id].awaited.discard(event.causation_id)
        _forget_what_is_over(live, gone, holder)
    return holder, problems


def _forget_what_is_over(live: dict[str, _Held], gone: dict[str, _Held], holder: dict[str, str]) -> None:
    """End what is over: what is made good before what makes it good, which waits for it."""
    for decision_id, held in sorted(live.items(), key=lambda item: bool(item[1].compensates)):
        done = held.ended or (held.final and not held.review and held.compensates not in live)
        if done and not held.awaited:
            gone[decision_id] = live.pop(decision_id)
            if holder.get(held.key) == decision_id:
                del holder[held.key]


def every_report_has_its_fact(events: Sequence[Envelope]) -> Iterator[str]:
    """Every report of an execution, ABORTED before any attempt included, has exactly one derived fact (seeds 002 §7.2)."""
    facts: dict[str, int] = {}
    for event in events:
        if event.fact.decision_id:
            facts[event.causation_id] = facts.get(event.causation_id, 0) + 1
    for event in events:
        if event.HasField("execution") and event.execution.status != STARTED and facts.pop(event.event_id, 0) != 1:
            yield f"execution {event.sequence_number} has not exactly one derived fact"
    if facts:
        yield f"derived facts without an execution: {sorted(facts)}"


def approvals_rest_on_what_held(events: Sequence[Envelope]) -> Iterator[str]:
    """The status that an approval pins is the latest accepted, of the right type, and was fresh when it was decided."""
    latest: dict[tuple[str, str], Envelope] = {}  # by subject and source
    proposals = {event.event_id: event for event in events if event.HasField("proposal")}
    approvals, of_review = _approvals(events), _reviews_of_executions(events)
    for event in events:
        if event.fact.key == STATUS["key"] and event.producer.id in STATUS["sources"]:
            known = latest.get((event.subject, event.producer.id))
            if known is None or _claimed(event) >= _claimed(known):
                latest[event.subject, event.producer.id] = event
        if not event.HasField("decision") or event.decision.outcome != APPROVED or "refunds" not in event.decision.active_policy_ids:
            continue
        approval = approvals[of_review.get(event.decision.previous_decision_id, event.event_id)]
        if not approval.decision.compensates_decision_id:  # which rests on none, nor does a grant of one more attempt of it
            yield from _problems_of_approval(event, proposals[event.decision.proposal_id], latest)


def _problems_of_approval(event: Envelope, proposal: Envelope, latest: dict[tuple[str, str], Envelope]) -> Iterator[str]:
    now_ms = event.decision.evaluated_at.ToMilliseconds()
    fresh = []
    for (subject, _), fact in latest.items():
        value = value_to_python(fact.fact.value)
        limits_ms = [STATUS["max_age_ms"], proposal.proposal.max_fact_age_ms, fact.fact.max_age_ms or STATUS["max_age_ms"]]
        if subject == event.subject and (value is None or isinstance(value, str)) and now_ms - _claimed(fact)[0] <= min(limits_ms):
            fresh.append(fact)
    pins = [pin for pin in event.decision.pinned_facts if pin.key == STATUS["key"]]
    if len(pins) != 1 or not fresh:
        yield f"approval {event.sequence_number} pins {len(pins)} statuses; {len(fresh)} were fresh"
        return
    speaker = max(fresh, key=_stated)
    if pins[0].event_id != speaker.event_id:
        yield f"approval {event.sequence_number} pins event {pins[0].sequence_number}; the latest fresh one was {speaker.sequence_number}"
    if now_ms > pins[0].fresh_until.ToMilliseconds():
        yield f"approval {event.sequence_number} pins what was stale"
    for reference in proposal.proposal.based_on_events:
        if reference.sequence_number > proposal.sequence_number:
            yield f"approval {event.sequence_number} rests on a citation of the future"


def _claimed(event: Envelope) -> tuple[int, int]:
    return event.occurred_at.ToMilliseconds(), event.sequence_number


def _stated(event: Envelope) -> tuple[int, int]:
    """Return what orders the claims of several sources: nobody speaks for longer because his clock is ahead."""
    return min(event.occurred_at.ToMilliseconds(), event.recorded_at.ToMilliseconds()), event.sequence_number


def attempts_do_not_overlap(events: Sequence[Envelope]) -> Iterator[str]:
    """An attempt begins only when the one before it has reported or its lease is over, within limits, and before expiry."""
    running: dict[str, Envelope] = {}
    attempts: dict[str, int] = {}
    most = {decision_id: approval.decision.retry_policy.max_attempts for decision_id, approval in _approvals(events).items()}
    of_review = _reviews_of_executions(events)
    approvals = _approvals(events)
    for event in events:
        granted = of_review.get(event.decision.previous_decision_id)
        if granted is not None and event.decision.outcome == APPROVED:
            most[granted] = event.decision.retry_policy.max_attempts
        if not event.HasField("execution"):
            continue
        execution = event.execution
        approval = approvals[execution.decision_id]
        if execution.status != STARTED:
            running.pop(execution.decision_id, None)
            continue
        before = running.get(execution.decision_id)
        renewed = before is not None and before.execution.attempt == execution.attempt
        if before is not None and not renewed and event.recorded_at.ToMilliseconds() < before.execution.lease_until.ToMilliseconds():
            yield f"event {event.sequence_number} begins an attempt while another one's lease runs"
        if renewed and before is not None and before.producer.id != event.producer.id:
            yield f"event {event.sequence_number} renews another executor's lease"
        if not renewed:
            attempts[execution.decision_id] = attempts.get(execution.decision_id, 0) + 1
            if execution.attempt != attempts[execution.decision_id]:
                yield f"event {event.sequence_number} is attempt {execution.attempt}, the {attempts[execution.decision_id]}th"
        first = execution.attempt == 1 and not renewed and approval.decision.HasField("valid_until")
        if first and event.recorded_at.ToMilliseconds() >= approval.decision.valid_until.ToMilliseconds():
            yield f"event {event.sequence_number} begins what has expired"
        if execution.attempt > most[execution.decision_id]:
            yield f"event {event.sequence_number} is one attempt too many"
        running[execution.decision_id] = event


def _approvals(events: Sequence[Envelope]) -> dict[str, Envelope]:
    return {event.event_id: event for event in events if event.HasField("decision") and event.decision.outcome == APPROVED}


def _reviews_of_executions(events: Sequence[Envelope]) -> dict[str, str]:
    """The reviews of executions, with the approved decisions that they are about."""
    approvals = _approvals(events)
    return {
        event.event_id: event.decision.previous_decision_id
        for event in events
        if event.decision.outcome == REVIEW and event.decision.previous_decision_id in approvals
    }


def late_reports_call_a_person(events: Sequence[Envelope]) -> Iterator[str]:
    """A late report stands before the call for a person, unless one is looking at its decision already."""
    of_review = _reviews_of_executions(events)
    looked_at: set[str] = set()
    for event in events:
        if event.event_id in of_review:
            looked_at.add(of_review[event.event_id])
        elif event.decision.previous_decision_id in of_review and event.decision.outcome != REVIEW:
            looked_at.discard(of_review[event.decision.previous_decision_id])
        elif event.event_name == "LateExecutionReport":
            about = event.agent_diagnostic.late_execution.execution.decision_id
            after = events[event.sequence_number] if event.sequence_number < len(events) else Envelope()
            if (about in looked_at) == (of_review.get(after.event_id) == about):
                yield f"late report {event.sequence_number} calls nobody, or calls a person who is looking already"


def nothing_ends_in_doubt(events: Sequence[Envelope]) -> Iterator[str]:
    """What is given up or half done while another attempt of it has not reported calls a person."""
    called = {event.causation_id for event in events if event.HasField("decision") and event.decision.outcome == REVIEW}
    unreported: dict[str, set[int]] = {}
    for event in events:
        late = event.agent_diagnostic.late_execution.execution
        execution = event.execution if event.HasField("execution") else late
        silent = unreported.setdefault(execution.decision_id, set())
        if execution.status == STARTED:
            silent.add(execution.attempt)
            continue
        silent.discard(execution.attempt)
        if event.HasField("execution") and execution.status in (ABORTED, PARTIAL) and silent and event.event_id not in called:
            yield f"execution {event.sequence_number} ends a decision of which attempts {sorted(silent)} have not reported"


def holders_alone_report(events: Sequence[Envelope]) -> Iterator[str]:
    """What an attempt came to is said by the executor who began it, and only by him; a late report is kept with his name."""
    began: dict[tuple[str, str], str] = {}
    for event in events:
        execution = event.execution if event.HasField("execution") else event.agent_diagnostic.late_execution.execution
        attempt = (execution.decision_id, execution.execution_id)
        if execution.status == STARTED:
            began[attempt] = event.producer.id
        elif execution.status and execution.attempt:
            reporter = event.producer.id if event.HasField("execution") else event.agent_diagnostic.late_execution.executor_id
            if began.get(attempt) != reporter:
                yield f"event {event.sequence_number} reports an attempt of {began.get(attempt)} as {reporter}"


def rejections_are_counted(events: Sequence[Envelope]) -> Iterator[str]:
    """A trace under review gets nothing but UNDER_REVIEW, and it came under review once."""
    under_review: set[str] = set()
    for event in events:
        if not event.HasField("decision") or event.decision.previous_decision_id:
            continue
        closed = event.trace_id in under_review
        if closed != (event.decision.reason_code == "UNDER_REVIEW"):
            yield f"decision {event.sequence_number} says {event.decision.reason_code!r}; its trace is under review: {closed}"
        if event.decision.outcome == REVIEW:
            under_review.add(event.trace_id)


def any_reject_wins(events: Sequence[Envelope]) -> Iterator[str]:
    """A decision by rules is what the strictest rule set consulted says, and of those the one of the lowest policy_id decides."""
    for event in events:
        decision = event.decision
        if not event.HasField("decision") or decision.previous_decision_id or not decision.rule_set_digest:
            continue
        says: dict[str, str] = {}
        for match in decision.rule_matches:
            says.setdefault(match.policy_id, match.effect)
        winning = next((effect for effect in ("reject", "review", "approve") if effect in says.values()), "")
        deciding = min((policy_id for policy_id, effect in says.items() if effect == winning), default="")
        if (OUTCOME_OF.get(winning), deciding) != (decision.outcome, decision.policy_id):
            yield f"decision {event.sequence_number} is {decision.outcome} by {decision.policy_id}, but {says} were said"
        if list(decision.active_policy_ids) != sorted({*decision.active_policy_ids, *says}):
            yield f"decision {event.sequence_number} was not asked of who matched in it, or not in their order"


def the_best_wins_a_contest(events: Sequence[Envelope]) -> Iterator[str]:
    """A contest is decided in one commit, no earlier than announced; the best that passed wins, and is named by the others who did."""
    entered: dict[tuple[str, str, int], list[str]] = {}
    proposals: dict[str, Envelope] = {}
    for event in events:
        if event.proposal.HasField("contest"):
            entry = event.proposal.contest
            contest = (event.proposal.action_type, entry.conflict_key, entry.opened_at.ToMilliseconds())
            entered.setdefault(contest, []).append(event.event_id)
            proposals[event.event_id] = event
        elif event.decision.HasField("contest"):
            yield from _problems_of_contest(event, proposals, entered)


def _problems_of_contest(event: Envelope, proposals: dict[str, Envelope], entered: dict[tuple[str, str, int], list[str]]) -> Iterator[str]:
    decision = event.decision
    proposal = proposals[decision.proposal_id].proposal
    entry = proposal.contest
    competed = entered[proposal.action_type, entry.conflict_key, entry.opened_at.ToMilliseconds()]
    if decision.evaluated_at != decision.contest.closed_at or decision.evaluated_at.ToMilliseconds() < entry.closes_at.ToMilliseconds():
        yield f"decision {event.sequence_number} closes its contest at another time"
    ranking = decision.contest.candidates
    if sorted(competed) != sorted(one.proposal_id for one in ranking):
        yield f"decision {event.sequence_number} lists others than those who competed"
    passing = [one for one in ranking if not one.reason_code]
    best = min(passing, key=lambda one: (-one.score, one.sequence_number), default=None)
    best_id = best.proposal_id if best is not None else ""
    wins = best_id == decision.proposal_id
    if wins != (decision.outcome == APPROVED):
        yield f"decision {event.sequence_number} is not what its contest says"
    # By a decision of the same close its trace may have come under review.
    lost = not wins and decision.proposal_id in [one.proposal_id for one in passing] and decision.reason_code != "UNDER_REVIEW"
    if lost and list(decision.conflict_with_proposal_ids) != [best_id]:
        yield f"decision {event.sequence_number} does not name the winner"


CHECKS: Final[tuple[Callable[[Sequence[Envelope]], Iterator[str]], ...]] = (
    one_decision_per_proposal,
    every_id_once,
    one_live_approval_per_key,
    every_report_has_its_fact,
    approvals_rest_on_what_held,
    attempts_do_not_overlap,
    holders_alone_report,
    late_reports_call_a_person,
    nothing_ends_in_doubt,
    rejections_are_counted,
    any_reject_wins,
    the_best_wins_a_contest,
)
