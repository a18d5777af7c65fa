"""What conditions say about the values that they read: with what a path is compared, how long it may have to be, and the like.

A checked condition is looked through once, part by part of its logic. What is found decides nothing: it is where a `Sampler`
looks for values that make a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from gavel_rules.language.cel_syntax import Call, Comprehension, Constant, Identifier, Node, Select, children, every

# The longest list, and the longest size that a list is made for.
ITEMS_MAX: Final = 1_000


class Reference(NamedTuple):
    """The value of another path, as a part of a text."""

    path: str


Template = tuple[str | Reference, ...]


class Hints(NamedTuple):
    """What conditions compare one path with."""

    constants: tuple[str | float, ...] = ()
    lengths: tuple[int, ...] = ()  # what its size may be compared with
    moments: bool = False  # it is read as a time
    parts: bool = False  # more is asked of it than whether it is equal
    templates: tuple[Template, ...] = ()  # texts put together of others: `contains("," + params.purpose + ",")`

    def joined(self, other: Hints) -> Hints:
        """Return both, each constant once."""
        constants = tuple(dict.fromkeys((*self.constants, *other.constants)))
        lengths = tuple(dict.fromkeys((*self.lengths, *other.lengths)))
        templates = tuple(dict.fromkeys((*self.templates, *other.templates)))
        return Hints(constants, lengths, self.moments or other.moments, self.parts or other.parts, templates)

    def with_constants(self, constants: Iterable[str | float]) -> Hints:
        """Return the hints with further constants."""
        return self._replace(constants=tuple(dict.fromkeys((*self.constants, *constants))))


# Of a path of which conditions say nothing.
NO_HINTS: Final = Hints()


def hints_of(tree: Node, types: Mapping[str, object]) -> dict[str, Hints]:
    """Return by path what a checked condition says about values. The elements of a list stand under its path and "[]"."""
    found: dict[str, Hints] = {}
    for leaf in _leaves(tree):
        nodes = list(every(leaf))
        constants = tuple(
            dict.fromkeys(
                node.value
                for node in nodes
                if isinstance(node, Constant) and isinstance(node.value, str | int | float) and not isinstance(node.value, bool)
            )
        )
        called = {node.function for node in nodes if isinstance(node, Call)}
        lengths = tuple(value for value in constants if isinstance(value, int) and 0 <= value <= ITEMS_MAX) if "size" in called else ()
        of_leaf = Hints(constants, lengths, "timestamp" in called, not called <= _COMPARING)
        for path, template in _paths(leaf, types, {}):
            found[path] = found.get(path, NO_HINTS).joined(of_leaf._replace(templates=(template,) if template else ()))
    return found


_COMPARING: Final = frozenset(["_==_", "_!=_", "@in"])


def _leaves(tree: Node) -> Iterator[Node]:
    """Yield what a condition's logic combines."""
    if isinstance(tree, Call) and tree.target is None and tree.function in ("_&&_", "_||_", "!_", "_?_:_"):
        for child in tree.arguments:
            yield from _leaves(child)
    else:
        yield tree


def _paths(node: Node, types: Mapping[str, object], names: Mapping[str, str]) -> Iterator[tuple[str, Template]]:
    """Yield the path of everything that a tree reads, and of the containers along it, with the template that it is compared with.

    The template is empty where there is none.
    """
    path = _path(node, types, names)
    if path is not None:
        yield path, ()
    if isinstance(node, Call) and node.function in _COMPARED_TEXTS:
        left, right = (node.target, *node.arguments) if node.target is not None else node.arguments
        for one, other in ((left, right), (right, left)):
            whole = _path(one, types, names)
            template = _template(other, types, names)
            if whole is not None and template is not None and not all(isinstance(part, str) for part in template):
                yield whole, template
    if isinstance(node, Comprehension):
        over = _path(node.range, types, names)
        inner = {**names, node.variable: f"{over}[]"} if over is not None else names
        yield from _paths(node.range, types, names)
        for part in (node.condition, node.step, node.result):
            yield from _paths(part, types, inner)
    else:
        for child in children(node):
            yield from _paths(child, types, names)


_COMPARED_TEXTS: Final = frozenset(["contains", "startsWith", "endsWith", "_==_", "_!=_"])


def _template(node: Node, types: Mapping[str, object], names: Mapping[str, str]) -> Template | None:
    """Return what a text is put together of; None for anything else."""
    path = _path(node, types, names)
    if path is not None:
        return (Reference(path),)
    match node:
        case Constant(value=str(text)):
            return (text,)
        case Call("_+_", None, (left, right)):
            before = _template(left, types, names)
            after = _template(right, types, names)
            return (*before, *after) if before is not None and after is not None else None
    return None


def _path(node: Node, types: Mapping[str, object], names: Mapping[str, str]) -> str | None:
    match node:
        case Identifier(name):
            return names.get(name, name if name in types else None)
        case Select(operand, field_name, False):
            whole = _path(operand, types, names)
            return f"{whole}.{field_name}" if whole is not None else None
        case Call("_[_]", None, (operand, _)):
            whole = _path(operand, types, names)
            return f"{whole}[]" if whole is not None else None
    return None
