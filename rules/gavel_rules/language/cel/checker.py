"""CEL expressions, parsed and checked: each mistake has a place and a suggestion.

The library parses and type-checks. Three checks are added that it cannot make:

- Names are resolved in the scope of the action, and the nearest name is suggested for an unknown one.
- A value that may be absent must be read under `has()`: a missing value never permits anything.
- Hidden inputs are refused, such as named time zones, which are files of the host.

`has(facts.x)` is handed to the library as `has(Facts.x)`: `facts.x` is a variable of its own (see `vocabulary`), and the library
cannot test a variable. Both have the same length, so every place stays right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from cel_expr_python import cel

from gavel_rules.language.cel.cost import EXPRESSION_STEPS_MAX, ITERATIONS_MAX, estimate_cost
from gavel_rules.language.cel.counter_reads import KEYS_PER_COUNTER_MAX, READS_PER_ACTION_MAX, CounterReads, ReadPlace
from gavel_rules.language.cel.expansion import expand
from gavel_rules.language.cel.inference import sum_kinds
from gavel_rules.language.cel.library import BODIES, NESTED_TOO_DEEP, Report, library_config, report_complaint
from gavel_rules.language.cel.name_analysis import ERRORS_PER_CONDITION_MAX, NameAnalysis
from gavel_rules.language.cel.sharing import share
from gavel_rules.language.cel.syntax_tree import MESSAGE_DEPTH_MAX, Constant, Identifier, Node, decode, message_depth, walk
from gavel_rules.language.cel.tokens import closing_offset
from gavel_rules.language.cel.tree_queries import find_presence_tests, find_variables
from gavel_rules.language.cel.vocabulary import COUNTER_READS, HISTORY, PRESENCE_MAPS, ValueType, flatten_scope, suggest_bounds
from gavel_rules.values import text_problem

_NO_NAMES: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class CheckedExpression:
    """A checked expression.

    `written` is the text in the document, `text` is `written` with its variables expanded, and `source` is `text` as passed to the
    library. Positions in `text` and `source` are the same.
    """

    text: str
    source: str
    tree: Node
    written: str
    result: str  # the library's name of its type: "BOOL", "DOUBLE", "STRING", "DYN", …
    steps: int  # the worst cost of one evaluation: see `cost`
    depth: int  # with added functions expanded: see `message_depth`
    shared_steps: int = 0  # the same without the shared values that it reads
    elements: float = 0  # the most that its macros visit
    variables: tuple[tuple[int, int, str], ...] = ()  # the place of each variable's expansion in `text`, parentheses included, and its name

    def by_name(self, low: int, high: int) -> str:
        """Return a part of `text` as its author wrote it: with variables by name, also if the part is the whole value of one."""
        parts: list[str] = []
        at = low
        for start, end, name in self.variables:
            if start < low and high < end and self.text[start + 1 : end - 1].strip() == self.text[low:high].strip():
                return name
            if start >= at and end <= high:
                parts.extend((self.text[at:start], name))
                at = end
        return "".join((*parts, self.text[at:high])).strip()


class SharedValue(NamedTuple):
    """A variable that is evaluated once for all conditions of an action."""

    name: str
    serialized: bytes  # checked, with added functions expanded
    tree: Node  # the same as a tree
    steps: int  # without the shared values inside of it


class ScopedExpression(NamedTuple):
    """A checked expression with the environment that it was checked in."""

    environment: Environment
    expression: CheckedExpression

    def names(self) -> set[str]:
        """Return every variable and path that it reads or tests."""
        tree = self.expression.tree
        return {*(name for name, _ in find_variables(tree, self.environment.types)), *find_presence_tests(tree)}


class Environment:
    """CEL with one scope: compiles expressions for checking and for evaluation."""

    def __init__(self, scope: Mapping[str, ValueType], *, version: int = 1, schema_is_broken: bool = False) -> None:
        """`version` of the language. `schema_is_broken`: names without a type may have one in the schema that the author meant."""
        self.scope = scope
        self.version = version
        self.schema_is_broken = schema_is_broken
        self.types: dict[str, ValueType] = dict(flatten_scope(scope))
        declared = {name: cel.Type(type_.cel()) for name, type_ in self.types.items()}
        presence = cel.Type("map<string,dyn>")
        declared.update({PRESENCE_MAPS[root]: presence for root in PRESENCE_MAPS if root in scope})
        self._declared = declared
        self._library = cel.NewEnv(config=library_config(version), variables=declared)
        self.counter_reads = CounterReads()
        # The variables of the document whose values the conditions share, by their text, each after those inside of it.
        self.shared: dict[str, SharedValue] = {}

    def copy(self) -> Environment:
        """Return an environment with the same scope, without reads of counters and shared variables."""
        return Environment(self.scope, version=self.version, schema_is_broken=self.schema_is_broken)

    def counter_type(self, counter: str) -> ValueType:
        """Return the type of what a counter gives."""
        type_ = self.scope[HISTORY].fields[counter].type.element
        assert type_ is not None  # noqa: S101  # every counter gives something
        return type_

    def declare_read(self, variable: str, counter: str) -> None:
        """Declare the variable that stands for a read of a counter."""
        type_ = self.counter_type(counter)
        self.types[variable] = type_
        self._declared[variable] = cel.Type(type_.cel())
        self._library = cel.NewEnv(config=library_config(self.version), variables=self._declared)

    def reads_broken_counter(self, tree: Node) -> bool:
        """Report whether an expression reads a counter of unknown type: a mistake of the counter hides it."""
        reads = (name for name, _ in find_variables(tree, self.types) if name.startswith(f"{COUNTER_READS}."))
        return any(self.types[name].kind == "dyn" for name in reads)

    def compile(self, source: str) -> Any:
        """Return the library's compiled expression, ready to evaluate. Raises RuntimeError with all its complaints."""
        compiled = self._library.compile(source)
        if self.version == 1:
            return compiled
        return self._library.deserialize(self._expand(compiled))

    def compile_together(self, source: str, *, as_outcomes: bool = False) -> Any:
        """Return the compiled list of an action's conditions, in which shared values are evaluated once: see `sharing`."""
        if not self.shared:
            return self.compile(source)
        values = [value.serialized for value in self.shared.values()]
        return self._library.deserialize(share(self._expand(self._library.compile(source)), values, as_outcomes=as_outcomes))

    def share(self, name: str, source: str) -> None:
        """Share the value of a variable, given as it is written out in an expression that is known to compile."""
        if source in self.shared:
            return
        checked = self._library.compile(source)
        tree = self.evaluated_tree(checked)
        if not isinstance(tree, Identifier | Constant):
            steps = estimate_cost(tree, self.types, self.shared_trees()).steps
            self.shared[source] = SharedValue(name, self._expand(checked), tree, math.ceil(steps))

    def shared_trees(self) -> frozenset[Node]:
        """Return the trees of the shared values."""
        return frozenset(value.tree for value in self.shared.values())

    def check_types(self, source: str) -> Any:
        """Return the library's compiled expression as its author wrote it: added functions cannot be evaluated yet."""
        return self._library.compile(source)

    def evaluated_tree(self, checked: Any) -> Node:
        """Return the tree that is evaluated for an expression of `check_types`."""
        return decode(checked.serialize() if self.version == 1 else self._expand(checked))

    def _expand(self, checked: Any) -> bytes:
        serialized: bytes = checked.serialize()
        kinds = sum_kinds(decode(serialized), self.types)
        return expand(serialized, lambda offset: kinds.get(offset, "double"), BODIES)

    def activation(self, values: dict[str, object]) -> Any:
        """Return values in the library's form, for several evaluations. Raises RuntimeError if it cannot take one."""
        return self._library.Activation(values)

    def tree(self, source: str) -> Node:
        """Return the checked tree of an expression that is known to compile."""
        return decode(self._library.compile(source).serialize())

    def parse(self, text: str) -> Node:
        """Return the tree of an expression, names unresolved. Raises RuntimeError with the library's complaints."""
        return decode(self._library.compile(text, disable_check=True).serialize())

    def unguarded_paths(self, text: str) -> tuple[str, ...]:
        """Return the paths that a part of a checked expression reads without testing their presence itself."""
        analysis = NameAnalysis(self.scope, _ignore, version=self.version)
        analysis.walk(self.parse(text))
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
        shared: Sequence[tuple[int, str]] = (),
    ) -> CheckedExpression | None:
        """Return the checked expression; None with its mistakes reported.

        `result` is the type that it should have: "SCALAR" for a string, number or boolean, "DETAIL" for one of known type, "NUMBER" for an
        int or double, "STRINGS" for a list of strings, "" for any. `open_names` stand for parts that could not be read: mistakes elsewhere
        are reported, and the answer is None. `variables` are the document's, for suggestions; these are made only while few mistakes are
        `reported`. `shared` are places in the text where variables begin whose values are shared, with their names.
        """
        return _Check(self, report, variables, reported).run(text, result, text if written is None else written, open_names, shared)


class _Check:
    """One check of one expression."""

    def __init__(self, environment: Environment, report: Report, variables: frozenset[str], reported: int) -> None:
        self._environment = environment
        self._names = environment.scope.keys() | variables
        self._report = report
        self._variables = variables
        self._reported_before = reported
        self._reports = 0
        self._key_steps = 0.0

    def run(
        self, text: str, result: str, written: str, open_names: frozenset[str], shared: Sequence[tuple[int, str]] = ()
    ) -> CheckedExpression | None:
        source = self._check_parsed(text, open_names, result)
        if source is None:
            return None
        try:
            compiled = self._environment.check_types(source)
            tree = decode(compiled.serialize())
        except RuntimeError as error:
            report_complaint(self._names, source, str(error), self._note, reported=self._reports > 0)
            return None
        result_type: str = compiled.return_type().name()
        environment = self._environment
        is_unknown = result_type == "DYN" and (environment.schema_is_broken or environment.reads_broken_counter(tree))
        if result and not self._reports and not is_unknown and result_type not in _RESULTS.get(result, (result,)):
            self._note(len(text) - len(text.lstrip()), *_wrong_result(result_type.lower(), result.lower()))
        if not self._reports and not self._nests(source):
            self._note(0, "too-complex", *NESTED_TOO_DEEP)
        if self._reports:
            return None
        evaluated = self._expanded(compiled, tree)
        if evaluated is None:
            self._note(0, "too-complex", *NESTED_TOO_DEEP)
            return None
        steps = self._check_cost(evaluated)
        if self._reports:
            return None
        shared_steps, elements = self._share(source, shared, evaluated) if shared else (steps, math.inf)
        if not shared:
            elements = estimate_cost(evaluated, self._environment.types).elements
        return CheckedExpression(text, source, tree, written, result_type, steps, message_depth(evaluated), shared_steps, elements)

    def _share(self, source: str, shared: Sequence[tuple[int, str]], tree: Node) -> tuple[int, float]:
        """Share the variables at some places; return the steps without them, and the elements that macros visit with them."""
        environment = self._environment
        # The key of a counter's read is blank in the source: a variable that begins there is no part of the expression.
        texts = [(source[start : closing_offset(source, start) + 1], name) for start, name in shared if source[start] == "("]
        for text, name in sorted(texts, key=lambda one: len(one[0])):  # a variable is longer than those inside of it
            environment.share(name, text)
        cost = estimate_cost(tree, environment.types, environment.shared_trees())
        return math.ceil(cost.steps + self._key_steps), estimate_cost(tree, environment.types).elements

    def _note(self, offset: int, code: str, message: str, hint: str) -> None:
        self._reports += 1
        if self._reports <= ERRORS_PER_CONDITION_MAX:
            self._report(offset, code, message, hint)

    def _check_parsed(self, text: str, open_names: frozenset[str], result: str) -> str | None:
        """Check names and literals; return the expression as the library is given it, None where it cannot be compiled."""
        environment = self._environment
        try:
            tree = environment.parse(text)
        except RuntimeError as error:
            report_complaint(self._names, text, str(error), self._note, reported=False)
            return None
        analysis = NameAnalysis(
            environment.scope,
            self._note,
            self._variables,
            version=environment.version,
            schema_is_broken=environment.schema_is_broken,
            reported=self._reported_before,
            result=result,
        )
        analysis.walk(tree, open_names)
        for literal in walk(tree):
            value = literal.value if isinstance(literal, Constant) else None
            if isinstance(value, str) and (problem := text_problem(value)):
                self._note(literal.offset, "bad-character", f"a text {problem}", "remove it: no event can carry it")
            elif isinstance(value, float) and not math.isfinite(value):
                self._note(literal.offset, "bad-number", "the number is too large for a double", "write one below 1.8e308")
        if open_names or (analysis.counter_reads and self._reports):
            return None
        return self._replace_reads(analysis.rewrite(text), analysis.counter_reads)

    def _replace_reads(self, source: str, places: list[ReadPlace]) -> str | None:
        """Replace reads of counters by their variables, and report keys that cannot be evaluated before the expression.

        None if a read has no variable: the library would report it as an unknown function.
        """
        environment = self._environment
        inner = [place for place in places if any(_encloses(source, other, place) for other in places)]
        for place in inner:
            self._note(place.start, "not-supported", "the key of a counter reads another counter", "read only one of them in a rule")
        if inner:
            return None
        for place in places:
            entry = environment.counter_reads.add(source, place, environment.counter_type(place.counter).kind)
            if entry is None:
                message = (
                    f"the expressions of the action read {place.counter} with more than {KEYS_PER_COUNTER_MAX} different keys,"
                    f" or all counters with more than {READS_PER_ACTION_MAX}"
                )
                self._note(place.start, "too-complex", message, "read counters with fewer keys")
                return None
            read, is_new = entry
            if is_new:
                environment.declare_read(read.variable, read.counter)
            if read.key:
                self._check_key(read.key, source.index(read.key, place.opening))
            source = CounterReads.replace(source, place, read)
        return source

    def _check_key(self, key: str, start: int) -> None:
        """Check that a key is a text that does not depend on a macro around the read."""

        def note(offset: int, code: str, message: str, hint: str) -> None:
            self._note(start + offset, code, message, hint)

        try:
            compiled = self._environment.check_types(key)
        except RuntimeError as error:
            report_complaint(self._names, key, str(error), note, reported=False)
            return
        result = compiled.return_type().name()
        if result != "STRING":
            self._note(start, *_wrong_result(result.lower(), "string"))
        self._key_steps += estimate_cost(self._environment.evaluated_tree(compiled), self._environment.types).steps

    def _nests(self, source: str) -> bool:
        """Report whether the expression still compiles inside the list and the guard of evaluation."""
        try:
            self._environment.check_types(f"[true ? dyn(({source}\n)) : dyn(false)]")
        except RuntimeError:
            return False
        return True

    def _expanded(self, compiled: Any, tree: Node) -> Node | None:
        """Return the tree that is evaluated; None if expanded functions nest too deep for the library to read it back."""
        if self._environment.version == 1:
            return tree
        try:
            evaluated = self._environment.evaluated_tree(compiled)
        except RuntimeError:
            return None
        return None if evaluated != tree and message_depth(evaluated) > MESSAGE_DEPTH_MAX else evaluated

    def _check_cost(self, tree: Node) -> int:
        """Return the steps of an evaluation; report an expression over a limit. Without a sound schema, no limit applies."""
        environment = self._environment
        cost = estimate_cost(tree, environment.types)
        if not environment.schema_is_broken:
            names = dict(find_variables(tree, environment.types))
            if cost.steps > EXPRESSION_STEPS_MAX:
                self._note(cost.offset, *_too_costly(cost.steps, names))
            # A report has no schema that bounds it. `report_expressions` counts its elements once the report exists.
            elif cost.map_offset >= 0 and cost.elements > ITERATIONS_MAX and "execution" not in environment.scope:
                self._note(cost.map_offset, *_unordered(cost.elements, names))
        return math.ceil(min(cost.steps + self._key_steps, EXPRESSION_STEPS_MAX))


def _encloses(source: str, outer: ReadPlace, inner: ReadPlace) -> bool:
    return outer.opening < inner.start < closing_offset(source, outer.opening)


def _ignore(offset: int, code: str, message: str, hint: str) -> None:
    """Drop a report."""


def _wrong_result(result: str, expected: str) -> tuple[str, str, str]:
    """Return (code, message, suggestion) for an expression of the wrong type."""
    description = _RESULT_NAMES.get(expected, expected)
    code = "type-error" if expected in ("number", "strings", "detail") else f"not-{expected}"
    return code, f"the expression gives {result}, not {description}", _CONVERSIONS.get(expected, "")


def _too_costly(steps: float, names: Mapping[str, ValueType]) -> tuple[str, str, str]:
    """Return (code, message, suggestion) for an expression that may take too long or too much memory."""
    count = f"{steps:,.0f} steps" if math.isfinite(steps) else "any number of steps"
    message = f"one evaluation may take {count}; the limit is {EXPRESSION_STEPS_MAX:,}"
    return "too-costly", message, suggest_bounds(names) or "loop over fewer elements, search shorter texts, or begin a long pattern with ^"


def _unordered(elements: float, names: Mapping[str, ValueType]) -> tuple[str, str, str]:
    """Return (code, message, suggestion) for macros over a map that may reach the limit of iterations."""
    message = (
        f"the keys of a map have no order, and the macros may visit {elements:,.0f} elements: "
        f"whether they find a key before the limit of {ITERATIONS_MAX:,} could differ from one evaluation to the next"
    )
    return "hidden-input", message, suggest_bounds(names) or "loop over fewer elements"


_RESULTS: Final[Mapping[str, tuple[str, ...]]] = {
    "SCALAR": ("BOOL", "INT", "UINT", "DOUBLE", "STRING", "DYN"),
    "NUMBER": ("INT", "DOUBLE", "DYN"),
    "STRINGS": ("LIST<STRING>", "LIST<DYN>"),
    "DETAIL": ("BOOL", "INT", "DOUBLE", "STRING"),
}
_RESULT_NAMES: Final[Mapping[str, str]] = {
    "scalar": "a string, number or boolean",
    "number": "a number",
    "strings": "a list of strings",
    "detail": "a string, number or boolean",
}
_CONVERSIONS: Final[Mapping[str, str]] = {
    "bool": "compare it with something",
    "double": "write 1.0 instead of 1, or double(x)",
    "string": "convert it with string(x)",
    "scalar": "a fact's value is one of these",
}
