"""Answers made of the log's own bytes: an event is serialized once, when it is appended, and only framed afterwards.

A protobuf message is the concatenation of its fields, so an Envelope with its chain hash is the stored bytes followed by
that one field, and a response is a tag, a length and those bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from google.rpc.status_pb2 import Status

from gavel_server.log import Record

_CHAIN_HASH_TAG: Final = bytes([15 << 3 | 2, 32])
_FIELD_1: Final = bytes([1 << 3 | 2])
_FIELD_2: Final = bytes([2 << 3 | 2])
_FIELD_3: Final = bytes([3 << 3 | 2])
_BYTES: Final = [bytes([number]) for number in range(256)]


def envelope_bytes(record: Record) -> bytes:
    """Return a record's Envelope, chain hash included, as protobuf bytes."""
    return record.envelope + _CHAIN_HASH_TAG + record.chain_hash


def field_1(content: bytes) -> bytes:
    """Return a message whose only field is number 1 with this content."""
    return _FIELD_1 + _varint(len(content)) + content


def named_result(name: bytes, item: bytes | Status) -> bytes:
    """Return a message `{string name = 1; oneof {2: message, 3: google.rpc.Status}}`."""
    tag, content = (_FIELD_2, item) if isinstance(item, bytes) else (_FIELD_3, item.SerializeToString())
    return b"".join((field_1(name), tag, _varint(len(content)), content))


def results(items: Iterable[Record | Status]) -> bytes:
    """Return a batch response: `repeated {oneof {1: the record's Envelope, 2: google.rpc.Status}} results = 1`."""
    parts: list[bytes] = []
    for item in items:
        if isinstance(item, Record):
            length = len(item.envelope) + len(_CHAIN_HASH_TAG) + len(item.chain_hash)
            head = _FIELD_1 + _varint(length)
            parts += (_FIELD_1, _varint(len(head) + length), head, item.envelope, _CHAIN_HASH_TAG, item.chain_hash)
        else:
            status = item.SerializeToString()
            head = _FIELD_2 + _varint(len(status))
            parts += (_FIELD_1, _varint(len(head) + len(status)), head, status)
    return b"".join(parts)


def _varint(number: int) -> bytes:
    if number < 128:
        return _BYTES[number]
    return _BYTES[number & 127 | 128] + _varint(number >> 7)
