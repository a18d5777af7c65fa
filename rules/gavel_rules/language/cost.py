"""What one evaluation of an expression costs at worst, found before it is ever evaluated.

The CEL library bounds the iterations of an evaluation and nothing else: what a macro's body reads, compares, copies or builds
each time may be as large as a message. So the compiler bounds it. It walks the checked tree and gives every node the largest
value that it can have and the most that all its values in one evaluation can add up to; sizes come from the params schema
(maxItems, maxLength, maxProperties, enum, pattern) and from what any message can hold. From these follows the cost, in steps
of about a nanosecond, measured on one core of a small server and rounded up. What builds a text or a list costs so much for
each byte that an expression within its budget cannot take much memory either.

A loop's elements together are no larger than what the loop goes over: reading each once costs no more than reading the whole.
Nothing is ever evaluated here. Of a function that this module does not know, the worst is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final, NamedTuple

from gavel_rules.language.cel_library import TIME_FIELDS
from gavel_rules.language.cel_syntax import Call, Comprehension, Constant, Identifier, ListLiteral, MapLiteral, Node, Select
from gavel_rules.language.patterns import CODE_POINT_BYTES, measure
from gavel_rules.language.vocabulary import Field, ValueType
from gavel_rules.limits import MESSAGE_BYTES_MAX, TEXT_BYTES_MAX

EXPRESSION_STEPS_MAX: Final = 50_000_000
ACTION_STEPS_MAX: Final = 200_000_000
ITERATIONS_MAX: Final = 9_999  # of one evaluation; the library gives up as soon as it has gone over 10,000

_NODE: Final = 40
_ITERATION: Final = 60
_CONVERSION: Final = 1_500  # of a text into a number or a time, and what is asked of a time
_TEXT_MADE: Final = 4  # a byte of a text that is built
_TEXT_READ: Final = 1
_TEXT_COMPARED: Final = 1 / 16
_FOUND: Final = 7  # a byte that is searched, for each place where what is sought may begin
_CACHED_RATE: Final = 64  # bytes compared in a step
_CACHED_BYTES: Final = 8 * 1024
_UNCACHED_RATE: Final = 12
_ITEM_COMPARED: Final = 90
_ITEM_JOINED: Final = 120
_ITEM_APPENDED: Final = 250  # the library copies what a macro has gathered for each element that it adds
_PIECE: Final = 600
_LIST_MADE: Final = 150
_LIST_ITEM_MADE: Final = 200
_MAP_MADE: Final = 500
_MAP_ITEM_MADE: Final = 450
_KEYED: Final = 3  # comparing an entry of a map is as comparing so many items of a list

# Bytes that an element takes in a message at least: no list of a message has more of them than fit.
_WIRE_BYTES: Final[Mapping[str, int]] = {"int": 11, "double": 11, "string": 4, "bool": 4, "list": 4, "map": 4, "object": 4}
_WIRE_BYTES_MIN: Final = 2
_SHOWN_BYTES: Final = 40  # a number or a time as text


class Shape(NamedTuple):
    """The largest that one value can be.

    `text` is bytes of text in it, `items` values in it, at any depth; `length` its own elements. `element` is the shape of these,
    `fields` are the parts that have a name.
    """

    text: float = 0
    items: float = 0
    length: float = 0
    element: Shape | None = None
    fields: Mapping[str, Field] | None = None
    keyed: bool = False
    parts: Mapping[str, Shape] | None = None  # likewise, of a value that is at hand


class _Flow(NamedTuple):
    """All values of a node in one evaluation: the largest of them, how many there are, and the most that they add up to."""

    shape: Shape
    times: float
    text: float
    items: float
    length: float


class Cost(NamedTuple):
    """The steps of an evaluation, and the place of what takes most of them.

    `elements` is how many elements its macros go over at most, `map_offset` the place of one that goes over what is, or may be, a
    map; -1: none does.
    """

    steps: float
    offset: int
    elements: float
    map_offset: int


_SCALAR: Final = Shape()
_TEXT: Final = Shape(text=TEXT_BYTES_MAX)
_ANYTHING: Final = Shape(MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX / _WIRE_BYTES_MIN, MESSAGE_BYTES_MAX / _WIRE_BYTES_MIN)


def shape_of(type_: ValueType) -> Shape:
    """Return the largest value of a type that a message can carry."""
    match type_.kind:
        case "string":
            declared = TEXT_BYTES_MAX if type_.size_max is None else type_.size_max * CODE_POINT_BYTES
            return Shape(min(declared, TEXT_BYTES_MAX))
        case "list" | "map" if type_.element is not None:
            keyed = type_.kind == "map"
            element = shape_of(type_.element)
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


def cost_of(tree: Node, types: Mapping[str, ValueType]) -> Cost:
    """Return what one evaluation of a checked tree costs at worst. `types` are those of its variables."""
    walk = _Walk(types)
    walk.visit(tree, 1)
    offset = max(walk.places, key=lambda place: walk.places[place], default=0)
    return Cost(sum(walk.places.values()), offset, walk.elements, walk.map_offset)


def elements_of(tree: Node, values: Mapping[str, object]) -> float:
    """Return how many elements the macros of a checked tree go over at most, where its variables have these values: JSON in Python."""
    walk = _Walk({}, {name: _measured(value) for name, value in values.items()})
    walk.visit(tree, 1)
    return walk.elements


def _measured(value: object) -> Shape:
    match value:
        case str():
            return Shape(len(value.encode(errors="surrogatepass")))
        case list():
            return _holding([_measured(item) for item in value], None, 0)
        case dict():
            parts = {str(name): _measured(item) for name, item in value.items()}
            return _holding(list(parts.values()), parts, sum(len(name.encode(errors="surrogatepass")) for name in parts))
    return _SCALAR


def _holding(elements: list[Shape], parts: Mapping[str, Shape] | None, names_bytes: int) -> Shape:
    """Return the shape of a list, or of a map with these parts."""
    # Merging takes a while: of texts and numbers only the longest counts.
    longest = Shape(max((one.text for one in elements), default=0))
    own = len(elements) * (1 if parts is None else _KEYED)
    return Shape(
        names_bytes + sum(one.text for one in elements),
        own + sum(one.items for one in elements),
        len(elements),
        reduce(_merged, [one for one in elements if one.items], longest),
        keyed=parts is not None,
        parts=parts,
    )


def advice(names: Mapping[str, ValueType]) -> str:
    """Return which bounds an author may declare of the variables that an expression reads; "" when all are there."""
    wanted = []
    for name, type_ in sorted(names.items()):
        element = type_.element
        if not name.startswith("params."):
            continue
        if type_.size_max is None and type_.kind in _BOUNDS:
            wanted.append(f"{_BOUNDS[type_.kind]} for {name}")
        if element is not None and element.size_max is None and element.kind in _BOUNDS:
            wanted.append(f"{_BOUNDS[element.kind]} for what is in {name}")
    return f"declare {', '.join(wanted)}" if wanted else ""


_BOUNDS: Final[Mapping[str, str]] = {"string": "maxLength", "list": "maxItems", "map": "maxProperties"}


@dataclass(slots=True)
class _Local:
    """A name that a macro gives: its values, and how many times a loop inside reads each of them."""

    flow: _Flow
    rereads: float = 1


class _Walk:
    """One walk over a checked tree."""

    def __init__(self, types: Mapping[str, ValueType], shapes: Mapping[str, Shape] | None = None) -> None:
        self._types = types
        self._shapes = shapes or {}  # of variables whose values are at hand
        self._locals: list[tuple[str, _Local]] = []  # innermost last
        self._appended: list[list[_Flow]] = []
        self.places: dict[int, float] = {}
        self.elements: float = 0
        self.map_offset = -1

    def visit(self, node: Node, times: float) -> _Flow:
        """Return the values of a node that is evaluated so many times, and note what that costs."""
        self._spend(node, _NODE * times)
        match node:
            case Constant(value=value):
                length = len(value.encode() if isinstance(value, str) else value) if isinstance(value, str | bytes) else 0
                return _flow(Shape(length), times)
            case Identifier(name):
                return self._named(name, times)
            case Select(operand, field_name, test_only):
                whole = self.visit(operand, times)
                return _flow(_SCALAR, times) if test_only else _part(whole, field_name, times)
            case ListLiteral(elements):
                self._spend(node, times * (_LIST_MADE + _LIST_ITEM_MADE * len(elements)))
                return _gathered([self.visit(element, times) for element in elements], times, keyed=False)
            case MapLiteral(entries=entries):
                self._spend(node, times * (_MAP_MADE + _MAP_ITEM_MADE * len(entries)))
                return _gathered([self.visit(part, times) for entry in entries for part in entry], times, keyed=True)
            case Comprehension():
                return self._loop(node, times)
            case Call():
                return self._call(node, times)

    def _spend(self, node: Node, steps: float) -> None:
        self.places[node.offset] = self.places.get(node.offset, 0) + steps

    def _named(self, name: str, times: float) -> _Flow:
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
        return _flow(shape_of(type_) if type_ is not None else _SCALAR, times)  # what is no variable is the name of a type

    def _loop(self, node: Comprehension, times: float) -> _Flow:
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
        self._spend(node, _ITEM_APPENDED * iterations * each / 2)
        (item,) = appended
        shape = Shape(min(each * item.shape.text, item.text), min(each * (1 + item.shape.items), iterations + item.items), each, item.shape)
        return _Flow(shape, times, item.text, iterations + item.items, iterations)

    def _call(self, node: Call, times: float) -> _Flow:
        operands = (*((node.target,) if node.target is not None else ()), *node.arguments)
        match node:
            case Call("_+_", None, (Identifier(name), ListLiteral((item,)))) if name.startswith("@"):
                # A macro adds an element to what it has gathered; the loop pays for that.
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
                self._spend(node, measure(written).steps(text.text, times) if written is not None else math.inf)
                return _flow(_SCALAR, times)
        flows = [self.visit(operand, times) for operand in operands]
        if len(flows) == 2 and node.function in _OF_TWO:
            return self._of_two(node, flows[0], flows[1], times)
        return self._of_any(node, flows, times)

    def _of_two(self, node: Call, left: _Flow, right: _Flow, times: float) -> _Flow:
        text = min(left.text, right.text)
        match node.function:
            case "_+_":
                self._spend(node, _TEXT_MADE * (left.text + right.text))
                if _may_be_list(left.shape) and _may_be_list(right.shape):
                    self._spend(node, _ITEM_JOINED * (left.length + right.length))
                return _added(left, right, times)
            case "_==_" | "_!=_":
                self._spend(node, _TEXT_COMPARED * text + _ITEM_COMPARED * min(left.items, right.items))
            case "@in" if right.shape.keyed and right.shape.fields is None:
                self._spend(node, _TEXT_READ * left.text)
            case "@in":
                compared = min(right.text, right.length * left.shape.text)
                self._spend(node, _ITEM_COMPARED * max(right.length, right.items) + _TEXT_COMPARED * compared)
            case "contains":
                self._spend(node, _found(left, right))
            case _:
                self._spend(node, _TEXT_COMPARED * text)
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
            self._spend(node, _found(first, flows[1]))
            return self._split(node, first, times) if function == "split" else _flow(_SCALAR, times)
        if function == "size":
            self._spend(node, 0 if first.shape.element is not None or first.shape.fields is not None else _TEXT_READ * first.text)
        elif function in _CONVERSIONS or function in TIME_FIELDS:
            self._spend(node, _CONVERSION * times + _TEXT_MADE * sum(flow.text for flow in flows))
        elif function not in _PLAIN:
            self._spend(node, math.inf)
        return _flow(_SCALAR, times)

    def _text(self, node: Call, given: _Flow, times: float) -> _Flow:
        """Return the texts that a function makes out of others, or out of numbers and times: no longer than these."""
        self._spend(node, _TEXT_FUNCTIONS[node.function] * times + _TEXT_MADE * given.text)
        longest = max(given.shape.text, _SHOWN_BYTES)
        match node:
            case Call("substring", _, (Constant(value=int(start)), Constant(value=int(end)))):
                longest = min(longest, max(end - start, 0) * CODE_POINT_BYTES)
        return _Flow(Shape(longest), times, min(times * longest, given.text + times * _SHOWN_BYTES), 0, 0)

    def _split(self, node: Call, text: _Flow, times: float) -> _Flow:
        pieces = text.text + times
        self._spend(node, _PIECE * pieces)
        shape = Shape(text.shape.text, text.shape.text + 1, text.shape.text + 1, Shape(text.shape.text))
        return _Flow(shape, times, text.text, pieces, pieces)


_OF_TWO: Final = frozenset(("_+_", "_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in", "contains", "startsWith", "endsWith"))
_CONVERSIONS: Final = frozenset(("int", "uint", "double", "bool", "timestamp", "duration"))
# What takes no longer for larger values.
_PLAIN: Final = frozenset(("_&&_", "_||_", "!_", "-_", "_-_", "_*_", "_/_", "_%_", "type", "@not_strictly_false"))
_TEXT_FUNCTIONS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("lowerAscii", "upperAscii", "trim", "charAt", "substring", "reverse", "bytes"), 200),
    "string": _CONVERSION,
}


def _found(searched: _Flow, sought: _Flow) -> float:
    """Return what seeking one text in another costs: the library compares anew wherever the text sought may begin."""
    # The longer it is the fewer places there are to begin at; the product is largest half way.
    compared = min(sought.shape.text, searched.shape.text / 4)
    return searched.text * (_FOUND + compared / (_CACHED_RATE if compared <= _CACHED_BYTES else _UNCACHED_RATE))


def _may_be_anything(shape: Shape) -> bool:
    return shape.items > 0 and shape.element is None and shape.fields is None


def _may_be_list(shape: Shape) -> bool:
    return shape.items > 0 or shape.element is not None  # an empty list has an element's shape as well


def _flow(shape: Shape, times: float) -> _Flow:
    return _Flow(shape, times, times * shape.text, times * shape.items, times * shape.length)


def _part(whole: _Flow, name: str, times: float) -> _Flow:
    """Return the parts of some values that have a name, or any of their elements: together no larger than the values."""
    shape = whole.shape
    if shape.parts is not None and name:
        part = shape.parts.get(name, _SCALAR)
    elif shape.fields is not None:
        part = shape_of(shape.fields[name].type) if name in shape.fields else _ANYTHING
    elif shape.keyed and not name:
        part = _TEXT if shape.element is None else _merged(_TEXT, shape.element)  # a key, or what stands there
    elif shape.element is not None:
        part = shape.element
    else:
        part = _ANYTHING if shape.items else _SCALAR
    part = part._replace(text=min(part.text, shape.text), items=min(part.items, shape.items), length=min(part.length, shape.items))
    every = _flow(part, times)
    return _Flow(part, times, min(every.text, whole.text), min(every.items, whole.items), min(every.length, whole.items))


def _merged(left: Shape, right: Shape) -> Shape:
    """Return a shape that holds what either holds."""
    whole = Shape(max(left.text, right.text), max(left.items, right.items), max(left.length, right.length))
    parted = [one for one in (left, right) if one.items]
    if len(parted) < 2:
        return whole._replace(element=parted[0].element, fields=parted[0].fields, keyed=parted[0].keyed) if parted else whole
    keyed = left.keyed and right.keyed
    if left.fields is not None and left.fields == right.fields:
        return whole._replace(fields=left.fields, keyed=keyed)
    if left.element is not None and right.element is not None:
        return whole._replace(element=_merged(left.element, right.element), keyed=keyed)
    return whole


def _either(left: _Flow, right: _Flow, times: float) -> _Flow:
    """Return values each of which is one of two."""
    every = _flow(_merged(left.shape, right.shape), times)
    return _Flow(
        every.shape,
        times,
        min(every.text, left.text + right.text),
        min(every.items, left.items + right.items),
        min(every.length, left.length + right.length),
    )


def _added(left: _Flow, right: _Flow, times: float) -> _Flow:
    """Return values that are two values, one after the other."""
    merged = _merged(left.shape, right.shape)
    one, other = left.shape, right.shape
    shape = merged._replace(text=one.text + other.text, items=one.items + other.items, length=one.length + other.length)
    return _Flow(shape, times, left.text + right.text, left.items + right.items, left.length + right.length)


def _gathered(flows: list[_Flow], times: float, *, keyed: bool) -> _Flow:
    """Return lists, or maps, of values."""
    element: Shape | None = None
    for flow in flows:
        element = flow.shape if element is None else _merged(element, flow.shape)
    count = len(flows) // (2 if keyed else 1)
    own = count * (_KEYED if keyed else 1)
    shape = Shape(
        sum(flow.shape.text for flow in flows), own + sum(flow.shape.items for flow in flows), count, element or _SCALAR, keyed=keyed
    )
    return _Flow(shape, times, sum(flow.text for flow in flows), times * own + sum(flow.items for flow in flows), times * count)
