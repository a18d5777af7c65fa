"""Counters while they are filled: whatever ends meanwhile, they give what they would have given from the beginning of the log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from gavel.v1 import execution_pb2, fact_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import CounterFilled
from gavel_rules.commands import ActivateRuleSet, EventAnswer, FillCounter, LeasedAttempt, RuleSetPosition
from gavel_rules.counter_backlog import CounterBacklog
from gavel_rules.state.counters import Absence, CounterTable
from gavel_rules.state.snapshot.encoding import state_sha256
from gavel_rules.values import python_to_value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.counted_plays import ACTION, COMPENSATION, CUSTOMERS, FACTS, OK, PARAMS, UNDO, UNDO_RULE, WINDOW_MS, refund
from tests.support.driver import Core, compile_cached, document
from tests.support.state.snapshots import restore

SUCCESS = execution_pb2.EXECUTION_STATUS_SUCCESS
PARTIAL = execution_pb2.EXECUTION_STATUS_PARTIAL
FAILED = execution_pb2.EXECUTION_STATUS_FAILED
ABORTED = execution_pb2.EXECUTION_STATUS_ABORTED
GRANT = fact_pb2.REVIEW_VERDICT_APPROVE
REJECT = fact_pb2.REVIEW_VERDICT_REJECT
COUNTERS: dict[str, dict[str, Any]] = {
    "reserved": {"sum": "params.amount"},
    "settled": {"sum": "params.amount", "settle": "double(execution.result.refunded)"},
    "largest": {"max": "params.amount", "settle": "double(execution.result.refunded)"},
    "latest": {"last": "params.amount", "settle": "double(execution.result.refunded)"},
    "number": {},
    "smallest": {"min": "params.amount", "settle": "double(execution.result.refunded)"},
    "different": {"distinct": "string(params.amount)", "settle": "string(execution.result.refunded)"},
    "hourly": {"sum": "params.amount", "settle": "double(execution.result.refunded)", "calendar": {"unit": "hour"}},
    "some": {"sum": "params.amount", "where": "params.amount > 9.0"},
}
RETRY = {"max_attempts": 2, "human_takeover_after_ms": 20_000}


def rule_set(version: int, *, has_counters: bool, is_compensated: bool) -> str:
    """Return a rule set with counters of reservations or with none, and with a compensation of refunds or without one."""
    numbers = {name: "0" if name in ("number", "different") else "0.0" for name in COUNTERS}
    reads = " || ".join(f"history.{name}(params.customer_id) < {number}" for name, number in numbers.items())
    never = {"id": "never", "when": reads, "effect": "reject", "reason_code": "NEVER"}
    rules = [*([never] if has_counters else []), OK, *([UNDO_RULE] if is_compensated else [])]
    changes: dict[str, Any] = {"params": PARAMS, "retry": RETRY, "decision_ttl_ms": 30_000}
    if is_compensated:
        changes.update(compensation=COMPENSATION, more_actions={UNDO: {"params": PARAMS, "retry": RETRY}})
    text = document(FACTS, rules, version=version, **changes)
    if not has_counters:
        return text
    common = {"of": "approvals", "action": ACTION, "by": "params.customer_id", "keep": "reserved"}
    window = {"window_ms": WINDOW_MS}
    counters = {name: {**common, **({} if "calendar" in one else window), **one} for name, one in COUNTERS.items()}
    return json.dumps({**json.loads(text), "gavel": "v2", "counters": counters})


# Without counters and with them, by whether refunds have a compensation.
VERSIONS = {
    one: (rule_set(1, has_counters=False, is_compensated=one), rule_set(2, has_counters=True, is_compensated=one)) for one in (False, True)
}
Step = tuple[str, int, Any]


class Play:
    """A bus with orders, whose counters are opened at some time and filled one entry at a time."""

    def __init__(self, *, is_compensated: bool) -> None:
        without, self._with = VERSIONS[is_compensated]
        self.core = Core(without)
        self._starts: list[Envelope] = []
        self._reports: list[Envelope] = []  # of which no fact has been derived
        self._fills: list[list[CounterFilled]] = []  # of each counter
        self._is_opened = False

    def step(self, step: Step, number: int) -> bool:
        """Carry out one step, and return whether it recorded an event. One that the core refuses changes nothing."""
        kind, place, detail = step
        core = self.core
        events = len(core.events)
        approvals = [event for event in core.events_named("DecisionApproved") if event.event_id not in core.state.grants]
        reviews = [*core.state.reviews.values()]
        match kind:
            case "propose":
                subject = f"order/{number}"
                fact = core.fact("order.status", "delivered", subject=subject)
                params = python_to_value({"amount": 7.0 + number, "customer_id": CUSTOMERS[place % 2]}).struct_value
                core.decide([fact], subject=subject, trace_id=f"trace-{number}", params=params, max_fact_age_ms=10 * WINDOW_MS)
            case "start" if approvals:
                answer = core.begin(approvals[place % len(approvals)], lease_ms=1_000)
                if isinstance(answer, LeasedAttempt):
                    self._starts.append(answer.envelope)
            case "report" if self._starts:
                self._report(self._starts[place % len(self._starts)], *detail)
            case "derive" if self._reports:
                core.derive(self._reports.pop(0))
            case "resolve" if reviews:
                review = core.by_id[reviews[place % len(reviews)].decision_id]
                core.run(core.resolution(review, detail))
            case "revoke" if approvals:
                core.run(core.revocation(approvals[place % len(approvals)]))
            case "pass":
                core.tick(detail)
            case "open" if not self._is_opened:
                self._open()
            case "page":
                self._fill_page()
        return len(core.events) > events

    def _report(self, started: Envelope, status: execution_pb2.ExecutionStatus.ValueType, refunded: float | None) -> None:
        """Report an attempt, which may have been superseded. Without an amount, a settlement fails."""
        changes: dict[str, Any] = {} if refunded is None else {"result": refund(refunded)}
        answer = self.core.run(self.core.report_command(started, status, **changes))
        if isinstance(answer, EventAnswer) and answer.envelope.HasField("execution"):
            self._reports.append(answer.envelope)

    def _open(self) -> None:
        core = self.core
        fills = [*core.open_counters(core.deploy(self._with)).fills(core.now_ms)]
        self._fills = [[page for filled in fills if filled.digest == digest for page in _pages(filled)] for digest in core.state.counters]
        self._is_opened = True

    def _fill_page(self) -> None:
        """Record the next entry of each counter."""
        for pages in self._fills:
            if pages:
                assert isinstance(self.core.run(FillCounter(self.core.new_id(), pages.pop(0))), EventAnswer)

    def compare(self) -> None:
        """Compare the filled counters with the counting of the whole log, and the state with a snapshot of it. Prove the log."""
        core = self.core
        if not self._is_opened:
            self._open()
        while any(self._fills):
            self._fill_page()
        assert isinstance(core.run(ActivateRuleSet(core.new_id(), "refunds", 2, None)), RuleSetPosition)
        whole = CounterBacklog(core.bus, compile_cached(self._with).counters.values(), len(core.events) + 1)
        for event in core.events:
            whole.feed(event)
        for digest, table in core.state.counters.items():
            for customer in CUSTOMERS:
                found, expected = (_answer(one, customer, core.now_ms) for one in (table, whole.state.counters[digest]))
                assert found == expected, (table.counter.name, customer)
        restored = restore(core.state)
        assert (core.state.digest(), state_sha256(core.state.store)) == (restored.digest(), state_sha256(restored.store))
        core.prove()


def _answer(table: CounterTable, group: str, now_ms: int) -> tuple[float, int] | Absence:
    """Return what a counter gives for a group and when that changes, or why it gives no number."""
    reading = table.read(group, now_ms)
    return table.explain_absence(group, now_ms) if reading is None else (reading.value, reading.frees_at_ms)


def _pages(filled: CounterFilled) -> Iterator[CounterFilled]:
    """Yield an event of a fill as events with one entry each."""
    for entry in filled.entries[:-1]:
        yield CounterFilled(digest=filled.digest, entries=[entry], opened_at=filled.opened_at)
    del filled.entries[:-1]
    yield filled


STEP = st.one_of(
    st.tuples(st.just("propose"), st.integers(0, 1), st.none()),
    st.tuples(st.just("start"), st.integers(0, 2), st.none()),
    st.tuples(
        st.just("report"),
        st.integers(0, 2),
        st.tuples(st.sampled_from([SUCCESS, SUCCESS, PARTIAL, PARTIAL, FAILED, ABORTED]), st.sampled_from([1.0, 5.0, 30.0, None])),
    ),
    st.tuples(st.just("derive"), st.just(0), st.none()),
    st.tuples(st.just("resolve"), st.integers(0, 1), st.sampled_from([GRANT, GRANT, REJECT])),
    st.tuples(st.just("revoke"), st.integers(0, 2), st.none()),
    st.tuples(st.just("pass"), st.just(0), st.sampled_from([1, 1_001, 20_001, 30_001])),
    st.tuples(st.just("page"), st.just(0), st.none()),
)
PROPOSE: Step = ("propose", 0, None)
START: Step = ("start", 0, None)
OPEN: Step = ("open", 0, None)
PAGE: Step = ("page", 0, None)
DERIVE: Step = ("derive", 0, None)


def reported(status: execution_pb2.ExecutionStatus.ValueType, refunded: float | None = 1.0, place: int = 0) -> Step:
    """Return the report of an attempt."""
    return ("report", place, (status, refunded))


# Of refunds without a compensation.
PLAIN_HISTORIES: dict[str, list[Step]] = {
    "partial before the opening, and given up": [PROPOSE, START, reported(PARTIAL), OPEN, DERIVE, ("resolve", 0, REJECT)],
    "another attempt after an effect": [
        *[PROPOSE, START, reported(PARTIAL), OPEN, ("resolve", 0, GRANT), PAGE, START],
        reported(SUCCESS, 6.0, 1),
    ],
    "another attempt before the opening": [
        *[PROPOSE, START, reported(PARTIAL), ("resolve", 0, GRANT), START, OPEN],
        *[reported(SUCCESS, 6.0, 1), PAGE],
    ],
    "another attempt, released before the opening, and a late report": [
        *[PROPOSE, START, ("pass", 0, 1_001), ("pass", 0, 20_001), ("resolve", 0, GRANT), ("pass", 0, 30_001), ("resolve", 0, REJECT)],
        *[OPEN, reported(SUCCESS, 30.0)],
    ],
}
# Of refunds with one.
HISTORIES: dict[str, list[Step]] = {
    "settled before the opening": [PROPOSE, START, reported(SUCCESS), OPEN, DERIVE],
    "settled after its page": [PROPOSE, PROPOSE, START, OPEN, PAGE, reported(SUCCESS)],
    "released after its page": [PROPOSE, PROPOSE, OPEN, PAGE, ("revoke", 0, None)],
    "released, and a late report": [
        *[PROPOSE, START, ("pass", 0, 1_001), ("pass", 0, 30_001), ("resolve", 0, REJECT)],
        *[OPEN, reported(SUCCESS), PAGE],
    ],
    "two attempts that both acted": [
        *[PROPOSE, START, ("pass", 0, 1_001), START, reported(SUCCESS, 5.0, 1)],
        *[OPEN, reported(SUCCESS, 1.0, 0)],
    ],
    "an earlier compensation succeeds late, before the page of a grant": [
        *[PROPOSE, START, ("pass", 0, 1_001), START, reported(PARTIAL, 5.0, 1)],
        *[("start", 1, None), ("pass", 0, 30_001), ("resolve", 1, REJECT), ("resolve", 0, GRANT), OPEN],
        reported(SUCCESS, 5.0, 2),
    ],
    "a grant acts, and an earlier compensation succeeds late, before its page": [
        *[PROPOSE, START, ("pass", 0, 1_001), START, reported(PARTIAL, 5.0, 1), ("start", 1, None), ("pass", 0, 30_001)],
        *[("resolve", 1, REJECT), reported(ABORTED, 0.0), ("resolve", 0, GRANT), START, OPEN],
        *[reported(SUCCESS, 7.0, 3), reported(SUCCESS, 5.0, 2)],
    ],
    "a late report before a compensation succeeds": [
        *[PROPOSE, START, ("pass", 0, 1_001), START, reported(PARTIAL, 2.0, 1), ("start", 1, None), OPEN, reported(SUCCESS, 50.0, 0)],
        reported(SUCCESS, 2.0, 2),
    ],
    "a late report after a compensation": [
        *[PROPOSE, START, ("pass", 0, 1_001), START, reported(PARTIAL, 50.0, 1), OPEN],
        *[("start", 1, None), reported(SUCCESS, 1.0, 2), reported(SUCCESS, 1.0, 0)],
    ],
    "two late reports, the second after what was settled has lapsed": [
        *[PROPOSE, START, ("pass", 0, 1_001), START, ("pass", 0, 1_001), OPEN, reported(SUCCESS, 50.0, 0)],
        *[("pass", 0, 60_001), reported(SUCCESS, 1.0, 1)],
    ],
    "a released grant, and a late report": [
        *[PROPOSE, START, ("pass", 0, 1_001), ("pass", 0, 20_001), PROPOSE, ("start", 1, None), reported(SUCCESS, 7.0, 1)],
        *[("resolve", 0, GRANT), OPEN, ("pass", 0, 30_001), ("resolve", 0, REJECT), reported(SUCCESS, 30.0, 0)],
    ],
    "a settlement that fails": [PROPOSE, PROPOSE, START, OPEN, PAGE, reported(SUCCESS, None), PAGE],
}


@pytest.mark.parametrize("name", [*HISTORIES, *PLAIN_HISTORIES])
def test_what_ends_while_a_counter_is_filled(name: str) -> None:
    """A counter that is filled while decisions end gives what counting the whole log gives."""
    play = Play(is_compensated=name in HISTORIES)
    for number, step in enumerate({**HISTORIES, **PLAIN_HISTORIES}[name]):
        assert play.step(step, number) or step[0] == "pass", (number, step)
    play.compare()


@pytest.mark.parametrize("is_opened", [False, True])
def test_a_compensation_undoes_no_later_effect(is_opened: bool) -> None:
    """A compensation withdraws what was settled before it was approved, and not what a late report states since."""
    play = Play(is_compensated=True)
    undone = [PROPOSE, START, ("pass", 0, 1_001), START, reported(PARTIAL, 2.0, 1), ("start", 1, None)]
    for number, step in enumerate([*undone, *([OPEN] if is_opened else []), reported(SUCCESS, 50.0, 0), reported(SUCCESS, 2.0, 2)]):
        assert play.step(step, number) or step[0] == "pass"
    play.compare()
    (table,) = [table for table in play.core.state.counters.values() if table.counter.name == "settled"]
    reading = table.read(CUSTOMERS[0], play.core.now_ms)
    assert reading is not None
    assert 50.0 == reading.value


@pytest.mark.long
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.booleans(), st.lists(STEP, max_size=25), st.lists(STEP, max_size=12))
def test_random_histories(is_compensated: bool, before: list[Step], after: list[Step]) -> None:
    """Whatever happens before, during and after a fill, the counters give what counting the whole log gives."""
    play = Play(is_compensated=is_compensated)
    for number, step in enumerate([PROPOSE, START, *before, OPEN, *after]):
        play.step(step, number)
    play.compare()
