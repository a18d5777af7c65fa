"""Conversion between Python values and the contract's Struct and Value.

A Struct holds JSON: null, booleans, doubles, strings, lists and objects. This module accepts any Mapping or Sequence, and refuses, with its
path, every value that would not survive the conversion: an integer beyond ±2^53, NaN, bytes, a date. It never rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.protobuf.struct_pb2 import NULL_VALUE, ListValue, Struct, Value

# Doubles, the numbers of a Struct, represent all integers up to here exactly.
INTEGER_MAX: Final = 2**53
# Integers from here on are left out of messages.
SHOWN_MAX: Final = 10**30
# Protobuf limits recursion when it parses. The server allows parameters fewer levels (16).
NESTING_MAX: Final = 24
JSON_NESTING_MAX: Final = 128


def to_value(value: object, path: str = "value") -> Value:
    """Return `value` as a Value. Raises ValueError or TypeError; the message names the place by `path`."""
    return _to_value(value, path, NESTING_MAX)


def to_struct(mapping: Mapping[str, object], path: str = "params") -> Struct:
    """Return `mapping` as a Struct. Raises ValueError or TypeError; the message names the place by `path`."""
    if not isinstance(mapping, Mapping):
        raise TypeError(f"{path} is of type {type(mapping).__name__}; use a mapping")
    return to_value(mapping, path).struct_value


def from_value(value: Value) -> Any:
    """Return a Value as a Python value: whole numbers as int, other numbers as float. A Value without a kind is None."""
    match value.WhichOneof("kind"):
        case "bool_value":
            return value.bool_value
        case "number_value":
            number = value.number_value
            # Canonical JSON (RFC 8785) has no integers of ±2^53, but doubles.
            return int(number) if number.is_integer() and abs(number) < INTEGER_MAX else number
        case "string_value":
            return value.string_value
        case "struct_value":
            return from_struct(value.struct_value)
        case "list_value":
            return [from_value(item) for item in value.list_value.values]
    return None


def from_struct(struct: Struct) -> dict[str, Any]:
    """Return a Struct as a dict of Python values: whole numbers as int, other numbers as float."""
    return {name: from_value(value) for name, value in struct.fields.items()}


def to_json(value: object, path: str = "value") -> Any:
    """Return a copy of JSON data of dicts and lists, for any mappings and sequences. Raises ValueError or TypeError like `to_value`.

    Data that no event holds may have JSON_NESTING_MAX levels.
    """
    return _to_json(value, path, JSON_NESTING_MAX)


def _to_json(value: object, path: str, levels_left: int) -> Any:
    match value:
        case None | bool():
            return value
        case str():
            _check_text(value, path)
            return value
        case int() | float():
            number = _checked_number(value, path)
            return value if abs(number) < INTEGER_MAX else number  # as from_value
        case bytes() | bytearray():
            pass
        case Mapping() | Sequence() if levels_left == 0:
            raise ValueError(f"{path} is nested deeper than {JSON_NESTING_MAX} levels")
        case Mapping():
            for key in value:
                if not isinstance(key, str):
                    raise TypeError(f"{path} has the key {key!r}; keys must be strings")
                _check_text(key, f"a key of {path}")
            return {key: _to_json(item, f"{path}.{key}", levels_left - 1) for key, item in value.items()}
        case Sequence():
            return [_to_json(item, f"{path}[{index}]", levels_left - 1) for index, item in enumerate(value)]
    raise TypeError(f"{path} is of type {type(value).__name__}; use None, bool, int, float, str, a sequence or a mapping")


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{path} holds a lone surrogate, which is not Unicode") from None


def _to_value(value: object, path: str, levels_left: int) -> Value:
    match value:
        case None:
            return Value(null_value=NULL_VALUE)
        case bool():
            return Value(bool_value=value)
        case str():
            return Value(string_value=value)
        case int() | float():
            return Value(number_value=_checked_number(value, path))
        case bytes() | bytearray():
            pass
        case Mapping() | Sequence() if levels_left == 0:
            raise ValueError(f"{path} is nested deeper than {NESTING_MAX} levels")
        case Mapping():
            for key in value:
                if not isinstance(key, str):
                    raise TypeError(f"{path} has the key {key!r}; keys must be strings")
            fields = {key: _to_value(item, f"{path}.{key}", levels_left - 1) for key, item in value.items()}
            return Value(struct_value=Struct(fields=fields))
        case Sequence():
            items = [_to_value(item, f"{path}[{index}]", levels_left - 1) for index, item in enumerate(value)]
            return Value(list_value=ListValue(values=items))
    raise TypeError(f"{path} is of type {type(value).__name__}; use None, bool, int, float, str, a sequence or a mapping")


def _checked_number(number: float, path: str) -> float:
    # An int may be too large for a float, and for a message.
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError(f"{path} is {number}; only finite numbers can be sent")
    if abs(number) > INTEGER_MAX:
        shown = number if isinstance(number, float) or abs(number) < SHOWN_MAX else "an integer"
        raise ValueError(f"{path} is {shown}, beyond ±2^53, where doubles are no longer exact; send it as a string")
    return float(number)


def escape_surrogates(text: str) -> str:
    """Return a text with each lone surrogate, which no text of protobuf can hold, as an escape of JSON."""
    return text.encode(errors="backslashreplace").decode()
