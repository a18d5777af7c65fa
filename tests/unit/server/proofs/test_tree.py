"""The Merkle tree: roots, proofs and compact ranges, against known vectors and against the definition of RFC 6962 §2.1."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256

import pytest
from gavel_server.proofs.tree import CompactRange, consistency_proof, inclusion_proof, root
from gavel_server.proofs.verifier import EMPTY_ROOT, NotVerifiedError, check_consistency, check_inclusion, leaf_hash, node_hash
from hypothesis import given
from hypothesis import strategies as st

from tests.support.paths import ROOT

VECTORS = json.loads((ROOT / "tests/data/merkle.json").read_text(encoding="utf-8"))
LEAVES_MAX = 80


class Leaves:
    """The nodes of a tree in memory, computed from its leaves at each call."""

    def __init__(self, hashes: Sequence[bytes]) -> None:
        self.hashes = hashes

    def node(self, level: int, index: int) -> bytes:
        """Return the hash of a complete subtree."""
        return defined_root(self.hashes[index << level : (index + 1) << level])


def defined_root(hashes: Sequence[bytes]) -> bytes:
    """Return MTH as RFC 6962 §2.1 defines it."""
    if not hashes:
        return sha256(b"").digest()
    if len(hashes) == 1:
        return hashes[0]
    middle = 1
    while 2 * middle < len(hashes):
        middle *= 2
    return node_hash(defined_root(hashes[:middle]), defined_root(hashes[middle:]))


def leaves(count: int, seed: int = 0) -> list[bytes]:
    """Return the hashes of some leaves."""
    return [leaf_hash(f"{seed}/{number}".encode()) for number in range(count)]


def vector_leaves() -> list[bytes]:
    """Return the hashes of the leaves of the vectors."""
    return [leaf_hash(bytes.fromhex(leaf)) for leaf in VECTORS["leaves"]]


def test_vectors_of_nodes_and_roots() -> None:
    """Leaves, nodes and roots are those of Go's library."""
    nodes = Leaves(vector_leaves())
    assert VECTORS["nodes"] == [[nodes.node(level, index).hex() for index in range(8 >> level)] for level in range(4)]
    assert VECTORS["roots"] == [root(nodes, size).hex() for size in range(9)]


def test_vectors_of_proofs() -> None:
    """Inclusion and consistency proofs are those of Go's library, and verify."""
    nodes, roots = Leaves(vector_leaves()), [bytes.fromhex(one) for one in VECTORS["roots"]]
    for one in VECTORS["inclusion_proofs"]:
        hashes = inclusion_proof(nodes, one["index"], one["size"])
        assert one["hashes"] == [item.hex() for item in hashes]
        check_inclusion(nodes.hashes[one["index"]], one["index"], one["size"], hashes, roots[one["size"]])
    for one in VECTORS["consistency_proofs"]:
        hashes = consistency_proof(nodes, one["from_size"], one["to_size"])
        assert one["hashes"] == [item.hex() for item in hashes]
        check_consistency(one["from_size"], roots[one["from_size"]], one["to_size"], roots[one["to_size"]], hashes)


@given(st.integers(0, LEAVES_MAX))
def test_root_of_compact_range(size: int) -> None:
    """A compact range has the root that the definition gives, and goes on from its hashes."""
    hashes = leaves(size)
    compact = CompactRange()
    for index, one in enumerate(hashes):
        compact = CompactRange(index, compact.hashes)
        compact.append(one)
    assert (size, defined_root(hashes)) == (compact.size, compact.root())
    assert size.bit_count() == len(compact.hashes)


def test_compact_range_of_other_size() -> None:
    """Hashes that are not those of the size are refused."""
    with pytest.raises(ValueError, match="a compact range of 3 leaves has 2 hashes, not 1"):
        CompactRange(3, (EMPTY_ROOT,))


@given(st.data())
def test_inclusion_proofs_verify(data: st.DataObject) -> None:
    """A proof of inclusion verifies for its leaf, index, size and root, and for no other leaf."""
    size = data.draw(st.integers(1, LEAVES_MAX))
    index = data.draw(st.integers(0, size - 1))
    nodes = Leaves(leaves(size))
    hashes = inclusion_proof(nodes, index, size)
    check_inclusion(nodes.hashes[index], index, size, hashes, root(nodes, size))
    with pytest.raises(NotVerifiedError):
        check_inclusion(leaf_hash(b"other"), index, size, hashes, root(nodes, size))


@given(st.data())
def test_changed_inclusion_proofs_fail(data: st.DataObject) -> None:
    """A proof with a hash more, less or changed does not verify."""
    size = data.draw(st.integers(2, LEAVES_MAX))
    index = data.draw(st.integers(0, size - 1))
    nodes = Leaves(leaves(size))
    hashes = inclusion_proof(nodes, index, size)
    place = data.draw(st.integers(0, len(hashes) - 1))
    changed = bytes([hashes[place][0] ^ 1]) + hashes[place][1:]
    for wrong in (hashes[:place] + hashes[place + 1 :], [*hashes, hashes[0]], [*hashes[:place], changed, *hashes[place + 1 :]]):
        with pytest.raises(NotVerifiedError):
            check_inclusion(nodes.hashes[index], index, size, wrong, root(nodes, size))


@given(st.integers(1, LEAVES_MAX), st.integers(0, LEAVES_MAX))
def test_consistency_proofs_verify(from_size: int, more: int) -> None:
    """A proof of consistency verifies for the roots of its sizes."""
    to_size = from_size + more
    nodes = Leaves(leaves(to_size))
    hashes = consistency_proof(nodes, from_size, to_size)
    check_consistency(from_size, root(nodes, from_size), to_size, root(nodes, to_size), hashes)


@given(st.data())
def test_fork_is_inconsistent(data: st.DataObject) -> None:
    """The tree of a log with one event changed is inconsistent with the tree before, whatever of its hashes are given as proof."""
    from_size = data.draw(st.integers(1, LEAVES_MAX))
    to_size = from_size + data.draw(st.integers(0, LEAVES_MAX))
    honest, forked = leaves(to_size), leaves(to_size)
    forked[data.draw(st.integers(0, from_size - 1))] = leaf_hash(b"changed")
    for nodes in (Leaves(honest), Leaves(forked)):
        hashes = consistency_proof(nodes, from_size, to_size)
        with pytest.raises(NotVerifiedError):
            check_consistency(from_size, root(Leaves(honest), from_size), to_size, root(Leaves(forked), to_size), hashes)


def test_shorter_log_is_inconsistent() -> None:
    """A later tree with fewer leaves than the earlier one lost events."""
    nodes = Leaves(leaves(5))
    with pytest.raises(NotVerifiedError, match="leaves are lost"):
        check_consistency(5, root(nodes, 5), 4, root(nodes, 4), [])
