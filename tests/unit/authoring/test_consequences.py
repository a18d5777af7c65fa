"""What a suite says of executions: how they are reported, what is derived and made good, and what earlier ones leave behind."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel_rules.authoring.coverage import ConsequenceCoverage, Coverage, Share
from gavel_rules.authoring.suite import read_suite
from gavel_rules.authoring.testing import run_cases
from gavel_rules.language.ruleset import CompiledRuleSet, DocumentError
from gavel_server.cli.author_reports import explanation_lines, failure_lines

from tests.unit.authoring.test_runner import rule_set, run, suite
from tests.unit.core.driver import ACTION, FACTS, compiled, document

REVERSE: dict[str, Any] = {
    "params": {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "number", "exclusiveMinimum": 0}}}
}


def derivation(name: str, status: str, key: str, value: str) -> dict[str, Any]:
    """A derivation of the action."""
    return {"id": name, "version": 1, "on": {"action": ACTION, "status": status}, "key": key, "value": value}


def rules(**changes: Any) -> CompiledRuleSet:
    """A rule set that derives from reports, and makes good what is half done. `changes` go into the action."""
    declared = {
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
    whole = json.loads(document(rules=own, more_actions={"refund.reverse": REVERSE}, **declared))
    whole["derivations"] = [
        derivation("paid", "SUCCESS", "order.refunded", "execution.result.paid"),
        derivation("by", "SUCCESS", "order.attempts", "execution.attempt"),
        derivation("why", "ABORTED", "order.why", 'execution.reason_code + " " + execution.error.code + " " + execution.error.message'),
    ]
    return compiled(json.dumps(whole))


def found(*cases: dict[str, Any], **changes: Any) -> list[list[tuple[str, str, str]]]:
    """What differs, case by case. Each is of the one action, and expects an approval unless it says otherwise."""
    return [[(*one,) for one in result.differences] for result in run(*cases, rules=rules(**changes), action=ACTION)]


def expecting(**expected: Any) -> dict[str, Any]:
    """The expectation of an approval, and of more."""
    return {"outcome": "APPROVED", **expected}


def test_what_is_derived() -> None:
    """Facts follow from what the executor reports, as the rule set says; values are compared by type and worth."""
    done = {"status": "SUCCESS", "result": {"paid": 50}, "attempt": 2}
    given_up = {"status": "ABORTED", "reason_code": "LATE", "error": {"code": "E1", "message": "too late"}}
    rows = [{"key": "order.attempts", "value": 2}, {"key": "order.refunded", "value": 50.0}]
    assert [[], [], [], []] == found(
        {"execution": done, "expect": expecting(derived=rows, review="", compensation={"action": ""})},
        {"execution": done, "expect": expecting(derived=[{"key": "order.attempts"}, {"key": "order.refunded"}])},
        {"execution": given_up, "expect": expecting(derived=[{"key": "order.why", "value": "LATE E1 too late"}])},
        {"execution": {"status": "FAILED"}, "expect": expecting(derived=[])},
    )


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
def test_what_is_derived_otherwise(rows: list[dict[str, Any]], expected: str) -> None:
    """One fact too few or too many, another value, and a value of another type are each a difference."""
    case = {"execution": {"status": "SUCCESS", "result": {"paid": 50}}, "expect": expecting(derived=rows)}
    assert [[("derived", expected, "[order.attempts 1, order.refunded 50]")]] == found(case)


def test_a_derivation_without_a_value() -> None:
    """Where the result does not say what a derivation reads there is no such fact, and the result says which derivation failed."""
    case = {"execution": {"status": "SUCCESS"}, "expect": expecting(derived=[{"key": "order.attempts", "value": 1}])}
    (result,) = run(case, rules=rules(), action=ACTION)
    assert () == result.differences
    assert result.carried_out is not None
    assert ("paid",) == result.carried_out.failed


def test_what_an_author_reads() -> None:
    """A failed case says what followed and why; rules are explained only where they decided otherwise."""
    (lacking, refused) = run(
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
        "  derivation paid gives no fact: its expression errs, or gives no string, number or boolean",
    ] == [*failure_lines(lacking, "rules_test.yaml"), *explanation_lines(lacking)]
    assert "  rule first: does not match" in [*explanation_lines(refused)]


def test_what_is_made_good() -> None:
    """A PARTIAL report is made good by the declared action with the params that its expressions give, or a person is called."""
    half: dict[str, Any] = {"status": "PARTIAL", "result": {"paid": 20}, "completed_steps": ["debited"]}
    assert [[], [], []] == found(
        {"execution": half, "expect": expecting(compensation={"action": "refund.reverse", "params": {"amount": 19}}, review="")},
        {"execution": {"status": "PARTIAL"}, "expect": expecting(compensation={"action": ""}, review="COMPENSATION_INVALID")},
        # It gives params that the declared schema does not allow.
        {"execution": {**half, "result": {"paid": 1}}, "expect": expecting(review="COMPENSATION_INVALID")},
    )
    assert [
        [("compensation.action", "refund.undo", "refund.reverse")],
        [("compensation.params", '{"amount": 20}', '{"amount": 19}')],
        [("compensation.action", '""', "refund.reverse"), ("review", "PARTIAL_EXECUTION", '""')],
    ] == found(
        {"execution": half, "expect": expecting(compensation={"action": "refund.undo"})},
        {"execution": half, "expect": expecting(compensation={"action": "refund.reverse", "params": {"amount": 20}})},
        {"execution": half, "expect": expecting(compensation={"action": ""}, review="PARTIAL_EXECUTION")},
    )


def test_when_a_person_is_called() -> None:
    """The last attempt that fails calls a person, as does what is half done where nothing makes it good."""
    assert [[], [], []] == found(
        {"execution": {"status": "FAILED", "attempt": 2}, "expect": expecting(review="")},
        {"execution": {"status": "TIMEOUT", "attempt": 3}, "expect": expecting(review="ATTEMPTS_EXHAUSTED")},
        {"execution": {"status": "PARTIAL"}, "expect": expecting(review="PARTIAL_EXECUTION")},
        compensation=None,
    )


def test_what_earlier_executions_leave_behind() -> None:
    """Facts of an earlier execution are met by the proposal; a compensation that is under way holds the key."""
    again = {"outcome": "REJECTED", "reason_code": "AGAIN"}
    done = {"execution": {"status": "SUCCESS", "result": {"paid": 5}}}
    half = {"execution": {"status": "PARTIAL", "result": {"paid": 5}}}
    assert [[], [], [], []] == found(
        {"earlier": [done], "expect": again},
        {"earlier": [{"execution": {"status": "ABORTED"}}]},
        {"earlier": [half], "expect": {"outcome": "REJECTED", "reason_code": "CONFLICTING_DECISION"}},
        {"earlier": [done, {"subject": "order/2"}], "expect": again},
    )
    assert [[("earlier.1", "APPROVED, to be carried out", "REJECTED AGAIN")]] == found({"earlier": [done, done], "expect": again})


def test_in_a_contest() -> None:
    """What wins its contest is carried out when that has closed."""
    case = {
        "execution": {"status": "SUCCESS", "result": {"paid": 5}},
        "expect": expecting(derived=[{"key": "order.refunded"}, {"key": "order.attempts"}]),
    }
    assert [[]] == found(case, contest_window_ms=1_000)


def test_what_was_not_approved_is_not_carried_out() -> None:
    """Where the decision is another than expected that is the difference; nothing is said of an execution that never was."""
    case = {"facts": {"status": "lost"}, "execution": {"status": "SUCCESS"}, "expect": expecting(derived=[{"key": "order.refunded"}])}
    assert [[("outcome", "APPROVED", "REJECTED")]] == found(case)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({"execution": {"status": "SUCCESS", "attempt": 4}}, ["out-of-range: refund.create allows 3 attempts"]),
        ({"earlier": [{"execution": {"status": "FAILED", "attempt": 4}}]}, ["out-of-range: refund.create allows 3 attempts"]),
        (
            {"execution": {"status": "SUCCESS"}, "expect": expecting(derived=[{"key": "order.refundet"}])},
            ["unknown-name: no derivation of refund.create gives order.refundet"],
        ),
        (
            {"execution": {"status": "SUCCESS"}, "expect": {"outcome": "REJECTED"}},
            ["not-carried-out: only an approval is carried out, and REJECTED is expected"],
        ),
        ({"expect": expecting(derived=[])}, ["not-carried-out: expect.derived is about a report, and the case has none"]),
        ({"expect": expecting(review="X")}, ["not-carried-out: expect.review is about a report, and the case has none"]),
        (
            {"expect": expecting(compensation={"action": "a.b"})},
            ["not-carried-out: expect.compensation is about a report, and the case has none"],
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
    """What cannot be meant is refused before anything runs, in words of the case."""
    with pytest.raises(DocumentError) as refused:
        found(case)
    assert expected == [f"{one.code}: {one.message}" for one in refused.value.messages]


def test_nothing_is_decided_yet_in_a_contest() -> None:
    """An earlier proposal that still competes cannot have been carried out."""
    with pytest.raises(DocumentError, match=r"not-carried-out: refund\.create has a contest_window_ms"):
        found({"earlier": [{"execution": {"status": "SUCCESS"}}]}, contest_window_ms=1_000)


def test_places_and_suggestions() -> None:
    """A mistake is named where it stands, in a list's row too, with what was meant."""
    text = (
        "gavel: v1\ntests: rules.json\ncases:\n"
        "  - name: x\n    execution: {status: SUCCESS, eror: {}}\n    expect:\n      outcome: APPROVED\n"
        "      derived:\n        - {key: a.b, valu: 1}\n"
    )
    with pytest.raises(DocumentError) as refused:
        read_suite(text)
    assert [(5, 34, "did you mean error?"), (9, 22, "did you mean value?")] == [
        (one.line, one.column, one.suggestion) for one in refused.value.messages
    ]


def test_columns() -> None:
    """A cell may say a part of a result or of a compensation's params."""
    table: dict[str, Any] = {
        "name": "t",
        "columns": ["execution.status", "execution.result.paid", "execution.error.code", "expect.compensation.params.amount"],
        "rows": [["PARTIAL", 3, "E", 2]],
        "expect": {"outcome": "APPROVED", "compensation": {"action": "refund.reverse"}},
    }
    read = read_suite(suite(action=ACTION).replace('"cases": []', f'"tables": [{json.dumps(table)}]'))
    assert [()] == [result.differences for result in run_cases(read, rules())]


def test_coverage() -> None:
    """A derivation is covered by a fact, a compensation by an approval; what gave nothing is counted apart."""
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
    assert Share(2, 4) == coverage.of_consequences()
    assert Share(0, 0) == Coverage(rule_set()).of_consequences()
