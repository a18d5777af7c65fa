"""Shared values: a variable that several conditions use is evaluated at most once, when the first one needs it.

Variables are expanded before an expression is checked (`variables`), so that each use is checked and lowered by itself. The conditions
of an action are evaluated together, as one list. Before that, every part of the list that is equal to a variable's expression is
replaced by a name, and the list is enclosed in bindings of these names, as `cel.bind` writes them. The library evaluates a binding when
it is first read. An error of a variable is then an error of each condition that reads it, as if it were written out there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from gavel_rules.language.cel.expansion import Rewriting, copy_node, parts_of
from gavel_rules.language.cel.syntax_tree import unpack_checked

_ABSORB: Final = "@not_strictly_false"


def share(serialized: bytes, shared: Sequence[bytes], *, as_outcomes: bool = False) -> bytes:
    """Return a serialized list whose equal parts are bound once. `shared` are checked expressions, each after those inside of it.

    `as_outcomes`: the list has two bools for each element, "it is not false" and "it is not true": both hold for an error, neither for a
    value that is no bool. Such a list never fails itself.
    """
    message = unpack_checked(serialized)
    rewriting = Rewriting(message)
    numbers = _Numbers()
    names: dict[int, str] = {}
    bindings: list[tuple[str, Any]] = []
    for index, one in enumerate(shared):
        value = copy_node(unpack_checked(one).expr)
        tree = numbers.of(value)
        if tree.number in names:
            continue
        rewriting.renew(value, {}, 0)
        _replace(tree, names, rewriting)
        name = f"@v{index}"
        names[tree.number] = name
        bindings.append((name, value))
    if names:
        _replace(numbers.of(message.expr), names, rewriting)
    if as_outcomes:
        _absorb_errors(message.expr, rewriting)
    used = _names(message.expr)
    whole = copy_node(message.expr)
    for name, value in reversed(bindings):
        if name in used:
            used |= _names(value)
            whole = rewriting.bind(name, value, whole, 0)
    message.expr.CopyFrom(whole)
    return rewriting.pack(message)


class _Tree(NamedTuple):
    """A node and its parts with their numbers, which are computed once: a number depends on all nodes below."""

    node: Any
    number: int
    parts: list[_Tree]


class _Numbers:
    """Gives equal nodes equal numbers, whatever their ids."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}

    def of(self, node: Any) -> _Tree:
        kind = node.WhichOneof("expr_kind")
        own: tuple[object, ...] = ()
        match kind:
            case "const_expr":
                own = (node.const_expr.SerializeToString(deterministic=True),)
            case "ident_expr":
                own = (node.ident_expr.name,)
            case "select_expr":
                own = (node.select_expr.field, node.select_expr.test_only)
            case "call_expr":
                own = (node.call_expr.function, node.call_expr.HasField("target"))
            case "struct_expr":
                own = (node.struct_expr.message_name, *(entry.field_key for entry in node.struct_expr.entries))
            case "comprehension_expr":
                loop = node.comprehension_expr
                own = (loop.iter_var, loop.iter_var2, loop.accu_var)
        parts = [self.of(part) for part in parts_of(node)]
        number = self._numbers.setdefault((kind, own, *(part.number for part in parts)), len(self._numbers))
        return _Tree(node, number, parts)


def _replace(tree: _Tree, names: dict[int, str], rewriting: Rewriting) -> None:
    """Replace the parts of a node that have a name, outermost first.

    A name gets a new id: under the old one the library would take it for the function that the replaced part called.
    """
    name = names.get(tree.number)
    if name is not None:
        tree.node.Clear()
        rewriting.new(tree.node, 0).ident_expr.name = name
        return
    for part in tree.parts:
        _replace(part, names, rewriting)


def _absorb_errors(node: Any, rewriting: Rewriting) -> None:
    """Replace each element of a list by two bools: see `share`."""
    elements = [copy_node(element) for element in node.list_expr.elements]
    del node.list_expr.elements[:]
    for element in elements:
        for outcome in (True, False):
            absorbed = rewriting.new(node.list_expr.elements.add(), 0)
            absorbed.call_expr.function = _ABSORB
            comparison = rewriting.new(absorbed.call_expr.args.add(), 0)
            comparison.call_expr.function = "_==_"
            copy = comparison.call_expr.args.add()
            copy.CopyFrom(element)
            rewriting.renew(copy, {}, 0)
            rewriting.new(comparison.call_expr.args.add(), 0).const_expr.bool_value = outcome


def _names(node: Any) -> set[str]:
    names = {node.ident_expr.name} if node.WhichOneof("expr_kind") == "ident_expr" else set()
    for part in parts_of(node):
        names |= _names(part)
    return names
