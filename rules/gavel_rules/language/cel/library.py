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

from gavel_rules.language.cel.expansion import Bodies
from gavel_rules.language.cel.functions import FUNCTIONS as ADDED
from gavel_rules.language.cel.functions import SUM, SUM_OVERLOADS
from gavel_rules.language.cel.syntax_tree import Node, decode
from gavel_rules.language.cel.zones import TIME_FIELDS
from gavel_rules.text import clip, suggestion

Report = Callable[[int, str, str, str], None]  # offset in the text, code, message, suggestion

FUNCTIONS: Final = sorted(
    {"size", "startsWith", "endsWith", "contains", "matches"}
    | {"lowerAscii", "upperAscii", "trim", "charAt", "indexOf", "lastIndexOf", "substring", "split", "reverse"}
    | {"timestamp", "duration", "int", "uint", "double", "string", "bytes"}
    | {"bool", "type", "dyn", "has", "all", "exists", "exists_one", "map", "filter"}
    | TIME_FIELDS
)
# Functions and macros that the language's second version adds.
ADDED_FUNCTIONS: Final = sorted({name for name, _ in ADDED} | {SUM, "replace", "join", "existsOne", "transformList"})
# Functions of the string extension whose results can grow to gigabytes, or may change with a release of the library. The second version
# bounds the results of two of them (`cost`).
UNSUPPORTED_FUNCTIONS: Final[Mapping[int, frozenset[str]]] = {
    1: frozenset({"replace", "join", "format", "quote"}),
    2: frozenset({"format", "quote", "transformMap", "transformMapEntry"}),
}
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
_CHOICE: Final = "_?_:_"
_NULL: Final = "null_type"
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
def library_config(version: int = 1) -> Any:
    """Return the library's environment for a version of the language: its functions, with comparisons across number types."""
    return cel.NewEnvConfigFromYaml("\n".join(_config_lines(version)))


@cache
def _bare(version: int = 1) -> Any:
    return cel.NewEnv(config=library_config(version))


def parse(text: str, version: int = 1) -> Node:
    """Return the syntax tree of an expression, names unresolved. Raises RuntimeError with the library's complaints."""
    return decode(_bare(version).compile(text, disable_check=True).serialize())


@cache
def compile_body(body: str, parameters: tuple[str, ...]) -> bytes:
    """Return the body of an added function, checked and serialized. Its parameters may have values of any type."""
    variables = dict.fromkeys(parameters, cel.Type("dyn"))
    serialized: bytes = cel.NewEnv(config=library_config(2), variables=variables).compile(body).serialize()
    return serialized


def _evaluate_body(serialized: bytes) -> object:
    """Return the value of a serialized expression that reads nothing; None if it fails. No added function gives null."""
    value = _bare(2).deserialize(serialized).eval(data={})
    return None if value.type().name() == "ERROR" else value.plain_value()


# What `expansion` needs of the library.
BODIES: Final = Bodies(compile_body, _evaluate_body)


# Functions whose argument is usually a literal text: an expression that tests the text, its kind, and how to write it.
_WRITTEN: Final[Mapping[str, tuple[str, str, str]]] = {
    "matches": ('"".matches', "regular expression", "look-around and back-references are not supported"),
    "duration": ("duration", "duration", 'write it like "36h" or "1h30m"'),
    "timestamp": ("timestamp", "time", 'write it like "2026-01-31T12:00:00Z"'),
}


def literal_problems(function: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield (message, suggestion) if a function fails on a literal text whenever it is evaluated."""
    if function in _WRITTEN:
        expression, what, hint = _WRITTEN[function]
        if _fails(f"{expression}({json.dumps(text, ensure_ascii=False)})"):
            yield f"{text!r} is not a valid {what}", hint


@lru_cache(1_000)
def _fails(source: str) -> bool:
    """Report whether an expression without variables fails."""
    try:
        return bool(_bare().compile(source).eval(data={}).type().name() == "ERROR")
    except RuntimeError:
        return True


def _config_lines(version: int) -> Iterator[str]:
    yield "extensions:"
    for name in ("strings",) if version == 1 else ("strings", "bindings", "math", "cel.lib.ext.comprev2"):
        yield f"  - name: {name}"
    yield "stdlib:"
    yield "  exclude_functions:"
    for name in (*_ORDERINGS, *_EQUALITIES, "@in", *((_CHOICE,) if version > 1 else ())):
        yield f'    - name: "{name}"'
    yield "functions:"
    mixed = [(left, right) for left in _NUMBERS for right in _NUMBERS if left != right]
    same = [(name, name) for name in (*_NUMBERS, "bool", "string", "bytes", "timestamp", "duration")]
    for number, name in enumerate(_ORDERINGS):
        yield from _function(name, f"ordering{number}", [(_plain(left), _plain(right)) for left, right in (*mixed, *same)])
    for number, name in enumerate(_EQUALITIES):
        overloads = [(_any("A"), _any("A")), *((_plain(left), _plain(right)) for left, right in mixed)]
        if version > 1:
            overloads += [pair for one in _values() for pair in ((one, _plain(_NULL)), (_plain(_NULL), one))]
        yield from _function(name, f"equality{number}", overloads)
    membership = [(_any("A"), _of("list", _any("A"))), (_any("A"), _of("map", _any("A"), _any("B")))]
    membership.extend((_plain(left), _of("list", _plain(right))) for left, right in mixed)
    yield from _function("@in", "membership", membership)
    if version > 1:
        yield from _choice()
        yield from _added()


def _values() -> list[list[str]]:
    """Return the types of values that a choice may mix, and that may be compared with null."""
    plain = [_plain(name) for name in ("int", "double", "bool", "string", "timestamp", "duration")]
    return [*plain, _of("list", _plain("dyn")), _of("map", _plain("dyn"), _plain("dyn"))]


def _choice() -> Iterator[str]:
    """Yield the declaration of ?: with alternatives of one type, or of two types that are known to differ."""
    values = [*_values(), _plain(_NULL)]
    yield f'  - name: "{_CHOICE}"'
    yield "    overloads:"
    yield from _overload("gavel_choice", [_plain("bool"), _any("A"), _any("A")], _any("A"))
    for number, (left, right) in enumerate((left, right) for left in values for right in values if left != right):
        yield from _overload(f"gavel_choice_{number}", [_plain("bool"), left, right], _plain("dyn"))


def _added() -> Iterator[str]:
    """Yield the declarations of the added functions. They have no implementation: see `expansion`."""
    overloads: dict[str, list[tuple[bool, tuple[str, ...], str]]] = {SUM: [(True, *overload) for overload in SUM_OVERLOADS]}
    for function in ADDED.values():
        overloads.setdefault(function.name, []).extend((function.is_member, *overload) for overload in function.overloads)
    for name, of_name in overloads.items():
        yield f'  - name: "{name}"'
        yield "    overloads:"
        for number, (is_member, parameters, result) in enumerate(of_name):
            types = [_written(parameter) for parameter in parameters]
            yield from _overload(f"gavel_{name}_{number}", types, _written(result), is_member=is_member)


def _overload(name: str, parameters: list[list[str]], result: list[str], *, is_member: bool = False) -> Iterator[str]:
    yield f'      - id: "{name}"'
    if is_member:
        yield "        target:"
        yield from (f"          {line}" for line in parameters[0])
        parameters = parameters[1:]
    yield "        args:" if parameters else "        args: []"
    for parameter in parameters:
        yield from (f"          {line}" for line in _item(parameter))
    yield "        return:"
    yield from (f"          {line}" for line in result)


def _written(name: str) -> list[str]:
    """Return the lines of a type in CEL's notation."""
    inner = name.removeprefix("list<")
    return _plain(name) if inner == name else _of("list", _plain(inner.removesuffix(">")))


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
        if reported and name.partition(".")[0] in names:
            return None  # the parenthesis of has(): the field that it tests is reported
        if name in FUNCTIONS or name in ADDED_FUNCTIONS:
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
        return "cel-syntax", *_explain_syntax(clip(_EXPECTED_MANY.sub("", message.removeprefix("Syntax error: ")), COMPLAINT_LENGTH_MAX))
    hint = _CALLS["has"] if message.startswith("has() argument") else "see the CEL language"
    return "cel-error", clip(message, COMPLAINT_LENGTH_MAX), hint


def _explain_overload(function: str, types: str) -> tuple[str, str]:
    operator = function.strip("_@").replace("_?_:", "?:").replace("[_", "[]")
    operand_types = types.removeprefix("(").removesuffix(")")
    message = f"{operator} cannot be applied to {operand_types}"
    kinds = set(operand_types.split(", "))
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
    if unexpected := _UNEXPECTED.fullmatch(message):
        text, expected = unexpected.groups()
        if text == _END:
            return f"the expression ends too early{f': {expected} is missing' if expected else ''}", "complete it"
        is_word = text.strip("'").isalpha()
        return f"unexpected {text}", "CEL writes &&, || and ! for and, or and not" if is_word else "see the CEL language"
    return message, "see the CEL language"
