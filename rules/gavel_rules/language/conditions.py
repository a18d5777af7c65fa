"""CEL conditions: parsed, checked against their vocabulary, and refused with a place and a suggestion.

The library parses and type-checks; three things it cannot know are added here. Names are resolved against the action's
vocabulary, with the nearest one suggested. A value that may be absent must be read under `has()`: missing is never
permission. And nothing with hidden input is let in: named time zones are the host's files.

`has(facts.x)` is handed to the library as `has(Facts.x)`: `facts.x` is a variable of its own (`vocabulary`), and a variable
cannot be tested. The replacement has the same length, so every place stays right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from cel_expr_python import cel

from gavel_rules.language.cel_library import NESTED_TOO_DEEP, Report, library_config, report_complaint
from gavel_rules.language.cel_syntax import Constant, Node, decode, every
from gavel_rules.language.cost import EXPRESSION_STEPS_MAX, ITERATIONS_MAX, advice, cost_of
from gavel_rules.language.name_analysis import ERRORS_PER_CONDITION_MAX, NameAnalysis
from gavel_rules.language.reading import presences, reads
from gavel_rules.language.vocabulary import PRESENCE_MAPS, ValueType, variables
from gavel_rules.values import text_problem

_NO_NAMES: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Condition:
    """A checked expression.

    `text` is what its author meant, with variables written out, `source` what the library is given; places in both are the
    same. `written` is what stands in the document.
    """

    text: str
    source: str
    tree: Node
    written: str
    result: str  # its type as the library names it: "BOOL", "DOUBLE", "STRING", "DYN", …
    steps: int  # what one evaluation costs at worst: see `cost`


class Environment:
    """CEL with one vocabulary: compiles expressions for checking and for evaluation."""

    def __init__(self, scope: Mapping[str, ValueType], *, salvaged: bool = False) -> None:
        """`salvaged`: the params schema is broken, and what has no type in the scope may well have had one."""
        self.scope = scope
        self.salvaged = salvaged
        self.types: dict[str, ValueType] = dict(variables(scope))
        declared = {name: cel.Type(type_.cel()) for name, type_ in self.types.items()}
        presence = cel.Type("map<string,dyn>")
        declared.update({PRESENCE_MAPS[root]: presence for root in PRESENCE_MAPS if root in scope})
        self._library = cel.NewEnv(config=library_config(), variables=declared)

    def compile(self, source: str) -> Any:
        """Return the library's compiled expression; RuntimeError with all its complaints."""
        return self._library.compile(source)

    def activation(self, values: dict[str, object]) -> Any:
        """Return values in the library's form, for several evaluations; RuntimeError when it cannot take one."""
        return self._library.Activation(values)

    def tree(self, source: str) -> Node:
        """Return the checked tree of an expression that is known to compile."""
        return decode(self.compile(source).serialize())

    def unguarded(self, text: str) -> tuple[str, ...]:
        """Return the paths that a piece of a checked expression reads without testing in it that they are there."""
        analysis = NameAnalysis(self.scope, _ignore)
        analysis.walk(decode(self._library.compile(text, disable_check=True).serialize()))
        return tuple(analysis.unguarded)

    def check(
        self,
        text: str,
        report: Report,
        result: str = "BOOL",
        *,
        written: str | None = None,
        open_names: frozenset[str] = _NO_NAMES,
        variables: frozenset[str] = _NO_NAMES,
        reported: int = 0,
    ) -> Condition | None:
        """Return the checked expression, or None with everything that is wrong reported.

        `result` is the type that it should have, "SCALAR" for a string, number or boolean, "" for any. `open_names` stand for
        something that could not be read: what can be said without them is reported, and there is no answer. `variables` are the
        document's, for suggestions, which are made while few mistakes are `reported`.
        """
        reports = 0

        def note(offset: int, code: str, message: str, hint: str) -> None:
            nonlocal reports
            reports += 1
            if reports <= ERRORS_PER_CONDITION_MAX:
                report(offset, code, message, hint)

        try:
            parsed = decode(self._library.compile(text, disable_check=True).serialize())
        except RuntimeError as error:
            report_complaint(self.scope.keys() | variables, text, str(error), note, reported=False)
            return None
        analysis = NameAnalysis(self.scope, note, variables, salvaged=self.salvaged, reported=reported)
        analysis.walk(parsed, open_names)
        for literal in every(parsed):
            value = literal.value if isinstance(literal, Constant) else None
            if isinstance(value, str) and (problem := text_problem(value)):
                note(literal.offset, "bad-character", f"a text {problem}", "remove it: no event can carry it")
            elif isinstance(value, float) and not math.isfinite(value):
                note(literal.offset, "bad-number", "the number is too large for a double", "write one below 1.8e308")
        if open_names:
            return None
        source = analysis.rewrite(text)
        try:
            compiled = self._library.compile(source)
        except RuntimeError as error:
            report_complaint(self.scope.keys() | variables, source, str(error), note, reported=reports > 0)
            return None
        given = compiled.return_type().name()
        unknown = given == "DYN" and self.salvaged
        if result and not reports and not unknown and given not in _RESULTS.get(result, (result,)):
            note(0, *_wrong_result(given.lower(), result.lower()))
        if not reports and not self._nests(source):
            note(0, "too-complex", *NESTED_TOO_DEEP)
        if reports:
            return None
        tree = decode(compiled.serialize())
        cost = cost_of(tree, self.types)
        if cost.steps > EXPRESSION_STEPS_MAX and not self.salvaged:
            note(cost.offset, *_too_costly(cost.steps, dict(reads(tree, self.types))))
            return None
        # A report has no schema to bound it: there the elements are counted when it is at hand (`report_expressions`).
        if cost.map_offset >= 0 and cost.elements > ITERATIONS_MAX and not self.salvaged and "execution" not in self.scope:
            note(cost.map_offset, *_unordered(cost.elements, dict(reads(tree, self.types))))
            return None
        return Condition(text, source, tree, text if written is None else written, given, math.ceil(min(cost.steps, EXPRESSION_STEPS_MAX)))

    def _nests(self, source: str) -> bool:
        """Whether the expression still compiles inside the list and the guard that evaluation puts it in."""
        try:
            self._library.compile(f"[true ? dyn(({source}\n)) : dyn(false)]")
        except RuntimeError:
            return False
        return True


class Expression(NamedTuple):
    """A checked expression and the vocabulary that it was checked in."""

    environment: Environment
    condition: Condition

    def names(self) -> set[str]:
        """Return every variable and path that it reads or tests."""
        tree = self.condition.tree
        return {*(name for name, _ in reads(tree, self.environment.types)), *presences(tree)}


def _ignore(offset: int, code: str, message: str, hint: str) -> None:
    """Drop a report: what is asked about here has been checked before."""


def _wrong_result(given: str, wanted: str) -> tuple[str, str, str]:
    """Return (code, message, suggestion) for an expression of another type than its place asks for."""
    named = _NAMED_RESULTS.get(wanted, wanted)
    return f"not-{wanted}", f"the expression gives {given}, not {named}", _TOWARDS.get(wanted, "")


def _too_costly(steps: float, names: Mapping[str, ValueType]) -> tuple[str, str, str]:
    """Return (code, message, suggestion) for an expression whose evaluation may take too long, or too much memory."""
    taken = f"{steps:,.0f} steps" if math.isfinite(steps) else "any number of steps"
    message = f"one evaluation may take {taken}; the limit is {EXPRESSION_STEPS_MAX:,}"
    return "too-costly", message, advice(names) or "go over less, search shorter texts, or begin a long pattern with ^"


def _unordered(elements: float, names: Mapping[str, ValueType]) -> tuple[str, str, str]:
    """Return (code, message, suggestion) for macros over a map that may or may not come to the limit: its keys have no order."""
    message = (
        f"the keys of a map have no order, and the macros here may go over {elements:,.0f} elements: "
        f"whether one is found before the limit of {ITERATIONS_MAX:,} would differ from time to time"
    )
    return "hidden-input", message, advice(names) or "go over less"


_RESULTS: Final[Mapping[str, tuple[str, ...]]] = {"SCALAR": ("BOOL", "INT", "UINT", "DOUBLE", "STRING", "DYN")}
_NAMED_RESULTS: Final[Mapping[str, str]] = {"scalar": "a string, number or boolean"}
_TOWARDS: Final[Mapping[str, str]] = {
    "bool": "compare it with something",
    "double": "write 1.0 instead of 1, or double(x)",
    "string": "string(x) gives one",
    "scalar": "a fact's value is one of these",
}
