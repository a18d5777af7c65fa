"""Decisions as the commands show them."""

from __future__ import annotations

import pytest
from gavel.v1.decision_pb2 import OUTCOME_REJECTED, REMEDY_WAIT, CounterReading, Decision, RetryHint
from gavel_rules.state.counters import NOT_COUNTING
from gavel_server.cli.rendering.decision import print_decision
from google.protobuf.timestamp_pb2 import Timestamp


@pytest.mark.parametrize(
    ("conflicts", "text"),
    [([], "propose again after 30 s or more"), (["p-1"], "propose again when the conflicting work has ended, or after 30 s")],
)
def test_delay_before_a_retry(conflicts: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The delay is a minimum, but after a conflict the other work may end earlier."""
    hint = RetryHint(retryable=True, retry_after_ms=30_000, remedy=[REMEDY_WAIT])
    print_decision(Decision(outcome=OUTCOME_REJECTED, conflict_with_proposal_ids=conflicts, retry_hint=hint), [])
    shown = capsys.readouterr().out
    assert text in " ".join(shown.split()), shown


def test_counter_that_is_not_filled(capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run with a counter that is not in force says to activate its rule set; nothing conflicts."""
    decision = Decision(outcome=OUTCOME_REJECTED, reason_code="COUNTER_FULL", retry_hint=RetryHint(retryable=True, remedy=[REMEDY_WAIT]))
    decision.warnings.add(code="COUNTER_FULL", message=f"refunds/spent: {NOT_COUNTING.cause}")
    print_decision(decision, [])
    shown = " ".join(capsys.readouterr().out.split())
    assert ("activate the rule set" in shown, "conflicting" in shown) == (True, False), shown


def test_counters(capsys: pytest.CaptureFixture[str]) -> None:
    """A decision shows each counter that it read, with its group, its value, and when the next event leaves it."""
    readings = [
        CounterReading(policy_id="refund-budgets", counter="of_day", value=100),
        CounterReading(
            policy_id="refund-budgets", counter="to_customer", key="c-7", value=49.99, frees_at=Timestamp(seconds=1_800_000_000)
        ),
        CounterReading(policy_id="refund-budgets", counter="to_customer", key="all", value=9_007_199_254_740_991),
        CounterReading(policy_id="refund-budgets", counter="to_customer", key="\n", value=9_999_999_999_999.999),
    ]
    print_decision(Decision(outcome=OUTCOME_REJECTED, counters=readings), [])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "refund-budgets of_day all 100 -" in lines
    assert 'refund-budgets to_customer "c-7" 49.99 2027-01-15T08:00:00.000Z' in lines
    assert 'refund-budgets to_customer "all" 9007199254740991 -' in lines
    assert 'refund-budgets to_customer "\\n" 9999999999999.998 -' in lines
