"""Executions in test suites: reports, derived facts, compensations, reviews, and executions of earlier proposals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel_rules.authoring.suites.coverage import ConsequenceCoverage, Coverage, Ratio
from gavel_rules.authoring.suites.reader import read_suite
from gavel_rules.authoring.suites.runner import run_cases
from gavel_rules.language.rule_set import CompiledRuleSet, DocumentError
from gavel_server.cli.rendering.suite_report import explanation_lines, failure_lines

from tests.support.driver import ACTION, FACTS, compile_cached, document
from tests.unit.rules.authoring.suites.test_runner import rule_set, run, suite

REVERSE: dict[str, Any] = {
    "params": {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "number", "exclusiveMinimum": 0}}}
}


def derivation(name: str, status: str, key: str, value: str) -> dict[str, Any]:
    """Return a derivation of the action."""
    return {"id": name, "version": 1, "on": {"action": ACTION, "status": status}, "key": key, "value": value}


def rules(**changes: Any) -> CompiledRuleSet:
    """Return a rule set with derivations and a compensation. `changes` go into the action."""
    declarations = {
        "facts": {**FACTS, "refunded": {"key": "order.refunded", "type": "number", "max_age_ms": 60_000, "optional": True}},
        "retry": {"max_attempts": 3},
        "compensation": {"action": "refund.reverse", "params": {"amount": "execution.result.paid - 1.0"}},
        **changes,
    }
    own = [
        {"id": "again", "when": "has(facts.refunded)", "effect": "reject", "reason_code": "AGAIN"},
        {"id": "first", "when": 'facts.status == "delivered"', "effect": "approve"},
        {"id": "nobody", "action": "refund.reverse", "when": "true", "effect": "reject", "reason_code": "NO"},
    ]
    rule_set = json.loads(document(rules=own, more_actions={"refund.reverse": REVERSE}, **declarations))
    rule_set["derivations"] = [
        derivation("paid", "SUCCESS", "order.refunded", "execution.result.paid"),
        derivation("by", "SUCCESS", "order.attempts", "execution.attempt"),
        derivation("why", "ABORTED", "order.why", 'execution.reason_code + " " + execution.error.code + " " + execution.error.message'),
    ]
    return compile_cached(json.dumps(rule_set))


def differences(*cases: dict[str, Any], **changes: Any) -> list[list[tuple[str, str, str]]]:
    """Return the differences of each case. Each expects an approval by default."""
    return [[(*one,) for one in result.differences] for result in run(*cases, rules=rules(**changes), action=ACTION)]


def expecting(**expected: Any) -> dict[str, Any]:
    """Return the expectation of an approval and its consequences."""
    return {"outcome": "APPROVED", **expected}


def test_derived_facts() -> None:
    """Derived facts are compared by key, type and value."""
    execution = {"status": "SUCCESS", "result": {"paid": 50}, "attempt": 2}
    abort = {"status": "ABORTED", "reason_code": "LATE", "error": {"code": "E1", "message": "too late"}}
    rows = [{"key": "order.attempts", "value": 2}, {"key": "order.refunded", "value": 50.0}]
    assert [[], [], [], []] == differences(
        {"execution": execution, "expect": expecting(derived=rows, review="", compensation={"action": ""})},
        {"execution": execution, "expect": expecting(derived=[{"key": "order.attempts"}, {"key": "order.refunded"}])},
        {"execution": abort, "expect": expecting(derived=[{"key": "order.why", "value": "LATE E1 too late"}])},
        {"execution": {"status": "FAILED"}, "expect": expecting(derived=[])},
    )


def test_earlier_attempts_leave_nothing_open() -> None:
    """After a second attempt an earlier decision has ended, as on a server: the subject is free."""
    earlier = [{"execution": {"status": "ABORTED", "attempt": 2}}]
    assert [[]] == differences({"earlier": earlier, "expect": expecting()})


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], "[]"),
        ([{"key": "order.refunded", "value": 50}], "[order.refunded 50]"),
        ([{"key": "order.refunded", "value": 51}, {"key": "order.attempts"}], "[order.refunded 51, order.attempts]"),
        ([{"key": "order.refunded", "value": "50"}, {"key": "order.attempts"}], '[order.refunded "50", order.attempts]'),
        ([{"key": "order.refunded"}, {"key": "order.attempts", "value": True}], "[order.refunded, order.attempts true]"),
        ([{"key": "order.refunded"}, {"key": "order.refunded"}], "[order.refunded, order.refunded]"),
    ],
)
def test_differences_of_derived_facts(rows: list[dict[str, Any]], expected: str) -> None:
    """A missing or extra fact, another value and another type are differences."""
    case = {"execution": {"status": "SUCCESS", "result": {"paid": 50}}, "expect": expecting(derived=rows)}
    assert [[("derived", expected, "[order.attempts 1, order.refunded 50]")]] == differences(case)


def test_a_derivation_without_a_value() -> None:
    """A derivation that reads a missing part of the result gives no fact, and is reported as failed."""
    case = {"execution": {"status": "SUCCESS"}, "expect": expecting(derived=[{"key": "order.attempts", "value": 1}])}
    (result,) = run(case, rules=rules(), action=ACTION)
    assert () == result.differences
    assert result.consequences is not None
    assert (("paid", "value"),) == result.consequences.failed


def test_reports_of_failed_cases() -> None:
    """The report of a failed case lists its consequences; rules are explained only if the decision differs."""
    (missing, rejection) = run(
        {"execution": {"status": "SUCCESS"}, "expect": expecting(derived=[])},
        {"facts": {"status": "lost"}, "execution": {"status": "SUCCESS"}},
        rules=rules(),
        action=ACTION,
    )
    assert [
        "rules_test.yaml:1:186: failed: case 0",
        "  derived: expected [], found [order.attempts 1]",
        "  decided: APPROVED, by rule first of refunds 1",
        "  carried out: SUCCESS",
        "  derived: order.attempts = 1",
        "  derivation paid gives no fact: its expression fails, or gives no string, number or boolean",
    ] == [*failure_lines(missing, "rules_test.yaml"), *explanation_lines(missing)]
    assert "  rule first: does not match" in [*explanation_lines(rejection)]


def test_compensations() -> None:
    """A PARTIAL report leads to the declared compensation, or to a review if its params are invalid."""
    partial: dict[str, Any] = {"status": "PARTIAL", "result": {"paid": 20}, "completed_steps": ["debited"]}
    assert [[], [], []] == differences(
        {"execution": partial, "expect": expecting(compensation={"action": "refund.reverse", "params": {"amount": 19}}, review="")},
        {"execution": {"status": "PARTIAL"}, "expect": expecting(compensation={"action": ""}, review="COMPENSATION_INVALID")},
        # The params do not fit the schema of the compensating action.
        {"execution": {**partial, "result": {"paid": 1}}, "expect": expecting(review="COMPENSATION_INVALID")},
    )
    assert [
        [("compensation.action", "refund.undo", "refund.reverse")],
        [("compensation.params", '{"amount": 20}', '{"amount": 19}')],
        [("compensation.action", '""', "refund.reverse"), ("review", "PARTIAL_EXECUTION", '""')],
    ] == differences(
        {"execution": partial, "expect": expecting(compensation={"action": "refund.undo"})},
        {"execution": partial, "expect": expecting(compensation={"action": "refund.reverse", "params": {"amount": 20}})},
        {"execution": partial, "expect": expecting(compensation={"action": ""}, review="PARTIAL_EXECUTION")},
    )


def test_reviews() -> None:
    """The last failed attempt requests a review, and so does a PARTIAL report without a compensation."""
    assert [[], [], []] == differences(
        {"execution": {"status": "FAILED", "attempt": 2}, "expect": expecting(review="")},
        {"execution": {"status": "TIMEOUT", "attempt": 3}, "expect": expecting(review="ATTEMPTS_EXHAUSTED")},
        {"execution": {"status": "PARTIAL"}, "expect": expecting(review="PARTIAL_EXECUTION")},
        compensation=None,
    )


def test_earlier_executions() -> None:
    """The proposal sees the facts of an earlier execution; a pending compensation holds the conflict key."""
    refusal = {"outcome": "REJECTED", "reason_code": "AGAIN"}
    execution = {"execution": {"status": "SUCCESS", "result": {"paid": 5}}}
    partial = {"execution": {"status": "PARTIAL", "result": {"paid": 5}}}
    assert [[], [], []] == differences(
        {"earlier": [execution], "expect": refusal},
        {"earlier": [{"execution": {"status": "ABORTED"}}]},
        {"earlier": [partial], "expect": {"outcome": "REJECTED", "reason_code": "CONFLICTING_DECISION"}},
    )


def test_decisions_on_earlier_proposals() -> None:
    """An earlier proposal must be approved, or be decided as its own expectation says; in a contest it is not decided yet."""
    refusal = {"outcome": "REJECTED", "reason_code": "AGAIN"}
    execution = {"execution": {"status": "SUCCESS", "result": {"paid": 5}}}
    derived = {**execution, "expect": expecting(derived=[{"key": "order.refunded", "value": 6}, {"key": "order.attempts"}])}
    assert [
        [("earlier.1.outcome", "APPROVED", "REJECTED")],
        [],
        [("earlier.1.reason_code", "OTHER", "AGAIN")],
        [("earlier.0.derived", "[order.refunded 6, order.attempts]", "[order.attempts 1, order.refunded 5]")],
    ] == differences(
        {"earlier": [execution, {}], "expect": refusal},
        {"earlier": [execution, {"expect": refusal}], "expect": refusal},
        {"earlier": [execution, {"expect": {**refusal, "reason_code": "OTHER"}}], "expect": refusal},
        {"earlier": [derived], "expect": refusal},
    )
    assert [[]] == differences({"earlier": [{}], "expect": {"outcome": "REJECTED", "reason_code": "OUTRANKED"}}, contest_window_ms=1_000)


COUNTED = """
gavel: v2
rule_set: counted
version: 1
actions:
  refund.create:
    params: {type: object, required: [amount], properties: {amount: {type: integer}}}
    facts: {status: {key: order.status, type: string, max_length: 20, max_age_ms: 60000, sources: [orders-db]}}
    conflict_key: string(params.amount)
counters:
  spent: {of: approvals, action: refund.create, sum: params.amount, window_ms: 3600000}
rules:
  - {id: over, action: refund.create, priority: 2, when: history.spent() + params.amount > 10, effect: reject, reason_code: OVER}
  - {id: ok, action: refund.create, priority: 1, when: 'facts.status == "delivered"', effect: approve}
"""


def test_ages_of_earlier_proposals() -> None:
    """Earlier proposals are decided at their ages, oldest first, on the facts of the case; those that left the window do not count."""
    over = {"outcome": "REJECTED", "reason_code": "OVER"}
    cases = [
        {"earlier": [{"params": {"amount": 10}, "age_ms": 3_599_999}], "expect": over},
        {"earlier": [{"params": {"amount": 10}, "age_ms": 3_600_000}], "expect": {"outcome": "APPROVED"}},
        {
            "earlier": [{"params": {"amount": 9}, "age_ms": 10, "expect": over}, {"params": {"amount": 6}, "age_ms": 20}],
            "expect": {"outcome": "APPROVED"},
        },
        {
            "facts": {"status": {"tier": 2}},
            "earlier": [{"age_ms": 5_000, "expect": {"outcome": "REJECTED"}}],
            "expect": {"outcome": "REJECTED"},
        },
    ]
    defaults = {"params": {"amount": 1}, "facts": {"status": {"value": "delivered", "age_ms": 1_000}}}
    named = [{"name": str(number), **case} for number, case in enumerate(cases)]
    text = json.dumps({"gavel": "v1", "tests": "rules.yaml", "defaults": defaults, "cases": named})
    results = list(run_cases(read_suite(text), compile_cached(COUNTED)))
    assert [[], [], [], []] == [[(*one,) for one in result.differences] for result in results]
    assert [10.0, 0.0, 6.0] == [result.decision.counters[0].value for result in results[:3]]


def test_coverage_of_earlier_executions() -> None:
    """A derivation is covered if the execution of an earlier proposal gave its fact."""
    case = {"earlier": [{"execution": {"status": "SUCCESS", "result": {"paid": 5}}}], "expect": {"outcome": "REJECTED"}}
    coverage = Coverage(rules())
    coverage.add(run_cases(read_suite(suite(case, action=ACTION)), rules()))
    assert {"derivation paid": 1, "derivation by": 1, "derivation why": 0, f"compensation of {ACTION}": 0} == {
        one.name: one.made for one in coverage.consequences()
    }


def test_in_a_contest() -> None:
    """The winner of a contest is carried out when the contest has closed."""
    case = {
        "execution": {"status": "SUCCESS", "result": {"paid": 5}},
        "expect": expecting(derived=[{"key": "order.refunded"}, {"key": "order.attempts"}]),
    }
    assert [[]] == differences(case, contest_window_ms=1_000)


def test_a_rejected_proposal_has_no_consequences() -> None:
    """If the decision differs, the expected consequences are not compared."""
    case = {"facts": {"status": "lost"}, "execution": {"status": "SUCCESS"}, "expect": expecting(derived=[{"key": "order.refunded"}])}
    assert [[("outcome", "APPROVED", "REJECTED")]] == differences(case)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({"execution": {"status": "SUCCESS", "attempt": 4}}, ["out-of-range: refund.create allows at most 3 attempts"]),
        ({"earlier": [{"execution": {"status": "FAILED", "attempt": 4}}]}, ["out-of-range: refund.create allows at most 3 attempts"]),
        (
            {"execution": {"status": "SUCCESS"}, "expect": expecting(derived=[{"key": "order.refundet"}])},
            ["unknown-name: no derivation of refund.create gives order.refundet"],
        ),
        (
            {"execution": {"status": "SUCCESS"}, "expect": {"outcome": "REJECTED"}},
            ["not-carried-out: only an approval can have an execution, but the case expects REJECTED"],
        ),
        ({"expect": expecting(derived=[])}, ["not-carried-out: expect.derived needs a report, but its proposal has no execution"]),
        ({"expect": expecting(review="X")}, ["not-carried-out: expect.review needs a report, but its proposal has no execution"]),
        (
            {"expect": expecting(compensation={"action": "a.b"})},
            ["not-carried-out: expect.compensation needs a report, but its proposal has no execution"],
        ),
        ({"execution": {"result": {}}}, ["missing-key: the key execution.status is missing"]),
        (
            {"execution": {"status": "DONE"}},
            ["unknown-value: execution.status: input should be 'SUCCESS', 'FAILED', 'PARTIAL', 'TIMEOUT' or 'ABORTED'"],
        ),
        ({"execution": {"status": "SUCCESS", "results": {}}}, ["unknown-key: no such key here: results"]),
        ({"execution": {"status": "SUCCESS", "error": {"kode": "x"}}}, ["unknown-key: no such key here: kode"]),
        (
            {"execution": {"status": "SUCCESS"}, "expect": expecting(derived=[{"key": "order.refunded", "value": [1]}])},
            ["wrong-type: expect.derived.0.value: input should be a string, a number or a boolean"],
        ),
    ],
)
def test_mistakes(case: dict[str, Any], expected: list[str]) -> None:
    """Contradictory cases are mistakes, reported before anything runs."""
    with pytest.raises(DocumentError) as rejection:
        differences(case)
    assert expected == [f"{one.code}: {one.message}" for one in rejection.value.messages]


@pytest.mark.parametrize("part", [{"execution": {"status": "SUCCESS"}}, {"expect": {"outcome": "REJECTED"}}])
def test_an_earlier_proposal_that_still_competes(part: dict[str, Any]) -> None:
    """A case fails if an earlier proposal that still competes has an execution or an expectation; the other cases are still run."""
    failed, passed = run({"earlier": [{**part, "age_ms": 999}]}, {}, rules=rules(contest_window_ms=1_000), action=ACTION)
    assert [True, False] == [passed.passed, failed.passed]
    reason = (
        "the contest of earlier.0 closes too late: with the one of the case's own proposal, or after it is decided; "
        f"give it an age_ms of at least the contest_window_ms of {ACTION}, or remove its {next(iter(part))}"
    )
    assert [("decision", "one", f"none: {reason}")] == [*failed.differences]
    assert [f"  decision: expected one, found none: {reason}"] == failure_lines(failed, "f")[1:]


def test_contests_that_closed_earlier() -> None:
    """A contest closes when it is due: its approval expires before the case or is carried out, and a proposal that joined it has lost."""
    execution = {"execution": {"status": "SUCCESS", "result": {"paid": 5}}}
    again = {"outcome": "REJECTED", "reason_code": "AGAIN"}
    outranked = {"outcome": "REJECTED", "reason_code": "OUTRANKED"}
    held = {"outcome": "REJECTED", "reason_code": "CONFLICTING_DECISION"}
    assert [[]] * 5 == differences(
        {"earlier": [{"age_ms": 3_600_000}]},
        {"earlier": [{"age_ms": 1_000}], "expect": held},
        {"earlier": [{"age_ms": 1_000, **execution}], "expect": again},
        {"earlier": [{"age_ms": 5_000, **execution}, {"age_ms": 4_000, "expect": again}], "expect": again},
        {"facts": {"status": {"age_ms": 2_000}}, "earlier": [{"age_ms": 1_500}, {"age_ms": 800, "expect": outranked}], "expect": held},
        contest_window_ms=1_000,
    )


def test_a_contest_for_another_key_that_closes_with_the_case() -> None:
    """An earlier proposal for another key that is as old as the case is decided just before it, and the decision is compared."""
    approved, rejected = (
        {"earlier": [{"params": {"amount": 40.0}, "expect": {"outcome": outcome}}]} for outcome in ("APPROVED", "REJECTED")
    )
    decided, wrong = differences(approved, rejected, contest_window_ms=1_000, conflict_key="string(params.amount)")
    assert ([], ("earlier.0.outcome", "REJECTED", "APPROVED")) == (decided, wrong[0])


def test_when_approvals_of_earlier_contests_count() -> None:
    """An approval leaves the window of a counter as long after the close of its contest as the window is."""
    rule_set = compile_cached(COUNTED.replace("conflict_key:", "contest_window_ms: 1000\n    conflict_key:"))
    cases: list[dict[str, Any]] = [{"earlier": [{"params": {"amount": 5}, "age_ms": age_ms}]} for age_ms in (3_600_000, 3_599_999)]
    results = run(*cases, rules=rule_set, params={"amount": 1}, facts={"status": "delivered"})
    assert [((), 0.0), ((), 5.0)] == [(result.differences, result.decision.counters[0].value) for result in results]


def test_places_and_suggestions() -> None:
    """A mistake is reported at its place, also within lists, with a suggestion."""
    text = (
        "gavel: v1\ntests: rules.json\ncases:\n"
        "  - name: x\n    execution: {status: SUCCESS, eror: {}}\n    expect:\n      outcome: APPROVED\n"
        "      derived:\n        - {key: a.b, valu: 1}\n"
    )
    with pytest.raises(DocumentError) as rejection:
        read_suite(text)
    assert [(5, 34, "did you mean error?"), (9, 22, "did you mean value?")] == [
        (one.line, one.column, one.suggestion) for one in rejection.value.messages
    ]


def test_columns() -> None:
    """A column may name a part of a result or of a compensation's params."""
    table: dict[str, Any] = {
        "name": "t",
        "columns": ["execution.status", "execution.result.paid", "execution.error.code", "expect.compensation.params.amount"],
        "rows": [["PARTIAL", 3, "E", 2]],
        "expect": {"outcome": "APPROVED", "compensation": {"action": "refund.reverse"}},
    }
    read = read_suite(suite(action=ACTION).replace('"cases": []', f'"tables": [{json.dumps(table)}]'))
    assert [()] == [result.differences for result in run_cases(read, rules())]


def test_coverage() -> None:
    """A derivation is covered by a fact, a compensation by an approval; failures are counted separately."""
    rule_set_ = rules()
    coverage = Coverage(rule_set_)
    cases: list[dict[str, Any]] = [{"execution": {"status": status}} for status in ("SUCCESS", "PARTIAL")]
    cases.append({"execution": {"status": "PARTIAL", "result": {"paid": 9}}})
    coverage.add(run_cases(read_suite(suite(*cases, action=ACTION)), rule_set_))
    assert [
        ConsequenceCoverage("derivation by", 1, 0),
        ConsequenceCoverage("derivation paid", 0, 1),
        ConsequenceCoverage("derivation why", 0, 0),
        ConsequenceCoverage(f"compensation of {ACTION}", 1, 1),
    ] == sorted(coverage.consequences(), key=lambda one: (one.name.partition(" ")[0] == "compensation", one.name))
    assert Ratio(2, 4) == coverage.consequence_ratio()
    assert Ratio(0, 0) == Coverage(rule_set()).consequence_ratio()
