"""Subject templates: the subject that a declared fact must be about (constitution §4.4).

A declaration without a template means the proposal's subject. A template is CEL over `subject`, `params` and the other declared
facts, and gives "type/id". The facts that it reads are selected first: their order follows from the templates, not from the order
of a mapping. While one of them is not available as required, the subject is unknown.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from gavel_rules.language.cel.checker import CheckedExpression, Environment
from gavel_rules.language.cel.syntax_tree import Call, Constant, Identifier, Node
from gavel_rules.language.cel.tree_queries import find_presence_tests, find_variables
from gavel_rules.language.engines.case import NOBODY, Case, CaseReader, Proposer, bare_case
from gavel_rules.language.engines.cel import Program, condition_source
from gavel_rules.limits import RECORDABLE_SUBJECT, SUBJECT, SUBJECT_BYTES_MAX, SUBJECT_IN_ASCII

_SUBJECT: Final = re.compile(SUBJECT)
_SUBJECT_IN_ASCII: Final = re.compile(SUBJECT_IN_ASCII)
_RECORDABLE_SUBJECT: Final = re.compile(RECORDABLE_SUBJECT)
_TABLES: Final = unicodedata.ucd_3_2_0
# Letters with their marks, and digits: general categories of Unicode, the first letter or both.
_LETTERS_AND_DIGITS: Final = ("L", "M", "Nd")
SUBJECT_LENGTH_MAX: Final = 64 + 1 + 256  # the longest match of SUBJECT
SUBJECT_CACHE_MAX: Final = 4_096
_FACTS: Final = "facts."


class SubjectTemplate:
    """One template, compiled.

    `dependencies` are the declared facts that it reads or tests. `depends_on_proposal` tells whether it reads or tests params, or reads who
    proposes; `reads_producer` tells the latter.
    """

    def __init__(self, environment: Environment, expression: CheckedExpression) -> None:
        variables = list(find_variables(expression.tree, environment.types))
        presences = list(find_presence_tests(expression.tree))
        self.dependencies = find_dependencies(environment, expression)
        self.reads_producer = any(name.startswith("producer") for name, _ in variables)
        paths = (*(name for name, _ in variables), *presences)
        self.depends_on_proposal = self.reads_producer or any(path.startswith("params") for path in paths)
        # Most templates concatenate texts, which needs no evaluator.
        self._pieces = _split_concatenation(expression.tree, environment)
        self._reader = CaseReader(variables, presences)
        self._program = Program(environment, [condition_source(expression.source)])

    def subject(
        self, params: dict[str, object], facts: dict[str, object], subject: str, proposer: Proposer = NOBODY, *, in_ascii: bool = False
    ) -> str | None:
        """Return the fact's subject for typed params, the available ones of its `dependencies`, and the proposal's subject and producer.

        None if the template fails, or does not give a valid "type/id". `in_ascii`: subjects are printable ASCII without spaces.
        """
        pieces = self._pieces
        if pieces is not None:
            value: object = _concatenate(pieces, params, facts, subject, proposer)
        else:
            value = self._evaluate(bare_case(params, facts, subject, proposer))
        if not isinstance(value, str) or not _is_subject(value):
            return None
        return None if in_ascii and _SUBJECT_IN_ASCII.fullmatch(value) is None else value

    def subjects(
        self,
        params: dict[str, object],
        facts: dict[str, object],
        subject: str,
        subjects_max: int,
        proposer: Proposer = NOBODY,
        *,
        in_ascii: bool = False,
    ) -> list[str] | None:
        """Return the subjects of a fact of many, each once, in the template's order. The arguments are those of `subject`.

        None if the template fails, gives anything but "type/id", or gives more than `subjects_max`.
        """
        value = self._evaluate(bare_case(params, facts, subject, proposer))
        if not isinstance(value, list):
            return None
        distinct: dict[str, None] = {}
        for item in value:
            if not isinstance(item, str) or not _is_subject(item) or (in_ascii and _SUBJECT_IN_ASCII.fullmatch(item) is None):
                return None
            distinct[item] = None
        return list(distinct) if len(distinct) <= subjects_max else None

    def _evaluate(self, case: Case) -> object:
        answers = self._program.evaluate_all(self._reader.read(case))
        return None if answers is None else answers[0]


def _is_subject(text: str) -> bool:
    # The length first: the cache must not hold long texts of agents.
    return len(text) <= SUBJECT_LENGTH_MAX and _matches_subject(text)


def is_recordable_subject(text: str) -> bool:
    """Return whether a text may be the subject of an event, as the server admits it: "type/id" in Unicode's form NFC.

    The tables of Unicode 3.2 tell, which every version of Python has: a decision does not depend on the newest characters.
    """
    if len(text) > SUBJECT_BYTES_MAX or len(text.encode()) > SUBJECT_BYTES_MAX or not _TABLES.is_normalized("NFC", text):
        return False
    in_ascii = "".join([character if character.isascii() else _in_ascii(character) for character in text])
    return _RECORDABLE_SUBJECT.fullmatch(in_ascii) is not None


def _in_ascii(character: str) -> str:
    return "A" if _TABLES.category(character).startswith(_LETTERS_AND_DIGITS) else "#"


@lru_cache(SUBJECT_CACHE_MAX)
def _matches_subject(text: str) -> bool:
    return _SUBJECT.fullmatch(text) is not None


# ("", literal), ("params", name), ("facts", name), ("subject", ""), ("subject", "type") or ("subject", "id"); of the producer likewise.
_Pieces = list[tuple[str, str]]


def _split_concatenation(tree: Node, environment: Environment) -> _Pieces | None:
    """Return the pieces of a template that only concatenates; None for any other template."""
    match tree:
        case Constant("string", str(text)):
            return [("", text)]
        case Identifier(name) if name in environment.types and environment.types[name].kind == "string":
            root, _, rest = name.partition(".")
            return [(root, rest)] if root in ("params", "facts", "subject", "producer") and "." not in rest else None
        case Call("_+_", None, (left, right)):
            before, after = _split_concatenation(left, environment), _split_concatenation(right, environment)
            return None if before is None or after is None else before + after
    return None


def _concatenate(pieces: _Pieces, params: dict[str, object], facts: dict[str, object], subject: str, proposer: Proposer) -> str | None:
    """Return the pieces as one text; None if a value is absent, on which CEL would fail."""
    parts: list[str] = []
    for root, text in pieces:
        part: object = text
        if root == "params":
            part = params.get(text)
        elif root == "facts":
            part = facts.get(text)
        elif root == "subject":
            part = _subject_part(subject, text)
        elif root == "producer":
            part = getattr(proposer, text)
        if not isinstance(part, str):
            return None
        parts.append(part)
    return "".join(parts)


def _subject_part(subject: str, name: str) -> str:
    """Return a part of a subject: its "type", its "id", or all of it for ""."""
    if not name:
        return subject
    kind, _, identity = subject.partition("/")
    return kind if name == "type" else identity


def find_dependencies(environment: Environment, expression: CheckedExpression) -> tuple[str, ...]:
    """Return the declared facts that a template reads or tests, sorted by name."""
    paths = {*(name for name, _ in find_variables(expression.tree, environment.types)), *find_presence_tests(expression.tree)}
    return tuple(sorted({path.split(".")[1] for path in paths if path.startswith(_FACTS)}))


def find_invalid_subject(environment: Environment, expression: CheckedExpression, *, is_recorded: bool = False) -> str | None:
    """Return the text of a template made of literals alone if it is not a valid subject; None for any other template.

    `is_recorded`: an event gets the subject, so that it must be one that the server admits.
    """
    pieces = _split_concatenation(expression.tree, environment)
    if pieces is None or any(root for root, _ in pieces):
        return None
    literal = "".join(text for _, text in pieces)
    is_valid = is_recordable_subject(literal) if is_recorded else _is_subject(literal)
    return None if is_valid else literal


def sort_by_dependency(names: list[str], dependencies: Mapping[str, tuple[str, ...]]) -> tuple[list[str], list[str]]:
    """Sort facts so that each comes after its dependencies, and otherwise in the given order.

    Returns the facts sorted, and those that depend on themselves, which the first list lacks.
    """
    ordered: dict[str, None] = {}
    remaining = names
    while remaining:
        ready = [name for name in remaining if all(dependency in ordered for dependency in dependencies.get(name, ()))]
        if not ready:
            return list(ordered), [name for name in remaining if name in _transitive_dependencies(name, dependencies)]
        ordered.update(dict.fromkeys(ready))
        remaining = [name for name in remaining if name not in ordered]
    return list(ordered), []


def _transitive_dependencies(name: str, dependencies: Mapping[str, tuple[str, ...]]) -> set[str]:
    answer: set[str] = set()
    queue = [name]
    while queue:
        for dependency in dependencies.get(queue.pop(), ()):
            if dependency not in answer:
                answer.add(dependency)
                queue.append(dependency)
    return answer
