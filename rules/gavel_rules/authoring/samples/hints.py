"""Hints: what conditions compare each path with, the sizes they ask for, and the texts they build from other values.

Hints decide nothing. They tell a `Sampler` which values are likely to change the outcome of a condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from gavel_rules.authoring.samples.text_forms import FORMS
from gavel_rules.language.cel.checker import ScopedExpression
from gavel_rules.language.cel.syntax_tree import Call, Comprehension, Constant, Identifier, Node, Select, children, walk

# Length of the longest sample list, and the largest size that counts as a length.
ITEMS_MAX: Final = 1_000
# Length of the longest sample text.
TEXT_LENGTH_MAX: Final = 5_000

_EQUALITY: Final = frozenset(["_==_", "_!=_", "@in"])
_TEXT_COMPARISONS: Final = frozenset(["contains", "startsWith", "endsWith", "_==_", "_!=_"])


class Reference(NamedTuple):
    """The value of another path, as part of a text."""

    path: str


Template = tuple[str | Reference, ...]


class Hints(NamedTuple):
    """The hints of conditions about the values of one path."""

    constants: tuple[str | float, ...] = ()
    lengths: tuple[int, ...] = ()  # constants that its size may be compared with
    forms: frozenset[str] = frozenset()  # the functions of FORMS that read it
    beyond_equality: bool = False  # it is compared not only for equality
    templates: tuple[Template, ...] = ()  # texts built from other values: `contains("," + params.purpose + ",")`

    def merge(self, other: Hints) -> Hints:
        """Return both, without duplicates."""
        constants = tuple(dict.fromkeys((*self.constants, *other.constants)))
        lengths = tuple(dict.fromkeys((*self.lengths, *other.lengths)))
        templates = tuple(dict.fromkeys((*self.templates, *other.templates)))
        return Hints(constants, lengths, self.forms | other.forms, self.beyond_equality or other.beyond_equality, templates)

    def with_constants(self, constants: Iterable[str | float]) -> Hints:
        """Return the hints with further constants."""
        return self._replace(constants=tuple(dict.fromkeys((*self.constants, *constants))))


NO_HINTS: Final = Hints()


def collect_hints_of(expressions: Iterable[ScopedExpression | None]) -> dict[str, Hints]:
    """Return the hints of several expressions, some of which may be missing, by path."""
    merged: dict[str, Hints] = {}
    for scoped in expressions:
        if scoped is not None:
            for path, hints in collect_hints(scoped.expression.tree, scoped.environment.types).items():
                merged[path] = merged.get(path, NO_HINTS).merge(hints)
    return merged


def collect_hints(tree: Node, types: Mapping[str, object]) -> dict[str, Hints]:
    """Return the hints of a checked condition by path. The elements of a list have its path and "[]"."""
    hints: dict[str, Hints] = {}
    for operand in _operands(tree):
        nodes = list(walk(operand))
        constants = tuple(
            dict.fromkeys(
                node.value
                for node in nodes
                if isinstance(node, Constant) and isinstance(node.value, str | int | float) and not isinstance(node.value, bool)
            )
        )
        functions = frozenset(node.function for node in nodes if isinstance(node, Call))
        lengths = tuple(value for value in constants if isinstance(value, int) and 0 <= value <= ITEMS_MAX) if "size" in functions else ()
        of_operand = Hints(constants, lengths, functions & FORMS.keys(), not functions <= _EQUALITY)
        for path, template in _paths(operand, types, {}):
            hints[path] = hints.get(path, NO_HINTS).merge(of_operand._replace(templates=(template,) if template else ()))
            if "@in" in functions and not path.endswith("[]"):
                element = f"{path}[]"  # of a list in which a constant is looked for
                hints[element] = hints.get(element, NO_HINTS).merge(Hints(constants))
    return hints


def _operands(tree: Node) -> Iterator[Node]:
    """Yield the operands of a condition's logic."""
    if isinstance(tree, Call) and tree.target is None and tree.function in ("_&&_", "_||_", "!_", "_?_:_"):
        for child in tree.arguments:
            yield from _operands(child)
    else:
        yield tree


def _paths(node: Node, types: Mapping[str, object], names: Mapping[str, str]) -> Iterator[tuple[str, Template]]:
    """Yield every path that a tree reads, and the containers along it, with the template that it is compared with or ().

    `names` holds the paths of the variables that comprehensions bind.
    """
    path = _path(node, types, names)
    if path is not None:
        yield path, ()
    if isinstance(node, Call) and node.function in _TEXT_COMPARISONS:
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


def _template(node: Node, types: Mapping[str, object], names: Mapping[str, str]) -> Template | None:
    """Return the parts of a concatenated text; None for any other expression."""
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
