"""The tree in a directory: nodes, the layout of C2SP tlog-tiles, and what happens after a crash or damage."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest
from gavel_server.proofs.tiles import TILE_HASHES, DamagedTilesError, LocalTiles, Tiles
from gavel_server.proofs.tree import CompactRange, consistency_proof, inclusion_proof, root
from gavel_server.proofs.verifier import check_consistency, check_inclusion, leaf_hash
from hypothesis import given, settings
from hypothesis import strategies as st

CHAIN_HASH = b"c" * 32


def entries(count: int, first: int = 0) -> list[bytes]:
    """Return some entries of a tree."""
    return [sha256(b"%d" % number).digest() for number in range(first, first + count)]


def expected_root(size: int) -> bytes:
    """Return the root of the first entries."""
    compact = CompactRange()
    for entry in entries(size):
        compact.append(leaf_hash(entry))
    return compact.root()


def files(directory: Path) -> dict[str, int]:
    """Return the sizes of the files of the tree, by path."""
    return {str(path.relative_to(directory)): path.stat().st_size for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An empty directory."""
    return tmp_path / "bus"


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=6), st.data())
def test_appends_of_any_length(tmp_path_factory: pytest.TempPathFactory, counts: list[int], data: st.DataObject) -> None:
    """Roots and proofs do not depend on how entries came in, nor on whether the tree was opened again in between."""
    directory = tmp_path_factory.mktemp("tree")
    size = 0
    for count in counts:
        tiles = Tiles(LocalTiles(directory))
        assert size == tiles.size
        tiles.append(entries(count, size), CHAIN_HASH)
        size += count
    assert expected_root(size) == root(Tiles(LocalTiles(directory)), size)
    index = data.draw(st.integers(0, size - 1))
    earlier = data.draw(st.integers(1, size))
    check_inclusion(leaf_hash(entries(1, index)[0]), index, size, inclusion_proof(tiles, index, size), expected_root(size))
    hashes = consistency_proof(tiles, earlier, size)
    check_consistency(earlier, expected_root(earlier), size, expected_root(size), hashes)


def test_layout(directory: Path) -> None:
    """Files have the paths and sizes of tlog-tiles; superseded partial tiles are gone."""
    tiles = Tiles(LocalTiles(directory))
    tiles.append(entries(100), CHAIN_HASH)
    tiles.append(entries(500, 100), CHAIN_HASH)
    expected = {
        "tile/0/000": 8192,
        "tile/0/001": 8192,
        "tile/0/002.p/88": 88 * 32,
        "tile/1/000.p/2": 64,
        "tile/entries/000": 256 * 34,
        "tile/entries/001": 256 * 34,
        "tile/entries/002.p/88": 88 * 34,
    }
    actual = files(directory)
    assert actual.pop("head.json") > 0
    assert expected == actual
    assert (directory / "tile/entries/000").read_bytes()[:34] == b"\x00\x20" + entries(1)[0]
    assert (directory / "tile/0/000").read_bytes()[:32] == leaf_hash(entries(1)[0])


@pytest.mark.long
def test_third_level(directory: Path) -> None:
    """A tree of more than 65,536 entries has a third level of tiles, and paths in groups of three digits."""
    tiles = Tiles(LocalTiles(directory))
    count = TILE_HASHES * 1001
    tiles.append(entries(count), CHAIN_HASH)
    assert {"tile/0/x001/000", "tile/1/002", "tile/1/003.p/233", "tile/2/000.p/3"} <= files(directory).keys()
    assert expected_root(count) == root(Tiles(LocalTiles(directory)), count)


def test_crash_before_the_end(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that fails before its last write leaves the tree before, in this process and the next, and can be repeated."""
    tiles = Tiles(LocalTiles(directory))
    tiles.append(entries(250), CHAIN_HASH)
    write = Tiles._write
    for failing in ("tile/0/000", "tile/0/001.p/44", "head.json"):

        def fail(self: Tiles, name: str, content: bytes, failing: str = failing) -> None:
            if name == failing:
                raise OSError(28, "No space left on device")
            write(self, name, content)

        monkeypatch.setattr(Tiles, "_write", fail)
        with pytest.raises(OSError, match="No space"):
            tiles.append(entries(50, 250), CHAIN_HASH)
        monkeypatch.setattr(Tiles, "_write", write)
        assert (250, expected_root(250)) == (tiles.size, root(tiles, 250))
        assert expected_root(250) == root(Tiles(LocalTiles(directory)), 250)
    tiles.append(entries(50, 250), CHAIN_HASH)
    assert expected_root(300) == root(Tiles(LocalTiles(directory)), 300)


@pytest.mark.parametrize("name", ["tile/0/001.p/44", "tile/1/000.p/1", "tile/entries/001.p/44", "head.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_damaged_tree_is_discarded(directory: Path, name: str, damage: str) -> None:
    """A tree whose files were changed is not used: it is empty, or, for a bundle's bytes, which no proof needs, has its root."""
    Tiles(LocalTiles(directory)).append(entries(300), CHAIN_HASH)
    path = directory / name
    content = path.read_bytes()
    if damage == "delete":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[:-9])
    else:
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    tiles = Tiles(LocalTiles(directory))
    if (name, damage) == ("tile/entries/001.p/44", "flip"):
        assert expected_root(300) == root(tiles, 300)
        return
    assert (0, None) == (tiles.size, tiles.head)
    tiles.append(entries(300), CHAIN_HASH)
    assert expected_root(300) == root(Tiles(LocalTiles(directory)), 300)


@pytest.mark.parametrize("damage", [b"", b"cut", bytes(8192)])
def test_damaged_full_tile_is_not_used(directory: Path, damage: bytes) -> None:
    """No root and no proof comes from a full tile that was changed, whatever its length."""
    Tiles(LocalTiles(directory)).append(entries(600), CHAIN_HASH)
    (directory / "tile/0/000").write_bytes(damage)
    tiles = Tiles(LocalTiles(directory))
    assert expected_root(600) == root(tiles, 600)
    for read in (lambda: root(tiles, 255), lambda: inclusion_proof(tiles, 3, 600), lambda: consistency_proof(tiles, 100, 600)):
        with pytest.raises(DamagedTilesError, match=r"tile/0/000"):
            read()


def test_head(directory: Path) -> None:
    """The head states size, root and chain hash, and survives."""
    Tiles(LocalTiles(directory)).append(entries(3), CHAIN_HASH)
    assert (3, expected_root(3), CHAIN_HASH) == Tiles(LocalTiles(directory)).head
    assert {"size": 3, "root": expected_root(3).hex(), "chain_hash": CHAIN_HASH.hex()} == json.loads(
        (directory / "head.json").read_text(encoding="utf-8")
    )


def test_node_beyond_the_tree(directory: Path) -> None:
    """A node of a subtree that is not complete yet is refused."""
    tiles = Tiles(LocalTiles(directory))
    tiles.append(entries(3), CHAIN_HASH)
    with pytest.raises(ValueError, match="node 1 of level 1 is not in a tree of 3 leaves"):
        tiles.node(1, 1)
