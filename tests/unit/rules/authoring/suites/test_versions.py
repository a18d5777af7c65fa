"""The cases of a suite under two versions of a rule set."""

from __future__ import annotations

from gavel_rules.authoring.derived_facts import DerivedFact
from gavel_rules.authoring.diff import CaseDecision, Edit, diff_rule_sets
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


DERIVING = (
    RULES
    + """\
derivations:
  - id: sum
    version: 1
    on: {action: refund.create, status: SUCCESS}
    key: team.sum
    subject: '"team/" + facts.status'
    value: history.refunded()
"""
)
EXECUTED = SUITE.replace("{name: first, ", "{name: first, execution: {status: SUCCESS}, ")


def test_derived_facts() -> None:
    """A case shows if the versions derive facts with other subjects or values from its execution, even if they decide alike."""
    newer = DERIVING.replace('"team/" +', '"group/" +')
    (change,) = compare_versions(read_suite(EXECUTED), [compile_rule_set(DERIVING)], [compile_rule_set(newer)])
    approved = CaseDecision("APPROVED", "", "rest")
    facts = [(DerivedFact("team.sum", f"{kind}/paid", 60.0),) for kind in ("team", "group")]
    assert SuiteCaseChange("first", approved, approved, *facts) == change


def test_edits_of_derivations() -> None:
    """An edited derivation is named by its id and key."""
    newer = DERIVING.replace('"team/" +', '"group/" +')
    edits = diff_rule_sets(compile_rule_set(DERIVING), compile_rule_set(newer)).edits
    assert [Edit("derivations.sum.subject", '"team/" + facts.status', '"group/" + facts.status')] == list(edits)


def changes(old: str, new: str) -> list[SuiteCaseChange]:
    """Return the cases that the rule set and a changed version decide differently."""
    assert old in RULES
    return list(compare_versions(read_suite(SUITE), [compile_rule_set(RULES)], [compile_rule_set(RULES.replace(old, new))]))


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
