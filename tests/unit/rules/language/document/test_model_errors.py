"""Messages about values of the wrong form: what the key is, and what to write."""

from __future__ import annotations

import pytest
from gavel_rules.language.document.model_errors import suggest_value
from gavel_rules.language.rule_set import DocumentError, compile_rule_set

SAMPLE = """\
gavel: v2
rule_set: payments
version: 1
actions:
  pay.send:
    params: {type: object, required: [amount, customer], properties: {amount: {type: number}, customer: {type: string}}}
    facts: {balance: {key: account.balance, type: number, max_age_ms: 1000}}
    conflict_key: subject
    compensation: {action: pay.back, params: {amount: params.amount}}
counters:
  spent: {of: approvals, action: pay.send, by: params.customer, sum: params.amount, where: params.amount > 1.0, window_ms: 60000}
rules:
  - id: over
    action: pay.send
    priority: 2
    when: history.spent(params.customer) + params.amount > facts.balance
    effect: reject
    reason_code: OVER
    retry_after: history.spent.frees(params.customer, params.amount, facts.balance)
  - {id: ok, action: pay.send, priority: 1, when: 'true', effect: approve}
"""


def mistakes(text: str) -> list[str]:
    """Return the mistakes of a document, without their places."""
    try:
        compile_rule_set(text)
    except DocumentError as error:
        return [f"{one.code}: {one.message} ({one.suggestion})" for one in error.messages]
    return []


@pytest.mark.parametrize(
    ("old", "new", "path", "hint"),
    [
        ("when: 'true'", "when: true", "rules.1.when", "an expression is a text: write 'true'"),
        ("when: 'true'", "when: 1", "rules.1.when", "write an expression that gives a bool, e.g. `params.amount > 100.0`"),
        ("when: 'true'", "when: {a: b}", "rules.1.when", "write one expression, e.g. `params.amount > 100.0`"),
        ("where: params.amount > 1.0", "where: false", "counters.spent.where", "an expression is a text: write 'false'"),
        ("sum: params.amount", "sum: 1.5", "counters.spent.sum", "an expression is a text: write '1.5'"),
        ("sum: params.amount", "sum: true", "counters.spent.sum", "write an expression that gives a number, e.g. `params.amount`"),
        (
            "by: params.customer",
            "by: 7",
            "counters.spent.by",
            'write an expression that gives a string, e.g. `params.customer_id + "/" + subject`',
        ),
        (
            "by: params.customer",
            "by: [params.customer]",
            "counters.spent.by",
            'write one expression, e.g. `params.customer_id + "/" + subject`',
        ),
        (
            "conflict_key: subject",
            "conflict_key: true",
            "actions.pay.send.conflict_key",
            'write an expression that gives a string, e.g. `params.customer_id + "/" + subject`',
        ),
        ("conflict_key: subject", "score: 5", "actions.pay.send.score", "an expression is a text: write '5.0'"),
        (
            "{amount: params.amount}}",
            "{amount: 5}}",
            "actions.pay.send.compensation.params.amount",
            "an expression is a text: write '5'",
        ),
        ("counters:", "variables: {limit: 500}\ncounters:", "variables.limit", "an expression is a text: write '500'"),
        (
            "retry_after: history.spent.frees(params.customer, params.amount, facts.balance)",
            "retry_after: 3600000",
            "rules.0.retry_after",
            "it says when a counter has room again, not after how long: "
            "write it like `history.NAME.frees(params.customer_id, params.amount, 1000.0)`",
        ),
    ],
)
def test_values_in_place_of_expressions(old: str, new: str, path: str, hint: str) -> None:
    """A number, a boolean or a list in place of an expression is one mistake, with what to write there."""
    assert old in SAMPLE
    assert [f"wrong-type: {path}: input should be a valid string ({hint})"] == mistakes(SAMPLE.replace(old, new, 1))


@pytest.mark.parametrize(
    ("version", "written"),
    [("v3", '"v3"'), ("2", "2"), ("V2", '"V2"'), ("[v2]", '["v2"]')],
)
def test_unknown_versions_of_the_language(version: str, written: str) -> None:
    """An unknown version of the language is the only mistake that is reported."""
    expected = f"unknown-value: gavel: the language has the versions v1 and v2, not {written} (write `gavel: v2`)"
    assert [expected] == mistakes(SAMPLE.replace("gavel: v2", f"gavel: {version}"))


def test_a_missing_version_of_the_language() -> None:
    """Without a version a document is read in the newest one, so that its other mistakes are reported and none follows."""
    text = SAMPLE.replace("gavel: v2\n", "")
    assert ["missing-key: the key gavel is missing (add it)"] == mistakes(text)
    assert ["missing-key", "unknown-name"] == [one.partition(":")[0] for one in mistakes(text.replace("history.spent(", "history.spnt("))]


@pytest.mark.parametrize(
    ("value", "known", "expected"),
    [
        ("APROVED", ["APPROVED", "REJECTED"], "did you mean APPROVED?"),
        ("agent", ["AGENT", "API"], "did you mean AGENT?"),
        ("int", ["string", "integer"], "did you mean integer?"),
        ("STARTED", ["SUCCESS", "FAILED", "ABORTED"], ""),
        ("", ["SUCCESS", "FAILED"], ""),
        ("x" * 1_000_000, ["x" * 1_000_000], ""),
    ],
)
def test_slips_of_values(value: str, known: list[str], expected: str) -> None:
    """Only a slip of a value is corrected; a value that is merely alike may mean something else."""
    assert expected == suggest_value(value, known)
