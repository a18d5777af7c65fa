"""What a checked tree reads, and whose presence it tests: asked by everything that works on conditions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gavel_rules.language.cel_syntax import Comprehension, Identifier, Node, Select, children
from gavel_rules.language.vocabulary import PRESENCE_MAPS, ValueType


def reads(tree: Node, types: Mapping[str, ValueType]) -> Iterator[tuple[str, ValueType]]:
    """Yield every variable that a checked tree reads, with its type."""
    if isinstance(tree, Identifier) and tree.name in types:
        yield tree.name, types[tree.name]
    for child in children(tree):
        yield from reads(child, types)


def presence_path(node: Node) -> str | None:
    """Return "facts.x" for the checked tree of has(facts.x), None for anything that is no test of a presence map."""
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


def presences(tree: Node) -> Iterator[str]:
    """Yield the path of every presence that a checked tree tests."""
    path = presence_path(tree)
    if path is not None:
        yield path
        return
    for child in children(tree):
        yield from presences(child)


def macros(tree: Node) -> int:
    """Return how many macros over lists or maps a tree holds."""
    return isinstance(tree, Comprehension) + sum(macros(child) for child in children(tree))
