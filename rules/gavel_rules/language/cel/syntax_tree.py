"""CEL's syntax tree, decoded from the library's serialized form into frozen Python nodes.

`Expression.serialize()` gives a google.protobuf.Any with a `cel.expr.CheckedExpr` or `ParsedExpr`. The messages read here are
declared below, wire-compatible with cel/expr/syntax.proto and checked.proto of the CEL specification. They have a descriptor pool of
their own, because packages that carry the full protos overwrite files of other packages. Only `expansion` writes expressions back to
the library, which has checked them before.

Nodes compare by meaning. `offset`, the place in the source in code points, does not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A literal. `kind` is "null", "bool", "int64", "uint64", "double", "string" or "bytes".

    1, 1u and 1.0 are different literals, and so are 0.0 and -0.0: they divide to different infinities.
    """

    kind: str
    value: bool | int | float | str | bytes | None
    offset: int = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constant) or self.kind != other.kind or self.value != other.value:
            return False
        if isinstance(self.value, float) and isinstance(other.value, float):
            return math.copysign(1.0, self.value) == math.copysign(1.0, other.value)
        return True

    def __hash__(self) -> int:
        return hash((self.kind, self.value))


@dataclass(frozen=True, slots=True)
class Identifier:
    """A name. In a checked tree, the whole dotted name of a variable."""

    name: str
    offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Select:
    """`operand.field`, or with `test_only` `has(operand.field)`."""

    operand: Node
    field_name: str
    test_only: bool
    offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Call:
    """A function or operator ("_&&_", "!_", "_<_", "@in", "_?_:_", "_[_]"); `target` is the receiver of a method, if any."""

    function: str
    target: Node | None
    arguments: tuple[Node, ...]
    offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class ListLiteral:
    """`[a, b]`."""

    elements: tuple[Node, ...]
    offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class MapLiteral:
    """`{k: v}`, or with `message_name` a message literal."""

    message_name: str
    entries: tuple[tuple[Node, Node], ...]
    offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Comprehension:
    """The loop that a macro (all, exists, exists_one, map, filter) expands to."""

    variable: str
    second_variable: str
    range: Node
    accumulator: str
    start: Node
    condition: Node
    step: Node
    result: Node
    offset: int = field(default=0, compare=False)


# The library reads serialized expressions with at most 100 messages in each other. The whole, the list and the guard around an expression
# take 7 of them.
MESSAGE_DEPTH_MAX: Final = 93

Node = Constant | Identifier | Select | Call | ListLiteral | MapLiteral | Comprehension


def decode(serialized: bytes) -> Node:
    """Return the tree of a serialized expression, checked or only parsed. Raises RuntimeError, as the library does, if it is too deep."""
    packed = any_pb2.Any.FromString(serialized)
    try:
        message = _MESSAGES[packed.type_url.rpartition(".")[2]].FromString(packed.value)
    except DecodeError as error:
        raise RuntimeError(f"the recursion depth of messages is exceeded: {error}") from error
    return _node(message.expr, message.source_info.positions)


def unpack_checked(serialized: bytes) -> Any:
    """Return the CheckedExpr message of a serialized checked expression."""
    return _MESSAGES["CheckedExpr"].FromString(any_pb2.Any.FromString(serialized).value)


def pack_checked(message: Any) -> bytes:
    """Return a CheckedExpr message as the library reads it. Fields that are not declared here are preserved."""
    return any_pb2.Any(type_url=_CHECKED_URL, value=message.SerializeToString()).SerializeToString()


def children(node: Node) -> Iterator[Node]:
    """Yield the direct parts of a node."""
    match node:
        case Select():
            yield node.operand
        case Call():
            if node.target is not None:
                yield node.target
            yield from node.arguments
        case ListLiteral():
            yield from node.elements
        case MapLiteral():
            for key, value in node.entries:
                yield key
                yield value
        case Comprehension():
            yield from (node.range, node.start, node.condition, node.step, node.result)


def message_depth(node: Node) -> int:
    """Return how deep the messages of a tree nest in its serialized form: two for each level, three for that of a map."""
    own = 3 if isinstance(node, MapLiteral) else 2
    return own + max(map(message_depth, children(node)), default=0)


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and all below it."""
    yield node
    for child in children(node):
        yield from walk(child)


def _node(message: Any, offsets: Any) -> Node:
    """Convert one message. The library parses at most 32 levels, which bounds the recursion."""
    offset = offsets.get(message.id, 0)
    kind = message.WhichOneof("expr_kind")
    part = getattr(message, kind)
    match kind:
        case "const_expr":
            literal = part.WhichOneof("constant_kind")
            value = None if literal == "null_value" else getattr(part, literal)
            return Constant(literal.removesuffix("_value"), value, offset)
        case "ident_expr":
            return Identifier(part.name, offset)
        case "select_expr":
            return Select(_node(part.operand, offsets), part.field, part.test_only, offset)
        case "call_expr":
            target = _node(part.target, offsets) if part.HasField("target") else None
            return Call(part.function, target, tuple(_node(argument, offsets) for argument in part.args), offset)
        case "list_expr":
            return ListLiteral(tuple(_node(element, offsets) for element in part.elements), offset)
        case "struct_expr":
            entries = tuple(
                (
                    _node(entry.map_key, offsets) if entry.HasField("map_key") else Constant("string", entry.field_key),
                    _node(entry.value, offsets),
                )
                for entry in part.entries
            )
            return MapLiteral(part.message_name, entries, offset)
    return Comprehension(
        part.iter_var,
        part.iter_var2,
        _node(part.iter_range, offsets),
        part.accu_var,
        _node(part.accu_init, offsets),
        _node(part.loop_condition, offsets),
        _node(part.loop_step, offsets),
        _node(part.result, offsets),
        offset,
    )


_CHECKED_URL: Final = "type.googleapis.com/cel.expr.CheckedExpr"
_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_PACKAGE: Final = "gavel_rules.cel"
# (message, oneof, [(field, number, type or message name, repeated)]): the part of cel/expr/syntax.proto and checked.proto that is read.
_EXPRESSION_KINDS: Final = (
    ("const_expr", 3, "Constant"),
    ("ident_expr", 4, "Identifier"),
    ("select_expr", 5, "Select"),
    ("call_expr", 6, "Call"),
    ("list_expr", 7, "CreateList"),
    ("struct_expr", 8, "CreateStruct"),
    ("comprehension_expr", 9, "Comprehension"),
)
_CONSTANT_KINDS: Final = (
    ("null_value", 1, _FIELD.TYPE_INT32),
    ("bool_value", 2, _FIELD.TYPE_BOOL),
    ("int64_value", 3, _FIELD.TYPE_INT64),
    ("uint64_value", 4, _FIELD.TYPE_UINT64),
    ("double_value", 5, _FIELD.TYPE_DOUBLE),
    ("string_value", 6, _FIELD.TYPE_STRING),
    ("bytes_value", 7, _FIELD.TYPE_BYTES),
)


def _declare() -> dict[str, Any]:
    """Return the message classes CheckedExpr and ParsedExpr, declared in a descriptor pool of their own."""
    file = descriptor_pb2.FileDescriptorProto(name="gavel_rules/cel_syntax.proto", package=_PACKAGE, syntax="proto3")

    def declare(name: str, *fields: tuple[str, int, Any], repeated: tuple[str, ...] = (), oneof: str = "") -> None:
        message = file.message_type.add(name=name)
        if oneof:
            message.oneof_decl.add(name=oneof)
        for field_name, number, kind in fields:
            label = _FIELD.LABEL_REPEATED if field_name in repeated else _FIELD.LABEL_OPTIONAL
            declared = message.field.add(name=field_name, number=number, label=label)
            if isinstance(kind, str):
                declared.type = _FIELD.TYPE_MESSAGE
                declared.type_name = f".{_PACKAGE}.{kind}"
            else:
                declared.type = kind
            if oneof and field_name != "id":
                declared.oneof_index = 0

    text = _FIELD.TYPE_STRING
    declare("Constant", *_CONSTANT_KINDS, oneof="constant_kind")
    declare("Identifier", ("name", 1, text))
    declare("Select", ("operand", 1, "Expression"), ("field", 2, text), ("test_only", 3, _FIELD.TYPE_BOOL))
    declare("Call", ("target", 1, "Expression"), ("function", 2, text), ("args", 3, "Expression"), repeated=("args",))
    declare("CreateList", ("elements", 1, "Expression"), repeated=("elements",))
    declare("Entry", ("field_key", 2, text), ("map_key", 3, "Expression"), ("value", 4, "Expression"))
    declare("CreateStruct", ("message_name", 1, text), ("entries", 2, "Entry"), repeated=("entries",))
    declare(
        "Comprehension",
        ("iter_var", 1, text),
        ("iter_range", 2, "Expression"),
        ("accu_var", 3, text),
        ("accu_init", 4, "Expression"),
        ("loop_condition", 5, "Expression"),
        ("loop_step", 6, "Expression"),
        ("result", 7, "Expression"),
        ("iter_var2", 8, text),
    )
    declare("Expression", ("id", 2, _FIELD.TYPE_INT64), *_EXPRESSION_KINDS, oneof="expr_kind")
    declare("SourceInfo", ("positions", 4, "SourceInfo.PositionsEntry"), repeated=("positions",))
    entry = file.message_type[-1].nested_type.add(name="PositionsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_INT64)
    entry.field.add(name="value", number=2, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_INT32)
    declare("CheckedExpr", ("expr", 4, "Expression"), ("source_info", 5, "SourceInfo"))
    declare("ParsedExpr", ("expr", 2, "Expression"), ("source_info", 3, "SourceInfo"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in ("CheckedExpr", "ParsedExpr")
    }


_MESSAGES: Final = _declare()
