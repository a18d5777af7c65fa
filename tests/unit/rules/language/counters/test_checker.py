"""Mistakes in counters and in reads of them: each has a place, says what is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from gavel_rules.language.engines.case import Case
from gavel_rules.language.rule_set import DocumentError, compile_rule_set

from tests.unit.rules.language.counters.sample import SAMPLE, compile_changed

Cases = Callable[..., Case]


def test_reads_become_variables() -> None:
    """Reads of one counter with one key are one variable, whatever the spaces; the text keeps its length."""
    compiled = compile_changed("history.calls() > 5", "history.spent( params.customer ) > 1.0 || history.spent('x') > 1.0")
    action = compiled.actions["refund.create"]
    assert [("spent", "params.customer"), ("spent", "'x'")] == [(read.counter, read.key) for read in action.counter_reads]
    assert 2 == len({read.variable for read in action.counter_reads})
    assert len(action.conditions[0].text) == len(action.conditions[0].source)


def test_variables_read_counters(case: Cases) -> None:
    """A variable may read counters, with the key of each action that uses it; one that no expression uses reads none."""
    text = SAMPLE.replace("history.spent(params.customer) > 9.0 || history.calls() > 5", "much || history.calls() > 5")
    text += "variables: {much: 'spent > 9.0', spent: 'history.spent(params.customer)', unused: 'history.spent(\"other\") > 1.0'}\n"
    action, written = compile_rule_set(text).actions["refund.create"], compile_changed().actions["refund.create"]
    assert {(read.counter, read.key) for read in written.counter_reads} == {(read.counter, read.key) for read in action.counter_reads}
    first_case = case(params={"amount": 1.0, "customer": "a"})
    for spent, matches in ((9.0, ["ok"]), (9.01, ["over", "ok"])):
        read = first_case.with_history({one.variable: spent if one.counter == "spent" else 1 for one in action.counter_reads})
        assert matches == [rule.id for rule in action.evaluate(read, cross_check=True).matches]


def test_equal_counters_have_equal_digests() -> None:
    """A counter is known by what it counts: other rules, another name or a default in writing do not matter, another window does."""
    spent = compile_changed().counters["spent"].digest
    assert spent == compile_changed("window_ms: 1000, keep", "scale: 2, groups_max: 100000, window_ms: 1000, keep").counters["spent"].digest
    assert spent == compile_rule_set(SAMPLE.replace("spent", "used")).counters["used"].digest
    assert spent == compile_changed("> 9.0", "> 8.0").counters["spent"].digest
    assert spent != compile_changed("window_ms: 1000, keep", "window_ms: 1001, keep").counters["spent"].digest


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("gavel: v2", "gavel: v1", "17:1: unknown-key: no such key here: counters needs the language's second version (write `gavel: v2`)"),
        ("by: params", "group_by: params", "18:44: unknown-key: no such key here: group_by (did you mean by?)"),
        (
            "by: params.customer",
            "by: [params.customer]",
            "18:48: wrong-type: counters.spent.by: input should be a valid string "
            '(write one expression, e.g. `params.customer_id + "/" + subject`)',
        ),
        ("keep: reserved", "keep: true", "18:108: unknown-value: counters.spent.keep: input should be 'reserved' (write reserved)"),
        (
            "window_ms: 1000, keep",
            "calendar: day, keep",
            "18:95: wrong-type: counters.spent.calendar: input should be a mapping (write {unit: day})",
        ),
        (
            "window_ms: 1000, keep",
            "window_ms: 86_400_000, keep",
            "18:96: bad-number: the number 86_400_000 is not written as a plain decimal (write 86400000)",
        ),
        ("history.calls()", "counters.calls()", "24:51: unknown-name: there is no name counters (did you mean history.calls?)"),
        ("history.calls()", "countrs.calls()", "24:51: unknown-name: there is no name countrs (did you mean history.calls?)"),
        (
            "action: refund.*, ",
            "",
            "18:3: missing-key: a counter of approvals needs the actions that it counts (add e.g. `action: refund.create`)",
        ),
        ("refund.*", "refunt.*", "18:"),
        ("history.calls()", "calls()", "24:51: unknown-function: there is no function calls (did you mean history.calls?)"),
        ("sum: params.amount", "sum: amount", "unknown-name: there is no name amount (did you mean params.amount?)"),
        ("refund.*", "'*.create'", "bad-name: '*.create' is not a valid action (use lower-case letters"),
        ("  calls:", "  calls-a:", "bad-name: 'calls-a' is not a valid counter (use a lower-case letter, then at most 62 of a-z 0-9 _)"),
        (
            "window_ms: 1000}",
            "calendar: {unit: day, time_zone: Europe/Berlin}}",
            "bad-name: 'Europe/Berlin' is not a valid time_zone (write UTC, an offset like \"+02:00\", or zones.NAME",
        ),
        ("action: refund.*", "action: refund.*, fact: a.b", "unknown-key: a counter of approvals counts actions, not facts"),
        (
            ", window_ms: 1000, keep: reserved",
            ", keep: reserved",
            "missing-key: the counter has no window (add `window_ms`, or `calendar`)",
        ),
        ("window_ms: 1000, keep", "window_ms: 1000, calendar: {unit: day}, keep", "unknown-key: the counter has two windows"),
        ("sum: params.amount", "sum: params.amount, max: params.amount", "unknown-key: the counter already has `sum`"),
        ("of: approvals", "of: rejections", "unknown-key: only approvals are reserved"),
        ("window_ms: 1000}", "window_ms: 1000, settle: '1.0'}", "unknown-key: only reserved approvals are settled (add `keep: reserved`)"),
        ("sum: params.amount", "sum: params.region", "type-error: the expression gives string, not a number"),
        ("by: params.customer", "by: params.count", "not-string: the expression gives int, not string (convert it with string(x))"),
        ("sum: params.amount", "sum: params.customer", "type-error: the expression gives string, not a number"),
        ("by: params.customer", "by: params.amount", "not-string: the expression gives double, not string"),
        ("by: params.customer", "by: params.custmer", "unknown-name: params has no field custmer (did you mean params.customer?)"),
        (
            "by: params.customer",
            "by: params.region",
            'unguarded-optional: params.region may be absent (write has(params.region) ? params.region : "none")',
        ),
        (
            "sum: params.amount",
            "sum: params.tip.value",
            "params.tip may be absent (write has(params.tip) && has(params.tip.value) ? params.tip.value : 0.0)",
        ),
        (
            "sum: params.amount",
            "sum: params.amount, where: params.region == 'x'",
            "unguarded-optional: params.region may be absent (write has(params.region) && …)",
        ),
        ("history.calls()", "history.cals()", "unknown-name: the rule set has no counter cals (did you mean history.calls?)"),
        ("history.calls()", "history.calls", "not-a-value: history.calls is a counter (call it: history.calls())"),
        ("history.calls()", "history.calls('x')", "type-error: history.calls takes no argument, because it has no `by`"),
        ("history.spent(params.customer)", "history.spent()", "type-error: history.spent takes one argument, the key of a group"),
        ("history.spent(params.customer)", "history.spent(params.amount)", "not-string: the expression gives double, not string"),
        ("history.spent(params.customer)", "history.spent(facts.owner)", "unguarded-optional: facts.owner may be absent"),
        (
            "history.calls() > 5",
            "history.spent(string(history.calls())) > 1.0",
            "not-supported: the key of a counter reads another counter",
        ),
        ("history.calls() > 5", "['a'].exists(x, history.spent(x) > 1.0)", "unknown-name: there is no name x"),
        ("history.calls() > 5", "[1].exists(History, history.calls() > 5)", "shadowed-name: History already has a meaning"),
        ("history.calls() > 5", "cel.bind(History, [0], history.calls() > 5)", "shadowed-name: History already has a meaning"),
    ],
)
def test_mistakes(old: str, new: str, expected: str) -> None:
    """A mistake of a counter, or of a read, is reported with what is wrong and what to do."""
    with pytest.raises(DocumentError) as failure:
        compile_changed(old, new)
    messages = [message.format("").lstrip(":") for message in failure.value.messages]
    assert any(expected in message for message in messages), messages


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("effect: approve}", "effekt: approve}", ["unknown-key"]),
        ("window_ms: 1000, keep: reserved", "calendar: {unit: day, zone: UTC}, keep: reserved", ["unknown-key"]),
        ("window_ms: 1000, keep: reserved", "window_ms: 1000, kep: reserved", ["unknown-key"]),
        ("of: approvals", "of: approval", ["unknown-value"]),
        ("of: proposals, ", "", ["missing-key"]),
        ("window_ms: 1000}", "calendar: {unit: year}}", ["unknown-value"]),
        ("window_ms: 1000}", "calendar: {}}", ["missing-key"]),
        (
            "of: proposals, action: refund.create, window_ms: 1000}",
            "of: proposal, action: refund.create, window_ms: 1000}\nvariables: {many: history.calls() > 5}",
            ["unknown-value"],
        ),
    ],
)
def test_a_mistake_of_form_elsewhere(old: str, new: str, expected: list[str]) -> None:
    """After a mistake of form anywhere in the document, sound counters and their sound keys cause no further messages."""
    with pytest.raises(DocumentError) as error:
        compile_changed(old, new)
    assert expected == sorted(message.code for message in error.value.messages)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("window_ms: 1000}", "window_ms: 1s}", "wrong-type"),
        ("window_ms: 1000, keep", "window_ms: 0, keep", "out-of-range"),
        ("window_ms: 1000}", "calendar: day}", "wrong-type"),
        ("window_ms: 1000}", "window: 1d}", "unknown-key"),
        ("action: refund.*", "actions: refund.*", "unknown-key"),
        ("action: refund.create, window", "acton: refund.create, window", "unknown-key"),
        ("reason_code: OVER", "reason: OVER", "unknown-key"),
        ("    action: refund.create\n    priority: 2", "    acton: refund.create\n    priority: 2", "unknown-key"),
        ("history.calls() > 5", "calls() > 5", "unknown-function"),
        ("history.calls() > 5", "counters.calls() > 5", "unknown-name"),
        ("sum: params.amount", "sum: 1", "wrong-type"),
        ("sum: params.amount", "sum: params.customer", "type-error"),
        ("by: params.customer", "by: 7", "wrong-type"),
        ("history.spent(params.customer) > 9.0 || history.calls() > 5", "history.cals() > 5", "unknown-name"),
        ("history.spent(params.customer) > 9.0 || history.calls() > 5", "history.calls('x') > 5", "type-error"),
        ("history.spent(params.customer) > 9.0 || history.calls() > 5", "history.spent.frees(params.customer, 1, 2) > 5", "not-a-value"),
    ],
)
def test_one_mistake_is_one_message(old: str, new: str, expected: str) -> None:
    """A wrong window, or a wrong read of a counter, is reported once, with none of its consequences."""
    with pytest.raises(DocumentError) as error:
        compile_changed(old, new)
    assert [expected] == [message.code for message in error.value.messages]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("window_ms: 1000, keep", "window_ms: 0, keep", "out-of-range"),
        ("window_ms: 1000, keep", "keep", "missing-key"),
        ("window_ms: 1000, keep", "window_ms: 1000, calendar: {unit: day}, keep", "unknown-key"),
        ("sum: params.amount", "sum: params.amount, distinct: params.payer", "unknown-key"),
        ("window_ms: 1000}", "calendar: {unit: day, time_zone: Europe/Berlin}}", "bad-name"),
        ("window_ms: 1000}", "calendar: {unit: day, time_zone: zones.home}}", "unknown-name"),
        ("window_ms: 1000}", "calendar: {unit: days}}", "unknown-value"),
        ("window_ms: 1000}", "calendar: day}", "wrong-type"),
        ("history.calls() > 5", " || ".join(f"history.spent('{number}') > 1.0" for number in range(40)), "too-complex"),
        ("history.calls() > 5", "history.spent(string(history.calls())) > 1.0", "not-supported"),
    ],
)
def test_a_detail_repeats_no_mistake(old: str, new: str, expected: str) -> None:
    """A mistake of a counter, or of a read in the condition, is reported once, also if a detail and a retry_after read the counter."""
    detail = "detail: {left: 9.0 - history.spent(params.customer), calls: history.calls()}"
    retry = "retry_after: history.spent.frees(params.customer, 0, 9)"
    text = SAMPLE.replace("reason_code: OVER", f"reason_code: OVER\n    {detail}\n    {retry}")
    assert compile_rule_set(text).counters
    with pytest.raises(DocumentError) as error:
        compile_rule_set(text.replace(old, new, 1))
    assert [expected] == [message.code for message in error.value.messages]


def test_a_variable_names_the_read_that_is_meant() -> None:
    """A variable that reads `counters.NAME(key)` is told how reads are written."""
    text = SAMPLE + "variables: {used: counters.spent(params.customer)}\n"
    with pytest.raises(DocumentError) as error:
        compile_rule_set(text)
    assert ["did you mean history.spent?"] == [message.suggestion for message in error.value.messages]


def test_known_names_are_available() -> None:
    """The known names of a counter's expression leave out variables that read what its events lack."""
    text = SAMPLE + "variables: {used: history.spent(params.customer), payer: params.payer}\n"
    with pytest.raises(DocumentError) as error:
        compile_rule_set(text.replace("by: params.customer", "by: facts.owner"))
    expected = "known: outcome, params, payer, producer, reason_code, subject, trace"
    assert [expected] == [message.suggestion for message in error.value.messages]


def test_a_zone_of_a_calendar_is_used() -> None:
    """A zone that only the calendar of a counter names is no unused constant; one that nothing names is."""
    zones = 'zones: {home: {offsets: ["2026-01-01T00:00:00Z +01:00"], until: "2027-01-01T00:00:00Z"}}\n'
    text = SAMPLE.replace("window_ms: 1000}", "calendar: {unit: day, time_zone: zones.home}}").replace("rules:\n", f"{zones}rules:\n", 1)
    assert [] == [one.code for one in compile_rule_set(text).warnings if one.code == "constant-never-used"]
    unused = text.replace(", time_zone: zones.home", "")
    assert ["constant-never-used"] == [one.code for one in compile_rule_set(unused).warnings if one.code == "constant-never-used"]


def test_an_explanation_names_no_variable_of_a_read(case: Cases) -> None:
    """Where a counter gives no number, the explanation says so in the author's words."""
    (over, _) = compile_changed().actions["refund.create"].explain(case(params={"amount": 1.0, "customer": "a"}))
    values = {term.expression: term.value for term in over.terms}
    assert "error: a counter gives no number" == values["history.spent(params.customer) > 9.0"]


def test_a_guarded_key() -> None:
    """A key may be an optional fact that the condition tests first."""
    compiled = compile_changed("history.calls() > 5", "has(facts.owner) && history.spent(facts.owner) > 1.0")
    reads: list[Any] = [read.key for read in compiled.actions["refund.create"].counter_reads]
    assert ["params.customer", "facts.owner"] == reads


def test_mistakes_of_variables_in_counters() -> None:
    """A variable that reads what a counter's events lack is a mistake, and so is a constant that the document lacks."""
    text = SAMPLE.replace("actions:", "variables: {owned: facts.owner == 'me'}\nactions:", 1)
    for where, expected in (("owned", "the variable owned reads facts"), ("constants.x > 1.0", "there is no constant x")):
        with pytest.raises(DocumentError, match=expected):
            compile_rule_set(text.replace("sum: params.amount", f"sum: params.amount, where: {where}", 1))
