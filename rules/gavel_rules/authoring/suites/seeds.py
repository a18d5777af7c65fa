"""The cases of a suite as seeds of searches: situations that the author has written down, which a search might not find."""

from __future__ import annotations

from collections.abc import Sequence

from gavel_rules.authoring.samples.seeds import Seed
from gavel_rules.authoring.suites.runner import run_cases
from gavel_rules.authoring.suites.suite import Suite
from gavel_rules.language.rule_set import CompiledRuleSet


def find_seeds(suite: Suite, rule_set: CompiledRuleSet, in_force: Sequence[CompiledRuleSet] = ()) -> list[Seed]:
    """Return what the rules of a rule set read in the cases of its suite that reach the rules, whether the cases pass or not.

    `in_force` are the rule sets that the suite tests, this one among them; by default this one alone. Raises what `run_cases` raises.
    """
    first, *others = in_force or (rule_set,)
    return [
        Seed(result.case.name, action.action_type, result.case.part.params, case)
        for result in run_cases(suite, first, others)
        if result.rules_evaluated
        for action, case in result.cases
        if action.digest == rule_set.digest
    ]
