"""Mistakes in `retry_after`."""

from __future__ import annotations

import pytest
from gavel_rules.language.rule_set import DocumentError, compile_rule_set

from tests.unit.rules.language.counters.sample import SAMPLE, compile_changed


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
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
        (
            "reason_code: OVER",
            "reason_code: OVER\n    retry_after: history.spent(params.customer)",
            "type-error: retry_after is not a call of frees of a counter "
            "(write it like history.spent.frees(params.customer, params.amount, 1000.0))",
        ),
        (
            "reason_code: OVER",
            "reason_code: OVER\n    retry_after: calls.frees(1, 5)",
            "type-error: retry_after is not a call of frees of a counter (write it like history.calls.frees(1, 5))",
        ),
        ("reason_code: OVER", "reason_code: OVER\n    retry_after: history.calls.frees(1, 5", "cel-syntax: ')' is missing at the end"),
        ("reason_code: OVER", "reason_code: OVER\n    retry_after: history.calls.frees('1', 5)", "27:38: type-error: the expression gives"),
        (
            "reason_code: OVER",
            "reason_code: OVER\n    retry_after: 3600000",
            "wrong-type: rules.0.retry_after: input should be a valid string (it says when a counter has room again, not after how long: "
            "write it like `history.NAME.frees(params.customer_id, params.amount, 1000.0)`)",
        ),
    ],
)
def test_mistakes(old: str, new: str, expected: str) -> None:
    """A mistake in `retry_after` is reported with what is wrong and what to do."""
    with pytest.raises(DocumentError) as failure:
        compile_changed(old, new)
    messages = [message.format("").lstrip(":") for message in failure.value.messages]
    assert [message for message in messages if expected in message] == messages[:1], messages


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
