"""The cases of a suite under two versions of a rule set."""

from __future__ import annotations

from gavel_rules.authoring.diff import CaseDecision
from gavel_rules.authoring.suites.reader import read_suite
from gavel_rules.authoring.suites.versions import SuiteCaseChange, compare_versions
from gavel_rules.language.rule_set import compile_rule_set

RULES = """\
gavel: v2
rule_set: refunds
version: 1
actions:
  refund.create:
    params: {type: object, required: [amount], properties: {amount: {type: number}}}
    facts:
      status: {key: order.status, type: string, max_age_ms: 60000}
      note: {key: order.note, type: string, max_age_ms: 60000, optional: true}
counters:
  refunded: {of: approvals, action: refund.create, sum: params.amount, window_ms: 3600000}
rules:
  - {id: over, action: refund.create, priority: 2, when: history.refunded() + params.amount > 100.0, effect: reject, reason_code: OVER}
  - {id: rest, action: refund.create, priority: 1, when: 'true', effect: approve}
"""
SUITE = """\
gavel: v1
tests: refunds.yaml
defaults: {params: {amount: 60}, facts: {status: paid}}
cases:
  - {name: first, expect: {outcome: APPROVED}}
  - {name: two hours after, earlier: [{age_ms: 7200000}], expect: {outcome: APPROVED}}
  - {name: at once, earlier: [{age_ms: 1000}], expect: {outcome: REJECTED}}
  - {name: with a fact, facts: {note: late}, expect: {outcome: APPROVED}}
"""


def changes(old: str, new: str) -> list[SuiteCaseChange]:
    """Return the cases that the rule set and a changed version decide differently."""
    assert old in RULES
    return list(compare_versions(read_suite(SUITE), compile_rule_set(RULES), compile_rule_set(RULES.replace(old, new))))


def test_equal_versions() -> None:
    """Versions that decide alike have no difference."""
    assert [] == changes("version: 1", "version: 2")


def test_a_longer_window() -> None:
    """A longer window of a counter shows in the case whose history it reaches, and in no other."""
    approved, refused = CaseDecision("APPROVED", "", "rest"), CaseDecision("REJECTED", "OVER", "over")
    assert [SuiteCaseChange("two hours after", approved, refused)] == changes("window_ms: 3600000", "window_ms: 86400000")


def test_a_case_that_does_not_fit() -> None:
    """A case with a fact that only one version declares has no decision under the other."""
    differences = changes("      note: {key: order.note, type: string, max_age_ms: 60000, optional: true}\n", "")
    assert [SuiteCaseChange("with a fact", CaseDecision("APPROVED", "", "rest"), None)] == differences
