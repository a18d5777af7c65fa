"""The worst cost of one evaluation of an expression, computed without evaluating it.

The CEL library bounds only the iterations of an evaluation. The body of a macro may read, compare, copy or build as much as a message
holds, each time, so the compiler bounds the rest. For every node of the checked tree it computes the largest value, and the most that
all values of the node add up to in one evaluation. Sizes come from the params schema (maxItems, maxLength, maxProperties, enum,
pattern) and from the limits of messages. The cost follows from the sizes, in steps of about a nanosecond, measured on one core of a
small server and rounded up. A byte of a new text or list costs enough steps that the limit bounds memory too.

The elements of a loop together are no larger than the list or map that it goes over. For an unknown function the worst is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final, NamedTuple

from gavel_rules.language.cel.inference import is_binding
from gavel_rules.language.cel.pattern_cost import CODE_POINT_BYTES, measure_pattern
from gavel_rules.language.cel.syntax_tree import Call, Comprehension, Constant, Identifier, ListLiteral, MapLiteral, Node, Select
from gavel_rules.language.cel.vocabulary import Field, ValueType
from gavel_rules.language.cel.zones import TIME_FIELDS
from gavel_rules.limits import MESSAGE_BYTES_MAX, TEXT_BYTES_MAX

EXPRESSION_STEPS_MAX: Final = 50_000_000
ACTION_STEPS_MAX: Final = 200_000_000
# A server deploys no action beyond this, so that one decision takes at most about 5 ms (ADR 0036). The compiler takes more: a log may hold
# rule sets that were deployed before.
DECISION_STEPS_MAX: Final = 4_000_000
# The conditions of an action share the values of variables only if they take no longer than this without sharing. A refusal may evaluate
# some of them one by one, to find out whether any proposal could succeed (`feasibility`).
INLINE_STEPS_MAX: Final = 16_000_000
ITERATIONS_MAX: Final = 9_999  # of one evaluation; the library gives up after 10,000

# Costs in steps.
_NODE: Final = 40
_ITERATION: Final = 60
_CONVERSION: Final = 1_500  # a text into a number or a time, or a field of a time
_TEXT_BUILD: Final = 4  # a byte
_TEXT_READ: Final = 1  # a byte
_TEXT_COMPARISON: Final = 1 / 16  # a byte
_SEARCH: Final = 7  # a byte of the text searched: a place where the text sought may begin
_CACHED_RATE: Final = 64  # bytes compared in a step, while both texts fit in the cache
_CACHED_BYTES: Final = 8 * 1024
_UNCACHED_RATE: Final = 12
_ITEM_COMPARISON: Final = 90
_ITEM_JOIN: Final = 120
_LIST_TEXT_JOIN: Final = 1 / 64  # a byte of the elements of lists, which are not copied
_ITEM_APPEND: Final = 250  # for each element already there: the library copies them all
_SPLIT_PIECE: Final = 600
_LIST_BUILD: Final = 150
_LIST_ITEM_BUILD: Final = 200
_MAP_BUILD: Final = 500
_MAP_ITEM_BUILD: Final = 450
_KEYED: Final = 3  # how many items of a list an entry of a map counts as

# The least bytes of an element in a message, which bound the length of lists and maps.
_WIRE_BYTES: Final[Mapping[str, int]] = {"int": 11, "double": 11, "string": 4, "bool": 4, "list": 4, "map": 4, "object": 4}
_WIRE_BYTES_MIN: Final = 2
_SHOWN_BYTES: Final = 40  # a number or a time as text


class Shape(NamedTuple):
    """The largest size of a value.

    `text` counts the bytes of text and `items` the values in it, at any depth; `length` counts its own elements. `element` is the
    shape of an element. `fields` are the types of named parts, `parts` the shapes of named parts of a value that is at hand.
    """

    text: float = 0
    items: float = 0
    length: float = 0
    element: Shape | None = None
    fields: Mapping[str, Field] | None = None
    keyed: bool = False
    parts: Mapping[str, Shape] | None = None


class _Flow(NamedTuple):
    """All values of a node in one evaluation: the largest one, their number, and the most that they add up to."""

    shape: Shape
    times: float
    text: float
    items: float
    length: float


class Cost(NamedTuple):
    """The worst cost of an evaluation: its steps, and the place of the most costly node.

    `elements` is the greatest number of elements that its macros go over. `map_offset` is the place of a macro that may go over a
    map, -1 if there is none.
    """

    steps: float
    offset: int
    elements: float
    map_offset: int


_SCALAR: Final = Shape()
_TEXT: Final = Shape(text=TEXT_BYTES_MAX)
_ANYTHING: Final = Shape(MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX / _WIRE_BYTES_MIN, MESSAGE_BYTES_MAX / _WIRE_BYTES_MIN)


def largest_shape(type_: ValueType) -> Shape:
    """Return the largest shape of a type's values in a message."""
    match type_.kind:
        case "string":
            declared = TEXT_BYTES_MAX if type_.size_max is None else type_.size_max * CODE_POINT_BYTES
            return Shape(min(declared, TEXT_BYTES_MAX))
        case "list" | "map" if type_.element is not None:
            keyed = type_.kind == "map"
            element = largest_shape(type_.element)
            length = MESSAGE_BYTES_MAX / (_WIRE_BYTES.get(type_.element.kind, _WIRE_BYTES_MIN) + _WIRE_BYTES_MIN * keyed)
            if type_.size_max is not None:
                length = min(length, type_.size_max)
            items = min(length * ((_KEYED if keyed else 1) + element.items), _ANYTHING.items * _KEYED)
            text = min(length * (element.text + (TEXT_BYTES_MAX if keyed else 0)), MESSAGE_BYTES_MAX)
            return Shape(text, items, length, element, keyed=keyed)
        case "object":
            return _ANYTHING._replace(fields=type_.fields, keyed=True)
        case "bool" | "int" | "double" | "timestamp":
            return _SCALAR
    return _ANYTHING


def estimate_cost(tree: Node, types: Mapping[str, ValueType], shared: Collection[Node] = ()) -> Cost:
    """Return the worst cost of one evaluation of a checked tree. `types` are those of its variables.

    Parts that are equal to one of `shared` cost nothing but a read: they are evaluated before.
    """
    walk = _Walk(types, shared=shared)
    walk.visit(tree, 1)
    offset = max(walk.places, key=lambda place: walk.places[place], default=0)
    return Cost(sum(walk.places.values()), offset, walk.elements, walk.map_offset)


def count_elements(tree: Node, values: Mapping[str, object]) -> float:
    """Return the greatest number of elements that the macros of a checked tree go over if its variables have these values (JSON data)."""
    walk = _Walk({}, {name: _measure(value) for name, value in values.items()})
    walk.visit(tree, 1)
    return walk.elements


def _measure(value: object) -> Shape:
    match value:
        case str():
            return Shape(len(value.encode(errors="surrogatepass")))
        case list():
            return _shape_of_elements([_measure(item) for item in value], None, 0)
        case dict():
            parts = {str(name): _measure(item) for name, item in value.items()}
            return _shape_of_elements(list(parts.values()), parts, sum(len(name.encode(errors="surrogatepass")) for name in parts))
    return _SCALAR


def _shape_of_elements(elements: list[Shape], parts: Mapping[str, Shape] | None, names_bytes: int) -> Shape:
    """Return the shape of a list, or of a map with these parts."""
    # Merging is slow, so of texts and numbers only the longest is merged.
    longest = Shape(max((one.text for one in elements), default=0))
    own = len(elements) * (1 if parts is None else _KEYED)
    return Shape(
        names_bytes + sum(one.text for one in elements),
        own + sum(one.items for one in elements),
        len(elements),
        reduce(_merge, [one for one in elements if one.items], longest),
        keyed=parts is not None,
        parts=parts,
    )


@dataclass(slots=True)
class _Local:
    """A variable of a macro: its values, and how often inner loops read each of them."""

    flow: _Flow
    rereads: float = 1


class _Walk:
    """One walk over a checked tree."""

    def __init__(self, types: Mapping[str, ValueType], shapes: Mapping[str, Shape] | None = None, shared: Collection[Node] = ()) -> None:
        self._types = types
        self._shared = shared
        self._shapes = shapes or {}  # of variables with known values
        self._locals: list[tuple[str, _Local]] = []  # innermost last
        self._appended: list[list[_Flow]] = []
        self.places: dict[int, float] = {}
        self.elements: float = 0
        self.map_offset = -1

    def visit(self, node: Node, times: float) -> _Flow:
        """Return the values of a node that is evaluated `times` times, and add their cost."""
        self._spend(node, _NODE * times)
        if self._shared and not isinstance(node, Constant | Identifier) and node in self._shared:
            return _flow(_Walk(self._types).visit(node, 1).shape, times)
        match node:
            case Constant(value=value):
                length = len(value.encode() if isinstance(value, str) else value) if isinstance(value, str | bytes) else 0
                return _flow(Shape(length), times)
            case Identifier(name):
                return self._variable(name, times)
            case Select(operand, field_name, test_only):
                whole = self.visit(operand, times)
                return _flow(_SCALAR, times) if test_only else _part(whole, field_name, times)
            case ListLiteral(elements):
                self._spend(node, times * (_LIST_BUILD + _LIST_ITEM_BUILD * len(elements)))
                return _collect([self.visit(element, times) for element in elements], times, keyed=False)
            case MapLiteral(entries=entries):
                self._spend(node, times * (_MAP_BUILD + _MAP_ITEM_BUILD * len(entries)))
                return _collect([self.visit(part, times) for entry in entries for part in entry], times, keyed=True)
            case Comprehension():
                return self._loop(node, times)
            case Call():
                return self._call(node, times)

    def _spend(self, node: Node, steps: float) -> None:
        self.places[node.offset] = self.places.get(node.offset, 0) + steps

    def _variable(self, name: str, times: float) -> _Flow:
        for local, values in reversed(self._locals):
            if local == name:
                flow = values.flow
                every = _flow(flow.shape, times)
                return _Flow(
                    flow.shape,
                    times,
                    min(every.text, flow.text * values.rereads),
                    min(every.items, flow.items * values.rereads),
                    min(every.length, flow.length * values.rereads),
                )
        if name in self._shapes:
            return _flow(self._shapes[name], times)
        type_ = self._types.get(name)
        return _flow(largest_shape(type_) if type_ is not None else _SCALAR, times)  # a name without a variable is that of a type

    def _loop(self, node: Comprehension, times: float) -> _Flow:
        if is_binding(node):
            self._locals.append((node.accumulator, _Local(self.visit(node.start, times))))
            result = self.visit(node.result, times)
            self._locals.pop()
            return result
        over = self.visit(node.range, times)
        self.elements += over.length
        if over.shape.keyed or _may_be_anything(over.shape):
            self.map_offset = node.offset
        each = min(over.shape.length, ITERATIONS_MAX)
        iterations = min(over.length, ITERATIONS_MAX)
        self._spend(node, _ITERATION * iterations)
        self.visit(node.start, times)
        for _, values in self._locals:
            values.rereads *= max(each, 1)
        depth = len(self._locals)
        one = _part(over, "", iterations)
        self._locals.extend((name, _Local(one)) for name in (node.variable, node.second_variable) if name)
        self._locals.append((node.accumulator, _Local(_flow(_SCALAR, iterations))))
        self._appended.append([])
        self.visit(node.step, iterations)
        del self._locals[depth:]
        for _, values in self._locals:
            values.rereads /= max(each, 1)
        appended = self._appended.pop()
        if not appended:
            return _flow(_SCALAR, times)
        self._spend(node, _ITEM_APPEND * iterations * each / 2)
        (item,) = appended
        shape = Shape(min(each * item.shape.text, item.text), min(each * (1 + item.shape.items), iterations + item.items), each, item.shape)
        return _Flow(shape, times, item.text, iterations + item.items, iterations)

    def _call(self, node: Call, times: float) -> _Flow:
        operands = (*((node.target,) if node.target is not None else ()), *node.arguments)
        match node:
            case Call("_+_", None, (Identifier(name), ListLiteral((item,)))) if name.startswith("@"):
                # A macro appends an element to its result. `_loop` counts the cost.
                self._appended[-1].append(self.visit(item, times))
                return _flow(_SCALAR, times)
            case Call("_[_]", None, (whole, index)):
                self._spend(node, _TEXT_READ * self.visit(index, times).text)
                name = index.value if isinstance(index, Constant) and isinstance(index.value, str) else ""
                return _part(self.visit(whole, times), name, times)
            case Call("matches", _, _) if len(operands) == 2:
                text = self.visit(operands[0], times)
                pattern = operands[1]
                written = pattern.value if isinstance(pattern, Constant) and isinstance(pattern.value, str) else None
                self._spend(node, measure_pattern(written).steps(text.text, times) if written is not None else math.inf)
                return _flow(_SCALAR, times)
        flows = [self.visit(operand, times) for operand in operands]
        if len(flows) == 2 and node.function in _OF_TWO:
            return self._of_two(node, flows[0], flows[1], times)
        return self._of_any(node, flows, times)

    def _of_two(self, node: Call, left: _Flow, right: _Flow, times: float) -> _Flow:
        text = min(left.text, right.text)
        match node.function:
            case "_+_":
                are_lists = left.shape.element is not None and right.shape.element is not None
                self._spend(node, (_LIST_TEXT_JOIN if are_lists else _TEXT_BUILD) * (left.text + right.text))
                if _may_be_list(left.shape) and _may_be_list(right.shape):
                    self._spend(node, _ITEM_JOIN * (left.length + right.length))
                return _add(left, right, times)
            case "_==_" | "_!=_":
                self._spend(node, _TEXT_COMPARISON * text + _ITEM_COMPARISON * min(left.items, right.items))
            case "@in" if right.shape.keyed and right.shape.fields is None:
                self._spend(node, _TEXT_READ * left.text)
            case "@in":
                compared = min(right.text, right.length * left.shape.text)
                self._spend(node, _ITEM_COMPARISON * max(right.length, right.items) + _TEXT_COMPARISON * compared)
            case "contains":
                self._spend(node, _search_cost(left, right))
            case _:
                self._spend(node, _TEXT_COMPARISON * text)
        return _flow(_SCALAR, times)

    def _of_any(self, node: Call, flows: list[_Flow], times: float) -> _Flow:
        function = node.function
        if function == "_?_:_":
            return _either(flows[1], flows[2], times)
        first = flows[0]
        if function == "dyn":
            return first
        if function in _TEXT_FUNCTIONS:
            return self._text(node, first, times)
        if function in ("indexOf", "lastIndexOf", "split"):
            self._spend(node, _search_cost(first, flows[1]))
            return self._split(node, first, times) if function == "split" else _flow(_SCALAR, times)
        if function == "replace":
            return self._replace(node, flows, times)
        if function == "join":
            return self._join(node, flows, times)
        if function in ("math.@min", "math.@max"):
            self._spend(node, _ITEM_COMPARISON * first.length)
            return _flow(_SCALAR, times)
        if function == "size":
            self._spend(node, 0 if first.shape.element is not None or first.shape.fields is not None else _TEXT_READ * first.text)
        elif function in _CONVERSIONS or function in TIME_FIELDS:
            self._spend(node, _CONVERSION * times + _TEXT_BUILD * sum(flow.text for flow in flows))
        elif function not in _CONSTANT_COST:
            self._spend(node, math.inf)
        return _flow(_SCALAR, times)

    def _text(self, node: Call, operand: _Flow, times: float) -> _Flow:
        """Return the results of a text function. They are no longer than its texts, or than a number or a time written as text."""
        self._spend(node, _TEXT_FUNCTIONS[node.function] * times + _TEXT_BUILD * operand.text)
        longest = max(operand.shape.text, _SHOWN_BYTES)
        match node:
            case Call("substring", _, (Constant(value=int(start)), Constant(value=int(end)))):
                longest = min(longest, max(end - start, 0) * CODE_POINT_BYTES)
        return _Flow(Shape(longest), times, min(times * longest, operand.text + times * _SHOWN_BYTES), 0, 0)

    def _replace(self, node: Call, flows: list[_Flow], times: float) -> _Flow:
        """Return the results of `replace`: at worst, the new text stands before and after each byte of the old one."""
        text, sought, new = flows[0], flows[1], flows[2]
        longest = text.shape.text + (text.shape.text + 1) * new.shape.text
        every = text.text + (text.text + times) * new.shape.text
        self._spend(node, _search_cost(text, sought) + _TEXT_FUNCTIONS["substring"] * times + _TEXT_BUILD * every)
        return _Flow(Shape(longest), times, min(every, times * longest), 0, 0)

    def _join(self, node: Call, flows: list[_Flow], times: float) -> _Flow:
        separator = flows[1].shape.text if len(flows) > 1 else 0
        items = flows[0]
        every = items.text + items.length * separator
        self._spend(node, _TEXT_FUNCTIONS["substring"] * times + _ITEM_COMPARISON * items.length + _TEXT_BUILD * every)
        longest = items.shape.text + items.shape.length * separator
        return _Flow(Shape(longest), times, min(every, times * longest), 0, 0)

    def _split(self, node: Call, text: _Flow, times: float) -> _Flow:
        longest = text.shape.text + 1
        match node:
            case Call("split", _, (_, Constant(value=int(limit)))) if limit >= 0:
                longest = min(longest, limit)
        pieces = min(text.text + times, longest * times)
        self._spend(node, _SPLIT_PIECE * pieces)
        shape = Shape(text.shape.text, longest, longest, Shape(text.shape.text))
        return _Flow(shape, times, text.text, pieces, pieces)


_OF_TWO: Final = frozenset(("_+_", "_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in", "contains", "startsWith", "endsWith"))
_CONVERSIONS: Final = frozenset(("int", "uint", "double", "bool", "timestamp", "duration"))
# Functions whose cost does not depend on the size of their arguments.
_CONSTANT_COST: Final = frozenset(("_&&_", "_||_", "!_", "-_", "_-_", "_*_", "_/_", "_%_", "type", "@not_strictly_false"))
_TEXT_FUNCTIONS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("lowerAscii", "upperAscii", "trim", "charAt", "substring", "reverse", "bytes"), 200),
    "string": _CONVERSION,
}


def _search_cost(searched: _Flow, sought: _Flow) -> float:
    """Return the cost of a search: the library compares the sought text at each place where it may begin."""
    # A longer sought text has fewer places to begin at. The number of comparisons is greatest if it is half as long as the searched text.
    compared = min(sought.shape.text, searched.shape.text / 4)
    return searched.text * (_SEARCH + compared / (_CACHED_RATE if compared <= _CACHED_BYTES else _UNCACHED_RATE))


def _may_be_anything(shape: Shape) -> bool:
    return shape.items > 0 and shape.element is None and shape.fields is None


def _may_be_list(shape: Shape) -> bool:
    return shape.items > 0 or shape.element is not None  # an empty list also has the shape of an element


def _flow(shape: Shape, times: float) -> _Flow:
    return _Flow(shape, times, times * shape.text, times * shape.items, times * shape.length)


def _part(whole: _Flow, name: str, times: float) -> _Flow:
    """Return the named parts of some values; for "" their elements. Together they are no larger than the values."""
    shape = whole.shape
    if shape.parts is not None and name:
        part = shape.parts.get(name, _SCALAR)
    elif shape.fields is not None:
        part = largest_shape(shape.fields[name].type) if name in shape.fields else _ANYTHING
    elif shape.keyed and not name:
        part = _TEXT if shape.element is None else _merge(_TEXT, shape.element)  # a key, or its value
    elif shape.element is not None:
        part = shape.element
    else:
        part = _ANYTHING if shape.items else _SCALAR
    part = part._replace(text=min(part.text, shape.text), items=min(part.items, shape.items), length=min(part.length, shape.items))
    every = _flow(part, times)
    return _Flow(part, times, min(every.text, whole.text), min(every.items, whole.items), min(every.length, whole.items))


def _merge(left: Shape, right: Shape) -> Shape:
    """Return the smallest shape that covers both."""
    whole = Shape(max(left.text, right.text), max(left.items, right.items), max(left.length, right.length))
    compound = [one for one in (left, right) if one.items]
    if len(compound) < 2:
        return whole._replace(element=compound[0].element, fields=compound[0].fields, keyed=compound[0].keyed) if compound else whole
    keyed = left.keyed and right.keyed
    if left.fields is not None and left.fields == right.fields:
        return whole._replace(fields=left.fields, keyed=keyed)
    if left.element is not None and right.element is not None:
        return whole._replace(element=_merge(left.element, right.element), keyed=keyed)
    return whole


def _either(left: _Flow, right: _Flow, times: float) -> _Flow:
    """Return the values of a choice: each comes from one of two nodes."""
    every = _flow(_merge(left.shape, right.shape), times)
    return _Flow(
        every.shape,
        times,
        min(every.text, left.text + right.text),
        min(every.items, left.items + right.items),
        min(every.length, left.length + right.length),
    )


def _add(left: _Flow, right: _Flow, times: float) -> _Flow:
    """Return the sums or concatenations of the values of two nodes."""
    covering = _merge(left.shape, right.shape)
    one, other = left.shape, right.shape
    shape = covering._replace(text=one.text + other.text, items=one.items + other.items, length=one.length + other.length)
    return _Flow(shape, times, left.text + right.text, left.items + right.items, left.length + right.length)


def _collect(flows: list[_Flow], times: float, *, keyed: bool) -> _Flow:
    """Return the lists, or maps if `keyed`, that consist of these values."""
    element: Shape | None = None
    for flow in flows:
        element = flow.shape if element is None else _merge(element, flow.shape)
    count = len(flows) // (2 if keyed else 1)
    own = count * (_KEYED if keyed else 1)
    shape = Shape(
        sum(flow.shape.text for flow in flows), own + sum(flow.shape.items for flow in flows), count, element or _SCALAR, keyed=keyed
    )
    return _Flow(shape, times, sum(flow.text for flow in flows), times * own + sum(flow.items for flow in flows), times * count)
