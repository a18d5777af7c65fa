"""Counters counted again from a log, the slow and obvious way. It shares no code with the core: it reads events and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from gavel.v1 import decision_pb2, execution_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution

_EFFECTIVE = (execution_pb2.EXECUTION_STATUS_SUCCESS, execution_pb2.EXECUTION_STATUS_PARTIAL)


def recount(events: Sequence[Envelope], counter: dict[str, Any], group: str, now_ms: int) -> Fraction:
    """Return what a counter by `params.customer_id` gives for a group at a time.

    `counter` has `of`, `action`, `window_ms`, and optionally `keep` and one of `sum`, `distinct`, `min`, `max`, `last` over params.amount.
    With `settle`, a report settles a reservation with `execution.result.refunded`, if it has that.
    """
    counted = _Recount(counter, group)
    for event, following in zip(events, [*events[1:], Envelope()], strict=True):
        counted.count(event, following)
    amounts = [amount for amount, lapses_at_ms in counted.entries.values() if lapses_at_ms is None or lapses_at_ms > now_ms]
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


class _Recount:
    """The entries of one group: the amounts that count, and when each no longer does (None: not yet known)."""

    def __init__(self, counter: dict[str, Any], group: str) -> None:
        self._counter = counter
        self._group = group
        self.entries: dict[str, tuple[Fraction, int | None]] = {}
        self._approved: dict[str, Fraction] = {}  # the amounts of decisions
        self._entry_ids: dict[str, list[str]] = {}  # the entries of each decision: its own, and one for each attempt that a person granted
        self._reviewed: dict[str, str] = {}  # the decision that a review is about, by the decision that requested the review
        self._compensated: dict[str, str] = {}  # decisions by that of their compensation
        self._attempts: dict[str, set[int]] = {}  # begun and not reported, by decision
        self._numbers: dict[str, int] = {}  # of entries and compensations: the event from which on they are

    def count(self, event: Envelope, following: Envelope) -> None:
        """Count an event, which another one follows."""
        payload = event.WhichOneof("payload")
        recorded_ms = event.recorded_at.seconds * 1000 + event.recorded_at.nanos // 1_000_000
        source = self._counter["of"]
        if payload == source.removesuffix("s") or (payload == "decision" and source in ("approvals", "rejections")):
            self._enter(event, recorded_ms)
        if not self._counter.get("keep"):
            return
        is_late = payload == "agent_diagnostic" and event.agent_diagnostic.WhichOneof("detail") == "late_execution"
        if payload == "decision":
            self._follow_decision(event)
        elif payload == "execution" or is_late:
            execution = event.agent_diagnostic.late_execution.execution if is_late else event.execution
            attempts = self._attempts.setdefault(execution.decision_id, set())
            if execution.status == execution_pb2.EXECUTION_STATUS_STARTED:
                attempts.add(execution.attempt)
            else:
                attempts.discard(execution.attempt)
            is_late = is_late or bool(attempts)
            self._report(execution, following, event.sequence_number, recorded_ms, is_late=is_late)

    def _enter(self, event: Envelope, recorded_ms: int) -> None:
        params = _counted_params(event, self._counter)
        if params is not None and params["customer_id"] == self._group:
            amount = self._approved[event.event_id] = Fraction(str(params["amount"]))
            self.entries[event.event_id] = (amount, None if self._counter.get("keep") else recorded_ms + self._counter["window_ms"])
            self._entry_ids[event.event_id] = [event.event_id]
            self._numbers[event.event_id] = event.sequence_number

    def _follow_decision(self, event: Envelope) -> None:
        """Follow a later decision: what it is about, and whether it ends or grants an attempt."""
        decision, previous = event.decision, event.decision.previous_decision_id
        about = self._reviewed.get(previous, previous)
        if decision.compensates_decision_id:
            self._compensated[event.event_id] = decision.compensates_decision_id
            self._numbers[event.event_id] = event.sequence_number
        elif decision.outcome == decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW:
            self._reviewed[event.event_id] = about
        elif decision.outcome in (decision_pb2.OUTCOME_EXPIRED, decision_pb2.OUTCOME_REVOKED):
            self._release(about)
        elif decision.outcome == decision_pb2.OUTCOME_APPROVED and previous in self._reviewed and about in self._entry_ids:
            self._release(about)
            self._entry_ids[about].append(event.event_id)
            self.entries[event.event_id] = (self._approved[about], None)
            self._numbers[event.event_id] = event.sequence_number

    def _report(self, execution: Execution, following: Envelope, number: int, recorded_ms: int, *, is_late: bool) -> None:
        """Settle what a report is about, withdraw what it undoes, or release what it gives up."""
        decision_id = execution.decision_id
        if execution.status in _EFFECTIVE and decision_id in self._entry_ids:
            entry_id = self._entry_ids[decision_id][-1]
            amount = self._approved[decision_id]
            if "settle" in self._counter and "refunded" in execution.result:
                amount = Fraction(str(execution.result["refunded"]))
            if is_late:
                amount = max(amount, self._approved[decision_id])
            before, lapses_at_ms = self.entries.get(entry_id, (amount, 0))
            if lapses_at_ms is not None and lapses_at_ms > recorded_ms:
                amount = max(amount, before)
            self.entries[entry_id] = (amount, recorded_ms + self._counter["window_ms"])
            if is_late and decision_id in self._compensated.values():
                self._numbers[entry_id] = number  # the compensation does not undo this effect
        if execution.status == execution_pb2.EXECUTION_STATUS_SUCCESS:
            for entry_id in self._entry_ids.get(self._compensated.get(decision_id, ""), ()):
                is_undone = self._numbers[entry_id] < self._numbers[decision_id]
                if is_undone and self.entries.get(entry_id, (0, None))[1] is not None:  # else a person has granted another attempt
                    del self.entries[entry_id]
        is_aborted = execution.status == execution_pb2.EXECUTION_STATUS_ABORTED and not is_late
        is_reviewed = following.decision.previous_decision_id == decision_id  # an earlier attempt may still act
        if is_aborted and decision_id not in self._compensated and not is_reviewed:  # a compensation ends by success alone
            self._release(decision_id)

    def _release(self, decision_id: str) -> None:
        """Let a decision that ends count no longer, unless a report has settled it."""
        if decision_id in self._entry_ids and self.entries.get(self._entry_ids[decision_id][-1], (0, 0))[1] is None:
            del self.entries[self._entry_ids[decision_id][-1]]


def _counted_params(event: Envelope, counter: dict[str, Any]) -> dict[str, Any] | None:
    """Return the params of an event that counts; None if it does not. Later decisions count only as compensations."""
    actions = [counter["action"]] if isinstance(counter["action"], str) else counter["action"]
    if counter["of"] == "proposals":
        return dict(event.proposal.params) if event.proposal.action_type in actions else None
    wanted = decision_pb2.OUTCOME_APPROVED if counter["of"] == "approvals" else decision_pb2.OUTCOME_REJECTED
    decision = event.decision
    is_counted = decision.outcome == wanted and (not decision.previous_decision_id or bool(decision.compensates_decision_id))
    return dict(decision.params) if is_counted and decision.action_type in actions else None
