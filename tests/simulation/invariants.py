"""The invariants of every log, checked from the log alone and independently of the code that writes it.

Each check takes the log's events in order and yields the violations. The checks know the rule sets of the simulated world
(`plays.VERSIONS`): which facts an approval rests on, from which sources, and how old they may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gavel.v1 import decision_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.codec.rule_set_fragments import read_effect
from gavel_rules.values import value_to_python

from tests.support.driver import ABORTED, PARTIAL, STARTED
from tests.support.histories.plays import FACTS

APPROVED: Final = decision_pb2.OUTCOME_APPROVED
REVIEW: Final = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
OUTCOME_OF: Final = {"reject": decision_pb2.OUTCOME_REJECTED, "review": REVIEW, "approve": APPROVED}
STATUS: Final = FACTS["status"]


def one_decision_per_proposal(events: Sequence[Envelope]) -> Iterator[str]:
    """Every proposal has exactly one first decision: the next event, or one at the close of its contest."""
    decisions: dict[str, int] = {}
    for event in events:
        if event.HasField("decision") and not event.decision.previous_decision_id:
            decisions[event.decision.proposal_id] = decisions.get(event.decision.proposal_id, 0) + 1
    for event in events:
        if event.proposal.HasField("contest"):
            is_open = events[-1].recorded_at.ToMilliseconds() < event.proposal.contest.closes_at.ToMilliseconds()
            if decisions.pop(event.event_id, 0) != (0 if is_open else 1):
                yield f"proposal {event.sequence_number}, which competes, does not have exactly one first decision after its contest"
        elif event.HasField("proposal"):
            after = events[event.sequence_number] if event.sequence_number < len(events) else Envelope()
            if decisions.pop(event.event_id, 0) != 1 or after.decision.proposal_id != event.event_id:
                yield f"proposal {event.sequence_number} does not have exactly one first decision as the next event"
    if decisions:
        yield f"decisions on proposals that are not in the log: {sorted(decisions)}"


def every_id_once(events: Sequence[Envelope]) -> Iterator[str]:
    """No event_id occurs twice in the log, however often it was sent."""
    ids: set[str] = set()
    for event in events:
        if event.event_id in ids:
            yield f"event {event.sequence_number} repeats {event.event_id}"
        ids.add(event.event_id)


def one_live_approval_per_key(events: Sequence[Envelope]) -> Iterator[str]:
    """A conflict key has one holder at a time."""
    _, problems = holders(events)
    yield from problems


@dataclass
class _Hold:
    """An approved decision that may hold its conflict key."""

    key: str
    compensates: str
    awaited: set[str] = field(default_factory=set)  # reports whose fact is missing
    final: bool = False  # the last report is recorded
    review: str = ""
    ended: bool = False  # it expired or a person ended it: its key is free, its facts may follow


def holders(events: Sequence[Envelope]) -> tuple[dict[str, str], list[str]]:
    """Return the holder of each conflict key at the end, and the places where two decisions hold one key.

    A decision holds its key from approval until it expires, a person ends it, or the facts of all its reports are recorded and no
    review is open. A compensation takes the key over, and holds it until the compensated decision is over too.
    """
    holder: dict[str, str] = {}
    live: dict[str, _Hold] = {}
    over: dict[str, _Hold] = {}  # a late report of an attempt revives them
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
                live[about] = _Hold(decision.conflict_key, decision.compensates_decision_id)
            holder[decision.conflict_key] = about
        elif (about in live or about in over) and decision.outcome == REVIEW:
            live.setdefault(about, over.get(about, _Hold("", "")))
            of_review.setdefault(event.event_id if before not in of_review else before, about)
            live[about].review = live[about].review or event.event_id
            live[about].ended = False
            holder.setdefault(live[about].key, about)
        elif about in live and event.HasField("decision"):
            live[about].review, live[about].ended = "", True  # by a person, or expired
            if holder.get(live[about].key) == about:
                del holder[live[about].key]
        elif event.HasField("execution") and event.execution.status != STARTED:
            hold = live[event.execution.decision_id]
            hold.awaited.add(event.event_id)
            hold.final = not event.execution.will_retry
        elif event.fact.decision_id:
            live[event.fact.decision_id].awaited.discard(event.causation_id)
        _release_keys(live, over, holder)
    return holder, problems


def _release_keys(live: dict[str, _Hold], over: dict[str, _Hold], holder: dict[str, str]) -> None:
    """Release the keys of decisions that are over: a compensated decision before its compensation, which waits for it."""
    for decision_id, hold in sorted(live.items(), key=lambda item: bool(item[1].compensates)):
        done = hold.ended or (hold.final and not hold.review and hold.compensates not in live)
        if done and not hold.awaited:
            over[decision_id] = live.pop(decision_id)
            if holder.get(hold.key) == decision_id:
                del holder[hold.key]


def every_report_has_its_fact(events: Sequence[Envelope]) -> Iterator[str]:
    """Every report of an execution, including ABORTED before any attempt, has exactly one derived fact (constitution §7.2)."""
    facts: dict[str, int] = {}
    for event in events:
        if event.fact.decision_id:
            facts[event.causation_id] = facts.get(event.causation_id, 0) + 1
    for event in events:
        if event.HasField("execution") and event.execution.status != STARTED and facts.pop(event.event_id, 0) != 1:
            yield f"execution {event.sequence_number} does not have exactly one derived fact"
    if facts:
        yield f"derived facts without an execution: {sorted(facts)}"


def approvals_rest_on_fresh_facts(events: Sequence[Envelope]) -> Iterator[str]:
    """The status that an approval pins is the latest accepted one of the right type, and was fresh at the decision."""
    latest: dict[tuple[str, str], Envelope] = {}  # by subject and source
    proposals = {event.event_id: event for event in events if event.HasField("proposal")}
    approvals, of_review = _approvals(events), _reviews_of_executions(events)
    for event in events:
        if event.fact.key == STATUS["key"] and event.producer.id in STATUS["sources"]:
            known = latest.get((event.subject, event.producer.id))
            if known is None or _claimed_time(event) >= _claimed_time(known):
                latest[event.subject, event.producer.id] = event
        if not event.HasField("decision") or event.decision.outcome != APPROVED or "refunds" not in event.decision.active_policy_ids:
            continue
        approval = approvals[of_review.get(event.decision.previous_decision_id, event.event_id)]
        if not approval.decision.compensates_decision_id:  # a compensation, or another attempt of one, rests on no status
            yield from _problems_of_approval(event, proposals[event.decision.proposal_id], latest)


def _problems_of_approval(event: Envelope, proposal: Envelope, latest: dict[tuple[str, str], Envelope]) -> Iterator[str]:
    now_ms = event.decision.evaluated_at.ToMilliseconds()
    fresh = []
    for (subject, _), fact in latest.items():
        value = value_to_python(fact.fact.value)
        limits_ms = [STATUS["max_age_ms"], proposal.proposal.max_fact_age_ms, fact.fact.max_age_ms or STATUS["max_age_ms"]]
        if subject == event.subject and (value is None or isinstance(value, str)) and now_ms - _claimed_time(fact)[0] <= min(limits_ms):
            fresh.append(fact)
    pins = [pin for pin in event.decision.pinned_facts if pin.key == STATUS["key"]]
    if len(pins) != 1 or not fresh:
        yield f"approval {event.sequence_number} pins {len(pins)} statuses; {len(fresh)} were fresh"
        return
    newest = max(fresh, key=_effective_time)
    if pins[0].event_id != newest.event_id:
        yield f"approval {event.sequence_number} pins event {pins[0].sequence_number}; the latest fresh one was {newest.sequence_number}"
    if now_ms > pins[0].fresh_until.ToMilliseconds():
        yield f"approval {event.sequence_number} pins a stale fact"
    for reference in proposal.proposal.based_on_events:
        if reference.sequence_number > proposal.sequence_number:
            yield f"approval {event.sequence_number} cites a later event"


def _claimed_time(event: Envelope) -> tuple[int, int]:
    return event.occurred_at.ToMilliseconds(), event.sequence_number


def _effective_time(event: Envelope) -> tuple[int, int]:
    """Return the order of claims of several sources; a source whose clock is ahead gains nothing."""
    return min(event.occurred_at.ToMilliseconds(), event.recorded_at.ToMilliseconds()), event.sequence_number


def attempts_do_not_overlap(events: Sequence[Envelope]) -> Iterator[str]:
    """An attempt begins only after the report, late or not, or the lease of the one before it, within the limits, and before expiry."""
    running: dict[str, Envelope] = {}
    attempts: dict[str, int] = {}
    most = {decision_id: approval.decision.retry_policy.max_attempts for decision_id, approval in _approvals(events).items()}
    of_review = _reviews_of_executions(events)
    approvals = _approvals(events)
    for event in events:
        grant = of_review.get(event.decision.previous_decision_id)
        if grant is not None and event.decision.outcome == APPROVED:
            most[grant] = event.decision.retry_policy.max_attempts
        late = event.agent_diagnostic.late_execution.execution
        running_attempt = running.get(late.decision_id)
        if running_attempt is not None and running_attempt.execution.attempt == late.attempt:
            del running[late.decision_id]  # it reported, after a late report of an earlier attempt had requested a human review
        if not event.HasField("execution"):
            continue
        execution = event.execution
        approval = approvals[execution.decision_id]
        if execution.status != STARTED:
            running.pop(execution.decision_id, None)
            continue
        before = running.get(execution.decision_id)
        is_renewal = before is not None and before.execution.attempt == execution.attempt
        if before is not None and not is_renewal and event.recorded_at.ToMilliseconds() < before.execution.lease_until.ToMilliseconds():
            yield f"event {event.sequence_number} begins an attempt during the lease of another one"
        if is_renewal and before is not None and before.producer.id != event.producer.id:
            yield f"event {event.sequence_number} renews another executor's lease"
        if not is_renewal:
            attempts[execution.decision_id] = attempts.get(execution.decision_id, 0) + 1
            if execution.attempt != attempts[execution.decision_id]:
                yield f"event {event.sequence_number} is attempt {execution.attempt}, the {attempts[execution.decision_id]}th"
        first = execution.attempt == 1 and not is_renewal and approval.decision.HasField("valid_until")
        if first and event.recorded_at.ToMilliseconds() >= approval.decision.valid_until.ToMilliseconds():
            yield f"event {event.sequence_number} begins an expired decision"
        if execution.attempt > most[execution.decision_id]:
            yield f"event {event.sequence_number} is one attempt too many"
        running[execution.decision_id] = event


def _approvals(events: Sequence[Envelope]) -> dict[str, Envelope]:
    return {event.event_id: event for event in events if event.HasField("decision") and event.decision.outcome == APPROVED}


def _reviews_of_executions(events: Sequence[Envelope]) -> dict[str, str]:
    """Return the approved decisions under review, by review."""
    approvals = _approvals(events)
    return {
        event.event_id: event.decision.previous_decision_id
        for event in events
        if event.decision.outcome == REVIEW and event.decision.previous_decision_id in approvals
    }


def late_reports_request_a_review(events: Sequence[Envelope]) -> Iterator[str]:
    """A late report is followed by a request for a review, unless its decision is under review already."""
    of_review = _reviews_of_executions(events)
    under_review: set[str] = set()
    for event in events:
        if event.event_id in of_review:
            under_review.add(of_review[event.event_id])
        elif event.decision.previous_decision_id in of_review and event.decision.outcome != REVIEW:
            under_review.discard(of_review[event.decision.previous_decision_id])
        elif event.event_name == "LateExecutionReport":
            about = event.agent_diagnostic.late_execution.execution.decision_id
            after = events[event.sequence_number] if event.sequence_number < len(events) else Envelope()
            if (about in under_review) == (of_review.get(after.event_id) == about):
                yield f"late report {event.sequence_number} requests no review, or a second one"


def unreported_attempts_request_a_review(events: Sequence[Envelope]) -> Iterator[str]:
    """A decision that ends ABORTED or PARTIAL while another attempt has not reported gets a review."""
    reviewed = {event.causation_id for event in events if event.HasField("decision") and event.decision.outcome == REVIEW}
    unreported: dict[str, set[int]] = {}
    for event in events:
        late = event.agent_diagnostic.late_execution.execution
        execution = event.execution if event.HasField("execution") else late
        silent = unreported.setdefault(execution.decision_id, set())
        if execution.status == STARTED:
            silent.add(execution.attempt)
            continue
        silent.discard(execution.attempt)
        if event.HasField("execution") and execution.status in (ABORTED, PARTIAL) and silent and event.event_id not in reviewed:
            yield f"execution {event.sequence_number} ends a decision of which attempts {sorted(silent)} have not reported"


def attempts_are_reported_by_their_executor(events: Sequence[Envelope]) -> Iterator[str]:
    """An attempt is reported only by the executor that began it, even late."""
    executors: dict[tuple[str, str], str] = {}
    for event in events:
        execution = event.execution if event.HasField("execution") else event.agent_diagnostic.late_execution.execution
        attempt = (execution.decision_id, execution.execution_id)
        if execution.status == STARTED:
            executors[attempt] = event.producer.id
        elif execution.status and execution.attempt:
            reporter = event.producer.id if event.HasField("execution") else event.agent_diagnostic.late_execution.executor_id
            if executors.get(attempt) != reporter:
                yield f"event {event.sequence_number} reports an attempt of {executors.get(attempt)} as {reporter}"


def producers_under_review_are_held(events: Sequence[Envelope]) -> Iterator[str]:
    """A producer that is under review in a trace gets no decision there but UNDER_REVIEW; the trace's other producers do."""
    producers: dict[str, tuple[int, str]] = {}  # by proposal
    under_review: set[tuple[str, tuple[int, str]]] = set()
    for event in events:
        if event.HasField("proposal"):
            producers[event.event_id] = (event.producer.type, event.producer.id)
        if not event.HasField("decision") or event.decision.previous_decision_id:
            continue
        proposer = (event.trace_id, producers[event.decision.proposal_id])
        is_held = proposer in under_review
        if is_held != (event.decision.reason_code == "UNDER_REVIEW"):
            yield f"decision {event.sequence_number} has {event.decision.reason_code!r}; its producer is under review: {is_held}"
        if event.decision.outcome == REVIEW:
            under_review.add(proposer)


def any_reject_wins(events: Sequence[Envelope]) -> Iterator[str]:
    """The strictest of the consulted rule sets decides; among equals, the one with the lowest policy_id."""
    for event in events:
        decision = event.decision
        if not event.HasField("decision") or decision.previous_decision_id or not decision.rule_set_digest:
            continue
        effects: dict[str, str] = {}
        for match in decision.rule_matches:
            effects.setdefault(match.policy_id, read_effect(match))
        winning = next((effect for effect in ("reject", "review", "approve") if effect in effects.values()), "")
        deciding = min((policy_id for policy_id, effect in effects.items() if effect == winning), default="")
        if (OUTCOME_OF.get(winning), deciding) != (decision.outcome, decision.policy_id):
            yield f"decision {event.sequence_number} is {decision.outcome} by {decision.policy_id}, but the effects are {effects}"
        if list(decision.active_policy_ids) != sorted({*decision.active_policy_ids, *effects}):
            yield f"decision {event.sequence_number} does not list the rule sets that matched, in order"


def the_best_wins_a_contest(events: Sequence[Envelope]) -> Iterator[str]:
    """A contest closes at one time, not before its window ends. The best proposal that passed wins, and the others name it."""
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
        yield f"decision {event.sequence_number} does not list the proposals that competed"
    passing = [one for one in ranking if not one.reason_code]
    best = min(passing, key=lambda one: (-one.score, one.sequence_number), default=None)
    best_id = best.proposal_id if best is not None else ""
    wins = best_id == decision.proposal_id
    if wins != (decision.outcome == APPROVED):
        yield f"decision {event.sequence_number} contradicts its contest"
    # Another decision of the same close may have put its trace under review.
    is_loser = not wins and decision.proposal_id in [one.proposal_id for one in passing] and decision.reason_code != "UNDER_REVIEW"
    if is_loser and list(decision.conflict_with_proposal_ids) != [best_id]:
        yield f"decision {event.sequence_number} does not name the winner"


CHECKS: Final[tuple[Callable[[Sequence[Envelope]], Iterator[str]], ...]] = (
    one_decision_per_proposal,
    every_id_once,
    one_live_approval_per_key,
    every_report_has_its_fact,
    approvals_rest_on_fresh_facts,
    attempts_do_not_overlap,
    attempts_are_reported_by_their_executor,
    late_reports_request_a_review,
    unreported_attempts_request_a_review,
    producers_under_review_are_held,
    any_reject_wins,
    the_best_wins_a_contest,
)
