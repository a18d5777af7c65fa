"""The Merkle tree of RFC 6962 §2.1 over the entries of a log: roots, inclusion proofs, consistency proofs, the compact range.

Pure functions over a source of nodes. A node is named by its level and its index in the level: node (0, n) is leaf n, and node
(l, i) is the root of the leaves from i·2^l to (i+1)·2^l. Only complete subtrees have a node; every other hash follows from them.
"""

from __future__ import annotations

from typing import Protocol

from gavel_server.proofs.verifier import EMPTY_ROOT, node_hash


class Nodes(Protocol):
    """A source of the nodes of complete subtrees."""

    def node(self, level: int, index: int) -> bytes:
        """Return the hash of a node of a complete subtree."""


def root(nodes: Nodes, size: int) -> bytes:
    """Return the root of the tree of the first `size` leaves."""
    return subtree(nodes, 0, size) if size else EMPTY_ROOT


def subtree(nodes: Nodes, first: int, end: int) -> bytes:
    """Return the root of the leaves from `first` to before `end`: MTH(D[first:end]) of RFC 6962. O(log n) nodes are read."""
    size = end - first
    if size & (size - 1) == 0:
        level = size.bit_length() - 1
        return nodes.node(level, first >> level)
    middle = first + _split(size)
    return node_hash(subtree(nodes, first, middle), subtree(nodes, middle, end))


def inclusion_proof(nodes: Nodes, index: int, size: int) -> list[bytes]:
    """Return the inclusion proof of a leaf in the tree of `size` leaves, from the leaf's sibling to the root's child (RFC 6962 §2.1.1)."""
    hashes: list[bytes] = []
    first, end = 0, size
    while end - first > 1:
        middle = first + _split(end - first)
        if index < middle:
            hashes.append(subtree(nodes, middle, end))
            end = middle
        else:
            hashes.append(subtree(nodes, first, middle))
            first = middle
    return hashes[::-1]


def consistency_proof(nodes: Nodes, from_size: int, to_size: int) -> list[bytes]:
    """Return the proof that the tree of `to_size` leaves begins with that of `from_size` leaves (RFC 6962 §2.1.2)."""
    hashes: list[bytes] = []
    first, end = 0, to_size
    if not 0 < from_size < to_size:
        return hashes
    while end != from_size:
        middle = first + _split(end - first)
        if from_size <= middle:
            hashes.append(subtree(nodes, middle, end))
            end = middle
        else:
            hashes.append(subtree(nodes, first, middle))
            first = middle
    if first:
        hashes.append(subtree(nodes, first, end))
    return hashes[::-1]


class CompactRange:
    """The tree of the leaves seen so far, as the roots of its largest complete subtrees: O(log n) hashes, enough to append to it."""

    def __init__(self, size: int = 0, hashes: tuple[bytes, ...] = ()) -> None:
        """`hashes` are those of an earlier range of this size, largest subtree first. Raises ValueError if their number differs."""
        if len(hashes) != size.bit_count():
            raise ValueError(f"a compact range of {size} leaves has {size.bit_count()} hashes, not {len(hashes)}")
        self.size = size
        self._hashes = list(hashes)

    @property
    def hashes(self) -> tuple[bytes, ...]:
        """The roots of the largest complete subtrees, largest first."""
        return tuple(self._hashes)

    def append(self, leaf: bytes) -> None:
        """Append the hash of a leaf."""
        size = self.size
        while size & 1:
            leaf = node_hash(self._hashes.pop(), leaf)
            size >>= 1
        self._hashes.append(leaf)
        self.size += 1

    def root(self) -> bytes:
        """Return the root of the tree."""
        if not self._hashes:
            return EMPTY_ROOT
        result = self._hashes[-1]
        for one in self._hashes[-2::-1]:
            result = node_hash(one, result)
        return result


def _split(size: int) -> int:
    """Return the largest power of two below a size of two or more."""
    return 1 << ((size - 1).bit_length() - 1)
