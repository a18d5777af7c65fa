"""Whose fact a declared fact is: subject templates (seeds 002 §4.4).

A declaration without a template means the proposal's own subject. A template is CEL over `subject`, `params` and the other
declared facts, and gives "type/id". The facts that it reads are selected first; which of them those are follows from its
text, not from the order of a mapping. As long as one of them is not as required, nobody can say whose fact is meant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from gavel_rules.language.case import Case, Reader, bare_case
from gavel_rules.language.cel_syntax import Call, Constant, Identifier, Node
from gavel_rules.language.conditions import Condition, Environment
from gavel_rules.language.reading import presences, reads
from gavel_rules.language.reference import Program, condition_source
from gavel_rules.limits import SUBJECT

_SUBJECT: Final = re.compile(SUBJECT)
SUBJECT_LENGTH_MAX: Final = 64 + 1 + 256  # what SUBJECT takes at most
SUBJECTS_KEPT_MAX: Final = 4_096
_FACTS: Final = "facts."


class SubjectTemplate:
    """One template, compiled. `needs` are the declared facts that it reads or tests; `takes_params` whether it reads params too."""

    def __init__(self, environment: Environment, condition: Condition) -> None:
        read = list(reads(condition.tree, environment.types))
        tested = list(presences(condition.tree))
        self.needs = needs_of(environment, condition)
        self.takes_params = any(path.startswith("params") for path in (*(name for name, _ in read), *tested))
        # Most templates only string texts together, which needs no evaluator.
        self._texts = _texts(condition.tree, environment)
        self._reader = Reader(read, tested)
        self._program = Program(environment, [condition_source(condition.source)])

    def subject(self, params: dict[str, object], facts: dict[str, object], subject: str) -> str | None:
        """Return whose fact is meant, for the typed params, the facts that it needs as far as they are there, and the proposal's subject.

        None: the template errs, or what it gives is no "type/id".
        """
        texts = self._texts
        named = _strung(texts, params, facts, subject) if texts is not None else self._evaluated(bare_case(params, facts, subject))
        return named if isinstance(named, str) and _is_subject(named) else None

    def _evaluated(self, case: Case) -> object:
        answers = self._program.together(self._reader.values(case))
        return None if answers is None else answers[0]


def _is_subject(text: str) -> bool:
    # Its length is looked at first: of what agents send nothing long is kept.
    return len(text) <= SUBJECT_LENGTH_MAX and _matches(text)


@lru_cache(SUBJECTS_KEPT_MAX)
def _matches(text: str) -> bool:
    return _SUBJECT.fullmatch(text) is not None


_Texts = list[tuple[str, str]]


def _texts(tree: Node, environment: Environment) -> _Texts | None:
    """Return what a template strings together: ("", a literal), ("params", "x"), ("facts", "x"), ("subject", ""), ("subject", "id").

    None where it does anything else.
    """
    match tree:
        case Constant("string", str(text)):
            return [("", text)]
        case Identifier(name) if name in environment.types and environment.types[name].kind == "string":
            root, _, rest = name.partition(".")
            return [(root, rest)] if root in ("params", "facts", "subject") and "." not in rest else None
        case Call("_+_", None, (left, right)):
            before, after = _texts(left, environment), _texts(right, environment)
            return None if before is None or after is None else before + after
    return None


def _strung(texts: _Texts, params: dict[str, object], facts: dict[str, object], subject: str) -> str | None:
    """Return the texts as one, None where a value is not there: reading it is CEL's error."""
    parts: list[str] = []
    for root, text in texts:
        part: object = text
        if root == "params":
            part = params.get(text)
        elif root == "facts":
            part = facts.get(text)
        elif root == "subject":
            part = _part(subject, text)
        if not isinstance(part, str):
            return None
        parts.append(part)
    return "".join(parts)


def _part(subject: str, name: str) -> str:
    """Return the "type" or the "id" of a subject, or for "" all of it."""
    if not name:
        return subject
    kind, _, identity = subject.partition("/")
    return kind if name == "type" else identity


def needs_of(environment: Environment, condition: Condition) -> tuple[str, ...]:
    """Return the names of the declared facts that a checked template reads or tests, sorted."""
    paths = {*(name for name, _ in reads(condition.tree, environment.types)), *presences(condition.tree)}
    return tuple(sorted(path.removeprefix(_FACTS) for path in paths if path.startswith(_FACTS)))


def unfit(environment: Environment, condition: Condition) -> str | None:
    """Return the text that a checked template is written out as, if no fact can have such a subject; None for any other template."""
    texts = _texts(condition.tree, environment)
    if texts is None or any(root for root, _ in texts):
        return None
    written = "".join(text for _, text in texts)
    return None if _is_subject(written) else written


def in_order(names: list[str], needs: Mapping[str, tuple[str, ...]]) -> tuple[list[str], list[str]]:
    """Return facts so that each comes after those that it needs, else in their order; and those that come to need themselves."""
    ordered: dict[str, None] = {}
    waiting = names
    while waiting:
        ready = [name for name in waiting if all(need in ordered for need in needs.get(name, ()))]
        if not ready:
            return list(ordered), [name for name in waiting if name in _needed(name, needs)]
        ordered.update(dict.fromkeys(ready))
        waiting = [name for name in waiting if name not in ordered]
    return list(ordered), []


def _needed(name: str, needs: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Return every fact that a fact needs, also through others."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for need in needs.get(waiting.pop(), ()):
            if need not in found:
                found.add(need)
                waiting.append(need)
    return found
