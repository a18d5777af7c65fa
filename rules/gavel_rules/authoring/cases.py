"""Cases made for an action's rules: each a proposal's params and facts that the schema and the declarations allow.

`CaseMaker.witness` makes a case in which given conditions come out as wanted, or proves that there is none. It works in two
steps. `constraints` says symbolically what the case must be like; values are then picked near the thresholds that its paths are
compared with, and pairs of values and guards, which are opaque to it, are settled by trying. Where a guard changes its mind is
found by bisection. What comes out is checked against the schema; that the rules say what was wanted is for the caller to ask
the engines.

`generated_cases` collects cases that tell the rules of an action apart: one that each rule decides, one beyond each of its
atoms, and every value near a threshold. The same rules give the same cases, in the same order, and never more than asked for.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice, product, zip_longest
from typing import Any, Final, NamedTuple

from gavel_rules.authoring.probing import Question, flips, moments_to_ask, numbers_to_ask
from gavel_rules.authoring.structure import structure
from gavel_rules.language.attributes import ATTRIBUTES, NOW, attribute_schema, case_of, settled
from gavel_rules.language.case import Case
from gavel_rules.language.constraints import Budget, Constraints, Domain, negated, solutions
from gavel_rules.language.lowering import Conjunction, Formula, lower
from gavel_rules.language.ruleset import CompiledAction, CompiledRuleSet
from gavel_rules.language.sample_hints import Hints, Reference, hints_of
from gavel_rules.language.samples import VALUES_MAX, Sampler, near, plain, resolved, unique
from gavel_rules.values import size_of

WORK_MAX: Final = 4_000_000  # steps of a Budget: about two seconds
WORK_MIN: Final = 10_000  # of one action, however many there are
SETS_STEPS_MAX: Final = 100_000  # of the search for sets of cases that fulfil given conditions
SETS_MAX: Final = 24  # of cases that are tried, of those that fulfil given conditions
TRIES_MAX: Final = 1_500  # of values in one set
PLAIN_MAX: Final = 6  # values of a path, of which texts are put together
ALTERNATIVES_MAX: Final = 16  # of one condition that are looked at one by one
# Steps of a Budget: to make and check each part of a case, beside its fixed cost; to compare each part of a value; to ask a guard.
_CASE_STEPS: Final = 20
_PART_STEPS: Final = 3
_OPTION_STEPS: Final = 3
_GUARD_STEPS: Final = 10


class _Absent:
    """Stands for the value of an optional path that is not there."""


_ABSENT: Final = _Absent()
Assignment = dict[str, object]


class _Test(NamedTuple):
    """Something that must hold of a case, and cannot be seen before these paths have values."""

    paths: frozenset[str]
    passes: Callable[[Assignment], bool]
    question: Question | None = None


class Generated(NamedTuple):
    """A case, with its params and facts as JSON values, and what of it was asked for."""

    params: dict[str, object]
    facts: dict[str, object]
    case: Case
    assigned: Mapping[str, object]


class Witness(NamedTuple):
    """A case as wanted, if one was found; or `impossible`, a proof that there is none. Neither: it is not known."""

    found: Generated | None
    impossible: bool
    others: tuple[int, ...] = ()  # the other rules, by index, that the case or the proof had to do with


class CaseMaker:
    """Makes cases for one action, as long as its budget lasts. `beside` are versions of it that are asked about as well.

    The budget pays for the size of what is made, not only for how often. Once it is spent nothing more is found, and nothing
    more is called impossible.
    """

    def __init__(self, action: CompiledAction, beside: Sequence[CompiledAction] = (), budget: Budget | None = None) -> None:
        self.action = action
        self.budget = budget or Budget(WORK_MAX)
        hints: dict[str, Hints] = {}
        for version in (action, *beside):
            for condition in version.conditions:
                for path, of_path in hints_of(condition.tree, version.environment.types).items():
                    hints[path] = hints.get(path, Hints()).joined(of_path)
        self._hints = hints
        self._sampler = Sampler(action.params_schema, hints, self.budget)
        declared = [fact for version in (*beside, action) for fact in version.facts]
        self._fact_types = {f"facts.{fact.name}": {"type": fact.value_type} for fact in declared}
        self._put_together()
        self._formulas: dict[tuple[str, bool, str], Formula] = {}
        self._guards: dict[str, Question] = {}
        self._candidates: dict[str, list[object]] = {}
        self._fitting: dict[tuple[str, str], bool] = {}
        self.anything = Constraints(*structure(action, beside))
        values = self._sampler.values(action.params_schema, "params")
        self._params = next((value for value in values if isinstance(value, dict) and not action.violations(value)), None)
        self._case_steps = _CASE_STEPS + _PART_STEPS * size_of(self._params) + len(action.facts)
        self.base = self._made({})  # the plainest case; None where no params were found that fit the schema

    def formula(self, version: CompiledAction, index: int, wanted: bool) -> Formula:
        """Return "rule `index` of a version matches", or with `wanted` false "it does not match, and does not err"."""
        condition = version.conditions[index]
        key = (condition.source, wanted, version.digest)
        if key not in self._formulas:
            lowered = lower(condition, version.environment, wanted)
            self._formulas[key] = lowered.formula
            for guard in lowered.guards:
                self._guards.setdefault(guard.source, Question(guard, version.environment))
        return self._formulas[key]

    def witness(self, formulas: Sequence[Formula], within: Constraints | None = None) -> Witness:
        """Return a case in which every formula holds, or the proof that there is none."""
        budget = Budget(SETS_STEPS_MAX, self.budget)
        empty = True
        for constraints in islice(solutions(formulas, within or self.anything, budget), SETS_MAX):
            empty = False
            found = self._realised(constraints)
            if found is not None:
                return Witness(found, False)
        return Witness(None, empty and not budget.spent and not self.budget.spent)

    def decided_by(self, index: int, also: Sequence[Formula] = ()) -> Witness:
        """Return a case that rule `index` decides and in which the formulas `also` hold, or the proof that there is none.

        Of the other rules only those are asked about that turn out to be in the way: the proof is then about few of them.
        """
        if self.budget.spent:
            return Witness(None, False)
        wanted = {index: self.formula(self.action, index, True)}
        while True:
            witness = self.witness([*wanted.values(), *also])
            if witness.found is None:
                return witness._replace(others=tuple(sorted(wanted.keys() - {index})))
            self.budget.take(self._case_steps + len(self.action.rules))
            verdict = self.action.evaluate_reference(witness.found.case)
            if verdict.matched and verdict.matched[0] is self.action.rules[index]:
                return witness
            in_the_way = verdict.error or "".join(rule.id for rule in verdict.matched[:1])
            obstacle = next((number for number, rule in enumerate(self.action.rules) if rule.id == in_the_way), index)
            if obstacle in wanted:
                return Witness(None, False)
            fails = self.formula(self.action, obstacle, False)
            wanted[obstacle] = fails if obstacle < index else (*fails, *self.formula(self.action, obstacle, True))

    def beyond(self, index: int) -> Iterator[Generated]:
        """Yield cases around a rule's thresholds: in each, one atom of one alternative of its condition fails, the others hold."""
        for conjunction in self.formula(self.action, index, True)[:ALTERNATIVES_MAX] if not self.budget.spent else ():
            for position, atom in enumerate(conjunction):
                changed: Conjunction = (*conjunction[:position], negated(atom), *conjunction[position + 1 :])
                witness = self.witness([(changed,)])
                if witness.found is not None:
                    yield witness.found

    def swept(self, start: Generated) -> Iterator[Generated]:
        """Yield a case with each value that is worth trying, one path at a time."""
        for path in sorted({*self._hints, *self.anything.optional}):
            if not self.budget.spent and (path in ATTRIBUTES or self._typed_path(path)):
                for value in self._options(path, self.anything, self._boundaries(self._guards.values(), path)):
                    made = self._made({**start.assigned, path: value})
                    if made is not None:
                        yield made

    # What there is to choose.

    def _typed_path(self, path: str) -> bool:
        return path in self.anything.optional

    def _values(self, path: str) -> list[object]:
        """Return values to try for a path, the plainest first."""
        known = self._candidates.get(path)
        if known is None:
            plainest = [ATTRIBUTES[path][0]] if path in ATTRIBUTES else []
            known = self._candidates[path] = [*plainest, *self._sampler.values(self._part_at(path), path)]
        return known

    def _part_at(self, path: str) -> object:
        """Return the schema of a path's values."""
        if path in ATTRIBUTES:
            return attribute_schema(path)
        if path in self._fact_types:
            return self._fact_types[path]
        part: object = self.action.params_schema
        for step in path.replace("[]", ".[]").split(".")[1:]:
            schema = resolved(part, self.action.params_schema)
            items = schema.get("items", schema.get("additionalProperties", {}))
            part = items if step == "[]" else schema.get("properties", {}).get(step, schema.get("additionalProperties", {}))
        return part

    def _put_together(self) -> None:
        """Turn texts that conditions put together of others into constants: those that plain values of the others give."""
        for path, hints in list(self._hints.items()):
            for template in hints.templates:
                options = [[part] if isinstance(part, str) else self._plain_texts(part.path) for part in template]
                texts = ["".join(parts) for parts in islice(product(*options), VALUES_MAX)]
                self._hints[path] = self._hints[path].with_constants(texts)
                if len(template) == 1 and isinstance(template[0], Reference):
                    beginnings = (text[:length] for text in self._plain_texts(path) for length in (1, 2, 3))
                    other = template[0].path
                    self._hints[other] = self._hints.get(other, Hints()).with_constants(beginnings)

    def _plain_texts(self, path: str) -> list[str]:
        return [value for value in self._sampler.values(self._part_at(path), path)[:PLAIN_MAX] if isinstance(value, str)]

    def _options(self, path: str, constraints: Constraints, more: Iterable[object] = ()) -> list[object]:
        """Return what a path may be within constraints: at its thresholds first, absent last."""
        steps = constraints.optional.get(path, ())
        if any(constraints.present.get(step) is False for step in steps):
            return [_ABSENT]
        domain = constraints.domain(path)
        tried: list[object] = []
        for edge in domain.edges:
            tried.extend(near(edge, domain.integer) if isinstance(edge, int | float) and not isinstance(edge, bool) else [edge])
        if domain.allowed is not None:
            tried.extend(sorted(domain.allowed, key=repr))
        if not domain.edges and domain.allowed is None and path not in constraints.present:
            tried = [*self._values(path), *more]
        else:
            tried.extend([*more, *self._values(path)])
            if math.isfinite(domain.low) and math.isfinite(domain.high):
                tried.extend([plain((domain.low + domain.high) / 2), (domain.low + domain.high) / 2])
            tried.extend(value for bound in (domain.low, domain.high) if math.isfinite(bound) for value in near(bound, domain.integer))
        if not self.budget.take(_OPTION_STEPS * sum(map(size_of, tried))):
            return []
        found = [value for value in unique(tried) if self._may_be(path, value, domain)]
        if steps and not all(constraints.present.get(step) for step in steps):
            found.append(_ABSENT)
        return found

    def _may_be(self, path: str, value: object, domain: Domain) -> bool:
        if isinstance(value, str | bool | int | float) and value not in domain:
            return False
        if not path.startswith("params.") or self._params is None:
            return True
        key = (path, _key(value))
        if key not in self._fitting:
            if not self.budget.take(self._case_steps):
                return False
            params = copy.deepcopy(self._params)
            self._put(params, path, value)
            self._fitting[key] = not self.action.violations(params)
        return self._fitting[key]

    # From constraints to a case.

    def _realised(self, constraints: Constraints) -> Generated | None:
        """Return a case within constraints, None where none was found."""
        chosen: Assignment = {}
        related = sorted({path for pair in constraints.pairs for path in pair})
        for path in sorted({*constraints.domains, *constraints.present}):
            domain = constraints.domains.get(path)
            if path not in related and (path in constraints.present or domain is not self.anything.domains.get(path)):
                options = self._options(path, constraints)
                if not options:
                    return None
                chosen[path] = options[0]
        questions = [self._guards[source] for source in constraints.guards]
        of_guards = sorted({path for question in questions for path in question.paths} - set(related))
        tests: list[_Test] = [_Test(frozenset(pair), partial(_related, pair, signs)) for pair, signs in constraints.pairs.items()]
        tests.extend(
            _Test(question.paths, partial(self._answers, question, constraints.guards[question.source]), question)
            for question in sorted(questions, key=lambda question: len(question.paths))
        )
        if not tests:
            return self._made(chosen)
        order = list(dict.fromkeys(path for test in tests for path in sorted(test.paths)))
        options_of = {}
        for path in order:
            more = list(self._boundaries(questions, path)) if path in of_guards or path in related else []
            for pair in constraints.pairs:
                if path in pair:
                    other = pair[0] if pair[1] == path else pair[1]
                    more.extend(self._beside(other, constraints))
            options_of[path] = self._options(path, constraints, more)
        found = self._searched(chosen, order, options_of, tests, refined=False)
        return found or (self._searched(chosen, order, options_of, tests, refined=True) if questions else None)

    def _beside(self, path: str, constraints: Constraints) -> Iterator[object]:
        """Yield the values of a path and, of numbers, what lies beside them: values for what it is compared with."""
        for value in self._options(path, constraints):
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield from near(value, isinstance(value, int))
            elif value is not _ABSENT:
                yield value

    def _searched(
        self,
        chosen: Assignment,
        order: Sequence[str],
        options_of: Mapping[str, Sequence[object]],
        tests: Sequence[_Test],
        refined: bool,
    ) -> Generated | None:
        """Return the first case whose tests pass, going through the options path by path.

        With `refined`, also through the values at which guards change for what has been chosen so far: slower, and finer.
        """
        at: Assignment = dict(chosen)
        due: list[list[_Test]] = [[] for _ in order]
        for test in tests:
            if test.paths:
                due[max(order.index(path) for path in test.paths)].append(test)
            elif not test.passes(at):
                return None  # a guard that reads nothing always comes out the same
        budget = Budget(TRIES_MAX)

        def search(depth: int) -> Generated | None:
            if depth == len(order):
                return self._made(at)
            path = order[depth]
            asked = [test.question for test in due[depth] if test.question is not None and len(test.paths) > 1] if refined else []
            for value in chain(options_of[path], *(self._flips(question, path, dict(at)) for question in asked)):
                if not budget.take() or not self.budget.take(1 + 2 * len(due[depth])):
                    break
                at[path] = value
                if all(test.passes(at) for test in due[depth]):
                    found = search(depth + 1)
                    if found is not None:
                        return found
            return None

        return search(0)

    def _made(self, assignment: Assignment) -> Generated | None:
        """Return the plainest case with these values, None where the schema, or the case itself, has no room for them."""
        if self._params is None or not self.budget.take(self._case_steps + _OPTION_STEPS * size_of(list(assignment.values()))):
            return None
        params = copy.deepcopy(self._params)
        facts: dict[str, object] = {
            fact.name: value for fact in self.action.facts if not fact.optional for value in self._values(f"facts.{fact.name}")[:1]
        }
        others: Assignment = {}
        for path in sorted(assignment):
            value = assignment[path]
            if path.startswith("params."):
                self._put(params, path, value)
            elif path.startswith("facts."):
                name = path.removeprefix("facts.")
                if value is _ABSENT:
                    facts.pop(name, None)
                else:
                    facts[name] = value
            else:
                others[path] = value
        of = settled(others, len(facts))
        if of is None or self.action.violations(params):
            return None
        return Generated(params, facts, case_of(self.action.typed_params(params), facts, of), dict(assignment))

    def _put(self, params: dict[str, object], path: str, value: object) -> None:
        """Set a path of params, or take it away; what it stands in is made as the schema wants it."""
        steps = path.split(".")[1:]
        at: Any = params
        for depth, step in enumerate(steps[:-1]):
            if not isinstance(at.get(step), dict):
                if value is _ABSENT:
                    return
                whole = ".".join(("params", *steps[: depth + 1]))
                at[step] = next((copy.deepcopy(one) for one in self._values(whole) if isinstance(one, dict)), {})
            at = at[step]
        if value is _ABSENT:
            at.pop(steps[-1], None)
        else:
            at[steps[-1]] = copy.deepcopy(value)

    # Guards, which only trying can settle.

    def _answers(self, question: Question, wanted: bool, assignment: Assignment) -> bool:
        return self._asked(question, assignment) is wanted

    def _asked(self, question: Question, assignment: Assignment) -> bool | None:
        asked = {path: assignment[path] for path in question.order}
        key = tuple(map(_key, asked.values()))
        if key not in question.answers:
            self.budget.take(_GUARD_STEPS)
            made = self._made(asked)
            question.answers[key] = question.answer(made.case) if made is not None else None
        return question.answers[key]

    def _boundaries(self, questions: Iterable[Question], path: str) -> Iterator[object]:
        """Yield the values of a number or time on both sides of where each guard that reads it changes its answer."""
        for question in questions:
            if path in question.paths:
                if path not in question.boundaries:
                    question.boundaries[path] = self._flips(question, path, {})
                yield from question.boundaries[path]

    def _flips(self, question: Question, path: str, chosen: Assignment) -> list[float]:
        """Return where a guard changes for a path, what else it reads being chosen, or else as plain as can be."""
        type_ = self.action.environment.types.get(path)
        if self.budget.spent or type_ is None or type_.kind not in ("int", "double", "timestamp"):
            return []
        whole = type_.kind != "double"
        points = moments_to_ask(self._hints.get(path, Hints()).constants) if path == NOW else numbers_to_ask(self._values(path), whole)
        plain_values = {other: values[0] for other in question.paths if other != path and (values := self._values(other))}
        if question.paths > {*plain_values, *chosen, path}:
            return []  # of something that it reads no value is known
        return flips(lambda value: self._asked(question, {**plain_values, **chosen, path: value}), points, whole)


def _key(value: object) -> str:
    """Return what tells values apart: 1, 1.0 and true are three."""
    return f"{type(value).__name__} {value!r}"


def _related(pair: tuple[str, str], signs: frozenset[int], assignment: Assignment) -> bool:
    """Whether two values are there and stand in one of these relations. Only numbers are ordered."""
    left: Any = assignment[pair[0]]
    right: Any = assignment[pair[1]]
    if left is _ABSENT or right is _ABSENT:
        return False
    if left == right:
        return 0 in signs
    return (1 if isinstance(left, int | float) and left > right else -1) in signs


def makers(rule_set: CompiledRuleSet, work_max: int = WORK_MAX) -> Iterator[CaseMaker]:
    """Yield a maker for each action of a rule set. What one leaves of its part of the work goes to those after it."""
    left = work_max
    for done, action in enumerate(rule_set.actions.values()):
        budget = Budget(max(left // (len(rule_set.actions) - done), WORK_MIN))
        yield CaseMaker(action, budget=budget)
        left -= budget.taken


def generated_cases(action: CompiledAction, cases_max: int, maker: CaseMaker | None = None) -> list[Generated]:
    """Return at most `cases_max` different cases that tell an action's rules apart; none where no params fit its schema."""
    maker = maker or CaseMaker(action)
    base = maker.base
    if base is None:
        return []
    indexes = range(len(action.rules))
    deciding = [witness.found for index in indexes for witness in [maker.decided_by(index)] if witness.found is not None]
    around = chain.from_iterable(zip_longest(*(maker.beyond(index) for index in indexes)))
    found: dict[str, Generated] = {}
    for generated in chain([base], deciding, (one for one in around if one is not None), maker.swept((deciding or [base])[-1])):
        found.setdefault(repr(generated.case), generated)
        if len(found) >= cases_max:
            break
    return list(found.values())
