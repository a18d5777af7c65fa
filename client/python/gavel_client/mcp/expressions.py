"""Expressions of the configuration: the subject of a call, and the fields that are read from a result. They are CEL.

The data comes from a model or from an upstream server and may be hostile. Its size and depth are limited, and the macros that loop
(`all`, `exists`, `map`, …) are not available, so an expression takes time that is linear in its input. Data that the library would
misread is refused: it cuts texts at NUL, which makes "admin" equal to "admin" with anything behind a NUL.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from gavel_client.mcp.errors import ExpressionError

EXPRESSION_LENGTH_MAX: Final = 1_024
DATA_LENGTH_MAX: Final = 64 * 1024
DATA_DEPTH_MAX: Final = 16
PROBLEM_LENGTH_MAX: Final = 500

SUBJECT_BYTES_MAX: Final = 256

_TYPE: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
# Characters of a subject's id that stand for themselves.
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:@+ -")
_SCALARS: Final = frozenset({"BOOL", "INT", "UINT", "DOUBLE", "STRING"})
# Functions of texts whose result can be much longer than their input.
_GROWING: Final = re.compile(r"\.\s*(replace|join|format)\s*\(")
_ENVIRONMENT: Final = """
extensions:
  - name: strings
stdlib:
  exclude_macros: [all, exists, exists_one, map, filter]
"""


class Expression:
    """One compiled expression over `arguments` and, for a field, `result`. Raises ExpressionError for one that does not compile."""

    def __init__(self, source: str, *, reads_result: bool) -> None:
        self.source: Final = source
        if len(source) > EXPRESSION_LENGTH_MAX:
            raise ExpressionError(f"the expression is longer than {EXPRESSION_LENGTH_MAX} characters")
        if "\0" in source:
            raise ExpressionError("the expression holds a NUL character; remove it")
        growing = _GROWING.search(source)
        if growing:
            raise ExpressionError(f"{growing[1]}() is not available here")
        try:
            self._compiled: Final = _environment(reads_result).compile(source)
        except RuntimeError as error:
            problem = str(error).removeprefix("INVALID_ARGUMENT: ")[:PROBLEM_LENGTH_MAX].splitlines()
            raise ExpressionError(problem[0] if problem else "the expression does not compile") from error

    def scalar(self, values: Mapping[str, object]) -> str | int | float | bool:
        """Return the value, a string, number or boolean. Raises ExpressionError if it cannot be evaluated or has a value of another type.

        `values` holds `arguments` and, for a field, `result` (JSON values).
        """
        _check_data(values)
        try:
            answer = self._compiled.eval(data=dict(values))
        except RuntimeError as error:
            raise ExpressionError(f"cannot evaluate {self.source}") from error
        kind = answer.type().name()
        if kind == "ERROR":
            raise ExpressionError(f"cannot evaluate {self.source}: {str(answer.value())[:PROBLEM_LENGTH_MAX]}")
        if kind not in _SCALARS:
            # The library miscounts references of null: such a value is not even looked at.
            raise ExpressionError(f"{self.source} gives {kind.lower()}, not a string, number or boolean")
        value: str | int | float | bool = answer.plain_value()
        if isinstance(value, float) and not math.isfinite(value):
            raise ExpressionError(f"{self.source} gives {value}, not a finite number")
        return value

    def subject(self, arguments: Mapping[str, object]) -> str:
        """Return the subject that the value names; see `to_subject`. Raises ExpressionError."""
        value = self.scalar({"arguments": dict(arguments)})
        subject = to_subject(value) if isinstance(value, str) else ""
        if not subject:
            raise ExpressionError(f'{self.source} does not give "type/id", where the type is of a-z 0-9 _ - and begins with a letter')
        return subject


def to_subject(text: str) -> str:
    """Return the subject for a text "type/id", whose id may hold any characters; "" if the text has another form.

    In the id, a character that no subject may hold becomes `~` and two hex digits for each of its bytes in UTF-8, as does `~` itself. An
    empty part between slashes becomes `~`, so the absolute path "file//etc/hosts" is "file/~/etc/hosts". A subject that would be too
    long has `~` and the SHA-256 of the text as its id. Different texts have different subjects.
    """
    kind, _, identity = text.partition("/")
    if not _TYPE.fullmatch(kind) or not identity:
        return ""
    subject = f"{kind}/" + "/".join("".join(map(_encode, part.encode())) or "~" for part in identity.split("/"))
    return subject if len(subject) <= SUBJECT_BYTES_MAX else f"{kind}/~{hashlib.sha256(text.encode()).hexdigest()}"


def _encode(byte: int) -> str:
    return chr(byte) if byte in _PLAIN else f"~{byte:02x}"


@cache
def _environment(reads_result: bool) -> Any:
    from cel_expr_python import cel

    names = ("arguments", "result") if reads_result else ("arguments",)
    return cel.NewEnv(config=cel.NewEnvConfigFromYaml(_ENVIRONMENT), variables={name: cel.Type("map<string,dyn>") for name in names})


def _check_data(values: object) -> None:
    """Raise ExpressionError for data that is too large, or that the library misreads."""
    remaining = DATA_LENGTH_MAX
    stack: list[tuple[object, int]] = [(values, 0)]
    while stack:
        value, depth = stack.pop()
        match value:
            case str():
                _check_text(value)
                remaining -= len(value)
            case Mapping():
                for key in value:
                    _check_text(str(key))
                    remaining -= len(str(key))
                stack.extend((item, depth + 1) for item in value.values())
            case list():
                stack.extend((item, depth + 1) for item in value)
        remaining -= 1
        if remaining < 0 or len(stack) > DATA_LENGTH_MAX:
            raise ExpressionError(f"the data is larger than {DATA_LENGTH_MAX} characters")
        if depth > DATA_DEPTH_MAX:
            raise ExpressionError(f"the data is nested deeper than {DATA_DEPTH_MAX} levels")


def _check_text(text: str) -> None:
    if "\0" in text:
        raise ExpressionError("a text in the data holds a NUL character")
    if not text.isascii() and any("\ud800" <= one <= "\udfff" for one in text):
        raise ExpressionError("a text in the data holds lone surrogates")
