"""The forms of the texts that requests carry: names, subjects, ids and times. Pure predicates; each caller words its own message."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

from gavel_rules import limits
from google.protobuf.timestamp_pb2 import Timestamp

BUS: Final = re.compile(limits.BUS + r"\Z")
EXECUTION_ID: Final = re.compile(r"exec_[0-9a-f]{12}\Z")
SHA256: Final = re.compile(r"sha256:[0-9a-f]{64}\Z")
SCHEMA_SHA256: Final = re.compile(r"sha256:[0-9a-f]{32}(?:[0-9a-f]{32})?\Z")
EVENT_NAME: Final = re.compile(r"[A-Z][A-Za-z0-9]{0,127}\Z")
NAME: Final = re.compile(r"[\x21-\x7e]{1,128}\Z")
REASON_CODE: Final = re.compile(r"([A-Z][A-Z0-9_]{0,127})?\Z")
PLAIN_LENGTH_MAX: Final = 128
# LRU size of the two cached predicates. Action types, fact keys and producer ids are few and recur.
NAMES_CACHED_MAX: Final = 1024

# The violation of a subject for which `is_subject` is false.
NOT_A_SUBJECT: Final = (
    'is not "type/id", e.g. "order/123": a type of a-z 0-9 _ - that begins with a letter, then letters, digits, spaces and -._~:@+ between '
    f"slashes; {limits.SUBJECT_BYTES_MAX} bytes at most"
)
_SUBJECT: Final = re.compile(limits.RECORDABLE_SUBJECT + r"\Z")
# Letters with their marks, and digits: general categories of Unicode, the first letter or both.
_LETTERS_AND_DIGITS: Final = ("L", "M", "Nd")
_DOTTED_NAME: Final = re.compile(limits.DOTTED_NAME + r"\Z")
_PRODUCER_ID: Final = re.compile(limits.PRODUCER_ID + r"\Z")
_TIMESTAMP_SECONDS_MAX: Final = 253_402_300_799  # 9999-12-31T23:59:59Z


@lru_cache(NAMES_CACHED_MAX)
def is_dotted_name(text: str) -> bool:
    """Return whether a text is a dotted name. Callers check its length first, because the cache keeps the text."""
    return _DOTTED_NAME.match(text) is not None


@lru_cache(NAMES_CACHED_MAX)
def is_producer_id(text: str) -> bool:
    """Return whether a text has the characters of a producer id. Callers check its length first, because the cache keeps the text."""
    return _PRODUCER_ID.match(text) is not None


def is_subject(text: str) -> bool:
    """Return whether a text is a subject in canonical form: NFC, of at most SUBJECT_BYTES_MAX bytes."""
    if text.isascii():
        return len(text) <= limits.SUBJECT_BYTES_MAX and _SUBJECT.match(text) is not None
    # Four bytes a character at most: a longer text is not looked through.
    if len(text) > limits.SUBJECT_BYTES_MAX or not unicodedata.is_normalized("NFC", text):
        return False
    in_ascii = "".join([character if character.isascii() else _in_ascii(character) for character in text])
    return _SUBJECT.match(in_ascii) is not None and len(text.encode()) <= limits.SUBJECT_BYTES_MAX


def _in_ascii(character: str) -> str:
    """Return a letter for a letter or digit, which is in no type of a subject, and for any other character one that is in no subject."""
    return "A" if unicodedata.category(character).startswith(_LETTERS_AND_DIGITS) else "#"


def is_plain(text: str) -> bool:
    """Return whether a text is at most 128 printable ASCII characters."""
    return len(text) <= PLAIN_LENGTH_MAX and text.isascii() and text.isprintable()


def is_time(value: Timestamp) -> bool:
    """Return whether a timestamp is normalized and lies between 1970 and 9999."""
    return 0 <= value.seconds <= _TIMESTAMP_SECONDS_MAX and 0 <= value.nanos < 1_000_000_000
