"""Python values to the contract's Struct and Value, and back.

A Struct holds JSON: null, booleans, doubles, strings, lists and objects. What would not come back as it went in (an integer
beyond ±2^53, NaN, bytes, a date) is refused here, with the path to it, rather than rounded in silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gavel_rules.values import INTEGER_MAX
from google.protobuf.struct_pb2 import NULL_VALUE, ListValue, Struct, Value

# Deeper values would not survive protobuf's own limit of recursion. The server allows parameters fewer levels (16).
NESTING_MAX: Final = 24


def to_value(value: object, path: str = "value") -> Value:
    """Return `value` as a Value. Raises ValueError or TypeError that names the place by `path`."""
    return _to_value(value, path, NESTING_MAX)


def to_struct(mapping: Mapping[str, object], path: str = "params") -> Struct:
    """Return `mapping` as a Struct. Raises ValueError or TypeError that names the place by `path`."""
    if not isinstance(mapping, Mapping):
        raise TypeError(f"{path} is of type {type(mapping).__name__}; use a mapping")
    return _to_struct(mapping, path, NESTING_MAX)


def from_value(value: Value) -> Any:
    """Return a Value as Python: whole numbers as int, other numbers as float."""
    match value.WhichOneof("kind"):
        case "bool_value":
            return value.bool_value
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() and abs(number) <= INTEGER_MAX else number
        case "string_value":
            return value.string_value
        case "struct_value":
            return from_struct(value.struct_value)
        case "list_value":
            return [from_value(item) for item in value.list_value.values]
    return None


def from_struct(struct: Struct) -> dict[str, Any]:
    """Return a Struct as a dict of Python values."""
    return {key: from_value(value) for key, value in struct.fields.items()}


def _to_struct(mapping: Mapping[str, object], path: str, levels_left: int) -> Struct:
    if levels_left == 0:
        raise ValueError(f"{path} is nested deeper than {NESTING_MAX} levels")
    struct = Struct()
    for key, value in mapping.items():
        if not isinstance(key, str):
            raise TypeError(f"{path} has the key {key!r}; keys must be strings")
        struct.fields[key].CopyFrom(_to_value(value, f"{path}.{key}", levels_left - 1))
    return struct


def _to_value(value: object, path: str, levels_left: int) -> Value:
    match value:
        case None:
            return Value(null_value=NULL_VALUE)
        case bool():
            return Value(bool_value=value)
        case int() | float():
            return Value(number_value=_to_number(value, path))
        case str():
            return Value(string_value=value)
        case Mapping():
            return Value(struct_value=_to_struct(value, path, levels_left))
        case bytes() | bytearray():
            pass
        case Sequence():
            if levels_left == 0:
                raise ValueError(f"{path} is nested deeper than {NESTING_MAX} levels")
            items = [_to_value(item, f"{path}[{index}]", levels_left - 1) for index, item in enumerate(value)]
            return Value(list_value=ListValue(values=items))
    raise TypeError(f"{path} is of type {type(value).__name__}; use None, bool, int, float, str, a sequence or a mapping")


def _to_number(value: float, path: str) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{path} is {value}; only finite numbers can be sent")
    if abs(value) > INTEGER_MAX:
        raise ValueError(f"{path} is {value}, beyond ±2^53, where doubles are no longer exact; send it as a string")
    return float(value)
