"""Generated histories of counters that count facts or observations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel_rules.authoring.derived_facts import DerivedFact
from gavel_rules.authoring.diff import diff_rule_sets
from gavel_rules.authoring.suites.histories.compare import HistoryChange, HistoryDiff, NotAnalysed, compare_histories
from gavel_rules.authoring.suites.histories.earlier_facts import FACTS_MAX, EarlierFacts
from gavel_rules.authoring.suites.reader import read_suite
from gavel_rules.authoring.suites.versions import compare_versions
from gavel_rules.language.rule_set import CompiledRuleSet, compile_rule_set

RULES = """\
gavel: v2
rule_set: deploys
version: 1
actions:
  service.deploy:
    params:
      type: object
      required: [service]
      properties: {service: {type: string, maxLength: 20}}
    facts:
      owner: {key: service.owner, type: string, max_age_ms: 60000}
counters:
  failures: {of: facts, fact: deploy.failed, where: value == true, by: subject, window_ms: 1800000}
  downtime: {of: facts, fact: deploy.downtime, where: value > 5.0, by: subject, sum: value, window_ms: 1800000}
  errors: {of: observations, fact: [log.error, log.fatal], where: 'value == "error"', by: subject, window_ms: 1800000}
rules:
  - {id: failing, action: service.deploy, priority: 9, when: history.failures(subject) >= 3, effect: reject, reason_code: FAILING}
  - {id: down, action: service.deploy, priority: 8, when: history.downtime(subject) > 60.0, effect: reject, reason_code: DOWN}
  - id: erring
    action: service.deploy
    priority: 7
    when: history.errors("service/" + params.service) > 4
    effect: review
    reason_code: ERRING
  - {id: rest, action: service.deploy, priority: 1, when: 'facts.owner != ""', effect: approve}
"""
DERIVATION = """\
derivations:
  - {id: unstable, version: 1, on: {action: service.deploy, status: FAILED}, key: team.unstable, value: history.failures(subject) >= 2}
"""
FAILURES = "where: value == true, by: subject, window_ms: 1800000"


def replaced(text: str, *edits: tuple[str, str]) -> CompiledRuleSet:
    """Return the rule set with these replacements."""
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return compile_rule_set(text)


def compare(*edits: tuple[str, str], text: str = RULES) -> HistoryDiff:
    """Compare the rule set with a version that has these replacements."""
    return compare_histories(compile_rule_set(text), replaced(text, *edits))


def only(diff: HistoryDiff) -> HistoryChange:
    """Return the only history of a diff, which shows every edit."""
    assert () == diff.not_analysed
    (change,) = diff.changes
    return change


def codes(change: HistoryChange) -> tuple[str, str]:
    """Return the reason codes of both decisions; "" of an approval."""
    return change.before.reason_code, change.after.reason_code


def suite_of(change: HistoryChange, less: int) -> str:
    """Return a history as a suite of one case, with `less` earlier facts fewer."""
    (past,) = change.earlier_facts
    row = {"key": past.key, "subject": past.subject, "source": past.source, "tier": past.tier, "age_ms": past.age_ms, "value": past.value}
    facts: dict[str, Any] = {f"counted {number}": row for number in range(past.facts - less)}
    case = {
        "name": "history",
        "subject": change.subject,
        "params": dict(change.params),
        "facts": {**facts, **change.facts},
        "cites": [*change.facts],
        "expect": {"outcome": "APPROVED"},
    }
    return json.dumps({"gavel": "v1", "tests": "deploys.yaml", "cases": [case]})


@pytest.mark.parametrize(
    ("old", "new", "expected", "reason_codes"),
    [
        (  # the window
            FAILURES,
            FAILURES.replace("1800000", "3600000"),
            EarlierFacts(3, 2_700_000, "deploy.failed", "subject/1", "test-source", 1, True),
            ("", "FAILING"),
        ),
        (  # the filter, with a sum: 11 times 5.01 is below the threshold
            "value > 5.0",
            "value > 10.0",
            EarlierFacts(12, 900_000, "deploy.downtime", "subject/1", "test-source", 1, 5.01),
            ("DOWN", ""),
        ),
        (  # the group
            "where: value == true, by: subject",
            "where: value == true, by: producer.id",
            EarlierFacts(3, 900_000, "deploy.failed", "subject/1", "test-source", 1, True),
            ("FAILING", ""),
        ),
        (  # the filter of observations, in the group of the key
            '"error"',
            '"warning"',
            EarlierFacts(5, 900_000, "log.error", "service/a", "test-source", 3, "error"),
            ("ERRING", ""),
        ),
        (  # the keys: facts of the key that only one version counts
            "[log.error, log.fatal]",
            "log.error",
            EarlierFacts(5, 900_000, "log.fatal", "service/a", "test-source", 3, "error"),
            ("ERRING", ""),
        ),
        (  # the kind of event
            "of: facts, fact: deploy.failed",
            "of: observations, fact: deploy.failed",
            EarlierFacts(3, 900_000, "deploy.failed", "subject/1", "test-source", 1, True),
            ("FAILING", ""),
        ),
    ],
)
def test_edited_counters(old: str, new: str, expected: EarlierFacts, reason_codes: tuple[str, str]) -> None:
    """An edited counter shows with as many facts as just reach its threshold, of the right group and age; one fewer shows nothing."""
    before, after = compile_rule_set(RULES), replaced(RULES, (old, new))
    change = only(compare_histories(before, after))
    assert ((expected,), reason_codes) == (change.earlier_facts, codes(change))
    assert change.earlier is None
    (case,) = compare_versions(read_suite(suite_of(change, 0)), [before], [after])
    assert (change.before, change.after) == (case.before, case.after)
    assert [] == list(compare_versions(read_suite(suite_of(change, 1)), [before], [after]))


def test_a_threshold_of_a_rule() -> None:
    """A changed threshold on a counter of facts shows as a case between its values; the counter has no history, as it did not change."""
    before, after = compile_rule_set(RULES), replaced(RULES, ("history.failures(subject) >= 3", "history.failures(subject) >= 2"))
    (case,) = diff_rule_sets(before, after).cases
    assert (2, "rest", "failing") == (case.context["history.failures(subject)"], case.before.rule_id, case.after.rule_id)
    assert HistoryDiff((), ()) == compare_histories(before, after)


def test_calendars() -> None:
    """A changed calendar shows with facts that only the longer unit still counts."""
    text = RULES.replace(FAILURES, "where: value == true, by: subject, calendar: {unit: hour}")
    change = only(compare(("calendar: {unit: hour}", "calendar: {unit: day}"), text=text))
    assert ("", "FAILING") == codes(change)


def test_different_values() -> None:
    """Facts of a counter of different values differ, each from the others."""
    edits = [
        ("where: value == true, by: subject, window", "distinct: subject, window"),
        ("history.failures(subject)", "history.failures()"),
    ]
    text = RULES
    for old, new in edits:
        text = text.replace(old, new)
    change = only(compare(("distinct: subject", "distinct: producer.id"), text=text))
    assert (3, 1) == (len({past.subject for past in change.earlier_facts}), len({past.source for past in change.earlier_facts}))
    assert ("FAILING", "") == codes(change)


def test_one_value_after_another() -> None:
    """The last value differs from the greatest one if a smaller value follows a greater one."""
    change = only(compare(("max: value", "last: value"), text=RULES.replace("sum: value", "max: value")))
    older, newer = change.earlier_facts
    assert older.age_ms > newer.age_ms
    assert isinstance(older.value, float)
    assert isinstance(newer.value, float)
    assert older.value > 60.0 >= newer.value
    assert ("DOWN", "") == codes(change)


def test_values_with_fields() -> None:
    """A fact has the fields that the filter reads, with values that pass it."""
    text = RULES.replace("where: value == true", 'where: value.state == "failed" && value.run.minutes > 3.0')
    change = only(compare(('value.state == "failed"', 'value.state == "broken"'), text=text))
    assert {"state": "failed", "run": {"minutes": 3.01}} == change.earlier_facts[0].value


def test_two_counters_in_a_condition() -> None:
    """A rule that also reads another counter of facts gets facts of that one too."""
    text = RULES.replace("history.failures(subject) >= 3", "history.failures(subject) >= 3 && history.downtime(subject) > 60.0")
    change = only(compare((FAILURES, FAILURES.replace("1800000", "3600000")), text=text))
    assert [("deploy.failed", 3), ("deploy.downtime", 12)] == [(past.key, past.facts) for past in change.earlier_facts]
    assert ("DOWN", "FAILING") == codes(change)


def test_a_subject_that_a_rule_asks_for() -> None:
    """The proposal has the subject with which the rule matches."""
    text = RULES.replace(
        'when: history.errors("service/" + params.service) > 4',
        "when: 'subject == \"service/\" + params.service && history.errors(subject) > 4'",
    )
    change = only(compare(('"error"', '"warning"'), text=text))
    assert ("service/a", ("ERRING", "")) == (change.subject, codes(change))


@pytest.mark.parametrize("window_ms", [1, 1_800_000])
def test_evidence_that_counts(window_ms: int) -> None:
    """Facts of a key that the action also declares as evidence come before the evidence, which then is not superseded."""
    text = RULES.replace("deploy.failed", "service.owner").replace(FAILURES, f'where: value == "bob", by: subject, window_ms: {window_ms}')
    change = only(compare(('"bob"', '"eve"'), text=text))
    assert ("bob", ("FAILING", "")) == (change.earlier_facts[0].value, codes(change))


@pytest.mark.parametrize(
    ("edit", "count", "age_ms"),
    [
        (("failures(subject) >= 2", "failures(subject) >= 1"), 1, 900_000),
        ((FAILURES, FAILURES.replace("1800000", "3600000")), 2, 2_700_000),
    ],
)
def test_derivations(edit: tuple[str, str], count: int, age_ms: int) -> None:
    """An edited derivation over a counter of facts, or a derivation over an edited one, shows in the facts that it derives."""
    change = only(compare(edit, text=RULES.replace(">= 3", ">= 300") + DERIVATION))
    (past,) = change.earlier_facts
    assert (count, age_ms) == (past.facts, past.age_ms)
    values = [DerivedFact("team.unstable", "subject/1", value) for value in (False, True)]
    assert ([values[0]], [values[1]]) == ([*change.derived_before], [*change.derived_after])


def test_several_edited_counters() -> None:
    """Each of several edited counters shows."""
    diff = compare(("value == true", "value == false"), ("value > 5.0", "value > 10.0"), ('"error"', '"warning"'))
    assert () == diff.not_analysed
    assert {"FAILING", "DOWN", "ERRING"} <= {code for change in diff.changes for code in codes(change)}


@pytest.mark.parametrize(
    ("text", "edit", "reason"),
    [
        (RULES, ("sum: value,", "sum: value, groups_max: 9,"), "only its limits differ, which no generated history reaches"),
        (
            RULES.replace("value == true", 'producer.type == "SENSOR"'),
            ('"SENSOR"', '"DATABASE_SNAPSHOT"'),
            "no generated fact counts in a group that the rules read",
        ),
        (
            RULES.replace(">= 3", ">= 300"),
            (FAILURES, FAILURES.replace("1800000", "3600000")),
            f"at most {FACTS_MAX} earlier facts are tried, and a number that it is compared with needs more",
        ),
    ],
)
def test_a_counter_without_a_history(text: str, edit: tuple[str, str], reason: str) -> None:
    """An edited counter that no history shows is named with the reason."""
    diff = compare(edit, text=text)
    assert ((), [reason]) == (diff.changes, [one.reason for one in diff.not_analysed])
    assert isinstance(diff.not_analysed[0], NotAnalysed)
