"""The fuzz: a random document is compiled, and its engines evaluate random cases.

Rete cross-checked by CEL, Rete alone and CEL alone must give the same verdict, errors included. It must be the verdict that follows from
the meaning of the conditions (`meanings`), where that is known. Whatever else the document computes must follow from its meaning too: the
details that each rule shows, the score, the keys of counters, the subjects of facts, the conflict key, and derived facts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from gavel_rules.errors import GavelRulesError
from gavel_rules.language.details import DETAIL_LENGTH_MAX
from gavel_rules.language.document.diagnostics import Messages
from gavel_rules.language.document.source import Source
from gavel_rules.language.engines.case import CASE_FIELDS, Case
from gavel_rules.language.fact_declaration import case_value, is_case_value
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet, DocumentError, Verdict, compile_rule_set
from gavel_rules.text import clip
from gavel_rules.values import INTEGER_MAX
from hypothesis import reject
from hypothesis import strategies as st

from tests.fuzz.cases import Sample, Sampler
from tests.fuzz.derivations import Derivation, declarations, derivations, unexpected_facts
from tests.fuzz.documents import clocks, rearrangements
from tests.fuzz.grammar.conditions import Writer
from tests.fuzz.meanings import ERROR, HISTORY, UNKNOWN, Expression, Outcome
from tests.fuzz.subjects import Subjects, add_subjects, subjects, unexpected_subjects
from tests.fuzz.vocabulary import COUNTERS, Draw, Vocabulary, counter_declarations, vocabularies

ACTION: Final = "thing.do"
RULES_MAX: Final = 12
_COUNTERS: Final = {counter.name: counter for counter in COUNTERS}


@dataclass(frozen=True, slots=True)
class Trial:
    """A document with its conditions, highest first, and the seed of its cases."""

    text: str
    vocabulary: Vocabulary
    conditions: tuple[Expression, ...]
    details: tuple[Mapping[str, Expression], ...]  # of the same rules
    score: Expression | None
    subjects: Subjects
    derivations: tuple[Derivation, ...]
    literals: frozenset[int | float | str]
    seed: int

    @property
    def document(self) -> Any:
        """The document as data."""
        return Source(self.text, Messages()).data

    def __repr__(self) -> str:
        return f"Trial(seed={self.seed}, {self.text})"


class MismatchError(AssertionError):
    """The engines disagree with each other or with the meaning. `reproducer` holds the document, the case and the verdicts, as JSON."""

    def __init__(self, reproducer: dict[str, Any]) -> None:
        super().__init__(json.dumps(reproducer, indent=2, ensure_ascii=False))
        self.reproducer = reproducer


@st.composite
def trials(draw: Draw) -> Trial:
    """Draw a document of one action with some rules."""
    vocabulary = draw(vocabularies())
    writer = Writer(draw, vocabulary.variables())
    conditions = tuple(writer.condition() for _ in range(draw(st.integers(1, RULES_MAX))))
    details = tuple(writer.details() if draw(st.integers(0, 3)) == 0 else {} for _ in conditions)
    rules: list[dict[str, Any]] = [
        {"id": f"r{number}", "action": ACTION, "priority": 60_000 - number, "when": condition.text, "effect": "approve"}
        for number, condition in enumerate(conditions)
    ]
    for rule, shown in zip(rules, details, strict=True):
        if shown:
            rule["detail"] = {name: expression.text for name, expression in shown.items()}
    score = writer.double() if draw(st.integers(0, 3)) == 0 else None
    of_facts = draw(subjects(vocabulary, writer))
    derived = draw(derivations(vocabulary, writer))
    action = add_subjects(of_facts, vocabulary, vocabulary.action())
    data = {
        "gavel": "v2",
        "rule_set": "fuzz",
        "version": 1,
        "constants": writer.constants,
        "variables": writer.variables,
        **clocks(),
        "counters": counter_declarations(ACTION),
        "actions": {ACTION: {**action, "score": score.text} if score is not None else action},
        "rules": rules,
        "derivations": declarations(derived, ACTION),
    }
    seed = draw(st.integers(0, 2**32 - 1))
    text = draw(rearrangements(data))
    return Trial(text, vocabulary, conditions, details, score, of_facts, derived, frozenset(writer.literals), seed)


def run(trial: Trial, count: int) -> int:
    """Evaluate `count` cases; return for how many the meaning was known. Raises MismatchError on the first difference."""
    rule_set = _compile(trial.text)
    with_meaning = 0
    for sample in Sampler(trial.vocabulary, trial.literals, Random(trial.seed)).samples(count):
        expected = expected_verdict(trial.conditions, sample, rule_set.actions[ACTION])
        with_meaning += expected is not None
        _decide(trial, rule_set, sample, expected)
    return with_meaning


def _compile(text: str) -> CompiledRuleSet:
    """Return the document's rule set. A document that is refused only for its cost, or for a subject that no fact can have, is skipped."""
    try:
        return compile_rule_set(text)
    except DocumentError as error:
        if {message.code for message in error.messages} <= {"too-costly", "not-a-subject"}:
            reject()
        raise


def expected_verdict(conditions: Sequence[Expression], sample: Sample, action: CompiledAction) -> Verdict | None:
    """Return the verdict by the meaning of the conditions; None if one has no known meaning."""
    outcomes = [condition.meaning(sample.values) for condition in conditions]
    for outcome in outcomes:
        if outcome is UNKNOWN:
            return None
    erring = next((number for number, outcome in enumerate(outcomes) if outcome is ERROR), None)
    if erring is not None:
        return Verdict((), action.rules[erring].id)
    return Verdict(tuple(rule for rule, outcome in zip(action.rules, outcomes, strict=True) if outcome))


def _decide(trial: Trial, rule_set: CompiledRuleSet, sample: Sample, expected: Verdict | None) -> None:
    action = rule_set.actions[ACTION]
    case = sample.case
    facts = typed_facts(action, case.facts)
    violations = action.violations(case.params)
    verdicts: dict[str, object] = {"expected": expected} if expected is not None else {}
    try:
        typed_case = with_counters(action, case.with_params(action.typed_params(case.params), facts), sample)
        case = case.with_history(typed_case.history)
        verdicts["both"] = action.evaluate(typed_case, cross_check=True)
        verdicts["rete"] = action.evaluate(typed_case, cross_check=False)
        verdicts["cel"] = action.evaluate_reference(typed_case)
        unexpected = {
            **_unexpected_details(trial, action, sample, typed_case),
            **unexpected_subjects(trial.subjects, action, sample, typed_case),
            **unexpected_facts(trial.derivations, rule_set, sample),
        }
    except GavelRulesError as error:
        verdicts["raised"] = repr(error)
        unexpected = {}
    results = list(verdicts.values())
    if (
        violations
        or unexpected
        or any(verdict != results[0] for verdict in results)
        or getattr(results[-1], "disagreement", None) is not None
    ):
        raise MismatchError(
            {
                "document": trial.document,
                "case": {name: getattr(case, name) for name in CASE_FIELDS},
                "violations": violations,
                "unexpected": {name: [repr(one) for one in pair] for name, pair in unexpected.items()},
                "verdicts": {name: verdict_json(verdict) for name, verdict in verdicts.items()},
            }
        )


def _unexpected_details(trial: Trial, action: CompiledAction, sample: Sample, case: Case) -> dict[str, Any]:
    """Return the details of rules, and the score, that differ from what their expressions mean: by rule and name, (meaning, value)."""
    differences: dict[str, tuple[object, object]] = {}
    if trial.score is not None:
        outcome = trial.score.meaning(sample.values)
        meant = outcome if isinstance(outcome, float) and math.isfinite(outcome) else None
        if outcome is not UNKNOWN and meant != (score := action.score(case)):
            differences["score"] = (meant, score)
    for number, expressions in enumerate(trial.details):
        if not expressions:
            continue
        values = action.details[f"r{number}"].values(case)
        for name, expression in expressions.items():
            outcome = expression.meaning(sample.values)
            if outcome is not UNKNOWN and (shown := _shown(outcome)) != values[name]:
                differences[f"r{number}.{name}"] = (shown, values[name])
    return differences


def _shown(outcome: Any) -> Any:
    """Return what a decision shows of a value."""
    if isinstance(outcome, str):
        return clip(outcome, DETAIL_LENGTH_MAX)
    if isinstance(outcome, bool):
        return outcome
    is_shown = not isinstance(outcome, Outcome) and math.isfinite(outcome) and abs(outcome) <= INTEGER_MAX
    return float(outcome) if is_shown else None


def with_counters(action: CompiledAction, case: Case, sample: Sample) -> Case:
    """Return a typed case with what the counters of a sample give for the keys with which the action reads them."""
    keys = action.counter_keys(case)
    reads = [(place, key) for place in action.counter_places if (key := keys[place.key]) is not None]
    return case.with_history({place.variable: sample.values[HISTORY](_COUNTERS[place.counter], key) for place, key in reads})


def typed_facts(action: CompiledAction, facts: Mapping[str, object]) -> dict[str, object]:
    """Return facts as arbitration gives them to the rules. Raises MismatchError for one that does not fit its declaration."""
    declared = {fact.name: fact for fact in action.facts}
    unfit = {name: value for name, value in facts.items() if not is_case_value(value, declared[name])}
    if unfit:
        raise MismatchError({"facts": unfit})
    return {name: case_value(value, declared[name]) for name, value in facts.items()}


def verdict_json(verdict: object) -> object:
    """Return a verdict as JSON data."""
    if not isinstance(verdict, Verdict):
        return verdict
    return {"matched": [rule.id for rule in verdict.matches], "error": verdict.error, "disagreement": verdict.disagreement}
