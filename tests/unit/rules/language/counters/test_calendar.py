"""Calendars of counters: an event counts until its hour, day, week or month ends by a clock that the document names."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from gavel_rules.language.counters.counter import CompiledCounter, CounterError
from gavel_rules.language.rule_set import DocumentError, compile_rule_set
from gavel_server.cli.commands.rules.authoring.zones import _offsets
from hypothesis import given
from hypothesis import strategies as st

BERLIN = ZoneInfo("Europe/Berlin")
OFFSETS = list(_offsets(BERLIN, 2025, 2040))
ZONE = {"offsets": OFFSETS, "until": "2040-01-01T00:00:00Z"}
START_MS, END_MS = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp() * 1000) for year in (2025, 2040))
LONGEST_MS = 31 * 86_400_000
CHANGES_MS = [int(datetime.fromisoformat(line.split(" ")[0].replace("Z", "+00:00")).timestamp() * 1000) for line in OFFSETS[1:]]
TIMES_MS = st.integers(START_MS, END_MS - LONGEST_MS - 1) | st.builds(
    lambda change_ms, hours: min(change_ms + hours * 3_600_000, END_MS - LONGEST_MS - 1), st.sampled_from(CHANGES_MS), st.integers(-30, 3)
)


def counter_by(unit: str, time_zone: str, zone: dict[str, Any] | None = None) -> CompiledCounter:
    """Return a counter of proposals by a unit of the calendar, in a document with the zone `berlin`."""
    document = {
        "gavel": "v2",
        "rule_set": "shop",
        "version": 1,
        "zones": {"berlin": zone or ZONE},
        "actions": {"a.b": {"params": {"type": "object"}}},
        "counters": {"calls": {"of": "proposals", "action": "a.b", "calendar": {"unit": unit, "time_zone": time_zone}}},
        "rules": [{"id": "over", "action": "a.b", "priority": 1, "when": "history.calls() > 5", "effect": "reject", "reason_code": "OVER"}],
    }
    return compile_rule_set(json.dumps(document)).counters["calls"]


COUNTERS = {unit: counter_by(unit, "zones.berlin") for unit in ("hour", "day", "week", "month")}


def next_start(local: datetime, unit: str) -> datetime:
    """Return the local time at which the unit after that of a local time begins."""
    if unit == "hour":
        return local.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    day = local.replace(hour=0, minute=0, second=0, microsecond=0)
    if unit == "month":
        return day.replace(year=day.year + day.month // 12, month=day.month % 12 + 1, day=1)
    return day + timedelta(days=1 if unit == "day" else 7 - day.weekday())


@pytest.mark.parametrize("unit", COUNTERS)
@given(at_ms=TIMES_MS)
def test_units_of_a_zone(unit: str, at_ms: int) -> None:
    """A unit ends when the clocks of its zone show its end, whether they are changed meanwhile or not."""
    local = (datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at_ms)).astimezone(BERLIN).replace(tzinfo=None)
    end = next_start(local, unit).replace(tzinfo=BERLIN)
    assert round(end.timestamp() * 1000) == COUNTERS[unit].lapses_at_ms(at_ms)


@given(st.integers(0, END_MS), st.sampled_from(["+02:00", "-05:30"]))
def test_units_of_an_offset(at_ms: int, offset: str) -> None:
    """With a fixed offset, a day ends at midnight by that offset; UTC has the offset 0."""
    minutes = (int(offset[1:3]) * 60 + int(offset[4:])) * (-1 if offset[0] == "-" else 1)
    assert (at_ms + minutes * 60_000) // 86_400_000 * 86_400_000 + 86_400_000 - minutes * 60_000 == DAYS[offset].lapses_at_ms(at_ms)
    assert DAYS["+00:00"].lapses_at_ms(at_ms) == DAYS["UTC"].lapses_at_ms(at_ms) == at_ms // 86_400_000 * 86_400_000 + 86_400_000


DAYS = {offset: counter_by("day", offset) for offset in ("UTC", "+00:00", "+02:00", "-05:30")}


@pytest.mark.parametrize("at_ms", [START_MS - 1, END_MS - 1, END_MS])
def test_outside_of_a_zone(at_ms: int) -> None:
    """Outside of the zone's data the end of a unit is unknown, so the counter gives no number for longer than the unit could last."""
    with pytest.raises(CounterError):
        COUNTERS["month"].lapses_at_ms(at_ms)
    assert at_ms + LONGEST_MS < COUNTERS["month"].fault_until_ms(at_ms)


def test_digests_hold_the_zone() -> None:
    """A counter by a zone is another one if the zone's data is another, and the same under another name of the zone."""
    shorter = {**ZONE, "until": "2039-12-01T00:00:00Z"}
    assert counter_by("day", "zones.berlin").digest == COUNTERS["day"].digest
    assert counter_by("day", "zones.berlin", shorter).digest != COUNTERS["day"].digest


def test_unknown_zone() -> None:
    """A zone that the document lacks is a mistake at its name."""
    with pytest.raises(DocumentError, match=r"unknown-name.*there is no zone berlim.*zones\.berlin"):
        counter_by("day", "zones.berlim")
