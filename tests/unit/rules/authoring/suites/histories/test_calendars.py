"""Generated histories of counters that count by the calendar."""

from __future__ import annotations

import json

import pytest
from gavel_rules.authoring.suites.histories.compare import HistoryChange, HistoryDiff, compare_histories
from gavel_rules.language.rule_set import compile_rule_set

RULES = """\
gavel: v2
rule_set: refunds
version: 1
actions:
  refund.create:
    params:
      type: object
      required: [amount, customer]
      properties: {amount: {type: number, minimum: 0}, customer: {type: string, maxLength: 20}}
zones:
  berlin:
    offsets: ["2025-01-01T00:00:00Z +01:00", "2026-03-29T01:00:00Z +02:00", "2026-10-25T01:00:00Z +01:00"]
    until: "2027-01-01T00:00:00Z"
  new_york:
    offsets: ["2025-01-01T00:00:00Z -05:00", "2026-03-08T07:00:00Z -04:00", "2026-11-01T06:00:00Z -05:00"]
    until: "2027-01-01T00:00:00Z"
  london:
    offsets: ["2025-01-01T00:00:00Z +00:00", "2026-03-29T01:00:00Z +01:00", "2026-10-25T01:00:00Z +00:00"]
    until: "2027-01-01T00:00:00Z"
counters:
  spent: {of: approvals, action: refund.create, by: params.customer, sum: params.amount, calendar: CALENDAR}
  failures: {of: facts, fact: refund.failed, by: subject, calendar: CALENDAR}
rules:
  - id: over
    action: refund.create
    priority: 3
    when: history.spent(params.customer) + params.amount > 100.0
    effect: reject
    reason_code: OVER
  - {id: failing, action: refund.create, priority: 2, when: history.failures(subject) >= 3, effect: reject, reason_code: FAILING}
  - {id: rest, action: refund.create, priority: 1, when: 'true', effect: approve}
"""


def histories(unit: str, before: str, after: str) -> tuple[HistoryChange, ...]:
    """Return the histories that tell two zones apart, which show the edit of both counters."""
    old, new = (compile_rule_set(RULES.replace("CALENDAR", f'{{unit: {unit}, time_zone: "{zone}"}}')) for zone in (before, after))
    diff = compare_histories(old, new)
    assert () == diff.not_analysed
    return diff.changes


@pytest.mark.parametrize("unit", ["day", "week", "month"])
def test_an_edited_time_zone(unit: str) -> None:
    """An event counts in one zone only if the day, week or month began after it in the other one."""
    changes = histories(unit, "zones.berlin", "zones.new_york")
    codes = {(change.before.reason_code, change.after.reason_code) for change in changes}
    assert {("OVER", ""), ("FAILING", "")} <= codes
    assert {"2026-01-15T12:00:00.000Z"} == {change.now for change in changes}


def test_an_hour_of_another_zone() -> None:
    """Hours of a zone with half an hour of offset begin half an hour later, so the earlier events are less than half an hour old."""
    changes = histories("hour", "UTC", "+05:30")
    ages = [change.earlier.age_ms for change in changes if change.earlier is not None]
    ages += [facts.age_ms for change in changes for facts in change.earlier_facts]
    assert ages
    assert all(0 < age <= 1_800_000 for age in ages)


@pytest.mark.parametrize("unit", ["day", "month"])
def test_zones_that_differ_in_summer(unit: str) -> None:
    """If the zones have the same days at the time of the plainest proposal, the history is of a time when they do not."""
    changes = histories(unit, "UTC", "zones.london")
    assert {("OVER", ""), ("FAILING", "")} <= {(change.before.reason_code, change.after.reason_code) for change in changes}
    assert all("2026-03-29" <= change.now < "2026-10-26" for change in changes)
    assert all("T23:" in change.now for change in changes)


@pytest.mark.long
@pytest.mark.parametrize("unit", ["day", "week", "month"])
@pytest.mark.parametrize(
    ("old", "new", "first", "last"),
    [
        pytest.param("2029-10-28T01:00:00Z +01:00", "2029-10-28T01:00:00Z -03:00", "2029-10-28", "2030-02", id="a later offset"),
        pytest.param("2023-01-01T00:00:00Z +03:00", "2023-01-01T00:00:00Z +04:00", "2023-01-01", "2023-03", id="an earlier offset"),
        pytest.param('until: "2031-01-01', 'until: "2030-12-01', "2030-11-01", "2031-01", id="an earlier end"),
    ],
)
def test_an_edited_zone(unit: str, old: str, new: str, first: str, last: str) -> None:
    """An edit of a zone shows in a history of the time at which it matters, however far that is from the plainest proposal."""
    offsets = ["2023-01-01T00:00:00Z +03:00", "2023-03-26T01:00:00Z +01:00", "2029-03-25T01:00:00Z +02:00", "2029-10-28T01:00:00Z +01:00"]
    zone = f'  far:\n    offsets: {json.dumps(offsets)}\n    until: "2031-01-01T00:00:00Z"\n'
    text = RULES.replace("zones:\n", f"zones:\n{zone}").replace("CALENDAR", f"{{unit: {unit}, time_zone: zones.far}}")
    assert old in text
    diff = compare_histories(compile_rule_set(text), compile_rule_set(text.replace(old, new)))
    assert () == diff.not_analysed
    assert {"counters.spent", "counters.failures"} == {
        "counters.failures" if one.earlier_facts else "counters.spent" for one in diff.changes
    }
    assert all(first <= change.now < last for change in diff.changes)


def test_a_unit_of_a_zone_that_begins_later() -> None:
    """Two units of a calendar are compared at a time of which the zone has data."""
    zone = '  later:\n    offsets: ["2028-01-01T00:00:00Z +01:00"]\n    until: "2031-01-01T00:00:00Z"\n'
    text = RULES.replace("zones:\n", f"zones:\n{zone}")
    old, new = (text.replace("CALENDAR", f"{{unit: {unit}, time_zone: zones.later}}") for unit in ("day", "week"))
    diff = compare_histories(compile_rule_set(old), compile_rule_set(new))
    assert () == diff.not_analysed
    assert all("2028-01-01" <= change.now < "2031" for change in diff.changes)


def test_an_edited_zone_with_equal_units() -> None:
    """A change of the clocks at another hour of the night has no history: all days end as before."""
    text = RULES.replace("CALENDAR", "{unit: day, time_zone: zones.berlin}")
    edited = text.replace("2026-03-29T01:00:00Z +02:00", "2026-03-29T02:00:00Z +02:00")
    assert HistoryDiff((), ()) == compare_histories(compile_rule_set(text), compile_rule_set(edited))
