"""Analysis of the names in an expression: what each stands for, and whether an optional value is tested before it is read.

To the library a missing value is an error of the evaluation. Here a read without a test is a mistake of the document. The analysis
also finds functions with hidden inputs, and macros over the keys of a map, which have no order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gavel_rules.language.cel.counter_reads import ReadPlace
from gavel_rules.language.cel.inference import infer_type, is_binding, is_filter, loop_types
from gavel_rules.language.cel.library import UNSUPPORTED_FUNCTIONS, Report, literal_problems
from gavel_rules.language.cel.syntax_tree import Call, Comprehension, Constant, Identifier, ListLiteral, MapLiteral, Node, Select, children
from gavel_rules.language.cel.vocabulary import COUNTER_READS, DYN, HISTORY, PRESENCE_MAPS, STRING, TYPE_NAMES, ValueType
from gavel_rules.language.cel.zones import TIME_FIELDS, decode_zone
from gavel_rules.text import DID_YOU_MEAN, SUGGESTED_MAX, suggestion

ERRORS_PER_CONDITION_MAX: Final = 20
COMPREHENSIONS_MAX: Final = 8

# The library takes every offset of two digits each.
_FIXED_ZONE: Final = re.compile(r"UTC|[+-][0-9]{2}:[0-9]{2}")
_IMPOSSIBLE_OFFSET: Final = re.compile(r"[+-](1[5-9]|[2-9][0-9]):[0-9]{2}|[+-][0-9]{2}:[6-9][0-9]")
_ACCUMULATOR: Final = "@result"


@dataclass(frozen=True, slots=True)
class _Place:
    """The meaning of a chain of names: its path, its type, and the paths along it that may be absent."""

    path: tuple[str, ...]
    type: ValueType
    optional: tuple[tuple[str, ...], ...] = ()
    offset: int = 0

    def step(self, name: str, type_: ValueType, optional: bool) -> _Place:
        path = (*self.path, name)
        return _Place(path, type_, (*self.optional, path) if optional else self.optional, self.offset)


# The meaning of a chain whose name is unknown: reported once, then ignored.
_BROKEN: Final = _Place((), DYN)

_Locals = Mapping[str, _Place]
_Known = frozenset[tuple[str, ...]]
_NOTHING: Final[_Known] = frozenset()


class NameAnalysis:
    """One walk over a parsed expression: names, guards, functions with hidden inputs.

    `unguarded` are the paths that the expression reads without testing their presence, in the author's notation; `counter_reads` the
    places where it reads counters, rightly or wrongly.
    """

    def __init__(
        self,
        scope: Mapping[str, ValueType],
        note: Report,
        variables: frozenset[str] = frozenset(),
        *,
        version: int = 1,
        schema_is_broken: bool = False,
        reported: int = 0,
        result: str = "BOOL",
    ) -> None:
        """`result` is the type that the expression should have, as for `Environment.check`."""
        self._scope = scope
        self._is_condition = result == "BOOL"
        self._kinds = _KINDS.get(result)
        self._whole: _Place | None = None  # the place that is the whole expression
        self._version = version
        self._reported = reported
        self._schema_is_broken = schema_is_broken
        self._report = note
        self._variables = variables
        self._reports = 0
        self._comprehensions = 0
        self._presence_tests: set[int] = set()
        self.unguarded: dict[str, None] = {}
        self.counter_reads: list[ReadPlace] = []

    def _note(self, offset: int, code: str, message: str, hint: str = "") -> None:
        self._reports += 1
        self._report(offset, code, message, hint)

    def _note_unknown(self, offset: int, message: str, name: str, known: list[str]) -> None:
        # Suggestions cost time, and only ERRORS_PER_CONDITION_MAX mistakes are shown.
        reported = self._reported + self._reports if self._reports < ERRORS_PER_CONDITION_MAX else SUGGESTED_MAX
        self._note(offset, "unknown-name", message, suggestion(name, known, reported))

    def _note_unknown_root(self, node: Identifier, names: _Locals) -> None:
        name, message = node.name, f"there is no name {node.name}"
        owners = [f"{root}.{name}" for root, type_ in sorted(self._scope.items()) if name in type_.fields]
        known = sorted({*self._scope, *self._variables, *(local for local in names if local != _ACCUMULATOR)})
        if owners:
            self._note(node.offset, "unknown-name", message, f"{DID_YOU_MEAN} {' or '.join(owners)}?")
        elif name.isupper() and not suggestion(name, known, self._reported + self._reports).startswith(DID_YOU_MEAN):
            self._note(node.offset, "unknown-name", message, f'a text has quotes: "{name}"')
        else:
            self._note_unknown(node.offset, message, HISTORY if name == "counters" else name, known)

    def walk(self, parsed: Node, open_names: Iterable[str] = ()) -> None:
        """Check a whole expression. `open_names` stand for parts that could not be read; nothing is reported about them."""
        names = {name: _Place((name,), DYN) for name in open_names}
        self._whole = self._resolve(parsed, names)
        self._visit(parsed, _NOTHING, names)

    def rewrite(self, text: str) -> str:
        """Return the text with the roots of tested paths replaced by the presence maps."""
        for offset in self._presence_tests:
            root = next(root for root in PRESENCE_MAPS if text.startswith(root, offset))
            text = text[:offset] + PRESENCE_MAPS[root] + text[offset + len(root) :]
        return text

    def _visit(self, node: Node, known: _Known, names: _Locals) -> None:
        """Check a node. `known` are the paths that are certainly present wherever its value matters.

        The operands of && and || guard each other in both directions, because CEL absorbs errors. If a path is absent, the operand that
        tests it is false (or true) and decides alone, even if the other one fails.
        """
        match node:
            case Call("_&&_", None, (left, right)):
                self._visit(left, known | self._present(right, True, names), names)
                self._visit(right, known | self._present(left, True, names), names)
            case Call("_||_", None, (left, right)):
                self._visit(left, known | self._present(right, False, names), names)
                self._visit(right, known | self._present(left, False, names), names)
            case Call("_?_:_", None, (condition, then, otherwise)):
                self._visit(condition, known, names)
                self._visit(then, known | self._present(condition, True, names), names)
                self._visit(otherwise, known | self._present(condition, False, names), names)
            case Select(operand, _, True):
                self._visit_test(node, operand, known, names)
            case Select() | Identifier():
                self._visit_read(node, known, names)
            case Call():
                self._visit_call(node, known, names)
            case Comprehension():
                self._visit_comprehension(node, known, names)
            case MapLiteral(message_name=message_name) if message_name:
                self._note(node.offset, "not-supported", f"messages like {message_name} are not supported", "use timestamp() or duration()")
            case _:
                for child in children(node):
                    self._visit(child, known, names)

    def _visit_read(self, node: Node, known: _Known, names: _Locals) -> None:
        place = self._resolve(node, names, complain=True)
        if place is None:
            if isinstance(node, Select):
                self._visit(node.operand, known, names)
            return
        if place is _BROKEN:
            return
        name = _path_text(place)
        if place.type.kind == "counter":
            self._note(place.offset, "not-a-value", f"{name} is a counter", f"call it: {name}({'' if place.type.size_max == 0 else 'key'})")
        elif place.type.kind == "scope":
            fields = sorted(place.type.fields)
            self._note(place.offset, "not-a-value", f"{name} is not a value", f"read one of its fields: {', '.join(fields[:8])}")
        elif place.type.kind == "dyn" and place.path[0] in ("params", "facts") and not self._schema_is_broken:
            where = "the params schema" if place.path[0] == "params" else "the fact's schema"
            self._note(place.offset, "untyped-param", f"the schema gives {name} no single type", f"declare its type in {where}")
        self._check_guarded(place, known)

    def _check_guarded(self, place: _Place, known: _Known) -> None:
        names = [_path_text(_Place(path, DYN)) for path in place.optional if path not in known]
        if place == self._whole and self._kinds is not None and place.type.kind not in self._kinds:
            return  # the type checker reports the wrong type; no default would be right
        for name in names:
            self.unguarded[name] = None
            hint = f"write has({name}) && …" if self._is_condition else _suggest_default(place, names)
            self._note(place.offset, "unguarded-optional", f"{name} may be absent", hint)

    def _visit_test(self, node: Select, operand: Node, known: _Known, names: _Locals) -> None:
        place = self._resolve(operand, names, complain=True)
        if place is None:
            self._visit(operand, known, names)
            return
        tested = self._resolve_field(place, node.field_name, complain=True)
        if tested is None or tested is _BROKEN:
            return
        root = place.path[0]
        if root in PRESENCE_MAPS:
            # An element of a list needs no presence map: the library can test its fields.
            if not any(step.startswith("[") for step in place.path):
                self._presence_tests.add(place.offset)
        elif root in self._scope and place.type.kind != "dyn":
            self._note(place.offset, "needless-has", f"{_path_text(tested)} is always present", "remove has()")
        self._check_guarded(place, known)

    def _visit_counter(self, node: Call, counters: ValueType, start: int) -> None:
        """Check `history.NAME(key)` and note its place; its key is visited like any other argument."""
        counter = counters.fields.get(node.function)
        if counter is None:
            known = [f"{HISTORY}.{name}" for name in sorted(counters.fields)]
            message = f"the rule set has no counter {node.function}"
            self._note_unknown(start, message, f"{HISTORY}.{node.function}", known)
        elif counter.type.size_max is not None and len(node.arguments) != counter.type.size_max:
            wanted = "one argument, the key of a group" if counter.type.size_max else "no argument, because it has no `by`"
            hint = "" if counter.type.size_max else f"add `by` to {node.function}, or remove the argument"
            self._note(start, "type-error", f"{HISTORY}.{node.function} takes {wanted}", hint)
        self.counter_reads.append(ReadPlace(node.function, start, node.offset))

    def _visit_call(self, node: Call, known: _Known, names: _Locals) -> None:
        if node.target is not None and self._is_history(node.target, names):
            self._visit_counter(node, self._scope[HISTORY], node.target.offset)
            for argument in node.arguments:
                self._visit(argument, known, names)
            return
        if node.function == "frees" and isinstance(node.target, Select) and self._is_history(node.target.operand, names):
            start = node.target.operand.offset
            self._note(start, "not-a-value", "frees tells when to try again", "write it under the rule's `retry_after`")
            self.counter_reads.append(ReadPlace(node.target.field_name, start, node.offset))
            return
        if self._is_counter_elsewhere(node, names):
            hint = f"{DID_YOU_MEAN} {HISTORY}.{node.function}?"
            self.counter_reads.append(ReadPlace(node.function, node.offset, node.offset))
            if isinstance(node.target, Identifier):
                self._note(node.target.offset, "unknown-name", f"there is no name {node.target.name}", hint)
                for argument in node.arguments:
                    self._visit(argument, known, names)
                return
            start, message = node.offset - len(node.function), f"there is no function {node.function}"
            self._note(start, "unknown-function", message, hint)
        if (node.function in TIME_FIELDS or (node.function == "toDate" and self._version > 1)) and node.arguments:
            zone = node.arguments[0]
            if not (isinstance(zone, Constant) and isinstance(zone.value, str) and self._is_zone(zone.value)):
                self._note(
                    node.offset,
                    "hidden-input",
                    f"{node.function} with a named time zone reads the host's time zone files",
                    'write "UTC" or a fixed offset like "+02:00"' + ("" if self._version == 1 else ", or declare it under `zones`"),
                )
            elif self._version > 1 and _IMPOSSIBLE_OFFSET.fullmatch(zone.value) is not None:
                self._note(zone.offset, "bad-literal", f"no place has the offset {zone.value}", "write one from -14:59 to +14:59")
        if node.function in UNSUPPORTED_FUNCTIONS[self._version]:
            self._note(node.offset, "not-supported", f"{node.function} is not supported: its result may grow without bound", "")
        if node.function == "matches" and node.arguments and not isinstance(node.arguments[-1], Constant):
            hint = 'write a literal, as in x.matches("^[a-z]+$")'
            self._note(node.offset, "not-supported", "matches needs a literal pattern: the cost of any other has no bound", hint)
        for argument in node.arguments:
            if isinstance(argument, Constant) and isinstance(argument.value, str):
                for message, hint in literal_problems(node.function, argument.value):
                    self._note(argument.offset, "bad-literal", message, hint)
        if node.function == "_[_]" and self._resolve(node, names) is not None:
            self._visit_read(node, known, names)
            return
        for child in children(node):
            self._visit(child, known, names)

    def _is_history(self, node: Node, names: _Locals) -> bool:
        return isinstance(node, Identifier) and node.name == HISTORY and HISTORY in self._scope and HISTORY not in names

    def _is_counter_elsewhere(self, node: Call, names: _Locals) -> bool:
        """Return whether a call without `history`, or with another root that does not exist, has the name of a counter."""
        if HISTORY not in self._scope or node.function not in self._scope[HISTORY].fields:
            return False
        root = node.target
        return root is None or (
            isinstance(root, Identifier) and not (root.name in self._scope or root.name in names or root.name in TYPE_NAMES)
        )

    def _is_zone(self, text: str) -> bool:
        return _FIXED_ZONE.fullmatch(text) is not None or (self._version > 1 and decode_zone(text) is not None)

    def _visit_comprehension(self, node: Comprehension, known: _Known, names: _Locals) -> None:
        if is_binding(node):
            self._visit_binding(node, known, names)
            return
        self._comprehensions += 1
        if self._comprehensions == COMPREHENSIONS_MAX + 1:
            self._note(node.offset, "too-complex", f"more than {COMPREHENSIONS_MAX} macros in one expression", "split the rule")
        self._visit(node.range, known, names)
        over = self._resolve(node.range, names)
        if isinstance(node.start, ListLiteral) and self._may_be_map(node.range, names):
            message = "the keys of a map have no order: a list of them could differ from one evaluation to the next"
            self._note(node.offset, "hidden-input", message, "map and filter take lists; exists, all and exists_one take maps too")
        element = DYN
        if over is not None and over.type.kind == "list" and over.type.element is not None:
            element = over.type.element
        elif over is not None and over.type.kind in ("map", "object"):
            element = STRING
        elements = {node.variable: element, node.second_variable: element}
        if self._version > 1:
            elements = loop_types(node, self._types(names))
        inner = dict(names)
        for variable in filter(None, (node.variable, node.second_variable)):
            self._check_shadow(variable, node.offset)
            inner[variable] = _Place((f"{variable}@{node.offset}",), elements[variable], (), node.offset)
        inner[node.accumulator] = _Place((_ACCUMULATOR,), DYN)
        self._visit(node.start, known, names)
        item = node.second_variable or node.variable  # the first of two is the place in the list
        known = known | {(f"{item}@{node.offset}", *rest) for rest in self._present_in_elements(node.range, names)}
        for part in (node.condition, node.step, node.result):
            self._visit(part, known, inner)

    def _visit_binding(self, node: Comprehension, known: _Known, names: _Locals) -> None:
        """Check `cel.bind(name, value, expression)`. The name is a value of its own, not another name of a path."""
        self._check_shadow(node.accumulator, node.offset)
        self._visit(node.start, known, names)
        bound = _Place((f"{node.accumulator}@{node.offset}",), infer_type(node.start, self._types(names)), (), node.offset)
        self._visit(node.result, known, {**names, node.accumulator: bound})

    def _present_in_mapped(self, node: Comprehension, names: _Locals) -> set[tuple[str, ...]]:
        """Return the paths that are present in every element of a list if `map` takes a part of each element of another list."""
        match node.step:
            case Call("_+_", None, (Identifier(), ListLiteral((body,)))):
                root = f"{node.variable}@{node.offset}"
                element = loop_types(node, self._types(names))[node.variable]
                place = self._resolve(body, {**names, node.variable: _Place((root,), element, (), node.offset)})
                if place is not None and place.path[:1] == (root,):
                    part = place.path[1:]
                    tested = self._present_in_elements(node.range, names)
                    return {path[len(part) :] for path in tested if path[: len(part)] == part and len(path) > len(part)}
        return set()

    def _check_shadow(self, variable: str, offset: int) -> None:
        hides_reads = variable == COUNTER_READS and HISTORY in self._scope
        if variable in self._scope or variable in TYPE_NAMES or variable in PRESENCE_MAPS.values() or hides_reads:
            self._note(offset, "shadowed-name", f"{variable} already has a meaning", "choose another name for the macro's variable")

    def _types(self, names: _Locals) -> dict[str, ValueType]:
        return {**self._scope, **{name: place.type for name, place in names.items()}}

    def _present_in_elements(self, node: Node, names: _Locals) -> set[tuple[str, ...]]:
        """Return the paths inside of an element that are present in every element of a list, because a filter tested them."""
        if self._version == 1 or not isinstance(node, Comprehension):
            return set()
        if not is_filter(node):
            return self._present_in_mapped(node, names)
        root = f"{node.variable}@{node.offset}"
        element = loop_types(node, self._types(names))[node.variable]
        inner = {**names, node.variable: _Place((root,), element, (), node.offset)}
        assert isinstance(node.step, Call)  # noqa: S101  # of every filter
        tested = self._present(node.step.arguments[0], True, inner)
        return {path[1:] for path in tested if path[0] == root} | self._present_in_elements(node.range, names)

    def _may_be_map(self, node: Node, names: _Locals) -> bool:
        """Report whether a macro may go over a map."""
        if self._version > 1 and infer_type(node, self._types(names)).kind == "list":
            return False
        place = self._resolve(node, names)
        if place is not None:
            # Params without a type, and unknown names, have been reported already.
            is_reported = place is _BROKEN or (place.type.kind == "dyn" and place.path[0] in ("params", "facts"))
            return place.type.kind in ("map", "object", "dyn") and not is_reported
        match node:
            case Call("_?_:_", None, (_, then, otherwise)):
                return self._may_be_map(then, names) or self._may_be_map(otherwise, names)
            case Call("dyn", None, (inner,)):
                return self._may_be_map(inner, names)
            case MapLiteral() | Select() | Call("_[_]"):
                return True
        return False

    def _present(self, node: Node, outcome: bool, names: _Locals) -> _Known:
        """Return the paths that are present whenever the value of a node is `outcome`."""
        match node:
            case Select(operand, field_name, True) if outcome:
                place = self._resolve(operand, names)
                return frozenset({(*place.path, field_name)}) if place is not None else _NOTHING
            case Call("!_", None, (operand,)):
                return self._present(operand, not outcome, names)
            case Call("_&&_" | "_||_", None, (left, right)):
                of_left = self._present(left, outcome, names)
                of_right = self._present(right, outcome, names)
                return of_left | of_right if (node.function == "_&&_") is outcome else of_left & of_right
        return _NOTHING

    def _resolve(self, node: Node, names: _Locals, *, complain: bool = False) -> _Place | None:
        """Return the meaning of a chain of names; None if the node is not such a chain, _BROKEN if its name is unknown."""
        match node:
            case Identifier(name):
                if name in names:
                    return names[name]
                if name in self._scope:
                    return _Place((name,), self._scope[name], (), node.offset)
                if complain and name not in TYPE_NAMES:
                    self._note_unknown_root(node, names)
                    return _BROKEN
            case Select(operand, field_name, False):
                place = self._resolve(operand, names, complain=complain)
                return self._resolve_field(place, field_name, complain=complain) if place is not None else None
            case Call("_[_]", None, (operand, Constant(value=index))):
                place = self._resolve(operand, names)
                if place is not None and place.type.kind in ("list", "map") and place.type.element is not None:
                    return place.step(f"[{index!r}]", place.type.element, optional=False)
        return None

    def _resolve_field(self, place: _Place, name: str, *, complain: bool) -> _Place | None:
        field = place.type.fields.get(name)
        if field is not None:
            return place.step(name, field.type, not field.required)
        if place.type.kind == "map":
            return place.step(name, place.type.element or DYN, optional=True)
        if place is _BROKEN:
            return place
        if place.type.kind == "dyn":
            return place.step(name, DYN, optional=False)
        if place.type.kind not in ("object", "scope") and not place.type.fields:
            return None  # the type checker reports it
        if complain:
            whole = _path_text(place)
            known = [f"{whole}.{field_name}" for field_name in sorted(place.type.fields)]
            self._note_unknown(place.offset, f"{whole} has no field {name}", f"{whole}.{name}", known)
        return _BROKEN


def _suggest_default(place: _Place, absent: Iterable[str]) -> str:
    """Return how to read a value that may be absent where the expression must give one."""
    tests = " && ".join(f"has({name})" for name in absent)
    return f"write {tests} ? {_path_text(place)} : {_DEFAULTS.get(place.type.kind, '…')}"


# The kinds of values that an expression may be as a whole, by the type that it should have.
_KINDS: Final[Mapping[str, tuple[str, ...]]] = {"NUMBER": ("int", "double", "dyn"), "STRING": ("string", "dyn")}
_DEFAULTS: Final[Mapping[str, str]] = {"string": '"none"', "int": "0", "double": "0.0", "bool": "false"}


def _path_text(place: _Place) -> str:
    """Return a path in the author's notation."""
    text = place.path[0].partition("@")[0]
    for step in place.path[1:]:
        text += step if step.startswith("[") else f".{step}"
    return text
