"""Sample cases for the rules of an action: proposals' params and facts that its schema and its declarations allow.

`CaseGenerator.find_case` finds a case in which given conditions come out as wanted, or proves that there is none. `constraints`
states symbolically what the case must be like; `search` picks values, tries pairs and guards, and checks the case against the
schema. The caller checks the outcome with the engines.

`generate_cases` collects cases that tell the rules of an action apart: one that each rule decides, one beyond each of its
thresholds, and every value near a threshold. The same rules give the same cases in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, zip_longest
from typing import Final, NamedTuple

from gavel_rules.authoring.samples.attributes import is_attribute
from gavel_rules.authoring.samples.budget import Budget
from gavel_rules.authoring.samples.builder import CaseBuilder, SampleCase
from gavel_rules.authoring.samples.constraints import negate, solve
from gavel_rules.authoring.samples.guards import GuardProbe
from gavel_rules.authoring.samples.paths import all_cases
from gavel_rules.authoring.samples.search import CaseSearch
from gavel_rules.authoring.samples.seeds import Seed
from gavel_rules.language.cel.checker import ScopedExpression
from gavel_rules.language.engines.lowering import Conjunction, Formula, lower
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet

WORK_MAX: Final = 4_000_000  # steps of a Budget: about two seconds
WORK_MIN: Final = 10_000  # of each action, however many a rule set has
SETS_STEPS_MAX: Final = 100_000  # steps to solve the constraints of one search
SETS_MAX: Final = 24  # solutions tried in one search
ALTERNATIVES_MAX: Final = 16  # of one condition whose thresholds get cases


class Witness(NamedTuple):
    """The result of a search: a sample, or a proof that there is none (`impossible`). With neither, the answer is not known."""

    sample: SampleCase | None
    impossible: bool
    others: tuple[int, ...] = ()  # indexes of the other rules that the sample or the proof depends on


class CaseGenerator:
    """Generates cases for one action, and for `other_versions` of it.

    Once the budget is exhausted, nothing more is found and nothing more is called impossible. `base` is the plainest case, None if
    no params were found that fit the schema. `seeds` are known cases of any action. The values that `expressions` compare are tried too.
    """

    def __init__(
        self,
        action: CompiledAction,
        other_versions: Sequence[CompiledAction] = (),
        budget: Budget | None = None,
        seeds: Sequence[Seed] = (),
        expressions: Sequence[ScopedExpression] = (),
    ) -> None:
        self.action = action
        self.budget = budget or Budget(WORK_MAX)
        self.seeds = [seed for seed in seeds if seed.action_type == action.action_type]
        self._builder = CaseBuilder(action, other_versions, self.budget, self.seeds, expressions)
        self._universe = all_cases(action, other_versions)
        self._search = CaseSearch(self._builder, self._universe)
        self._formulas: dict[tuple[str, bool, str], Formula] = {}
        self._probes: dict[str, GuardProbe] = {}
        self.base = self._builder.build({})

    def values(self, path: str) -> list[object]:
        """Return values to try for a path, the plainest first."""
        return self._builder.values(path)

    def formula(self, version: CompiledAction, index: int, matches: bool) -> Formula:
        """Return the formula "rule `index` of a version matches"; if not `matches`, the formula "it neither matches nor fails"."""
        condition = version.conditions[index]
        key = (condition.source, matches, version.digest)
        if key not in self._formulas:
            lowered = lower(condition, version.environment, matches)
            self._formulas[key] = lowered.formula
            for guard in lowered.guards:
                if guard.source not in self._probes:
                    self._probes[guard.source] = GuardProbe(guard, version.environment, self._builder)
        return self._formulas[key]

    def find_case(self, formulas: Sequence[Formula]) -> Witness:
        """Return a case in which every formula holds, or the proof that there is none."""
        budget = Budget(SETS_STEPS_MAX, self.budget)
        is_empty = True
        for constraints in islice(solve(formulas, self._universe, budget), SETS_MAX):
            is_empty = False
            sample = self._search.find(constraints, [self._probes[source] for source in constraints.guards])
            if sample is not None:
                return Witness(sample, False)
        return Witness(None, is_empty and not budget.exhausted and not self.budget.exhausted)

    def find_decided_case(self, index: int, other_formulas: Sequence[Formula] = ()) -> Witness:
        """Return a case that rule `index` decides and in which the formulas `other_formulas` hold, or the proof that there is none.

        Another rule is considered only if it decides a case found so far, so that a proof names few rules.
        """
        if self.budget.exhausted:
            return Witness(None, False)
        formulas = {index: self.formula(self.action, index, True)}
        while True:
            witness = self.find_case([*formulas.values(), *other_formulas])
            if witness.sample is None:
                return witness._replace(others=tuple(sorted(formulas.keys() - {index})))
            self.budget.take(self._builder.steps_per_case + len(self.action.rules))
            verdict = self.action.evaluate_reference(witness.sample.case)
            if verdict.matches and verdict.matches[0] is self.action.rules[index]:
                return witness
            obstacle_id = verdict.error or "".join(rule.id for rule in verdict.matches[:1])
            obstacle = next((number for number, rule in enumerate(self.action.rules) if rule.id == obstacle_id), index)
            if obstacle in formulas:
                return Witness(None, False)
            fails = self.formula(self.action, obstacle, False)
            # A lower rule may match, as long as it does not fail.
            formulas[obstacle] = fails if obstacle < index else (*fails, *self.formula(self.action, obstacle, True))

    def find_seed(self, index: int, also: Sequence[int] = ()) -> Seed | None:
        """Return a seed that rule `index` decides and that the rules `also` match too."""
        wanted = {self.action.rules[other] for other in also}
        for seed in self.seeds:
            matches = self.action.evaluate_reference(seed.case).matches
            if matches and matches[0] is self.action.rules[index] and wanted <= set(matches):
                return seed
        return None

    def cases_beyond_thresholds(self, index: int) -> Iterator[SampleCase]:
        """Yield cases around the thresholds of a rule: in each, one atom of one alternative of its condition fails and the others hold."""
        if self.budget.exhausted:
            return
        for conjunction in self.formula(self.action, index, True)[:ALTERNATIVES_MAX]:
            for position, atom in enumerate(conjunction):
                changed: Conjunction = (*conjunction[:position], negate(atom), *conjunction[position + 1 :])
                sample = self.find_case([(changed,)]).sample
                if sample is not None:
                    yield sample

    def vary_values(self, start: SampleCase) -> Iterator[SampleCase]:
        """Yield variations of `start`. Each changes one path, to one of the values that are worth trying there."""
        for path in sorted({*self._builder.hints, *self._universe.optional}):
            if is_attribute(path) or path in self._universe.optional:
                yield from self._vary(start, path)

    def vary_params(self, start: SampleCase) -> Iterator[SampleCase]:
        """Yield variations of `start` in one of the params that conditions read."""
        for path in sorted(self._builder.hints):
            if path.startswith("params.") and "[]" not in path:
                yield from self._vary(start, path)

    def vary(self, start: SampleCase, values: Mapping[str, object]) -> SampleCase | None:
        """Return a variation of `start` with other values, by path; None if they do not fit together."""
        return self._builder.build({**start.assignment, **values})

    def _vary(self, start: SampleCase, path: str) -> Iterator[SampleCase]:
        if self.budget.exhausted:
            return
        flips = (value for probe in self._probes.values() if path in probe.paths for value in probe.boundaries(path))
        for value in self._search.options(path, self._universe, flips):
            sample = self._builder.build({**start.assignment, path: value})
            if sample is not None:
                yield sample


def case_generators(rule_set: CompiledRuleSet, work_max: int = WORK_MAX, seeds: Sequence[Seed] = ()) -> Iterator[CaseGenerator]:
    """Yield a generator for each action of a rule set. An action's unused share of the work goes to the actions after it."""
    left = work_max
    for done, action in enumerate(rule_set.actions.values()):
        budget = Budget(max(left // (len(rule_set.actions) - done), WORK_MIN))
        yield CaseGenerator(action, budget=budget, seeds=seeds)
        left -= budget.steps_used


def generate_cases(action: CompiledAction, cases_max: int, generator: CaseGenerator | None = None) -> list[SampleCase]:
    """Return at most `cases_max` different cases that tell an action's rules apart; [] if no params fit its schema."""
    generator = generator or CaseGenerator(action)
    base = generator.base
    if base is None:
        return []
    indexes = range(len(action.rules))
    decided = [sample for index in indexes if (sample := generator.find_decided_case(index).sample) is not None]
    around = chain.from_iterable(zip_longest(*(generator.cases_beyond_thresholds(index) for index in indexes)))
    samples: dict[str, SampleCase] = {}
    for sample in chain([base], decided, (one for one in around if one is not None), generator.vary_values((decided or [base])[-1])):
        samples.setdefault(repr(sample.case), sample)
        if len(samples) >= cases_max:
            break
    return list(samples.values())
