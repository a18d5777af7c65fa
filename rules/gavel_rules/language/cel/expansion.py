"""Replaces calls of added functions by their bodies, in an expression that the library has checked.

The library checks the calls against the declarations of `functions`, which have no implementation. The checked tree, as the library
serializes it, is then rewritten and read back: a body with its arguments bound by the comprehension that `cel.bind` expands to, which the
library evaluates at most once and only if it is needed. `sum` is a comprehension of its own, which no macro of CEL writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from gavel_rules.language.cel.functions import FUNCTIONS, SUM, Function
from gavel_rules.language.cel.syntax_tree import pack_checked, unpack_checked
from gavel_rules.language.cel.zones import ZONED_FUNCTIONS, Zone, decode_zone, time_text

# The type of what a call of `sum` at an offset adds up: "int" or "double".
KindOfSum = Callable[[int], str]

# The library takes a comprehension with this variable over nothing for a binding.
_UNUSED: Final = "#unused"
_ITEM: Final = "@item"
_TOTAL: Final = "@sum"
_TIME: Final = "@time"
_OUTSIDE: Final = "outside of the zone"


class Bodies(NamedTuple):
    """The library's part in expanding calls to the bodies of functions."""

    compile: Callable[[str, tuple[str, ...]], bytes]  # checks a body with parameters of any type, and returns it serialized
    evaluate: Callable[[bytes], object]  # the value of a serialized expression that reads nothing; None if it fails


def expand(serialized: bytes, kind_of_sum: KindOfSum, bodies: Bodies) -> bytes:
    """Return a serialized checked expression with all calls of added functions replaced; those of literals alone by their values."""
    message = unpack_checked(serialized)
    expansion = _Expansion(message, kind_of_sum, bodies)
    expansion.rewrite(message.expr)
    return expansion.pack(message)


class Rewriting:
    """Writes new nodes into a checked expression. They get new ids, and the place of what they replace."""

    def __init__(self, message: Any) -> None:
        self._positions = message.source_info.positions
        # Also the ids of nodes that are gone: the message still says which functions they called.
        self._next = 1 + max((*self._positions, *(node.id for node in _nodes(message.expr))), default=0)

    def bind(self, name: str, value: Any, body: Any, offset: int) -> Any:
        """Return a node in which a name stands for a value, as `cel.bind` expands to."""
        whole = self.new(type(body)(), offset)
        loop = whole.comprehension_expr
        loop.iter_var = _UNUSED
        loop.accu_var = name
        self.new(loop.iter_range, offset).list_expr.SetInParent()
        loop.accu_init.CopyFrom(value)
        self.new(loop.loop_condition, offset).const_expr.bool_value = False
        self.new(loop.loop_step, offset).ident_expr.name = name
        loop.result.CopyFrom(body)
        return whole

    def renew(self, node: Any, names: dict[str, str], offset: int) -> None:
        """Give the nodes of another expression new ids, and some of its names others."""
        self.new(node, offset)
        if node.WhichOneof("expr_kind") == "ident_expr" and node.ident_expr.name in names:
            node.ident_expr.name = names[node.ident_expr.name]
        for part in parts_of(node):
            self.renew(part, names, offset)

    def new(self, node: Any, offset: int) -> Any:
        """Give a node a new id and a place; return it."""
        node.id = self._next
        self._positions[self._next] = offset
        self._next += 1
        return node

    def offset(self, node: Any) -> int:
        """Return the place of a node."""
        return int(self._positions.get(node.id, 0))

    def pack(self, message: Any) -> bytes:
        """Return the serialized message, in which loops run to their end if there are bindings.

        cel-expr-python 0.1.3 keeps the last item of a loop that stops early, and a binding behind the loop takes the item for its value.
        `all` and `exists` give the same value if they go on.
        """
        loops = [node.comprehension_expr for node in _nodes(message.expr) if node.WhichOneof("expr_kind") == "comprehension_expr"]
        if any(loop.iter_var == _UNUSED for loop in loops):
            for loop in loops:
                if loop.iter_var != _UNUSED:
                    loop.loop_condition.Clear()
                    self.new(loop.loop_condition, 0).const_expr.bool_value = True
        return pack_checked(message)


class _Expansion(Rewriting):
    """The expansion of one expression."""

    def __init__(self, message: Any, kind_of_sum: KindOfSum, bodies: Bodies) -> None:
        super().__init__(message)
        self._message = message
        self._kind_of_sum = kind_of_sum
        self._bodies = bodies

    def rewrite(self, node: Any) -> None:
        """Replace the calls in a node and below it, innermost first."""
        for part in parts_of(node):
            self.rewrite(part)
        if node.WhichOneof("expr_kind") != "call_expr":
            return
        call = node.call_expr
        is_member = call.HasField("target")
        takes_zone = call.function in ZONED_FUNCTIONS and len(call.args) == 1
        zone = decode_zone(call.args[0].const_expr.string_value) if takes_zone else None
        if zone is not None:
            self._apply_zone(node, zone)
            return
        if call.function == SUM and is_member and not call.args:
            self._replace_sum(node)
            return
        function = FUNCTIONS.get((call.function, is_member))
        if function is not None and len(call.args) + is_member == len(function.parameters):
            self._replace(node, function)

    def _replace(self, node: Any, function: Function) -> None:
        """Replace a call by the function's body, with the arguments bound from the first to the last."""
        offset = self.offset(node)
        arguments = [copy_node(part) for part in parts_of(node)]
        body = copy_node(unpack_checked(self._bodies.compile(function.body, function.parameters)).expr)
        names = {name: f"@{name}" for name in function.parameters}
        self.renew(body, names, offset)
        self.rewrite(body)  # bodies call added functions too
        for name, argument in reversed(list(zip(function.parameters, arguments, strict=True))):
            body = self.bind(names[name], argument, body, offset)
        node.CopyFrom(body)
        if all(_is_literal(argument) for argument in arguments):
            self._fold(node, offset)

    def _fold(self, node: Any, offset: int) -> None:
        """Replace a node that reads nothing by its value, if it has one."""
        whole = type(self._message)()
        whole.CopyFrom(self._message)
        whole.expr.CopyFrom(node)
        value = self._bodies.evaluate(self.pack(whole))
        if value is not None:
            node.Clear()
            self._write(node, value, offset)

    def _write(self, node: Any, value: object, offset: int) -> None:
        """Write a value as a literal."""
        self.new(node, offset)
        if isinstance(value, list):
            node.list_expr.SetInParent()
            for item in value:
                self._write(node.list_expr.elements.add(), item, offset)
        elif isinstance(value, bool):
            node.const_expr.bool_value = value
        elif isinstance(value, int):
            node.const_expr.int64_value = value
        elif isinstance(value, float):
            node.const_expr.double_value = value
        else:
            node.const_expr.string_value = str(value)

    def _apply_zone(self, node: Any, zone: Zone) -> None:
        """Replace a zone by the offset that holds at the receiver's time, and bind the receiver, which is read several times."""
        offset = self.offset(node)
        time = copy_node(node.call_expr.target)
        node.call_expr.target.CopyFrom(self._time(offset))
        node.call_expr.args[0].CopyFrom(self._offset_at(zone, offset))
        self.rewrite(node)  # it may be a function of the second version
        node.CopyFrom(self.bind(_TIME, time, copy_node(node), offset))

    def _offset_at(self, zone: Zone, offset: int) -> Any:
        """Return a node for the offset of a zone. Outside of its data it gives a text that is no offset, on which the call fails."""
        inside = self._search(zone, 0, len(zone.starts), offset)
        before_end = self._choice(self._is_before(zone.until, offset), inside, self._text(_OUTSIDE, offset), offset)
        return self._choice(self._is_before(zone.starts[0], offset), self._text(_OUTSIDE, offset), before_end, offset)

    def _search(self, zone: Zone, low: int, high: int, offset: int) -> Any:
        if high - low == 1:
            return self._text(zone.offsets[low], offset)
        middle = (low + high) // 2
        before, after = self._search(zone, low, middle, offset), self._search(zone, middle, high, offset)
        return self._choice(self._is_before(zone.starts[middle], offset), before, after, offset)

    def _is_before(self, minute: int, offset: int) -> Any:
        """Return a node for "the time is before this minute"."""
        limit = self._call("timestamp", [self._text(time_text(minute), offset)], offset)
        return self._call("_<_", [self._time(offset), limit], offset)

    def _choice(self, condition: Any, then: Any, otherwise: Any, offset: int) -> Any:
        return self._call("_?_:_", [condition, then, otherwise], offset)

    def _call(self, function: str, arguments: list[Any], offset: int) -> Any:
        node = self.new(type(self._message.expr)(), offset)
        node.call_expr.function = function
        for argument in arguments:
            node.call_expr.args.add().CopyFrom(argument)
        return node

    def _text(self, text: str, offset: int) -> Any:
        node = self.new(type(self._message.expr)(), offset)
        node.const_expr.string_value = text
        return node

    def _time(self, offset: int) -> Any:
        node = self.new(type(self._message.expr)(), offset)
        node.ident_expr.name = _TIME
        return node

    def _replace_sum(self, node: Any) -> None:
        offset = self.offset(node)
        items = copy_node(node.call_expr.target)
        kind = self._kind_of_sum(offset)
        node.ClearField("call_expr")
        loop = self.new(node, offset).comprehension_expr
        loop.iter_var = _ITEM
        loop.accu_var = _TOTAL
        loop.iter_range.CopyFrom(items)
        zero = self.new(loop.accu_init, offset).const_expr
        if kind == "int":
            zero.int64_value = 0
        else:
            zero.double_value = 0.0
        self.new(loop.loop_condition, offset).const_expr.bool_value = True
        step = self.new(loop.loop_step, offset).call_expr
        step.function = "_+_"
        self.new(step.args.add(), offset).ident_expr.name = _TOTAL
        self.new(step.args.add(), offset).ident_expr.name = _ITEM
        self.new(loop.result, offset).ident_expr.name = _TOTAL


def _is_literal(node: Any) -> bool:
    kind = node.WhichOneof("expr_kind")
    return kind == "const_expr" or (kind == "list_expr" and all(_is_literal(element) for element in node.list_expr.elements))


def copy_node(node: Any) -> Any:
    """Return a copy of a node."""
    copy = type(node)()
    copy.CopyFrom(node)
    return copy


def _nodes(root: Any) -> Iterator[Any]:
    """Yield the nodes of an expression, each before its parts."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack += reversed(parts_of(node))


def parts_of(node: Any) -> list[Any]:
    """Return the direct parts of a node; of a call its receiver first."""
    kind = node.WhichOneof("expr_kind")
    match kind:
        case "select_expr":
            return [node.select_expr.operand]
        case "call_expr":
            call = node.call_expr
            return [*([call.target] if call.HasField("target") else []), *call.args]
        case "list_expr":
            return list(node.list_expr.elements)
        case "struct_expr":
            entries = node.struct_expr.entries
            return [part for entry in entries for part in (*([entry.map_key] if entry.HasField("map_key") else []), entry.value)]
        case "comprehension_expr":
            loop = node.comprehension_expr
            return [loop.iter_range, loop.accu_init, loop.loop_condition, loop.loop_step, loop.result]
    return []
