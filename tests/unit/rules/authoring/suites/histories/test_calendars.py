"""Generated histories of counters that count by the calendar."""

from __future__ import annotations

import pytest
from gavel_rules.authoring.suites.histories.compare import HistoryChange, compare_histories
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
