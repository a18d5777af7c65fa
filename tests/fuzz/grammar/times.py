"""Tests of `now`: against timestamps and durations, and on the clocks of zones and calendars."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from hypothesis import strategies as st

from tests.fuzz import meanings as m
from tests.fuzz.documents import CALENDAR, DATES, ZONE, date_text, zone_time
from tests.fuzz.grammar.composer import ORDERS, Chance, Composer
from tests.fuzz.grammar.leaves import Leaves, Names
from tests.fuzz.meanings import Expression, Meaning, strict

ZONES: Final = {"": 0, '"UTC"': 0, '"+02:00"': 120, '"-05:30"': -330, '"+14:00"': 840}
TIMES: Final = (
    *("2000-01-01T00:00:00Z", "2023-11-14T22:13:20Z", "2024-02-29T23:59:59.999Z", "2024-03-31T01:00:00Z"),
    *("2026-12-31T23:30:00Z", "1970-01-01T00:00:00Z", "2100-01-01T00:00:00Z"),
)
DURATIONS: Final = {"0s": 0, "1s": 1_000, "90m": 5_400_000, "36h": 129_600_000, "250ms": 250, "-1h": -3_600_000, "8760h": 31_536_000_000}


class Times:
    """Draws tests of the time."""

    def __init__(self, chance: Chance, composer: Composer, leaves: Leaves) -> None:
        self._chance = chance
        self._composer = composer
        self._leaves = leaves

    def time_test(self, depth: int, names: Names) -> Expression:
        """Draw a test of `now`; its signature is that of every test of a condition."""
        if self._chance.number(1):
            return self._clock_test()
        moment = self._chance.draw(st.sampled_from(TIMES))
        self._leaves.literals.add(moment)
        time = datetime.fromisoformat(moment)
        right = Expression(f"timestamp({self._leaves.quoted(moment)})", m.MEMBER, lambda values: time)
        length = self._chance.draw(st.sampled_from(sorted(DURATIONS)))
        delta = timedelta(milliseconds=DURATIONS[length])
        duration = Expression(f"duration({self._leaves.quoted(length)})", m.MEMBER, lambda values: delta)
        now = Expression("now", m.MEMBER, lambda values: values["now"])
        operator = self._chance.draw(st.sampled_from(ORDERS))
        match self._chance.number(2):
            case 0:
                return self._composer.compare(operator, now, right)
            case 1:
                later = self._composer.binary("+", m.ADDITION, right, duration, strict(lambda at, by: at + by, right, duration))
                return self._composer.compare(operator, now, later)
        return self._composer.compare(
            operator, self._composer.binary("-", m.ADDITION, now, right, strict(lambda at, by: at - by, now, right)), duration
        )

    def _clock_test(self) -> Expression:
        """Draw a test of `now` on the clock of UTC, of a fixed offset or of the document's zone."""
        zone = self._chance.draw(st.sampled_from(sorted(ZONES)))
        clock: Meaning = lambda values: m.shift(values["now"], ZONES[zone])  # noqa: E731
        if self._chance.number(1):
            zone = f"{self._chance.space()}zones{self._chance.space()}.{ZONE}"
            clock = lambda values: zone_time(values["now"])  # noqa: E731
        time = Expression("now", m.MEMBER, clock)
        if zone and self._chance.number(2) == 0:
            date = Expression(f"now.toDate({zone})", m.MEMBER, strict(date_text, time))
            if self._chance.number(1):
                dates = Expression(f"calendars.{CALENDAR}", m.MEMBER, lambda values: list(DATES))
                return self._composer.binary("in", m.RELATION, date, dates, strict(m.contains, date, dates))
            literal = self._chance.draw(st.sampled_from(DATES))
            return self._composer.compare(self._chance.pick("==", "<"), date, Expression(f'"{literal}"', m.MEMBER, lambda values: literal))
        name = self._chance.draw(st.sampled_from(sorted(m.TIME_FIELDS)))
        read = Expression(f"now.{name}({zone})", m.MEMBER, strict(m.TIME_FIELDS[name], time))
        return self._composer.compare(self._chance.draw(st.sampled_from(ORDERS)), read, self._leaves.int_literal())
