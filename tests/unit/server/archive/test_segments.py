"""Segments and manifests that somebody has made up: they are errors, and cost little."""

from __future__ import annotations

import json
import stat
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import zstandard
from gavel_rules.events.hash_chain import genesis_hash
from gavel_server.archive.segments import DECOMPRESSED_BYTES_MAX, Manifest, decode_manifest, decode_segment, encode_manifest, segment_name
from gavel_server.archive.storage import ArchiveError, Directory

GENESIS = genesis_hash("default")


def _manifest(compressed: bytes, size_bytes: int) -> Manifest:
    return Manifest("default", 1, 2, GENESIS, GENESIS, size_bytes, sha256(compressed).hexdigest(), segment_name(1, 2))


@pytest.mark.parametrize("size_bytes", [10, DECOMPRESSED_BYTES_MAX * 1_000])
def test_bombs(size_bytes: int) -> None:
    """A segment that states a larger size than its manifest, or than any segment has, is not decompressed."""
    frame = zstandard.ZstdCompressor(level=1).compress(bytes(2_000_000))
    # The frame's header states the size of the content, which 8 bytes hold here.
    stated = frame.replace((2_000_000).to_bytes(4, "little"), (2**31 - 1).to_bytes(4, "little"), 1)
    assert 2**31 - 1 == zstandard.frame_content_size(stated)

    with pytest.raises(ArchiveError, match="it is larger than"):
        decode_segment(_manifest(stated, size_bytes), stated)


def test_an_endless_length() -> None:
    """A length that goes on for ever is damage, found at once."""
    compressed = zstandard.ZstdCompressor().compress(b"\x80" * 1_000_000)

    with pytest.raises(ArchiveError, match="a length in it is too long"):
        decode_segment(_manifest(compressed, 1_000_000), compressed)


@pytest.mark.parametrize(
    "change",
    [
        {"file": "/etc/passwd"},
        {"file": "segments/../../other/segments/000000000001-000000000002.zst"},
        {"first": "1"},
        {"first": 1.0},
        {"last": True, "events": 1},
        {"last": 0, "events": 0, "file": segment_name(1, 0)},
        {"size_bytes": None},
    ],
)
def test_manifests(change: dict[str, Any]) -> None:
    """A manifest names the one file of its events, and its fields have the types that they are written with."""
    content = encode_manifest(_manifest(b"", 0))

    assert _manifest(b"", 0) == decode_manifest(content, "name")
    with pytest.raises(ArchiveError, match="name is damaged"):
        decode_manifest(json.dumps({**json.loads(content), **change}).encode(), "name")


def test_a_deep_manifest() -> None:
    """A manifest of nested lists is damage."""
    with pytest.raises(ArchiveError, match="name is damaged"):
        decode_manifest(b"[" * 100_000, "name")


def test_files_are_private(tmp_path: Path) -> None:
    """Events are in the files of an archive, so that other users of the machine may not read them."""
    Directory(tmp_path).write("segments/a", b"x")

    assert 0o600 == stat.S_IMODE((tmp_path / "segments/a").stat().st_mode)
