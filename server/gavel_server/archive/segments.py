"""Segments: runs of whole events as logged, compressed, each with a manifest that says what it holds.

    segments/000000000001-000000004096.zst     varint length and bytes of each envelope, compressed by zstd
    segments/000000000001-000000004096.json    the manifest

A segment ends after SEGMENT_EVENTS events or SEGMENT_BYTES bytes, whichever comes first. Servers that archive one bus at the same time
therefore write the same events, and a step that was interrupted is simply repeated. Their files differ if their versions of zstd do, and
a manifest may then stand beside the other server's segment. The chain hashes of a manifest therefore say what its segment is, and not the
SHA-256, which is of the file that its writer made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

from gavel_rules.codec.fields import length_prefixed
from gavel_rules.events.hash_chain import chain

from gavel_server.archive.storage import ArchiveError
from gavel_server.log.entries import Record

SEGMENT_EVENTS: Final = 4096
SEGMENT_BYTES: Final = 16 * 1024 * 1024
FORMAT: Final = 1
FOLDER: Final = "segments"
BACKUPS_FOLDER: Final = "backups"
# Of a decompressed segment, whatever its manifest says: one of SEGMENT_BYTES with a last event of any size.
DECOMPRESSED_BYTES_MAX: Final = 256 * 1024 * 1024
_LEVEL: Final = 9
# Bits of a length before an envelope.
_LENGTH_BITS_MAX: Final = 35
_TYPES: Final = {"bus": str, "first": int, "last": int, "size_bytes": int, "sha256": str, "file": str}
_MANIFEST: Final = re.compile(r"\d{12}-\d{12}\.json")


class Manifest(NamedTuple):
    """The description of a segment: events `first` to `last` of a bus, the chain hashes before and after them, and the file."""

    bus: str
    first: int
    last: int
    chain_hash_before: bytes
    chain_hash: bytes
    size_bytes: int  # of the envelopes
    sha256: str  # of the file as compressed by the manifest's writer; not checked
    file: str

    @property
    def events(self) -> int:
        """The number of events."""
        return self.last - self.first + 1


def segment_name(first: int, last: int, folder: str = FOLDER) -> str:
    """Return the name of a segment's file."""
    return f"{folder}/{first:012}-{last:012}.zst"


def is_manifest(name: str) -> bool:
    """Return whether a name in the folder of segments is that of a manifest."""
    return _MANIFEST.fullmatch(name) is not None


def manifest_name(file: str) -> str:
    """Return the name of the manifest of a segment's file."""
    return f"{file.removesuffix('.zst')}.json"


def encode_segment(bus: str, chain_hash_before: bytes, records: Sequence[Record], folder: str = FOLDER) -> tuple[Manifest, bytes]:
    """Return the manifest and the file of some records, which follow each other."""
    content = b"".join(length_prefixed(record.envelope) for record in records)
    compressed = _zstandard().ZstdCompressor(level=_LEVEL).compress(content)
    first, last = records[0], records[-1]
    manifest = Manifest(
        bus,
        first.sequence_number,
        last.sequence_number,
        chain_hash_before,
        last.chain_hash,
        sum(len(record.envelope) for record in records),
        sha256(compressed).hexdigest(),
        segment_name(first.sequence_number, last.sequence_number, folder),
    )
    return manifest, compressed


def decode_segment(manifest: Manifest, compressed: bytes) -> list[Record]:
    """Return the records of a segment, after checking the chain from its start to its end. Raises ArchiveError."""
    limit = min(manifest.size_bytes + 10 * manifest.events, DECOMPRESSED_BYTES_MAX)
    zstandard = _zstandard()
    try:
        # A decompressor takes the size that the file states for granted, in place of its limit.
        if zstandard.frame_content_size(compressed) > limit:
            raise IndexError(f"it is larger than {limit} bytes")
        content = zstandard.ZstdDecompressor().decompress(compressed, max_output_size=limit)
        envelopes = _split(content)
    except (zstandard.ZstdError, IndexError) as error:
        raise ArchiveError(f"segment {manifest.file} is damaged: {error}; restore it from a copy") from error
    chain_hash, records = manifest.chain_hash_before, []
    for number, envelope in enumerate(envelopes, manifest.first):
        chain_hash = chain(chain_hash, envelope)
        records.append(Record(number, envelope, chain_hash))
    if len(records) != manifest.events or chain_hash != manifest.chain_hash:
        raise ArchiveError(f"segment {manifest.file} is damaged: its events do not lead to its chain hash; restore it from a copy")
    return records


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the content of a manifest's file."""
    values = {name: value.hex() if isinstance(value, bytes) else value for name, value in manifest._asdict().items()}
    return json.dumps({"format": FORMAT, **values, "events": manifest.events}, indent=1).encode() + b"\n"


def decode_manifest(content: bytes, name: str) -> Manifest:
    """Return the manifest of a file's content. Raises ArchiveError."""
    try:
        document: dict[str, Any] = json.loads(content)
        if document.pop("format") != FORMAT:
            raise ArchiveError(f"{name} has another format than {FORMAT}; use the build that wrote it")
        events = document.pop("events")
        for field in ("chain_hash_before", "chain_hash"):
            document[field] = bytes.fromhex(document[field])
        manifest = Manifest(**document)
        for field, kind in _TYPES.items():
            if type(document[field]) is not kind:
                raise TypeError(f"{field} is of type {type(document[field]).__name__}")
        if manifest.events != events or manifest.events < 1:
            raise ValueError(f"{events} events from {manifest.first} to {manifest.last}")
        # No other file is read for a manifest.
        if manifest.file not in [segment_name(manifest.first, manifest.last, folder) for folder in (FOLDER, BACKUPS_FOLDER)]:
            raise ValueError(f"{manifest.file!r} is not the file of events {manifest.first} to {manifest.last}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArchiveError(f"{name} is damaged: {error}; restore it from a copy") from error
    return manifest


def check_packages() -> None:
    """Raise ArchiveError unless the packages that segments need are installed."""
    _zstandard()


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise ArchiveError("archives need the package zstandard; install gavel-arbiter[archive]") from error
    return zstandard


def _split(content: bytes) -> list[bytes]:
    """Return the parts of length-delimited content. Raises IndexError if it ends too early."""
    parts, position = [], 0
    while position < len(content):
        length = shift = 0
        while True:
            byte = content[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if shift > _LENGTH_BITS_MAX:
                raise IndexError("a length in it is too long")
            if byte < 0x80:
                break
        part = content[position : position + length]
        if len(part) != length:
            raise IndexError("it is cut off")
        parts.append(part)
        position += length
    return parts
