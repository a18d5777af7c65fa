"""Expressions compared by meaning: trees in which reads of counters have names that two versions share.

The variable of a read, such as `History.spent_0`, does not say with which key the counter is read, and its number depends on earlier reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from gavel_rules.language.cel.checker import Environment
from gavel_rules.language.cel.syntax_tree import Identifier, Node
from gavel_rules.language.cel.vocabulary import HISTORY


def canonical_tree(environment: Environment, tree: Node) -> Node:
    """Return a tree in which each read of a counter is named by the counter and its key, as written: `history.spent(params.customer)`."""
    names = {read.variable: f"{HISTORY}.{read.counter}({read.key})" for read in environment.counter_reads.all()}
    renamed: Node = _rename(tree, names) if names else tree
    return renamed


def _rename(part: Any, names: Mapping[str, str]) -> Any:
    """Return a node, or a part of one, with other names of variables."""
    if isinstance(part, Identifier):
        return replace(part, name=names.get(part.name, part.name))
    if isinstance(part, tuple):
        return tuple(_rename(one, names) for one in part)
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{field.name: _rename(getattr(part, field.name), names) for field in fields(part)})
    return part
