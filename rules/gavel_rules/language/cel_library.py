"""The CEL library as Gavel uses it: the environment it is given, and its complaints in our words.

The library compares int with int and double with double only; the environment declares the mixed comparisons that its
evaluator has anyway, so `params.amount <= 100` is right whatever the type of `amount`. Arithmetic stays strict, as CEL's is.
Of CEL's extensions there are the string functions whose results are no longer than what they are given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, Final

from cel_expr_python import cel

from gavel_rules.language.cel_syntax import Node, decode
from gavel_rules.language.suggestions import suggestion
from gavel_rules.texts import clipped

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
# Functions of the library's string extension that can make gigabytes out of two texts, or whose texts may change with a release.
UNSUPPORTED_FUNCTIONS: Final = frozenset({"replace", "join", "format", "quote"})
# What a message quotes of a complaint of the library.
COMPLAINT_LENGTH_MAX: Final = 200
_ERROR: Final = re.compile(r"^(?:[A-Z_]+: )?ERROR: <input>:(\d+):(\d+): (.*?)(?: \[[A-Z_]+\])?$", re.MULTILINE)
_OVERLOAD: Final = re.compile(r"found no matching overload for '([^']+)' applied to '([^']*)'")
_NO_FIELDS: Final = re.compile(r"expression of type '([^']+)' cannot be the operand of a select operation")
_UNDECLARED: Final = re.compile(r"undeclared reference to '([^']+)'")
# What the parser says of a syntax error.
_EXPECTED_MANY: Final = re.compile(r" expecting \{.*\}")
_UNREAD: Final = re.compile(r"token recognition error at: '(.+)'", re.DOTALL)
_MISSING: Final = re.compile(r"missing (.+) at (.+)", re.DOTALL)
_UNEXPECTED: Final = re.compile(
    r"(?:mismatched input|extraneous input|no viable alternative at input) (.+?)(?: expecting (.+))?", re.DOTALL
)
_END: Final = "'<EOF>'"
# A lexer that meets a single "=" stops there.
_ASSIGNMENT: Final = re.compile(r"token recognition error at: '=")

_ORDERINGS: Final = ("_<_", "_<=_", "_>_", "_>=_")
_EQUALITIES: Final = ("_==_", "_!=_")
_NUMBERS: Final = ("int", "uint", "double")
# What functions of other languages are here.
_ELSEWHERE: Final = dict.fromkeys(("length", "len", "count"), "size(x) counts the characters of a text and the items of a list")
# How what the library only knows in one form is written.
_CALLS: Final[Mapping[str, str]] = {
    **{
        name: f'write x.{name}(item, …), with a name for each item: x.{name}(item, item == "a")'
        for name in ("all", "exists", "exists_one", "filter")
    },
    "map": "write x.map(item, …), with a name for each item: x.map(item, item + 1)",
    "has": "write has(facts.score), with a field of something that is there",
}


@cache
def library_config() -> Any:
    """Return the library's environment: its standard library with comparisons across number types, and nothing optional."""
    return cel.NewEnvConfigFromYaml("\n".join(_config_lines()))


@cache
def _bare() -> Any:
    return cel.NewEnv(config=library_config())


def parse(text: str) -> Node:
    """Return the syntax tree of an expression, names unresolved; RuntimeError with the library's complaints."""
    return decode(_bare().compile(text, disable_check=True).serialize())


# Functions of a text that is mostly written out: how to try one, what it has to be, and how that is written.
_WRITTEN: Final[Mapping[str, tuple[str, str, str]]] = {
    "matches": ('"".matches', "regular expression", "there is no look-around and no back-reference"),
    "duration": ("duration", "length of time", 'write it like "36h" or "1h30m"'),
    "timestamp": ("timestamp", "time", 'write it like "2026-01-31T12:00:00Z"'),
}


def literal_problems(function: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield (message, suggestion) if a function can never take a text that is written out: whoever reads it would err each time."""
    if function in _WRITTEN:
        expression, what, hint = _WRITTEN[function]
        if _errs(f"{expression}({json.dumps(text)})"):
            yield f"{text!r} is no {what}", hint


@lru_cache(1_000)
def _errs(source: str) -> bool:
    """Whether an expression that reads nothing errs."""
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
    """Report the library's complaints, each at its place, in our words where we know the case.

    `names` stand for values at this place. `reported`: something is wrong already. Complaints that only follow from it are left out then.
    """
    if _TOO_DEEP.search(complaint):
        note(0, "too-complex", *NESTED_TOO_DEEP)
        return
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    said = reported
    for line, column, message in _ERROR.findall(complaint):
        if int(line) > len(starts) or "*error*" in message:
            continue  # the library's own marker behind an error, or a consequence of one
        offset = min(starts[int(line) - 1] + max(int(column) - 1, 0), max(len(text) - 1, 0))
        explained = _explain(names, message, is_call=text.startswith("(", offset), reported=reported)
        if explained is not None:
            said = True
            note(offset, *explained)
    if not said:
        note(0, "cel-error", "the expression cannot be compiled", "see the CEL language")


_TOO_DEEP: Final = re.compile("recursion (?:limit|depth)")
NESTED_TOO_DEEP: Final = (
    "the expression is nested too deep",
    "split it into several rules, or flatten it: parentheses, the terms of a sum and what is written out for a variable all nest",
)


def _explain(names: Collection[str], message: str, *, is_call: bool, reported: bool) -> tuple[str, str, str] | None:
    """Return a complaint of the library as (code, message, suggestion), None for one that says nothing new."""
    undeclared = _UNDECLARED.search(message)
    if undeclared is not None:
        name = undeclared.group(1)
        if not is_call:
            return None if reported else ("unknown-name", f"nothing is named {name}", "")
        if name in FUNCTIONS:
            return "unknown-function", f"{name} is not called like this", _CALLS.get(name, "see the CEL language")
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
        return "cel-syntax", "= is no operator of CEL", "write == to compare"
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
        return message, "nothing is null here: has(…) says whether it is there"
    if function in (*_ORDERINGS, *_EQUALITIES):
        return message, "compare values of one type; numbers compare with each other"
    return message, ""


def _explain_syntax(message: str) -> tuple[str, str]:
    """Return what the parser means, and what to do."""
    if unread := _UNREAD.fullmatch(message):
        text = unread.group(1)
        if text[:1] in "'\"":
            return f"a text begins here and does not end: {text}", f"close it with {text[0]}"
        return f"{text} means nothing in CEL", "see the CEL language"
    if missing := _MISSING.fullmatch(message):
        what, before = missing.groups()
        return f"{what} is missing {'at the end' if before == _END else f'before {before}'}", "add it"
    if found := _UNEXPECTED.fullmatch(message):
        text, expected = found.groups()
        if text == _END:
            return f"the expression ends too early{f': {expected} is missing' if expected else ''}", "complete it"
        is_word = text.strip("'").isalpha()
        return f"{text} does not belong here", "CEL writes &&, || and ! for and, or and not" if is_word else "see the CEL language"
    return message, "see the CEL language"
