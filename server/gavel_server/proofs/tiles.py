"""The tree of a log in files, in the layout of C2SP tlog-tiles, so that proofs need no scan of the log.

    tile/0/x001/x234/067        a tile: the 256 hashes of level 0, then of every eighth level, in files of 8,192 bytes
    tile/0/x001/x234/068.p/12   the last tile of a level while it has fewer than 256 hashes
    tile/entries/x001/…         an entry bundle: the entries of a tile of level 0, each 32 bytes after its length as uint16
    head.json                   how far the tree has come; the only file that is not of tlog-tiles

Any web server that serves the directory serves a tlog-tiles log. All of it is derived from the log: a tree that is damaged, or whose
head is not in the log, is deleted and computed again. Every tile is checked when it is read. `head.json` is replaced last, so that a
crash leaves the tree before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import structlog

from gavel_server.process.private_files import PUBLIC_DIRECTORY_MODE, make_directory, open_public
from gavel_server.proofs.tree import root, subtree
from gavel_server.proofs.verifier import HASH_BYTES, leaf_hash, node_hash

TILE_HEIGHT: Final = 8
TILE_HASHES: Final = 1 << TILE_HEIGHT
# Full tiles that stay in memory, 8 kB each.
CACHED_TILES_MAX: Final = 256
_ENTRIES: Final = "entries"
_ENTRY_LENGTH: Final = HASH_BYTES.to_bytes(2, "big")

_LOG: Final = structlog.get_logger(__name__)


class DamagedTilesError(ValueError):
    """A tile is missing, or not of the tree."""


class TreeHead(NamedTuple):
    """The head of a tree: its size, which is a sequence number, its root, and the chain hash of the log's event there."""

    size: int
    root: bytes
    chain_hash: bytes


class TileFiles(Protocol):
    """Files by name. A write is whole or absent, whenever the process is killed. Every method blocks."""

    place: str

    def read(self, name: str) -> bytes | None:
        """Return a file's content; None if there is no such file."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file, in place of one of this name."""

    def delete(self, name: str) -> None:
        """Delete a file, if there is one."""


class LocalTiles:
    """Files in a directory that others may read and not write. They are not synced: after a power cut a damaged tree is computed again."""

    def __init__(self, directory: Path) -> None:
        self._directory: Final = directory
        self.place = str(directory)

    def read(self, name: str) -> bytes | None:
        """See TileFiles. Raises OSError."""
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """See TileFiles. Raises OSError."""
        path = self._directory / name
        make_directory(path.parent, PUBLIC_DIRECTORY_MODE)
        temporary = path.with_name(f"{path.name}.new")
        with open(temporary, "wb", opener=open_public) as file:
            file.write(content)
        os.replace(temporary, path)

    def delete(self, name: str) -> None:
        """See TileFiles."""
        path = self._directory / name
        with suppress(OSError):  # what remains is valid, only superfluous
            path.unlink()
            path.parent.rmdir()


class Tiles:
    """The tree of one log, in files. `append` grows it; `node` reads it (see `tree.Nodes`). Blocking; one writer."""

    def __init__(self, files: TileFiles) -> None:
        self._files: Final = files
        self._full = lru_cache(maxsize=CACHED_TILES_MAX)(self._read_full)
        self._reset()
        self._load()

    def _reset(self) -> None:
        self.head: TreeHead | None = None
        self.size = 0
        self._partial: list[bytearray] = []  # the last, incomplete tile of each tile level
        self._bundle = bytearray()  # the last, incomplete entry bundle
        self._full.cache_clear()

    def append(self, entries: Sequence[bytes], chain_hash: bytes) -> None:
        """Append entries of 32 bytes each; `chain_hash` is that of the last event. Raises OSError; then the tree is as before."""
        before = self._partial_names()
        try:
            for entry in entries:
                self._append(entry)
            for name, content in self._partial_names().items():
                self._write(name, content)
            head = TreeHead(self.size, root(self, self.size), chain_hash)
            document = json.dumps({"size": head.size, "root": head.root.hex(), "chain_hash": chain_hash.hex()})
            self._write("head.json", document.encode() + b"\n")
        except BaseException:
            self._reset()
            self._load()
            raise
        self.head = head
        self._delete(before.keys() - self._partial_names().keys())

    def node(self, level: int, index: int) -> bytes:
        """Return the hash of a node of a complete subtree. Raises ValueError if the tree is too small, DamagedTilesError, OSError."""
        if (index + 1) << level > self.size:
            raise ValueError(f"node {index} of level {level} is not in a tree of {self.size} leaves")
        tile_level, height = divmod(level, TILE_HEIGHT)
        tile, offset = divmod(index << height, TILE_HASHES)
        return subtree(_Tile(self._tile(tile_level, tile)), offset, offset + (1 << height))

    def _tile(self, tile_level: int, tile: int) -> bytes:
        is_full = (tile + 1) << TILE_HEIGHT <= self.size >> (TILE_HEIGHT * tile_level)
        return self._full(tile_level, tile) if is_full else bytes(self._partial[tile_level])

    def clear(self) -> None:
        """Delete the tree."""
        self._files.delete("head.json")
        self._reset()

    def _append(self, entry: bytes) -> None:
        self._bundle += _ENTRY_LENGTH + entry
        self._add(0, self.size, leaf_hash(entry))
        self.size += 1
        if self.size % TILE_HASHES == 0:
            self._write(_path(_ENTRIES, self.size // TILE_HASHES - 1), self._bundle)
            self._bundle = bytearray()

    def _add(self, tile_level: int, index: int, value: bytes) -> None:
        if tile_level == len(self._partial):
            self._partial.append(bytearray())
        hashes = self._partial[tile_level]
        hashes += value
        if len(hashes) == TILE_HASHES * HASH_BYTES:
            tile = index // TILE_HASHES
            self._write(_path(tile_level, tile), hashes)
            self._partial[tile_level] = bytearray()
            self._add(tile_level + 1, tile, subtree(_Tile(bytes(hashes)), 0, TILE_HASHES))

    def _partial_names(self) -> dict[str, bytearray]:
        """Return the incomplete tiles and the incomplete entry bundle, by path."""
        names = {}
        for tile_level, hashes in enumerate(self._partial):
            if hashes:
                names[_partial_path(tile_level, self.size >> (TILE_HEIGHT * tile_level))] = hashes
        if self._bundle:
            names[_partial_path(_ENTRIES, self.size)] = self._bundle
        return names

    def _load(self) -> None:
        try:
            stored = self._files.read("head.json")
            if stored is None:
                return
            content = json.loads(stored)
            head = TreeHead(int(content["size"]), bytes.fromhex(content["root"]), bytes.fromhex(content["chain_hash"]))
            self.size = head.size
            count = head.size
            while count:
                self._partial.append(self._read_partial(len(self._partial), count, HASH_BYTES))
                count >>= TILE_HEIGHT
            self._bundle = self._read_partial(_ENTRIES, head.size, len(_ENTRY_LENGTH) + HASH_BYTES)
            if root(self, head.size) != head.root:
                raise ValueError("the root differs")
            self.head = head
        except (ValueError, KeyError, TypeError, IndexError) as error:
            self._discard(error)

    def _discard(self, error: Exception) -> None:
        _LOG.warning("proofs.tree_damaged", place=self._files.place, problem=str(error), note="it is computed again from the log")
        self.clear()

    def _read_partial(self, level: int | str, count: int, item_bytes: int) -> bytearray:
        width = count % TILE_HASHES
        content = bytearray(self._files.read(_partial_path(level, count)) or b"" if width else b"")
        if len(content) != width * item_bytes:
            raise ValueError(f"{_partial_path(level, count)} has {len(content)} bytes, not {width * item_bytes}")
        return content

    def _read_full(self, tile_level: int, tile: int) -> bytes:
        """Return a full tile, checked against its hash in the tile above."""
        content = self._files.read(_path(tile_level, tile)) or b""
        if len(content) != TILE_HASHES * HASH_BYTES:
            raise DamagedTilesError(f"{_path(tile_level, tile)} has {len(content)} bytes, not {TILE_HASHES * HASH_BYTES}")
        above, offset = divmod(tile, TILE_HASHES)
        if subtree(_Tile(content), 0, TILE_HASHES) != _Tile(self._tile(tile_level + 1, above)).node(0, offset):
            raise DamagedTilesError(f"{_path(tile_level, tile)} is not of this tree")
        return content

    def _write(self, name: str, content: bytes | bytearray) -> None:
        self._files.write(name, bytes(content))

    def _delete(self, names: set[str]) -> None:
        for name in names:
            self._files.delete(name)


class _Tile:
    """The nodes of one tile: its hashes are level 0."""

    def __init__(self, hashes: bytes) -> None:
        self._hashes = hashes

    def node(self, level: int, index: int) -> bytes:
        """Return the hash of a node."""
        if level:
            return node_hash(self.node(level - 1, 2 * index), self.node(level - 1, 2 * index + 1))
        return self._hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES]


def _path(level: int | str, number: int) -> str:
    """Return the path of a tile, e.g. "tile/0/x001/x234/067" for tile 1234067 of level 0."""
    groups = [f"{number % 1000:03}"]
    while number >= 1000:
        number //= 1000
        groups.insert(0, f"x{number % 1000:03}")
    return f"tile/{level}/{'/'.join(groups)}"


def _partial_path(level: int | str, count: int) -> str:
    """Return the path of the incomplete last tile of a level with `count` hashes."""
    return f"{_path(level, count // TILE_HASHES)}.p/{count % TILE_HASHES}"
