"""The types of expressions' values, with the fields and bounds that the schemas declare.

For the library an object is a map with values of any type. This inference follows the declared types through reads, macros and choices. The
compiler thus knows the fields of an element of a filtered list, and the kind of the numbers that a sum adds up. A value whose type it
cannot tell is of type "dyn".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gavel_rules.language.cel.functions import FUNCTIONS, QUANTITY
from gavel_rules.language.cel.syntax_tree import Call, Comprehension, Constant, Identifier, ListLiteral, MapLiteral, Node, Select, children
from gavel_rules.language.cel.vocabulary import BOOL, DOUBLE, DYN, INT, STRING, TIMESTAMP, ValueType
from gavel_rules.language.cel.zones import TIME_FIELDS

Types = Mapping[str, ValueType]

_LITERALS: Final[Mapping[str, ValueType]] = {"bool": BOOL, "int64": INT, "double": DOUBLE, "string": STRING}
# The results of added functions; those of `min` and `max` depend on the list.
_RESULTS: Final[Mapping[str, ValueType]] = {"bool": BOOL, "int": INT, "double": DOUBLE, "string": STRING, QUANTITY: DOUBLE}
_OF_FUNCTION: Final[Mapping[str, ValueType]] = {
    **dict.fromkeys(("_&&_", "_||_", "!_", "_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in"), BOOL),
    **dict.fromkeys(("startsWith", "endsWith", "contains", "matches", "bool"), BOOL),
    **dict.fromkeys(("size", "int", "indexOf", "lastIndexOf", *TIME_FIELDS), INT),
    "double": DOUBLE,
    **dict.fromkeys(("string", "lowerAscii", "upperAscii", "trim", "charAt", "substring", "reverse", "replace", "join"), STRING),
    "timestamp": TIMESTAMP,
    "split": ValueType("list", STRING),
    **{
        function.name: _RESULTS[function.overloads[0][1]]
        for function in FUNCTIONS.values()
        if function.name not in ("min", "max") and function.overloads[0][1] in _RESULTS
    },
}


def infer_type(node: Node, types: Types) -> ValueType:
    """Return the type of a node's values. `types` are those of the names in scope, dotted ones of a checked tree included."""
    match node:
        case Constant(kind=kind):
            return _LITERALS.get(kind, DYN)
        case Identifier(name):
            return types.get(name, DYN)
        case Select(operand, field_name, test_only):
            return BOOL if test_only else _field(infer_type(operand, types), field_name)
        case ListLiteral(elements):
            return ValueType("list", _common([infer_type(element, types) for element in elements]), size_max=len(elements))
        case MapLiteral():
            return DYN
        case Comprehension():
            return _of_comprehension(node, types)
        case Call(function, target, arguments):
            return _of_call(function, (*((target,) if target is not None else ()), *arguments), types)


def sum_kinds(tree: Node, types: Types) -> dict[int, str]:
    """Return the kind of the numbers that each call of `sum` in a tree adds up, by its place."""
    kinds: dict[int, str] = {}
    _find_sums(tree, types, kinds)
    return kinds


def _find_sums(node: Node, types: Types, kinds: dict[int, str]) -> None:
    if isinstance(node, Call) and node.function == "sum" and node.target is not None:
        kinds[node.offset] = infer_type(node, types).kind
    if isinstance(node, Comprehension):
        bound = {node.accumulator: infer_type(node.start, types)} if is_binding(node) else loop_types(node, types)
        inner = {**types, **bound}
        for part, names in ((node.range, types), (node.start, types), (node.condition, inner), (node.step, inner), (node.result, inner)):
            _find_sums(part, names, kinds)
        return
    for child in children(node):
        _find_sums(child, types, kinds)


def element_type(type_: ValueType) -> ValueType:
    """Return the type of the elements of a list, or of the keys of a map."""
    if type_.kind == "list":
        return type_.element or DYN
    return STRING if type_.kind in ("map", "object") else DYN


def is_filter(node: Comprehension) -> bool:
    """Report whether a comprehension is `filter`, whose elements are those of its range."""
    match node.step:
        case Call("_?_:_", None, (_, Call("_+_", None, (Identifier(), ListLiteral((Identifier(item),)))), Identifier())):
            return isinstance(node.start, ListLiteral) and item == node.variable and not node.second_variable
    return False


def is_binding(node: Comprehension) -> bool:
    """Report whether a comprehension is `cel.bind`: a value with a name, and what reads it."""
    return node.variable == "#unused"


def loop_types(node: Comprehension, types: Types) -> dict[str, ValueType]:
    """Return the types of the names in scope inside of a comprehension."""
    over = infer_type(node.range, types)
    if not node.second_variable:
        return {**types, node.variable: element_type(over), node.accumulator: DYN}
    key = INT if over.kind == "list" else element_type(over)
    value = over.element or DYN if over.kind in ("list", "map") else DYN
    return {**types, node.variable: key, node.second_variable: value, node.accumulator: DYN}


def _of_comprehension(node: Comprehension, types: Types) -> ValueType:
    if is_binding(node):
        return infer_type(node.result, {**types, node.accumulator: infer_type(node.start, types)})
    if is_filter(node):
        return infer_type(node.range, types)
    if not isinstance(node.start, ListLiteral):
        return BOOL if isinstance(node.start, Constant) and node.start.kind in ("bool", "int64") else DYN
    items = _appended(node.step)
    inner = loop_types(node, types)
    size_max = infer_type(node.range, types).size_max
    return ValueType("list", _common([infer_type(item, inner) for item in items]), size_max=size_max)


def _appended(step: Node) -> list[Node]:
    """Return the elements that the step of a macro appends to its result."""
    match step:
        case Call("_+_", None, (Identifier(), ListLiteral((item,)))):
            return [item]
        case Call("_?_:_", None, (_, then, _)):
            return _appended(then)
    return []


def _of_call(function: str, operands: tuple[Node, ...], types: Types) -> ValueType:
    if function in _OF_FUNCTION:
        return _OF_FUNCTION[function]
    kinds = [infer_type(operand, types) for operand in operands]
    match function:
        case "_?_:_":
            return _common(kinds[1:])
        case "_+_" | "_-_" | "_*_" | "_/_" | "_%_" if len(kinds) == 2:
            return _joined(*kinds)
        case "_[_]":
            index = operands[1]
            name = index.value if isinstance(index, Constant) else None
            return _field(kinds[0], name) if isinstance(name, str) else kinds[0].element or DYN
        case "-_":
            return kinds[0]
        case "min" | "max" | "sum":
            # CEL takes the first overload for a literal list without elements; a declared list has a type, known here or not.
            return INT if _is_empty_literal(operands[0]) else kinds[0].element or DYN
    return DYN


def _is_empty_literal(node: Node) -> bool:
    match node:
        case ListLiteral(elements):
            return not elements
        case Call("_+_", None, (left, right)):
            return _is_empty_literal(left) and _is_empty_literal(right)
    return False


def _joined(left: ValueType, right: ValueType) -> ValueType:
    """Return the type of a sum or concatenation."""
    if left.kind == right.kind == "list":
        sizes = (left.size_max, right.size_max)
        size_max = None if None in sizes else sum(size for size in sizes if size is not None)
        return ValueType("list", _common([side.element or DYN for side in (left, right) if side.size_max != 0]), size_max=size_max)
    if left.kind == "dyn" or right.kind == "dyn":
        return left if right.kind == "dyn" else right
    return ValueType(left.kind) if left.kind == right.kind else DYN


def _field(type_: ValueType, name: str) -> ValueType:
    field = type_.fields.get(name)
    if field is not None:
        return field.type
    return (type_.element or DYN) if type_.kind == "map" else DYN


def _common(kinds: list[ValueType]) -> ValueType:
    """Return the type that all have; lists without elements have any."""
    some = [kind for kind in kinds if not (kind.kind == "list" and kind.size_max == 0)]
    if not some:
        return kinds[0] if kinds else DYN
    first, *others = some
    if all(other == first for other in others):
        return first
    if all(other.kind == first.kind for other in others):
        if first.kind == "list":
            sizes = [kind.size_max for kind in some]
            size_max = None if None in sizes else max(size for size in sizes if size is not None)
            return ValueType("list", _common([kind.element or DYN for kind in some]), size_max=size_max)
        if first.kind in ("bool", "int", "double", "string", "timestamp"):
            sizes = [kind.size_max for kind in some]
            return ValueType(first.kind, size_max=None if None in sizes else max(size for size in sizes if size is not None))
    return DYN
