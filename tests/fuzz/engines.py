"""The fuzz itself: a random document, compiled as any other, and what its engines say about random cases.

Rete and CEL, CEL alone, and Rete with the guards only, must come to one verdict, and to the one that the conditions mean
(`meanings`), errors included.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from gavel_rules.errors import GavelRulesError
from gavel_rules.language.case import CASE_FIELDS
from gavel_rules.language.ruleset import CompiledAction, DocumentError, Verdict, compile_rule_set
from hypothesis import reject
from hypothesis import strategies as st

from tests.fuzz.cases import Sample, Sampler
from tests.fuzz.grammar import Writer
from tests.fuzz.meanings import ERROR, UNKNOWN, Expression
from tests.fuzz.vocabulary import Draw, Vocabulary, vocabularies

ACTION: Final = "thing.do"
RULES_MAX: Final = 12


@dataclass(frozen=True, slots=True)
class Trial:
    """A document with what its conditions mean, highest first, and the seed of its cases."""

    text: str
    vocabulary: Vocabulary
    conditions: tuple[Expression, ...]
    literals: frozenset[int | float | str]
    seed: int

    def __repr__(self) -> str:
        return f"Trial(seed={self.seed}, {self.text})"


class MismatchError(AssertionError):
    """The engines, or the engines and the meaning, disagree. `reproducer` is the document, the case and what each said, as JSON."""

    def __init__(self, reproducer: dict[str, Any]) -> None:
        super().__init__(json.dumps(reproducer, indent=2, ensure_ascii=False))
        self.reproducer = reproducer


@st.composite
def trials(draw: Draw) -> Trial:
    """Documents of one action with some rules."""
    vocabulary = draw(vocabularies())
    writer = Writer(draw, vocabulary)
    conditions = tuple(writer.condition() for _ in range(draw(st.integers(1, RULES_MAX))))
    rules = [
        {"id": f"r{number}", "action": ACTION, "priority": 60_000 - number, "when": condition.text, "effect": "approve"}
        for number, condition in enumerate(conditions)
    ]
    data = {
        "gavel": "v1",
        "rule_set": "fuzz",
        "version": 1,
        "variables": writer.variables,
        "actions": {ACTION: vocabulary.action()},
        "rules": rules,
    }
    seed = draw(st.integers(0, 2**32 - 1))
    return Trial(json.dumps(data, ensure_ascii=False), vocabulary, conditions, frozenset(writer.literals), seed)


def run(trial: Trial, count: int) -> int:
    """Decide `count` cases; return how many of them were held against the meaning too. MismatchError on the first difference."""
    action = _compiled(trial.text)
    understood = 0
    for sample in Sampler(trial.vocabulary, trial.literals, Random(trial.seed)).samples(count):
        expected = meant(trial.conditions, sample, action)
        understood += expected is not None
        _decide(trial, action, sample, expected)
    return understood


def _compiled(text: str) -> CompiledAction:
    """The document's action; one that is refused only for what it may cost is none of the fuzz's business."""
    try:
        return compile_rule_set(text).actions[ACTION]
    except DocumentError as error:
        if {message.code for message in error.messages} == {"too-costly"}:
            reject()
        raise


def meant(conditions: Sequence[Expression], sample: Sample, action: CompiledAction) -> Verdict | None:
    """The verdict by the conditions' meaning; None where it is not known of every one."""
    outcomes = [condition.meaning(sample.values) for condition in conditions]
    for outcome in outcomes:
        if outcome is UNKNOWN:
            return None
    erring = next((number for number, outcome in enumerate(outcomes) if outcome is ERROR), None)
    if erring is not None:
        return Verdict((), action.rules[erring].id)
    return Verdict(tuple(rule for rule, outcome in zip(action.rules, outcomes, strict=True) if outcome))


def _decide(trial: Trial, action: CompiledAction, sample: Sample, expected: Verdict | None) -> None:
    case = sample.case
    violations = action.violations(case.params)
    verdicts: dict[str, object] = {"meant": expected} if expected is not None else {}
    try:
        typed = case.with_params(action.typed_params(case.params))
        verdicts["both"] = action.evaluate(typed, both=True)
        verdicts["rete"] = action.evaluate(typed, both=False)
        verdicts["cel"] = action.evaluate_reference(typed)
    except GavelRulesError as error:
        verdicts["raised"] = repr(error)
    said = list(verdicts.values())
    if violations or any(verdict != said[0] for verdict in said) or getattr(said[-1], "disagreement", None) is not None:
        raise MismatchError(
            {
                "document": json.loads(trial.text),
                "case": {name: getattr(case, name) for name in CASE_FIELDS},
                "violations": violations,
                "verdicts": {name: shown(verdict) for name, verdict in verdicts.items()},
            }
        )


def shown(verdict: object) -> object:
    """A verdict for people and for JSON."""
    if not isinstance(verdict, Verdict):
        return verdict
    return {"matched": [rule.id for rule in verdict.matched], "error": verdict.error, "disagreement": verdict.disagreement}
