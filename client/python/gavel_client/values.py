"""Conversion between Python values and the contract's Struct and Value.

A Struct holds JSON: null, booleans, doubles, strings, lists and objects. `gavel_rules.values` converts; this module accepts more
types (any Mapping or Sequence) and refuses, with its path, every value that would not survive the conversion: an integer
beyond ±2^53, NaN, bytes, a date. It never rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gavel_rules.values import INTEGER_MAX, python_to_value, struct_to_dict, value_to_python
from google.protobuf.struct_pb2 import Struct, Value

# Protobuf limits recursion when it parses. The server allows parameters fewer levels (16).
NESTING_MAX: Final = 24


def to_value(value: object, path: str = "value") -> Value:
    """Return `value` as a Value. Raises ValueError or TypeError; the message names the place by `path`."""
    return python_to_value(_to_json(value, path, NESTING_MAX))


def to_struct(mapping: Mapping[str, object], path: str = "params") -> Struct:
    """Return `mapping` as a Struct. Raises ValueError or TypeError; the message names the place by `path`."""
    if not isinstance(mapping, Mapping):
        raise TypeError(f"{path} is of type {type(mapping).__name__}; use a mapping")
    return to_value(mapping, path).struct_value


def from_value(value: Value) -> Any:
    """Return a Value as a Python value: whole numbers as int, other numbers as float."""
    return _with_integers(value_to_python(value))


def from_struct(struct: Struct) -> dict[str, Any]:
    """Return a Struct as a dict of Python values: whole numbers as int, other numbers as float."""
    return {name: _with_integers(value) for name, value in struct_to_dict(struct).items()}


def _to_json(value: object, path: str, levels_left: int) -> object:
    """Return `value` with dicts and lists for its mappings and sequences."""
    match value:
        case None | bool() | str():
            return value
        case int() | float():
            return _checked_number(value, path)
        case bytes() | bytearray():
            pass
        case Mapping() | Sequence() if levels_left == 0:
            raise ValueError(f"{path} is nested deeper than {NESTING_MAX} levels")
        case Mapping():
            for key in value:
                if not isinstance(key, str):
                    raise TypeError(f"{path} has the key {key!r}; keys must be strings")
            return {key: _to_json(item, f"{path}.{key}", levels_left - 1) for key, item in value.items()}
        case Sequence():
            return [_to_json(item, f"{path}[{index}]", levels_left - 1) for index, item in enumerate(value)]
    raise TypeError(f"{path} is of type {type(value).__name__}; use None, bool, int, float, str, a sequence or a mapping")


def _checked_number(number: float, path: str) -> float:
    if not math.isfinite(number):
        raise ValueError(f"{path} is {number}; only finite numbers can be sent")
    if abs(number) > INTEGER_MAX:
        raise ValueError(f"{path} is {number}, beyond ±2^53, where doubles are no longer exact; send it as a string")
    return float(number)


def _with_integers(value: object) -> Any:
    """Return a JSON value with int in place of each float that is a whole number within ±2^53."""
    match value:
        case float():
            return int(value) if value.is_integer() and abs(value) <= INTEGER_MAX else value
        case dict():
            return {name: _with_integers(item) for name, item in value.items()}
        case list():
            return [_with_integers(item) for item in value]
    return value
