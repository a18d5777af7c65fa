"""Amounts of counters as whole numbers of their smallest unit."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal

import pytest
from gavel_rules.language.counters.counter import TOTAL_MAX, to_units
from hypothesis import assume, given
from hypothesis import strategies as st

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
