"""Queries of checked trees: the variables that they read and the presences that they test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from gavel_rules.language.cel.functions import FUNCTIONS, SUM
from gavel_rules.language.cel.inference import is_binding
from gavel_rules.language.cel.syntax_tree import Call, Comprehension, Identifier, Node, Select, children
from gavel_rules.language.cel.vocabulary import PRESENCE_MAPS, ValueType


def find_variables(tree: Node, types: Mapping[str, ValueType]) -> Iterator[tuple[str, ValueType]]:
    """Yield every variable that a tree reads, with its type."""
    if isinstance(tree, Identifier) and tree.name in types:
        yield tree.name, types[tree.name]
    for child in children(tree):
        yield from find_variables(child, types)


def presence_path(node: Node) -> str | None:
    """Return "facts.x" for the tree of has(facts.x); None for any node that does not test a presence map."""
    if not isinstance(node, Select) or not node.test_only:
        return None
    steps = [node.field_name]
    operand = node.operand
    while isinstance(operand, Select):
        steps.append(operand.field_name)
        operand = operand.operand
    if isinstance(operand, Identifier):
        for root, presence_map in PRESENCE_MAPS.items():
            if operand.name == presence_map:
                return ".".join((root, *reversed(steps)))
    return None


def find_presence_tests(tree: Node) -> Iterator[str]:
    """Yield the path of every presence that a tree tests."""
    path = presence_path(tree)
    if path is not None:
        yield path
        return
    for child in children(tree):
        yield from find_presence_tests(child)


def count_macros(tree: Node) -> int:
    """Return the number of macros over lists or maps in a tree; an added function counts as one, because it may loop."""
    is_loop = (isinstance(tree, Comprehension) and not is_binding(tree)) or (isinstance(tree, Call) and tree.function in _ADDED)
    return is_loop + sum(count_macros(child) for child in children(tree))


_ADDED: Final = frozenset({SUM, *(name for name, _ in FUNCTIONS)})
