"""Counters counted again from a log, the slow and obvious way. It shares no code with the core: it reads events and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from gavel.v1 import decision_pb2, execution_pb2
from gavel.v1.envelope_pb2 import Envelope

_EFFECTIVE = (execution_pb2.EXECUTION_STATUS_SUCCESS, execution_pb2.EXECUTION_STATUS_PARTIAL)


def recount(events: Sequence[Envelope], counter: dict[str, Any], group: str, now_ms: int) -> Fraction:
    """Return what a counter by `params.customer_id` gives for a group at a time.

    `counter` has `of`, `action`, `window_ms`, and optionally `keep` and one of `sum`, `distinct`, `min`, `max`, `last` over params.amount.
    With `settle`, a report settles a reservation with `execution.result.refunded`, if it has that.
    """
    amounts = [amount for amount, lapses_at_ms in _entries(events, counter, group) if lapses_at_ms is None or lapses_at_ms > now_ms]
    if "sum" in counter:
        return sum(amounts, Fraction(0))
    if "distinct" in counter:
        return Fraction(len(set(amounts)))
    if not amounts:
        return Fraction(0)
    if "min" in counter:
        return min(amounts)
    if "max" in counter:
        return max(amounts)
    return amounts[-1] if "last" in counter else Fraction(len(amounts))


def _entries(events: Sequence[Envelope], counter: dict[str, Any], group: str) -> list[tuple[Fraction, int | None]]:
    """Return the amount of every event that ever counted in a group, and when it no longer counts (None: not yet known)."""
    window_ms = counter["window_ms"]
    entries: dict[str, tuple[Fraction, int | None]] = {}
    approved: dict[str, Fraction] = {}  # the amounts of decisions
    holders: dict[str, list[str]] = {}  # the entries of each decision: its own, and one for each attempt that a person granted
    reviewed: dict[str, str] = {}  # the decision that a review is about, by the decision that requested the review
    compensated: dict[str, str] = {}  # decisions by that of their compensation

    def end(decision_id: str) -> None:
        """Release what is not settled."""
        if decision_id in holders and entries.get(holders[decision_id][-1], (0, 0))[1] is None:
            del entries[holders[decision_id][-1]]

    for event, following in zip(events, [*events[1:], Envelope()], strict=True):
        payload = event.WhichOneof("payload")
        recorded_ms = event.recorded_at.seconds * 1000 + event.recorded_at.nanos // 1_000_000
        if payload == counter["of"].removesuffix("s") or (payload == "decision" and counter["of"] in ("approvals", "rejections")):
            params = _counted_params(event, counter)
            if params is not None and params["customer_id"] == group:
                lapses_at_ms = None if counter.get("keep") else recorded_ms + window_ms
                entries[event.event_id] = (Fraction(str(params["amount"])), lapses_at_ms)
                approved[event.event_id] = Fraction(str(params["amount"]))
                holders[event.event_id] = [event.event_id]
        if not counter.get("keep"):
            continue
        if payload == "decision":
            decision, previous = event.decision, event.decision.previous_decision_id
            if decision.compensates_decision_id:
                compensated[event.event_id] = decision.compensates_decision_id
            elif decision.outcome == decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW:
                reviewed[event.event_id] = reviewed.get(previous, previous)
            elif decision.outcome in (decision_pb2.OUTCOME_EXPIRED, decision_pb2.OUTCOME_REVOKED):
                end(reviewed.get(previous, previous))
            elif decision.outcome == decision_pb2.OUTCOME_APPROVED and reviewed.get(previous) in holders:
                end(reviewed[previous])
                holders[reviewed[previous]].append(event.event_id)
                entries[event.event_id] = (approved[reviewed[previous]], None)
            continue
        is_late = payload == "agent_diagnostic" and event.agent_diagnostic.WhichOneof("detail") == "late_execution"
        if payload != "execution" and not is_late:
            continue
        execution = event.agent_diagnostic.late_execution.execution if is_late else event.execution
        decision_id = execution.decision_id
        if execution.status in _EFFECTIVE and decision_id in holders:
            entry_id = holders[decision_id][-1]
            amount = approved[decision_id]
            if "settle" in counter and "refunded" in execution.result:
                amount = Fraction(str(execution.result["refunded"]))
            if is_late:
                amount = max(amount, approved[decision_id])
            before, lapses_at_ms = entries.get(entry_id, (amount, 0))
            if lapses_at_ms is not None and lapses_at_ms > recorded_ms:
                amount = max(amount, before)
            entries[entry_id] = (amount, recorded_ms + window_ms)
        if execution.status == execution_pb2.EXECUTION_STATUS_SUCCESS:
            for entry_id in holders.get(compensated.get(decision_id, ""), ()):
                if entries.get(entry_id, (0, None))[1] is not None:  # else a person has granted another attempt since
                    del entries[entry_id]  # undone
        is_aborted = execution.status == execution_pb2.EXECUTION_STATUS_ABORTED and not is_late
        is_reviewed = following.decision.previous_decision_id == decision_id  # an earlier attempt may still act
        if is_aborted and decision_id not in compensated and not is_reviewed:  # a compensation ends by success alone
            end(decision_id)
    return list(entries.values())


def _counted_params(event: Envelope, counter: dict[str, Any]) -> dict[str, Any] | None:
    """Return the params of an event that counts; None if it does not. Later decisions count only as compensations."""
    actions = [counter["action"]] if isinstance(counter["action"], str) else counter["action"]
    if counter["of"] == "proposals":
        return dict(event.proposal.params) if event.proposal.action_type in actions else None
    wanted = decision_pb2.OUTCOME_APPROVED if counter["of"] == "approvals" else decision_pb2.OUTCOME_REJECTED
    decision = event.decision
    is_counted = decision.outcome == wanted and (not decision.previous_decision_id or bool(decision.compensates_decision_id))
    return dict(decision.params) if is_counted and decision.action_type in actions else None
