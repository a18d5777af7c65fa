"""JSON values between the contract's protobuf form and Python, and the limits that every value from outside must keep.

Numbers stay floats, as the wire has them; only a declared type turns them into integers. A value that passes
`value_problems` is safe for both rule engines: no NUL (CEL's Python binding cuts strings there), no lone surrogate, no
infinite number, no depth that could exhaust a stack, no integer that a double cannot hold exactly.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.struct_pb2 import NULL_VALUE, Struct, Value

from gavel_rules.limits import TEXT_BYTES_MAX

# Doubles, which is what a Struct holds, count exactly up to here.
INTEGER_MAX: Final = 2**53
VALUE_DEPTH_MAX: Final = 16


def struct_to_dict(struct: Struct) -> dict[str, object]:
    """Return a Struct as a dict of Python values."""
    fields = struct.fields
    # By key: `items` of such a map is a Python generator, at twice the cost.
    return {name: value_to_python(fields[name]) for name in fields}


def value_to_python(value: Value) -> object:
    """Return a Value as Python: None, bool, float, str, list or dict. A Value without a kind is None."""
    # Most are texts and numbers. Whatever a Value is not reads as empty: one that does not needs no asking which kind it is.
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
    """Return the Value of None, bool, int, float, str, list or dict; TypeError for anything else."""
    answer = Value()
    _fill(answer, value)
    return answer


def struct_problems(struct: Struct, path: str) -> list[tuple[str, str]]:
    """Return (path, problem) of everything in a Struct that is over a limit; empty when it is fine."""
    return problems(struct_to_dict(struct), path)


def value_problems(value: Value, path: str) -> list[tuple[str, str]]:
    """Return (path, problem) of everything in a Value that is over a limit; empty when it is fine."""
    return problems(value_to_python(value), path)


def problems(value: object, path: str, depth: int = 0) -> list[tuple[str, str]]:
    """Return (path, problem) of everything in a Python JSON value that is over a limit. `depth` counts its containers."""
    if isinstance(value, str):
        problem = text_problem(value)
        return [(path, problem)] if problem else []
    if isinstance(value, bool) or value is None:
        return []
    if isinstance(value, (int, float)):  # a union would be made anew at every look
        problem = number_problem(value)
        return [(path, problem)] if problem else []
    if depth >= VALUE_DEPTH_MAX:
        return [(path, f"is nested deeper than {VALUE_DEPTH_MAX} levels")]
    found: list[tuple[str, str]] = []
    if isinstance(value, dict):
        for name, item in value.items():
            problem = text_problem(name)
            if problem:
                found.append((path, f"a key {problem}"))
            # Most are texts and numbers: these need no path, unless something is wrong.
            if isinstance(item, str):
                problem = text_problem(item)
            elif isinstance(item, float):
                problem = number_problem(item)
            else:
                problem = ""
                found.extend(problems(item, f"{path}.{name}", depth + 1))
            if problem:
                found.append((f"{path}.{name}", problem))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found.extend(problems(item, f"{path}[{index}]", depth + 1))
    return found


def text_problem(text: str) -> str:
    """Return what is wrong with a string, or ""."""
    if "\0" in text:
        return "holds a NUL character"
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        return "holds a lone surrogate"
    return "" if size_bytes <= TEXT_BYTES_MAX else f"is longer than {TEXT_BYTES_MAX} bytes of UTF-8"


def number_problem(number: int | float) -> str:
    """Return what is wrong with a number, or "". An integer is judged as it is: as a float it would be rounded first."""
    if -INTEGER_MAX <= number <= INTEGER_MAX:
        return ""
    if number != number or number in (float("inf"), float("-inf")):
        return "is not a finite number"
    return "is an integer beyond 2^53, which a double does not hold exactly" if number == int(number) else ""


def size_of(value: object) -> int:
    """Return how many parts a JSON value has, with 64 characters of text counted as one."""
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
