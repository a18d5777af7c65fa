"""Groups and amounts of counted events, and amounts as whole numbers of their smallest unit."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal

import pytest
from gavel_rules.language.counters.counter import TOTAL_MAX, Amount, CompiledCounter, CountedEvent, CounterError, to_units
from gavel_rules.language.engines.case import Case
from gavel_rules.language.rule_set import compile_rule_set
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.rules.language.counters.sample import SAMPLE, compile_changed

SCALES = st.integers(0, 9)


def by_text(value: float, units: int) -> int:
    """Return the whole number of units of a number's shortest decimal text, rounded up."""
    return int((Decimal(repr(value)) * units).to_integral_value(ROUND_CEILING))


@given(st.floats(-(2.0**53), 2.0**53), SCALES)
def test_units_of_any_number(value: float, scale: int) -> None:
    """The units of a number are those of its shortest decimal text, rounded up."""
    assume(abs(value) * 10**scale <= TOTAL_MAX)
    assert by_text(value, 10**scale) == to_units(value, 10**scale)


@given(st.integers(-(10**16), 10**16), st.integers(0, 12), SCALES)
def test_units_of_a_short_decimal(digits: int, places: int, scale: int) -> None:
    """A number with few decimals, as prices are, has the units of its text, also near the limit of a double's digits."""
    value = digits / 10**places
    assume(abs(value) * 10**scale <= TOTAL_MAX)
    assert by_text(value, 10**scale) == to_units(value, 10**scale)


@pytest.mark.parametrize(
    ("value", "units", "expected"),
    [(0.1, 100, 10), (1.005, 100, 101), (-1.005, 100, -100), (0.285, 1000, 285), (1e-300, 100, 1), (-0.0, 100, 0), (2.0**53, 1, 2**53)],
)
def test_units(value: float, units: int, expected: int) -> None:
    """A fraction of a unit counts as a whole one."""
    assert expected == to_units(value, units)


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
