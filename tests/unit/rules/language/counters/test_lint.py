"""Warnings about counters: each is certain, and says what to do."""

from __future__ import annotations

import pytest
from gavel_rules.language.rule_set import compile_rule_set

from tests.unit.rules.language.counters.sample import SAMPLE, compile_changed


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
        ("history.calls() < 5", "history.calls.frees(1, 5)", "remove retry_after: nobody can foresee when the counter grows"),
        ("(!(5 <= history.calls()))", "history.calls.frees(1, 5)", "remove retry_after: nobody can foresee when the counter grows"),
        ("5 > history.calls() || params.amount > 1.0", "history.calls.frees(1, 5)", "remove retry_after: nobody can foresee"),
        ("history.calls() == 5", "history.calls.frees(1, 5)", ""),
        ("true && [1].exists(x, history.calls() < 5)", "history.calls.frees(1, 5)", ""),
        ("history.calls() > 5 || history.calls() > 9", "history.calls.frees(1, 6)", ""),
        ("history.calls() > 5 || history.calls() > 9", "history.calls.frees(1, 10)", "with this amount, its limit is 6"),
        ("(!(history.calls() <= 5 && history.calls() <= 9))", "history.calls.frees(1, 10)", "with this amount, its limit is 6"),
        ("history.calls() > 5 && history.calls() > 9", "history.calls.frees(1, 10)", ""),
        ("params.amount > 1.0 && history.calls() > 5 || history.calls() > 9", "history.calls.frees(1, 6)", ""),
        ("params.amount > 1.0 && history.calls() > 5 || history.calls() > 9", "history.calls.frees(1, 10)", ""),
        ("history.calls() > 5 && history.calls() < 9", "history.calls.frees(1, 6)", ""),
        ("history.calls() > 5 && history.calls() < 9", "history.calls.frees(1, 9)", "with this amount, its limit is 6"),
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
        ("of: proposals, ", 'of: rejections, where: \'reason_code in ["OVR", "OVER"]\', ', []),
        (
            "of: proposals, ",
            "of: executions, where: 'execution.status == \"STARTED\"', ",
            ["never-equals: known: SUCCESS, FAILED, PARTIAL, TIMEOUT, ABORTED"],
        ),
    ],
)
def test_keys_and_texts(old: str, new: str, expected: list[str]) -> None:
    """A counter with a key that no rule reads it with, or with a text in `where` that no event has, gets a warning."""
    warnings = [f"{one.code}: {one.suggestion}" for one in compile_changed(old, new).warnings if one.code != "fact-never-read"]
    assert expected == warnings


@pytest.mark.parametrize(
    ("by", "key", "hint"),
    [
        ("trace.id", "producer.id", "write `by: producer.id`; no rule can read trace.id"),
        ("trace.id", "subject", "write `by: subject`; no rule can read trace.id"),
        ("trace.id", "params.customer", ""),
        ("trace.id", "facts.owner", ""),
        ("outcome", "subject.id", "write `by: subject.id`; no rule can read outcome"),
        ("producer.type", "producer.id", "write `by: producer.id`, or read history.spent(producer.type)"),
        ("subject", "subject.id", "write `by: subject.id`, or read history.spent(subject)"),
        ("producer.id", "params.customer", "write `by: params.customer`, or read history.spent(producer.id)"),
        ("producer.id", "facts.owner", ""),
        ("subject.id", "params.customer", ""),
        ("params.customer", "subject.id", ""),
        ("params.customer", "'customer'", ""),
    ],
)
def test_keys(by: str, key: str, hint: str) -> None:
    """A counter that rules read only with keys that its groups never have gets a warning; roles of one thing do not."""
    text = SAMPLE.replace("by: params.customer", f"by: {by}")
    condition = f"has(facts.owner) && history.spent({key}) > 9.0"
    warnings = compile_rule_set(text.replace("history.spent(params.customer) > 9.0", condition)).warnings
    assert ([hint] if hint else []) == [one.suggestion for one in warnings if one.code == "key-differs"]


@pytest.mark.parametrize(
    ("old", "new", "names", "hint"),
    [
        ("keep: reserved", "keep: reserved, settle: READ", "execution.result.n", "write has(execution.result.n) ? READ : params.amount"),
        (
            "keep: reserved",
            "keep: reserved, settle: double(READ)",
            "execution.result.n",
            "write has(execution.result.n) ? double(READ) : params.amount",
        ),
        (
            "keep: reserved",
            "keep: reserved, settle: 'has(execution.result.m) ? READ : 1.0'",
            "execution.result.n",
            "write has(execution.result.n) ? (has(execution.result.m) ? READ : 1.0) : params.amount",
        ),
        ("keep: reserved", "keep: reserved, settle: 'has(READ) ? double(READ) : params.amount'", "", ""),
        ("of: proposals", "of: executions, where: 'READ > 1'", "execution.result.n", "write has(execution.result.n) && …"),
        ("of: proposals", "of: executions, where: 'has(READ) && READ > 1', last: READ", "", ""),
        ("of: proposals", "of: executions, where: '\"n\" in execution.result', sum: READ", "", ""),
        ("of: proposals", "of: executions, sum: READ", "execution.result.n", "write `where: has(execution.result.n)`"),
        (
            "of: proposals",
            "of: executions, where: 'execution.status == \"SUCCESS\"', sum: 'READ * execution.result.m'",
            "execution.result.n and execution.result.m",
            "add has(execution.result.n) && has(execution.result.m) to `where`",
        ),
        ("of: proposals", "of: executions, where: 'execution.attempt > 1', sum: execution.attempt", "", ""),
    ],
)
def test_fields_of_reports(old: str, new: str, names: str, hint: str) -> None:
    """A field of a result that a report may lack gets a warning, unless the expression or `where` tests it."""
    warnings = compile_changed(old, new.replace("READ", "execution.result.n")).warnings
    found = [one for one in warnings if one.code == "unguarded-result"]
    assert [hint.replace("READ", "execution.result.n")] * bool(hint) == [one.suggestion for one in found]
    assert [f"a report may lack {names}, and"] * bool(names) == [one.message.partition(" history")[0] for one in found]


CURRENCIES = """\
gavel: v2
rule_set: payments
version: 1
constants: {home: GBP}
variables: {is_foreign: 'params.currency != "GBP"'}
actions:
  pay.card: {params: {type: object, required: [amount, currency], properties: {amount: {type: number}, currency: {enum: [EUR, USD]}}}}
  pay.wire:
    params:
      type: object
      required: [amount, currency]
      properties: {amount: {type: number}, currency: {$ref: "#/$defs/currency"}, level: {enum: [1, 2]}}
      $defs: {currency: {type: string, enum: [EUR, CHF]}}
counters: {paid: {of: approvals, action: ACTION, window_ms: 60000, KEY: 'VALUE'}}
rules:
  - {id: over, actions: [pay.*], priority: 2, when: 'READ > 5.0', effect: reject, reason_code: OVER}
  - {id: ok, actions: [pay.*], priority: 1, when: is_foreign || params.currency == constants.home, effect: approve}
"""


@pytest.mark.parametrize(
    ("action", "key", "value", "expected"),
    [
        ("pay.card", "where", 'params.currency == "EURO"', 'no event that paid counts has params.currency "EURO" (did you mean EUR?)'),
        ("pay.card", "where", '"GBP" != params.currency', 'no event that paid counts has params.currency "GBP" (known: EUR, USD)'),
        ("pay.card", "where", 'params.currency == "usd"', 'no event that paid counts has params.currency "usd" (did you mean USD?)'),
        ("pay.card", "where", 'params.currency in ["EUR", "CHF"]', 'no event that paid counts has params.currency "CHF" (known: EUR, USD)'),
        ("pay.*", "where", 'params.currency in ["EUR", "CHF", "USD"]', ""),
        ("pay.*", "where", 'params.currency == "GBP"', 'no event that paid counts has params.currency "GBP" (known: EUR, USD, CHF)'),
        ("pay.card", "where", "is_foreign", ""),
        ("pay.card", "where", "params.currency == constants.home", ""),
        ("pay.wire", "where", "has(params.level) && params.level == 3", "no event that paid counts has params.level 3 (known: 1, 2)"),
        ("pay.card", "by", 'params.currency == "GBP" ? "x" : "y"', 'no event that paid counts has params.currency "GBP" (known: EUR, USD)'),
        (
            "pay.card",
            "sum",
            'params.currency == "GBP" ? 2.0 : 1.0',
            'no event that paid counts has params.currency "GBP" (known: EUR, USD)',
        ),
    ],
)
def test_values_of_params(action: str, key: str, value: str, expected: str) -> None:
    """A comparison with a value that the schemas of the counted actions exclude gets a warning, in every expression of a counter."""
    read = {"by": 'double(history.paid("x"))', "sum": "history.paid()"}.get(key, "double(history.paid())")
    text = CURRENCIES.replace("ACTION", action).replace("KEY", key).replace("VALUE", value).replace("READ", read)
    warnings = [one for one in compile_rule_set(text).warnings if one.code == "never-equals"]
    assert ([expected] if expected else []) == [f"{one.message} ({one.suggestion})" for one in warnings]
    line = next(number for number, line in enumerate(text.splitlines(), 1) if line.startswith("counters"))
    assert all(one.line == line for one in warnings)
