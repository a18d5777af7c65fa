"""Time zones and calendars as data: the clock of a place, without a file of the host."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from gavel_rules.authoring.diff import diff_rule_sets
from gavel_rules.language.cel.zones import decode_zone, encode_zone
from gavel_rules.language.engines.case import Case
from gavel_rules.language.rule_set import CompiledRuleSet, DocumentError, compile_rule_set
from gavel_server.cli.commands.rules.authoring.zones import _offsets
from hypothesis import given, settings
from hypothesis import strategies as st

Cases = Callable[..., Case]
BERLIN = ZoneInfo("Europe/Berlin")
OFFSETS = list(_offsets(BERLIN, 2025, 2040))
ZONE = {"name": "Europe/Berlin", "offsets": OFFSETS, "until": "2040-01-01T00:00:00Z"}
START_MS, END_MS = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp() * 1000) for year in (2025, 2040))
PARAMS = {
    "type": "object",
    "required": ["hour", "date", "day"],
    "properties": {"hour": {"type": "integer"}, "date": {"type": "string", "maxLength": 10}, "day": {"type": "integer"}},
}


def rules(*conditions: str, **changes: Any) -> CompiledRuleSet:
    """Return a rule set of these conditions with a zone and a calendar."""
    data = {
        "gavel": "v2",
        "rule_set": "shop",
        "version": 1,
        "zones": {"berlin": ZONE},
        "calendars": {"holidays": ["2026-12-25", "2026-12-26"]},
        "actions": {"a.b": {"params": PARAMS}},
        "rules": [
            {"id": f"r{number}", "action": "a.b", "priority": 100 - number, "when": condition, "effect": "approve"}
            for number, condition in enumerate(conditions)
        ],
    }
    return compile_rule_set(json.dumps({**data, **changes}))


HOUR = rules(
    "now.getHours(zones.berlin) == params.hour",
    "now.toDate(zones.berlin) == params.date",
    "now.getDayOfWeek(zones.berlin) == params.day",
    "now.toDate(zones.berlin) in calendars.holidays",
).actions["a.b"]
CHANGES_MS = [int(datetime.fromisoformat(line.split(" ")[0].replace("Z", "+00:00")).timestamp() * 1000) for line in OFFSETS]


@settings(max_examples=100, deadline=None)
@given(st.integers(START_MS, END_MS - 1) | st.sampled_from(CHANGES_MS) | st.sampled_from(CHANGES_MS[1:]).map(lambda at: at - 1))
def test_clocks_are_those_of_the_place(case: Cases, now_ms: int) -> None:
    """Hours, days of the week and dates are those of the zone, also around the changes of its offset, by both engines."""
    there = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(BERLIN)
    date = there.strftime("%Y-%m-%d")
    one = case(params={"hour": there.hour, "date": date, "day": there.isoweekday() % 7}, now_ms=now_ms)
    expected = ["r0", "r1", "r2", *(["r3"] if date in ("2026-12-25", "2026-12-26") else [])]
    for verdict in (HOUR.evaluate(one, cross_check=True), HOUR.evaluate(one, cross_check=False), HOUR.evaluate_reference(one)):
        assert (expected, "", None) == ([rule.id for rule in verdict.matches], verdict.error, verdict.disagreement)


@pytest.mark.parametrize("now_ms", [START_MS - 1, END_MS])
def test_outside_of_the_data_rules_fail(case: Cases, now_ms: int) -> None:
    """Before the first offset and after the last, the condition fails: nothing unknown is permission."""
    verdict = HOUR.evaluate(case(params={"hour": 0, "date": "", "day": 0}, now_ms=now_ms), cross_check=True)
    assert ([], "r0") == ([*verdict.matches], verdict.error)


def test_a_zone_applies_to_any_time(case: Cases) -> None:
    """The receiver may be any expression; it is evaluated once."""
    action = rules('(now + duration("1h")).getHours(zones.berlin) == params.hour && [now].all(t, t.toDate("UTC") == params.date)').actions[
        "a.b"
    ]
    now_ms = int(datetime(2026, 7, 1, 21, 30, tzinfo=UTC).timestamp() * 1000)
    verdict = action.evaluate(case(params={"hour": 0, "date": "2026-07-01", "day": 0}, now_ms=now_ms), cross_check=True)
    assert ["r0"] == [rule.id for rule in verdict.matches], verdict


def test_diff_finds_the_hour() -> None:
    """A changed hour in a zone has a generated case between the two."""
    older, newer = (rules(f"now.getHours(zones.berlin) < {hour}") for hour in (9, 10))
    assert {("r0", ""), ("", "r0")} & {(change.before.rule_id, change.after.rule_id) for change in diff_rule_sets(older, newer).cases}


def test_zones_are_texts() -> None:
    """A zone and its text stand for each other; other texts are no zones."""
    zone = decode_zone(encode_zone(OFFSETS, ZONE["until"]))  # type: ignore[arg-type]
    assert zone is not None
    assert [line.split(" ")[1] for line in OFFSETS] == [*zone.offsets]
    assert None is decode_zone("zone:") is decode_zone("UTC") is decode_zone("zone:5+02:00")
    assert "" == encode_zone([OFFSETS[1], OFFSETS[0]], "2040-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("conditions", "changes", "code"),
    [
        (["now.getHours(zones.paris) == 1"], {}, "unknown-name"),
        (['now.getHours("Europe/Berlin") == 1'], {}, "hidden-input"),
        (["now.toDate(params.date) == ''"], {}, "hidden-input"),
        (["true"], {"zones": {"berlin": {**ZONE, "offsets": OFFSETS[::-1]}}}, "out-of-range"),
        (["true"], {"zones": {"berlin": {**ZONE, "until": "2040-02-30T00:00:00Z"}}}, "out-of-range"),
        (["true"], {"zones": {"ber-lin": ZONE}}, "bad-name"),
        (["true"], {"calendars": {"holidays": ["25.12.2026"]}}, "bad-name"),
        (["true"], {"gavel": "v1"}, "unknown-key"),
    ],
)
def test_mistakes(conditions: list[str], changes: dict[str, Any], code: str) -> None:
    """Unknown zones, zones by name, times that do not ascend, and texts that are no dates are mistakes."""
    with pytest.raises(DocumentError) as refused:
        rules(*conditions, **changes)
    assert code in {message.code for message in refused.value.messages}, refused.value
