"""The CEL library as Gavel uses it: its environment, and its complaints as diagnostics.

The library's checker compares int with int and double with double only, although its evaluator compares mixed numbers. The
environment declares the mixed comparisons, so `params.amount <= 100` compiles whatever the type of `amount`. Arithmetic stays
strict, as in CEL. Of CEL's extensions, only string functions whose results are no longer than their arguments are allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, Final

from cel_expr_python import cel

from gavel_rules.language.cel.syntax_tree import Node, decode
from gavel_rules.text import clipped, suggestion

Report = Callable[[int, str, str, str], None]  # offset in the text, code, message, suggestion

TIME_FIELDS: Final = frozenset(
    [
        "getFullYear",
        "getMonth",
        "getDate",
        "getDayOfMonth",
        "getDayOfWeek",
        "getDayOfYear",
        "getHours",
        "getMinutes",
        "getSeconds",
        "getMilliseconds",
    ]
)
FUNCTIONS: Final = sorted(
    {"size", "startsWith", "endsWith", "contains", "matches"}
    | {"lowerAscii", "upperAscii", "trim", "charAt", "indexOf", "lastIndexOf", "substring", "split", "reverse"}
    | {"timestamp", "duration", "int", "uint", "double", "string", "bytes"}
    | {"bool", "type", "dyn", "has", "all", "exists", "exists_one", "map", "filter"}
    | TIME_FIELDS
)
# Functions of the string extension whose results can grow to gigabytes, or may change with a release of the library.
UNSUPPORTED_FUNCTIONS: Final = frozenset({"replace", "join", "format", "quote"})
COMPLAINT_LENGTH_MAX: Final = 200  # characters of the library's complaint that a message quotes
_ERROR: Final = re.compile(r"^(?:[A-Z_]+: )?ERROR: <input>:(\d+):(\d+): (.*?)(?: \[[A-Z_]+\])?$", re.MULTILINE)
_OVERLOAD: Final = re.compile(r"found no matching overload for '([^']+)' applied to '([^']*)'")
_NO_FIELDS: Final = re.compile(r"expression of type '([^']+)' cannot be the operand of a select operation")
_UNDECLARED: Final = re.compile(r"undeclared reference to '([^']+)'")
# The parser's words for syntax errors.
_EXPECTED_MANY: Final = re.compile(r" expecting \{.*\}")
_UNREAD: Final = re.compile(r"token recognition error at: '(.+)'", re.DOTALL)
_MISSING: Final = re.compile(r"missing (.+) at (.+)", re.DOTALL)
_UNEXPECTED: Final = re.compile(
    r"(?:mismatched input|extraneous input|no viable alternative at input) (.+?)(?: expecting (.+))?", re.DOTALL
)
_END: Final = "'<EOF>'"
# The lexer stops at a single "=".
_ASSIGNMENT: Final = re.compile(r"token recognition error at: '=")

_ORDERINGS: Final = ("_<_", "_<=_", "_>_", "_>=_")
_EQUALITIES: Final = ("_==_", "_!=_")
_NUMBERS: Final = ("int", "uint", "double")
# The counterparts of functions that other languages have.
_ELSEWHERE: Final = dict.fromkeys(("length", "len", "count"), "size(x) counts the characters of a text and the items of a list")
# The only form of each macro that the library accepts.
_CALLS: Final[Mapping[str, str]] = {
    **{
        name: f'write x.{name}(item, …), with a name for each item: x.{name}(item, item == "a")'
        for name in ("all", "exists", "exists_one", "filter")
    },
    "map": "write x.map(item, …), with a name for each item: x.map(item, item + 1)",
    "has": "has() tests a field: write has(facts.score)",
}


@cache
def library_config() -> Any:
    """Return the library's environment: its standard functions, with comparisons across number types."""
    return cel.NewEnvConfigFromYaml("\n".join(_config_lines()))


@cache
def _bare() -> Any:
    return cel.NewEnv(config=library_config())


def parse(text: str) -> Node:
    """Return the syntax tree of an expression, names unresolved. Raises RuntimeError with the library's complaints."""
    return decode(_bare().compile(text, disable_check=True).serialize())


# Functions whose argument is usually a literal text: an expression that tests the text, its kind, and how to write it.
_WRITTEN: Final[Mapping[str, tuple[str, str, str]]] = {
    "matches": ('"".matches', "regular expression", "look-around and back-references are not supported"),
    "duration": ("duration", "duration", 'write it like "36h" or "1h30m"'),
    "timestamp": ("timestamp", "time", 'write it like "2026-01-31T12:00:00Z"'),
}


def literal_problems(function: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield (message, suggestion) if a function errs on a literal text whenever it is evaluated."""
    if function in _WRITTEN:
        expression, what, hint = _WRITTEN[function]
        if _errs(f"{expression}({json.dumps(text)})"):
            yield f"{text!r} is not a valid {what}", hint


@lru_cache(1_000)
def _errs(source: str) -> bool:
    """Report whether an expression without variables errs."""
    try:
        return bool(_bare().compile(source).eval(data={}).type().name() == "ERROR")
    except RuntimeError:
        return True


def _config_lines() -> Iterator[str]:
    yield "extensions:"
    yield "  - name: strings"
    yield "stdlib:"
    yield "  exclude_functions:"
    for name in (*_ORDERINGS, *_EQUALITIES, "@in"):
        yield f'    - name: "{name}"'
    yield "functions:"
    mixed = [(left, right) for left in _NUMBERS for right in _NUMBERS if left != right]
    same = [(name, name) for name in (*_NUMBERS, "bool", "string", "bytes", "timestamp", "duration")]
    for number, name in enumerate(_ORDERINGS):
        yield from _function(name, f"ordering{number}", [(_plain(left), _plain(right)) for left, right in (*mixed, *same)])
    for number, name in enumerate(_EQUALITIES):
        overloads = [(_any("A"), _any("A")), *((_plain(left), _plain(right)) for left, right in mixed)]
        yield from _function(name, f"equality{number}", overloads)
    membership = [(_any("A"), _of("list", _any("A"))), (_any("A"), _of("map", _any("A"), _any("B")))]
    membership.extend((_plain(left), _of("list", _plain(right))) for left, right in mixed)
    yield from _function("@in", "membership", membership)


def _function(name: str, prefix: str, overloads: list[tuple[list[str], list[str]]]) -> Iterator[str]:
    yield f'  - name: "{name}"'
    yield "    overloads:"
    for number, parameters in enumerate(overloads):
        yield f'      - id: "gavel_{prefix}_{number}"'
        yield "        args:"
        for parameter in parameters:
            yield from (f"          {line}" for line in _item(parameter))
        yield "        return:"
        yield '          type_name: "bool"'


def _plain(name: str) -> list[str]:
    return [f'type_name: "{name}"']


def _any(name: str) -> list[str]:
    return [f'type_name: "{name}"', "is_type_param: true"]


def _of(name: str, *parameters: list[str]) -> list[str]:
    lines = [f'type_name: "{name}"', "params:"]
    for parameter in parameters:
        lines.extend(f"  {line}" for line in _item(parameter))
    return lines


def _item(lines: list[str]) -> list[str]:
    return [f"- {lines[0]}", *(f"  {line}" for line in lines[1:])]


def report_complaint(names: Collection[str], text: str, complaint: str, note: Report, *, reported: bool) -> None:
    """Report the library's complaints, each at its place, in clearer words for the known ones.

    `names` stand for values in this expression. If a mistake is `reported` already, complaints that may only be its consequences are left
    out.
    """
    if _TOO_DEEP.search(complaint):
        note(0, "too-complex", *NESTED_TOO_DEEP)
        return
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    is_reported = reported
    for line, column, message in _ERROR.findall(complaint):
        if int(line) > len(starts) or "*error*" in message:
            continue  # the library's marker behind an error, or a consequence of one
        offset = min(starts[int(line) - 1] + max(int(column) - 1, 0), max(len(text) - 1, 0))
        explained = _explain(names, message, is_call=text.startswith("(", offset), reported=reported)
        if explained is not None:
            is_reported = True
            note(offset, *explained)
    if not is_reported:
        note(0, "cel-error", "the expression cannot be compiled", "see the CEL language")


_TOO_DEEP: Final = re.compile("recursion (?:limit|depth)")
NESTED_TOO_DEEP: Final = (
    "the expression is nested too deep",
    "split it into several rules, or flatten it: parentheses, the terms of a sum and expanded variables all nest",
)


def _explain(names: Collection[str], message: str, *, is_call: bool, reported: bool) -> tuple[str, str, str] | None:
    """Return a complaint of the library as (code, message, suggestion); None for one that adds nothing."""
    undeclared = _UNDECLARED.search(message)
    if undeclared is not None:
        name = undeclared.group(1)
        if not is_call:
            return None if reported else ("unknown-name", f"there is no name {name}", "")
        if name in FUNCTIONS:
            return "unknown-function", f"{name} cannot be called like this", _CALLS.get(name, "see the CEL language")
        hint = f"{name} is a value: write it without parentheses" if name in names else _ELSEWHERE.get(name) or suggestion(name, FUNCTIONS)
        return "unknown-function", f"there is no function {name}", hint
    overload = _OVERLOAD.search(message)
    if overload is not None:
        function, types = overload.groups()
        return None if reported and function in ("_&&_", "_||_", "!_") else ("type-error", *_explain_overload(function, types))
    selected = _NO_FIELDS.search(message)
    if selected is not None:
        return "type-error", f"a {selected.group(1)} has no fields", ""
    if _ASSIGNMENT.search(message):
        return "cel-syntax", "= is not an operator of CEL", "write == to compare"
    if message.startswith("Syntax error: "):
        return "cel-syntax", *_explain_syntax(clipped(_EXPECTED_MANY.sub("", message.removeprefix("Syntax error: ")), COMPLAINT_LENGTH_MAX))
    hint = _CALLS["has"] if message.startswith("has() argument") else "see the CEL language"
    return "cel-error", clipped(message, COMPLAINT_LENGTH_MAX), hint


def _explain_overload(function: str, types: str) -> tuple[str, str]:
    operator = function.strip("_@").replace("_?_:", "?:").replace("[_", "[]")
    given = types.removeprefix("(").removesuffix(")")
    message = f"{operator} cannot be applied to {given}"
    kinds = set(given.split(", "))
    if function in ("_+_", "_-_", "_*_", "_/_", "_%_") and kinds <= set(_NUMBERS):
        return message, "arithmetic needs one type: write 2.0 instead of 2, or double(x)"
    if "null_type" in kinds:
        return message, "values are never null: test them with has(…)"
    if function in (*_ORDERINGS, *_EQUALITIES):
        return message, "compare values of one type; numbers compare with each other"
    return message, ""


def _explain_syntax(message: str) -> tuple[str, str]:
    """Return a syntax error of the parser as (message, suggestion)."""
    if unread := _UNREAD.fullmatch(message):
        text = unread.group(1)
        if text[:1] in "'\"":
            return f"the string is not closed: {text}", f"close it with {text[0]}"
        return f"{text} is not valid in CEL", "see the CEL language"
    if missing := _MISSING.fullmatch(message):
        what, before = missing.groups()
        return f"{what} is missing {'at the end' if before == _END else f'before {before}'}", "add it"
    if found := _UNEXPECTED.fullmatch(message):
        text, expected = found.groups()
        if text == _END:
            return f"the expression ends too early{f': {expected} is missing' if expected else ''}", "complete it"
        is_word = text.strip("'").isalpha()
        return f"unexpected {text}", "CEL writes &&, || and ! for and, or and not" if is_word else "see the CEL language"
    return message, "see the CEL language"
