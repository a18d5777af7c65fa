"""Mistakes in counters and in reads of them: each has a place, says what is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from gavel_rules.language.counters.counter import Amount, CompiledCounter, CountedEvent, CounterError
from gavel_rules.language.engines.case import Case
from gavel_rules.language.rule_set import CompiledRuleSet, DocumentError, compile_rule_set

Cases = Callable[..., Case]

SAMPLE = """\
gavel: v2
rule_set: refunds
version: 1
actions:
  refund.create:
    params:
      type: object
      required: [amount, customer, payer]
      properties: {amount: {type: number}, count: {type: integer}, customer: {type: string, maxLength: 20}, payer: {type: string}}
    facts: {owner: {key: order.owner, type: string, max_length: 20, max_age_ms: 1000, optional: true}}
counters:
  spent: {of: approvals, action: refund.*, by: params.customer, sum: params.amount, window_ms: 1000, keep: reserved}
  calls: {of: proposals, action: refund.create, window_ms: 1000}
rules:
  - id: over
    action: refund.create
    priority: 2
    when: history.spent(params.customer) > 9.0 || history.calls() > 5
    effect: reject
    reason_code: OVER
  - {id: ok, action: refund.create, priority: 1, when: 'true', effect: approve}
"""


def compile_changed(old: str = "", new: str = "") -> CompiledRuleSet:
    """Compile the sample with one change."""
    assert old in SAMPLE
    return compile_rule_set(SAMPLE.replace(old, new, 1) if old else SAMPLE)


def test_reads_become_variables() -> None:
    """Reads of one counter with one key are one variable, whatever the spaces; the text keeps its length."""
    compiled = compile_changed("history.calls() > 5", "history.spent( params.customer ) > 1.0 || history.spent('x') > 1.0")
    action = compiled.actions["refund.create"]
    assert [("spent", "params.customer", "History.spent_0"), ("spent", "'x'", "History.spent_1")] == [*map(tuple, action.counter_reads)]
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
        ("gavel: v2", "gavel: v1", "11:1: unknown-key: no such key here: counters needs the language's second version (write `gavel: v2`)"),
        ("by: params", "group_by: params", "12:44: unknown-key: no such key here: group_by (did you mean by?)"),
        (
            "by: params.customer",
            "by: [params.customer]",
            "12:48: wrong-type: counters.spent.by: input should be a valid string "
            '(write one expression, e.g. `params.customer_id + "/" + subject`)',
        ),
        ("keep: reserved", "keep: true", "12:108: unknown-value: counters.spent.keep: input should be 'reserved' (write reserved)"),
        (
            "window_ms: 1000, keep",
            "calendar: day, keep",
            "12:95: wrong-type: counters.spent.calendar: input should be a mapping (write {unit: day})",
        ),
        (
            "window_ms: 1000, keep",
            "window_ms: 86_400_000, keep",
            "12:96: bad-number: the number 86_400_000 is not written as a plain decimal (write 86400000)",
        ),
        ("history.calls()", "counters.calls()", "18:51: unknown-name: there is no name counters (did you mean history?)"),
        (
            "action: refund.*, ",
            "",
            "12:3: missing-key: a counter of approvals needs the actions that it counts (add e.g. `action: refund.create`)",
        ),
        ("refund.*", "refunt.*", "12:"),
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
        ("sum: params.amount", "sum: params.customer", "type-error: the expression gives string, not a number"),
        ("by: params.customer", "by: params.amount", "not-string: the expression gives double, not string"),
        ("by: params.customer", "by: params.custmer", "unknown-name: params has no field custmer (did you mean params.customer?)"),
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
        (
            "reason_code: OVER",
            "reason_code: OVER\n    retry_after: history.spent.frees(params.amount, 1.0)",
            "type-error: frees takes a key, an amount and a limit",
        ),
        (
            "reason_code: OVER",
            "reason_code: OVER\n    retry_after: history.spnt.frees(1.0)",
            "unknown-name: the rule set has no counter",
        ),
        (
            "reason_code: OVER",
            "reason_code: OVER\n    retry_after: duration('1h')",
            "type-error: retry_after is not a call of frees",
        ),
        (
            "'true', effect: approve",
            "'true', effect: approve, retry_after: history.calls.frees(1, 2)",
            "unknown-key: only a refusal can be tried again",
        ),
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
        ("effect: approve}", "effekt: approve}", ["missing-key", "unknown-key"]),
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


def test_a_mistake_of_a_counter_is_reported_once() -> None:
    """A counter with a mistake is not called unknown where `retry_after` names it."""
    text = SAMPLE.replace(
        "reason_code: OVER", "reason_code: OVER\n    retry_after: history.spent.frees(params.customer, params.amount, 9.0)"
    )
    with pytest.raises(DocumentError) as error:
        compile_rule_set(text.replace("of: approvals", "of: approval"))
    assert ["unknown-value"] == [message.code for message in error.value.messages]


def test_a_retry_after_without_counters() -> None:
    """A `retry_after` in a document without a version of the language, which has no counters, is no crash."""
    retry_after = "reason_code: OVER\n    retry_after: history.spent.frees(params.customer, params.amount, 9.0)"
    with pytest.raises(DocumentError) as error:
        compile_rule_set(SAMPLE.replace("reason_code: OVER", retry_after).replace("gavel: v2", "gavel: null"))
    assert "gavel" in error.value.messages[0].message


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


def test_warnings() -> None:
    """A counter that no rule reads is a warning; a fact that only the key of a counter reads is none."""
    compiled = compile_changed("history.calls() > 5", "has(facts.owner) && history.spent(facts.owner) > 1.0")
    message = "no rule, no score and no derivation reads calls"
    assert [("counter-never-read", message)] == [(one.code, one.message) for one in compiled.warnings]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("window_ms: 1000, keep", "window_ms: 86400, keep", ["window-in-seconds: the window of spent is 86.4 s"]),
        ("window_ms: 1000, keep", "window_ms: 2592000, keep", ["window-in-seconds: the window of spent is 2592 s"]),
        ("window_ms: 1000, keep", "window_ms: 90000, keep", []),
        ("window_ms: 1000, keep", "window_ms: 86400000, keep", []),
        ("window_ms: 1000, keep", "window_ms: 30, keep", ["window-in-seconds: the window of spent is 0.03 s"]),
        ("> 9.0", "> 9.005", ["threshold-too-exact: history.spent is a multiple of 0.01, so it never equals 9.005"]),
        ("> 9.0", "> 9.05", []),
        ("> 9.0", "> 1e30", []),
        ("> 9.0", "+ params.amount > 9.005", []),
        ("> 9.0", "* 1.1 > 9.005", []),
        ("history.calls() > 5", "double(history.calls()) / 2.5 > 0.5", []),
        (
            "history.calls() > 5",
            "double(history.calls()) - 0.5 > 5.0",
            ["threshold-too-exact: history.calls is a multiple of 1, so it never equals 5.5"],
        ),
        ("> 9.0", "> 1000.001", ["threshold-too-exact: history.spent is a multiple of 0.01, so it never equals 1000.001"]),
        ("history.calls() > 5", "5.5 < history.calls()", ["threshold-too-exact: history.calls is a multiple of 1, so it never equals 5.5"]),
        ("reason_code: OVER", "reason_code: OVER\n    retry_after: history.spent.frees( params.customer , 0, 9)", []),
        (
            "reason_code: OVER",
            "reason_code: OVER\n    retry_after: history.spent.frees('x', params.amount, 9)",
            ["counter-differs: retry_after asks for room in history.spent('x'), which the rule does not read"],
        ),
        (
            " || history.calls() > 5\n    effect: reject\n    reason_code: OVER",
            "\n    effect: reject\n    reason_code: OVER\n    retry_after: history.calls.frees(1, 9)",
            [
                "counter-never-read: no rule, no score and no derivation reads calls",
                "counter-differs: retry_after asks for room in history.calls, which the rule does not read",
            ],
        ),
    ],
)
def test_units(old: str, new: str, expected: list[str]) -> None:
    """A window that was probably meant in seconds, a threshold that no number of the counter equals, and another limit get a warning."""
    warnings = [f"{one.code}: {one.message}" for one in compile_changed(old, new).warnings if one.code != "fact-never-read"]
    assert expected == warnings


@pytest.mark.parametrize(
    ("condition", "call", "hint"),
    [
        ("history.calls() >= 5", "history.calls.frees(1, 5)", ""),
        ("history.calls() >= 5", "history.calls.frees(0, 5)", "with this amount, its limit is 4"),
        ("history.calls() > 5", "history.calls.frees(1, 5)", "with this amount, its limit is 6"),
        ("history.calls() > 0", "history.calls.frees(1, 1)", ""),
        ("history.calls() != 0", "history.calls.frees(1, 90)", ""),
        ("history.spent('a') + params.amount > 9.0", "history.spent.frees('a', params.amount, 9)", ""),
        ("params.amount + history.spent('a') > double(9)", "history.spent.frees('a', params.amount, 9.0)", ""),
        ("9.0 - history.spent('a') < params.amount", "history.spent.frees('a', params.amount, 9.0)", ""),
        ("true && !(history.spent('a') + params.amount <= 9.0)", "history.spent.frees('a', params.amount, 9.0)", ""),
        ("history.spent('a') + params.amount >= 9.0", "history.spent.frees('a', params.amount, 8.99)", ""),
        ("history.spent('a') + params.amount > 9.0", "history.spent.frees('a', params.amount, 90)", "with this amount, its limit is 9"),
        (
            "history.spent('a') + params.amount > 9.0",
            "history.spent.frees('a', 1, 9)",
            "its amount is what the condition adds to history.spent, its limit what it compares the sum with",
        ),
        ("has(params.count) && history.calls() >= params.count", "history.calls.frees(1, 5)", "its amount is what the condition adds"),
        ("history.spent('a') > 1.0 || history.spent('a') + params.amount > 9.0", "history.spent.frees('a', params.amount, 9)", ""),
        ("history.spent('a') * 2.0 > 9.0", "history.spent.frees('a', 0, 4.5)", ""),
        (
            "2.0 * (history.spent('a') + params.amount) > 9.0",
            "history.spent.frees('a', params.amount, 9)",
            "with this amount, its limit is 4.5",
        ),
        ("history.spent('a') + params.amount * 1.0 > 4.5 * 2.0", "history.spent.frees('a', params.amount, 9)", ""),
        ("history.spent('a') + history.spent('b') > 9.0", "history.spent.frees('a', 0, 9.0 - history.spent('b'))", ""),
        ("history.spent('a') + params.amount > 18.0 / 2.0", "history.spent.frees('a', params.amount, 9)", ""),
        ("history.spent('a') / 2.0 + params.amount / 2.0 > 4.5", "history.spent.frees('a', params.amount, 9)", ""),
        ("history.spent('a') / params.amount > 0.3 || history.spent('a') > 9.0", "history.spent.frees('a', 0, params.amount * 0.3)", ""),
        ("history.spent('a') > 9.0 || params.amount > 5.0", "'history.spent.frees(\"a\", 0, params.amount > 5.0 ? 5.0 : 9.0)'", ""),
        ("history.spent('a') + params.amount >= 9.005", "history.spent.frees('a', params.amount, 9)", ""),
        (
            "history.spent('a') + params.amount >= 9.005",
            "history.spent.frees('a', params.amount, 9.01)",
            "with this amount, its limit is 9",
        ),
    ],
)
def test_limits_of_retry_after(condition: str, call: str, hint: str) -> None:
    """A retry_after that foresees room at another number than that at which its condition changes gets a warning with the right one."""
    old = "history.spent(params.customer) > 9.0 || history.calls() > 5\n    effect: reject"
    compiled = compile_changed(old, f"{condition}\n    effect: reject\n    retry_after: {call}")
    warnings = [one for one in compiled.warnings if one.code not in ("fact-never-read", "counter-never-read")]
    assert (["limit-differs"] if hint else []) == [one.code for one in warnings]
    assert all(one.suggestion.startswith(hint) for one in warnings)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("by: params.customer", "by: producer.id", ["key-differs: write `by: params.customer`, or read history.spent(producer.id)"]),
        ("by: params.customer", "by: params.customer + ''", []),
        ("by: params.customer", "by: subject", []),
        ("spent(params.customer) >", "spent(params.payer) >", []),
        ("spent(params.customer) >", "spent(params.customer + 'x') >", []),
        ("window_ms: 1000, keep", "where: 'outcome == \"APPROVED\"', window_ms: 1000, keep", []),
        ("window_ms: 1000, keep", "where: '\"APROVED\" != outcome', window_ms: 1000, keep", ["never-equals: did you mean APPROVED?"]),
        ("window_ms: 1000, keep", "where: 'producer.type in [\"AGNT\"]', window_ms: 1000, keep", ["never-equals: did you mean AGENT?"]),
        ("of: proposals, ", "of: executions, where: 'execution.status == \"SUCCES\"', ", ["never-equals: did you mean SUCCESS?"]),
        ("of: proposals, ", "of: executions, where: 'execution.status == \"SUCCESS\"', ", []),
        ("of: proposals, ", 'of: rejections, where: \'reason_code in ["OVER", "REVIEW_REJECTED"]\', ', []),
        ("of: proposals, ", 'of: rejections, where: \'reason_code in ["", "COMPANY_FREEZE"]\', ', []),
        ("of: proposals, ", "of: rejections, where: 'reason_code == \"OVR\"', ", ["never-equals: did you mean OVER?"]),
    ],
)
def test_keys_and_texts(old: str, new: str, expected: list[str]) -> None:
    """A counter with a key that no rule reads it with, or with a text in `where` that no event has, gets a warning."""
    warnings = [f"{one.code}: {one.suggestion}" for one in compile_changed(old, new).warnings if one.code != "fact-never-read"]
    assert expected == warnings


def plain(amount: Amount | None) -> tuple[str, int | str] | None:
    """Return an amount as a tuple."""
    return None if amount is None else (amount.group, amount.value)


@pytest.mark.parametrize(
    ("direct", "evaluated"),
    [
        ("by: params.customer", "by: params.customer + ''"),
        ("by: params.customer", "by: string(params.customer)"),
        ("sum: params.amount", "sum: params.amount + 0.0"),
    ],
)
@pytest.mark.parametrize("params", [{"amount": 1.5, "customer": "c"}, {"amount": 3, "customer": "d"}, {"amount": 1.0}, {"customer": "c"}])
def test_plain_values_are_not_evaluated(direct: str, evaluated: str, params: dict[str, object]) -> None:
    """A key or an amount that is just a param gives what its evaluation gives, also for params of another schema."""
    event = CountedEvent("refund.create", params, "order/1", "AGENT", "agent-1", "", {"outcome": "APPROVED", "reason_code": ""})

    def amount(counter: CompiledCounter) -> object:
        try:
            return plain(counter.amount_of(event))
        except CounterError as error:
            return str(error)

    assert amount(compile_changed(direct, evaluated).counters["spent"]) == amount(compile_changed().counters["spent"])


def test_plain_keys_are_not_evaluated() -> None:
    """The keys of reads are those that an evaluation gives, also for counters without groups and for absent facts."""
    plain = compile_changed("history.calls() > 5", "has(facts.owner) && history.spent(facts.owner) > 1.0 || history.calls() > 5")
    mixed = compile_changed("history.calls() > 5", "has(facts.owner) && history.spent(facts.owner + '') > 1.0 || history.calls() > 5")
    present: dict[str, object] = {"owner": "o"}
    for facts in ({}, present):
        case = Case({"amount": 1.0, "customer": "c"}, facts, 0.0, 0.0, 0.0, 0, "", "order/1", "AGENT", "agent-1", "", 0, 0, 0, 0, 0)
        expected = ["c", facts.get("owner"), ""]
        assert expected == plain.actions["refund.create"].counter_keys(case)
        assert expected == mixed.actions["refund.create"].counter_keys(case)


def test_constants_and_variables() -> None:
    """The expressions of a counter read constants and variables; with their values the counter is the one that writes them out."""
    written = compile_changed("sum: params.amount", "sum: params.amount, where: params.amount > (2.0) && (params.customer != 'me')")
    named = SAMPLE.replace("sum: params.amount", "sum: params.amount, where: params.amount > constants.small && other", 1).replace(
        "actions:", "constants: {small: 2}\nvariables: {other: params.customer != 'me'}\nactions:", 1
    )
    counter = compile_rule_set(named).counters["spent"]
    assert written.counters["spent"].digest == counter.digest
    assert counter.digest != compile_rule_set(named.replace("small: 2", "small: 3")).counters["spent"].digest
    amounts = []
    for amount, customer in ((2.0, "you"), (2.5, "me"), (2.5, "you")):
        params = {"amount": amount, "customer": customer}
        amounts.append(plain(counter.amount_of(CountedEvent("refund.create", params, "order/1", "AGENT", "agent-1", "", {}))))
    assert [None, None, ("you", 250)] == amounts


def test_mistakes_of_variables_in_counters() -> None:
    """A variable that reads what a counter's events lack is a mistake, and so is a constant that the document lacks."""
    text = SAMPLE.replace("actions:", "variables: {owned: facts.owner == 'me'}\nactions:", 1)
    for where, expected in (("owned", "the variable owned reads facts"), ("constants.x > 1.0", "there is no constant x")):
        with pytest.raises(DocumentError, match=expected):
            compile_rule_set(text.replace("sum: params.amount", f"sum: params.amount, where: {where}", 1))


def test_counters_of_one_kind_are_evaluated_once() -> None:
    """Counters that differ in their windows and limits alone share the group and amount of an event; others do not."""
    common = "of: approvals, action: refund.*, by: params.customer, sum: params.amount"
    more = f"counters:\n  other: {{{common}, window_ms: 5000, entries_max: 9}}\n"
    more += f"  third: {{{common}, scale: 3, window_ms: 1000}}"
    counters = compile_changed("counters:", more).counters
    event = CountedEvent("refund.create", {"amount": 1.5, "customer": "c"}, "order/1", "AGENT", "agent-1", "", {})
    amounts = [counters[name].amount_of(event) for name in ("spent", "other", "third")]
    assert [("c", 150), ("c", 150), ("c", 1500)] == [plain(amount) for amount in amounts]
    assert (True, False) == (amounts[0] is amounts[1], amounts[0] is amounts[2])
