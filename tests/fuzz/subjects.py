"""Random subjects of facts, and conflict keys: texts that are computed from a proposal before its rules are, each with its meaning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gavel_rules.language.engines.case import Case, Proposer
from gavel_rules.language.rule_set import CONFLICT_KEY_LENGTH_MAX, CompiledAction
from gavel_rules.language.subject_templates import SUBJECT_LENGTH_MAX
from gavel_rules.limits import SUBJECT
from hypothesis import strategies as st

from tests.fuzz.cases import Sample
from tests.fuzz.grammar.conditions import Writer
from tests.fuzz.meanings import UNKNOWN, Expression
from tests.fuzz.vocabulary import SUBJECTS_MAX, Draw, Vocabulary, proposer_variables

_SUBJECT: Final = re.compile(SUBJECT)


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subject, or subjects, of each declared fact that has a template, and the conflict key; None: the default."""

    templates: Mapping[str, Expression]
    conflict_key: Expression | None


@st.composite
def subjects(draw: Draw, vocabulary: Vocabulary, writer: Writer) -> Subjects:
    """Draw the subjects of a vocabulary's facts. A template may read the facts that are declared before its own."""
    before = (*vocabulary.params_variables(), *proposer_variables())
    templates = {}
    for number, (name, _, _) in enumerate(vocabulary.facts):
        inner = writer.beside((*before, *vocabulary.facts_variables(number)))
        if name in vocabulary.many:
            templates[name] = inner.subjects()
        elif draw(st.integers(0, 2)) == 0:
            templates[name] = inner.subject()
    return Subjects(templates, writer.beside(before).text() if draw(st.booleans()) else None)


def add_subjects(drawn: Subjects, vocabulary: Vocabulary, action: dict[str, Any]) -> dict[str, Any]:
    """Return the action of a document with its subjects and conflict key."""
    for name, template in drawn.templates.items():
        keys = {"subjects": template.text, "max": SUBJECTS_MAX} if name in vocabulary.many else {"subject": template.text}
        action["facts"][name].update(keys)
    return {**action, "conflict_key": drawn.conflict_key.text} if drawn.conflict_key is not None else action


def unexpected_subjects(drawn: Subjects, action: CompiledAction, sample: Sample, case: Case) -> dict[str, Any]:
    """Return the subjects, by fact, and the conflict key that differ from their meaning: (meaning, value). `case` is typed."""
    proposer = Proposer(case.producer_type, case.producer_id, case.producer_version, case.producer_groups)
    actual: dict[str, object] = {"conflict_key": action.conflict_key(case)}
    expected: dict[str, object] = {"conflict_key": _key(drawn.conflict_key, sample)}
    for fact in action.facts:
        if fact.name not in drawn.templates:
            continue
        outcome = drawn.templates[fact.name].meaning(sample.values)
        if fact.subjects:
            template = action.subject_templates[fact.subjects]
            actual[fact.name] = template.subjects(case.params, case.facts, case.subject, SUBJECTS_MAX, proposer)
            expected[fact.name] = UNKNOWN if outcome is UNKNOWN else _subjects(outcome)
        else:
            template = action.subject_templates[fact.subject]
            actual[fact.name] = template.subject(case.params, case.facts, case.subject, proposer)
            expected[fact.name] = outcome if outcome is UNKNOWN or _is_subject(outcome) else None
    return {name: (expected[name], actual[name]) for name in actual if expected[name] is not UNKNOWN and expected[name] != actual[name]}


def _key(expression: Expression | None, sample: Sample) -> object:
    outcome = sample.case.subject if expression is None else expression.meaning(sample.values)
    if outcome is UNKNOWN:
        return UNKNOWN
    return outcome if isinstance(outcome, str) and 0 < len(outcome) <= CONFLICT_KEY_LENGTH_MAX else None


def _subjects(outcome: object) -> object:
    if not isinstance(outcome, list) or not all(map(_is_subject, outcome)):
        return None
    distinct = list(dict.fromkeys(outcome))
    return distinct if len(distinct) <= SUBJECTS_MAX else None


def _is_subject(value: object) -> bool:
    return isinstance(value, str) and len(value) <= SUBJECT_LENGTH_MAX and _SUBJECT.fullmatch(value) is not None
