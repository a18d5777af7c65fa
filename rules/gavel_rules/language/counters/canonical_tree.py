"""Canonical trees: equal for expressions that mean the same. Each read of a counter is a call with its key.

The variable of a read, such as `History.ab0`, says neither which counter is read nor with which key, and may depend on earlier reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

from gavel_rules.language.cel.checker import Environment
from gavel_rules.language.cel.counter_reads import CounterRead
from gavel_rules.language.cel.syntax_tree import Call, Identifier, Node
from gavel_rules.language.cel.vocabulary import HISTORY

OWN_NAMES: Final[Mapping[str, str]] = {}


def canonical_tree(environment: Environment, tree: Node, names: Mapping[str, str] = OWN_NAMES) -> Node:
    """Return a tree in which each read of a counter is a call with the tree of its key: `history.spent(params.customer)`.

    The call has the name of the counter, or what `names` has in its place: the name in another version of the document, whose definitions
    of counters are compared elsewhere, or the digest, which means the same in all documents.
    """
    reads = {read.variable: read for read in environment.counter_reads.all()}
    return _TreeConverter(environment, reads, names).convert(tree) if reads else tree


class _TreeConverter:
    """Converts the trees of one environment."""

    def __init__(self, environment: Environment, reads: Mapping[str, CounterRead], names: Mapping[str, str]) -> None:
        self._environment = environment
        self._reads = reads
        self._names = names

    def convert(self, part: Any) -> Any:
        """Return a node, or a part of one, with calls for the variables of reads."""
        if isinstance(part, Identifier):
            read = self._reads.get(part.name)
            return part if read is None else self._call(read)
        if isinstance(part, tuple):
            return tuple(self.convert(one) for one in part)
        if is_dataclass(part) and not isinstance(part, type):
            return replace(part, **{field.name: self.convert(getattr(part, field.name)) for field in fields(part)})
        return part

    def _call(self, read: CounterRead) -> Call:
        name = self._names.get(read.counter, read.counter)
        return Call(f"{HISTORY}.{name}", None, (self._environment.tree(read.key),) if read.key else ())
