"""JSON values: conversion between protobuf and Python, and the limits of values from outside.

Numbers stay floats, as on the wire; only a declared type turns them into integers. A value without `problems` is safe for both rule
engines. It has no NUL, at which CEL's Python binding cuts strings, no lone surrogate and no infinite number. Its depth exhausts no stack,
and a double holds each of its integers exactly.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.struct_pb2 import NULL_VALUE, Struct, Value

from gavel_rules.limits import TEXT_BYTES_MAX, VIOLATIONS_MAX

# Doubles, the numbers of a Struct, represent all integers up to here exactly.
INTEGER_MAX: Final = 2**53
VALUE_DEPTH_MAX: Final = 16
# Characters of the path of a problem, after the first problem: a compensation records the first one.
PATH_LENGTH_MAX: Final = 256


def struct_to_dict(struct: Struct) -> dict[str, object]:
    """Return a Struct as a dict of Python values, sorted by name: a protobuf map has another order in each process."""
    fields = struct.fields
    # `items` of a protobuf map is a Python generator and takes twice the time.
    return {name: value_to_python(fields[name]) for name in sorted(fields)}


def value_to_python(value: Value) -> object:
    """Return a Value as Python: None, bool, float, str, list or dict. A Value without a kind is None."""
    # Most values are strings and numbers. Fields of other kinds read as empty, so a field that is not empty tells the kind.
    text = value.string_value
    if text:
        return text
    number = value.number_value
    if number:
        return number
    match value.WhichOneof("kind"):
        case "string_value":
            return text
        case "number_value":
            return number
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return struct_to_dict(value.struct_value)
        case "list_value":
            return [value_to_python(item) for item in value.list_value.values]
    return None


def python_to_value(value: object) -> Value:
    """Return the Value of None, bool, int, float, str, list or dict. Raises TypeError for anything else."""
    answer = Value()
    _fill(answer, value)
    return answer


def struct_problems(struct: Struct, path: str, content: dict[str, object] | None = None) -> list[tuple[str, str]]:
    """Return (path, problem) for each limit that a Struct exceeds, and for each Value without a kind.

    `content` is the Struct as a dict, if it has been converted already.
    """
    if content is None:
        content = struct_to_dict(struct)
    found = problems(content, path)
    if _has_null(content):
        _find_kindless_in_struct(struct, _Place(None, path), found)
    return found


def value_problems(value: Value, path: str) -> list[tuple[str, str]]:
    """Return (path, problem) for each limit that a Value exceeds, and for each Value without a kind."""
    content = value_to_python(value)
    found = problems(content, path)
    if _has_null(content):
        _find_kindless(value, _Place(None, path), found)
    return found


def problems(value: object, path: str, depth: int = 0) -> list[tuple[str, str]]:
    """Return (path, problem) for each limit that a Python JSON value exceeds, at most VIOLATIONS_MAX.

    `depth` counts the containers around the value. The first path is exact; further ones are cut to PATH_LENGTH_MAX characters.
    """
    problems: list[tuple[str, str]] = []
    _find_problems(value, _Place(None, path), depth, problems)
    return problems


class _Place:
    """The path of a value, joined only if the value has a problem: names may be long, and values many."""

    def __init__(self, parent: _Place | None, name: str) -> None:
        self.parent: Final = parent
        self.name: Final = name

    def path(self) -> str:
        """Return the path as text."""
        names: list[str] = []
        place: _Place | None = self
        while place is not None:
            names.append(place.name)
            place = place.parent
        return "".join(reversed(names))


def _find_problems(value: object, place: _Place, depth: int, problems: list[tuple[str, str]]) -> None:
    if isinstance(value, (dict, list)):  # docs/performance.md#isinstance-tuples
        if depth >= VALUE_DEPTH_MAX:
            _add_problem(place, f"is nested deeper than {VALUE_DEPTH_MAX} levels", problems)
        elif isinstance(value, dict):
            _find_problems_of_dict(value, place, depth, problems)
        else:
            _find_problems_of_list(value, place, depth, problems)
        return
    problem = _scalar_problem(value)
    if problem:
        _add_problem(place, problem, problems)


def _find_problems_of_dict(value: dict[str, object], place: _Place, depth: int, problems: list[tuple[str, str]]) -> None:
    for name, item in value.items():
        problem = text_problem(name)
        if problem:
            _add_problem(place, f"a key {problem}", problems)
        # Only containers need a place of their own.
        if isinstance(item, (dict, list)):
            _find_problems(item, _Place(place, f".{name}"), depth + 1, problems)
        else:
            problem = _scalar_problem(item)
            if problem:
                _add_problem(_Place(place, f".{name}"), problem, problems)
        if len(problems) >= VIOLATIONS_MAX:
            return


def _find_problems_of_list(value: list[object], place: _Place, depth: int, problems: list[tuple[str, str]]) -> None:
    for index, item in enumerate(value):
        if isinstance(item, (dict, list)):
            _find_problems(item, _Place(place, f"[{index}]"), depth + 1, problems)
        else:
            problem = _scalar_problem(item)
            if problem:
                _add_problem(_Place(place, f"[{index}]"), problem, problems)
        if len(problems) >= VIOLATIONS_MAX:
            return


def _scalar_problem(value: object) -> str:
    if isinstance(value, str):
        return text_problem(value)
    if isinstance(value, bool) or value is None:
        return ""
    return number_problem(value) if isinstance(value, (int, float)) else ""


def _has_null(value: object) -> bool:
    """Return whether a Python JSON value holds None. Only then can the message that it comes from hold a Value without a kind."""
    if isinstance(value, dict):
        for item in value.values():
            if _has_null(item):
                return True
    elif isinstance(value, list):
        for item in value:
            if _has_null(item):
                return True
    return value is None


def _find_kindless(value: Value, place: _Place, problems: list[tuple[str, str]]) -> None:
    """Add a problem for each Value without a kind: ProtoJSON has no form for it, and some implementations refuse the whole message."""
    match value.WhichOneof("kind"):
        case None:
            _add_problem(place, "has no kind; null is null_value", problems)
        case "struct_value":
            _find_kindless_in_struct(value.struct_value, place, problems)
        case "list_value":
            for index, item in enumerate(value.list_value.values):
                _find_kindless(item, _Place(place, f"[{index}]"), problems)
                if len(problems) >= VIOLATIONS_MAX:
                    return


def _find_kindless_in_struct(struct: Struct, place: _Place, problems: list[tuple[str, str]]) -> None:
    for name in sorted(struct.fields):
        _find_kindless(struct.fields[name], _Place(place, f".{name}"), problems)
        if len(problems) >= VIOLATIONS_MAX:
            return


def _add_problem(place: _Place, problem: str, problems: list[tuple[str, str]]) -> None:
    if len(problems) >= VIOLATIONS_MAX:
        return
    path = place.path()
    if problems and len(path) > PATH_LENGTH_MAX:
        path = path[:PATH_LENGTH_MAX] + "…"
    problems.append((path, problem))


def text_problem(text: str) -> str:
    """Return the problem of a string, or ""."""
    if "\0" in text:
        return "holds a NUL character"
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        return "holds a lone surrogate"
    return "" if size_bytes <= TEXT_BYTES_MAX else f"is longer than {TEXT_BYTES_MAX} bytes of UTF-8"


def number_problem(number: int | float) -> str:
    """Return the problem of a number, or "". Integers are checked before any conversion to float, which would round them."""
    if -INTEGER_MAX <= number <= INTEGER_MAX:
        return ""
    if number != number or number in (float("inf"), float("-inf")):
        return "is not a finite number"
    return "is an integer beyond 2^53, which a double does not hold exactly" if number == int(number) else ""


def size_of(value: object) -> int:
    """Return the number of parts of a JSON value; 64 characters of text count as one part."""
    if isinstance(value, str):
        return 1 + len(value) // 64
    if isinstance(value, list):
        return 1 + sum([size_of(item) for item in value])
    if isinstance(value, dict):
        return 1 + sum([size_of(item) + len(name) // 64 for name, item in value.items()])
    return 1


def _fill(target: Value, value: object) -> None:
    if value is None:
        target.null_value = NULL_VALUE
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int | float):
        target.number_value = value
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, dict):
        fields = target.struct_value.fields
        target.struct_value.SetInParent()
        for name, item in value.items():
            _fill(fields[name], item)
    elif isinstance(value, list):
        target.list_value.SetInParent()
        for item in value:
            _fill(target.list_value.values.add(), item)
    else:
        raise TypeError(f"{type(value).__name__} is not a JSON value")
