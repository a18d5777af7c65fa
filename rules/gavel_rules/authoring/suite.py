"""Test suites of rule sets, `*_test.yaml`: what an author says must be decided, case by case (docs/rule-tests.md).

A case names its inputs as conditions do: `params`, `facts`, `proposal`, `subject`, `producer`, `trace`, `now`. Cases share
what they have in common by patching: the suite's `defaults`, then a table, then the case or row, each a JSON Merge Patch
(RFC 7386) on what came before. The merged case is checked as a whole, and whatever is wrong with it is reported where its
author wrote it, be it three layers up. Reading a suite is a pure function of its text; what needs the rule set, such as
whether a fact is declared, is looked at by `testing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import NoneType
from typing import Any, Final, NamedTuple, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gavel_rules.authoring.suite_parts import CasePart, EarlierCase, ExecutionCase, ExpectCase
from gavel_rules.language.document import DocumentError, advice, code_of_mistake, said
from gavel_rules.language.source import Messages, Path, Source
from gavel_rules.language.suggestions import suggestion
from gavel_rules.values import problems

CASES_MAX: Final = 10_000
SUITE_KEYS: Final = ("gavel", "tests", "description", "defaults", "cases", "tables")
TABLE_KEYS: Final = ("name", "columns", "rows")
SUITE_SUFFIXES: Final = ("_test.yaml", "_test.yml", "_test.json")


class SuiteCase(NamedTuple):
    """A case with everything that it inherits, and where its parts were written."""

    name: str
    part: CasePart
    path: Path  # of the case or row in the document
    origins: Mapping[Path, Path]  # of every part of the merged case

    @property
    def now_ms(self) -> int:
        """The time of the decision, in milliseconds since the epoch."""
        return instant_ms(self.part.now)

    def origin(self, path: Path) -> Path:
        """Return where in the document a part of the case was written; of what nobody wrote, where it would stand."""
        within: Path = ()  # of a list, which is taken over as it is
        while path and path not in self.origins:
            path, within = path[:-1], (path[-1], *within)
        return (*self.origins.get(path, self.path), *within)

    def says(self, path: Path) -> bool:
        """Whether the case itself, and not only what it inherits, says something of a part."""
        return any(merged[: len(path)] == path and origin[: len(self.path)] == self.path for merged, origin in self.origins.items())


class Suite(NamedTuple):
    """A suite as its author wrote it."""

    tests: str  # the rule set's file, relative to the suite's
    description: str
    cases: tuple[SuiteCase, ...]
    source: Source


def instant_ms(text: str) -> int:
    """Return an RFC 3339 time in UTC as milliseconds since the epoch; ValueError for a day that no calendar has."""
    moment = datetime.fromisoformat(text).astimezone(UTC)
    return round(moment.timestamp() * 1000)


def read_suite(text: str) -> Suite:
    """Return the suite of a document, YAML or JSON; DocumentError with every mistake of it, sorted by place."""
    messages = Messages()
    source = Source(text, messages)
    suite = _Reading(source, messages).read()
    if len(messages) or suite is None:
        raise DocumentError(messages.sorted())
    return suite


def read_case(text: str, name: str) -> Suite:
    """Return a suite of one case, which a document holds by itself: its keys, without name and with or without expect.

    DocumentError with every mistake of it, sorted by place.
    """
    messages = Messages()
    source = Source(text, messages)
    suite = _Reading(source, messages).read_case(name)
    if len(messages) or suite is None:
        raise DocumentError(messages.sorted())
    return suite


def mistaken(source: Source, mistakes: Iterable[tuple[Path, str, str, str]]) -> DocumentError:
    """Return the error of a suite that does not fit its rule set: (path, code, message, suggestion) of each mistake."""
    messages = Messages()
    for path, code, message, hint in mistakes:
        messages.add(source.key_place(path), code, message, hint)
    return DocumentError(messages.sorted())


_TEXTS: Final = ("tests", "description")
_Merged = tuple[dict[str, Any], dict[Path, Path]]


class _Reading:
    """Reads one suite. Goes on as far as it can: an author wants all mistakes at once."""

    def __init__(self, source: Source, messages: Messages) -> None:
        self._source = source
        self._messages = messages
        self._names: dict[str, Path] = {}
        self._cases: list[SuiteCase] = []

    def read(self) -> Suite | None:
        data = self._source.data
        if not isinstance(data, dict):
            if not len(self._messages):
                self._add((), "wrong-type", "a test suite is a mapping", "start with `gavel: v1`")
            return None
        self._check_keys(data, SUITE_KEYS, ())
        if "gavel" in data and data["gavel"] != "v1":
            self._add(("gavel",), "unknown-value", "gavel: the version of this format is v1", "write `gavel: v1`", value=True)
        for name in ("gavel", "tests"):
            if name not in data:
                self._add((), "missing-key", f"the key {name} is missing", "add it")
        for name in _TEXTS:
            if not isinstance(data.get(name, ""), str):
                self._add((name,), "wrong-type", f"{name}: input should be a valid string", "quote it", value=True)
        defaults = self._mapping(data.get("defaults"), ("defaults",))
        base: _Merged = ({}, {})
        for name, item in defaults.items():
            _apply(base, (name,), item, ("defaults", name))
        for index, case in enumerate(self._list(data.get("cases"), ("cases",))):
            self._read_case(case, base, ("cases", index))
        for index, table in enumerate(self._list(data.get("tables"), ("tables",))):
            self._read_table(table, base, ("tables", index))
        if not self._cases and not len(self._messages):
            self._add((), "no-cases", "the suite has no cases", "write one under `cases` or `tables`")
        if len(self._messages):
            return None
        return Suite(data["tests"], data.get("description", ""), tuple(self._cases), self._source)

    def read_case(self, name: str) -> Suite | None:
        data = self._source.data
        if not isinstance(data, dict):
            if not len(self._messages):
                self._add((), "wrong-type", "a case is a mapping", "start with `params:` or `facts:`")
            return None
        merged: _Merged = ({}, {})
        for key, item in {"expect": {"outcome": "APPROVED"}, **data}.items():
            _apply(merged, (key,), item, (key,))
        self._finish(name, merged, (), ())
        return Suite("", "", tuple(self._cases), self._source)

    def _read_case(self, data: object, base: _Merged, path: Path) -> None:
        case = self._mapping(data, path)
        if not case:
            return
        merged = _copy(base)
        for name, item in case.items():
            if name != "name":
                _apply(merged, (name,), item, (*path, name))
        if "name" not in case:
            self._add(path, "missing-key", "the key name is missing", "say in a few words what must hold")
        else:
            self._finish(case["name"], merged, path, (*path, "name"))

    def _read_table(self, data: object, base: _Merged, path: Path) -> None:
        table = self._mapping(data, path)
        if not table:
            return
        for name in TABLE_KEYS:
            if name not in table:
                self._add(path, "missing-key", f"the key {name} is missing", "a table has a name, columns and rows")
        shared = _copy(base)
        for name, item in table.items():
            if name not in TABLE_KEYS:
                _apply(shared, (name,), item, (*path, name))
        before = len(self._messages)
        columns = [
            self._column(column, (*path, "columns", index))
            for index, column in enumerate(self._list(table.get("columns"), (*path, "columns")))
        ]
        if len(self._messages) > before or "name" not in table:
            return
        for index, row in enumerate(self._list(table.get("rows"), (*path, "rows"))):
            self._read_row(row, columns, shared, str(table["name"]), (*path, "rows", index))

    def _read_row(self, data: object, columns: list[tuple[str, ...]], shared: _Merged, table: str, path: Path) -> None:
        cells = self._list(data, path)
        if len(cells) != len(columns):
            self._add(
                path,
                "wrong-row",
                f"the row has {len(cells)} cells, the table {len(columns)} columns",
                "write null where a cell says nothing",
            )
            return
        merged = _copy(shared)
        name = f"row {int(path[-1]) + 1}"
        for index, (column, cell) in enumerate(zip(columns, cells, strict=True)):
            if column == ("name",):
                name = cell if isinstance(cell, str) else name
            else:
                _apply(merged, column, cell, (*path, index))
        self._finish(f"{table}: {name}", merged, path, path)

    def _column(self, column: object, path: Path) -> tuple[str, ...]:
        """Return the path of a column in a case, with what is wrong with it reported."""
        if not isinstance(column, str):
            self._add(path, "wrong-type", "a column is a dotted name", "write it like params.amount")
            return ()
        steps = tuple(column.split("."))
        if steps == ("name",):
            return steps
        part: object = CasePart
        for depth, step in enumerate(steps):
            fields = _fields(part)
            if not fields:
                break
            if step not in fields:
                before = ".".join((*steps[:depth], ""))
                names = sorted(before + name for name in (fields if depth else {"name", *_DOTTED}))
                self._add(
                    path, "unknown-column", f"a case has no {column}", suggestion(".".join(steps[: depth + 1]), names, len(self._messages))
                )
                return ()
            part = _below(part, step)
        return steps

    def _finish(self, name: object, merged: _Merged, path: Path, place: Path) -> None:
        """Check a merged case and keep it."""
        data, origins = _with_earlier(merged)
        if not isinstance(name, str) or not name or len(name) > 200 or "\n" in name:
            self._add(place, "wrong-type", "a name is a line of 1 to 200 characters", "say in a few words what must hold", value=True)
            return
        if name in self._names:
            self._add(place, "duplicate-name", f"another case is named {name!r}", "names are unique in a suite", value=True)
            return
        self._names[name] = place
        if len(self._names) == CASES_MAX + 1:
            self._add(place, "too-many-cases", f"the suite has more than {CASES_MAX} cases", "split it")
        try:
            case = SuiteCase(name, CasePart.model_validate(data), path, origins)
        except ValidationError as error:
            for details in error.errors(include_url=False):
                self._report(details, SuiteCase(name, _NO_CASE, path, origins))
            return
        if self._sound(case):
            self._cases.append(case)

    def _sound(self, case: SuiteCase) -> bool:
        before = len(self._messages)
        part = case.part
        try:
            now_ms = case.now_ms
        except ValueError:
            self._add(case.origin(("now",)), "wrong-type", f"now: {part.now} is no time", "write it like 2026-01-31T12:00:00Z", value=True)
            return False
        for name, fact in part.facts.items():
            for path, problem in problems(fact.value, f"facts.{name}"):
                self._add(case.origin(("facts", name, "value")), "out-of-range", f"{path} {problem}", "no event can carry it", value=True)
            if fact.value is None and not fact.retracted:
                self._add(case.origin(("facts", name)), "missing-key", f"facts.{name} has no value", "add value, or retracted: true")
            if fact.age_ms >= now_ms:
                self._add(
                    case.origin(("facts", name, "age_ms")), "out-of-range", f"facts.{name} would be from before 1970", "make it younger"
                )
        for path, problem in problems(part.params, "params"):
            self._add(case.origin(("params",)), "out-of-range", f"{path} {problem}", "no event can carry it")
        for index, name in enumerate(part.cites or ()):
            if name not in part.facts:
                self._add(
                    case.origin(("cites", index)),
                    "unknown-name",
                    f"the case has no fact {name}",
                    suggestion(name, sorted(part.facts), len(self._messages)),
                )
        self._check_execution(case)
        return len(self._messages) == before

    def _check_execution(self, case: SuiteCase) -> None:
        """Report an execution of what is not approved, and expectations of what follows a report where there is none."""
        part = case.part
        executions: list[tuple[Path, ExecutionCase | None]] = [(("execution",), part.execution)]
        executions += [(("earlier", index, "execution"), earlier.execution) for index, earlier in enumerate(part.earlier)]
        for path, execution in executions:
            for at, problem in problems(execution.result, "execution.result") if execution is not None else ():
                self._add(case.origin((*path, "result")), "out-of-range", f"{at} {problem}", "no event can carry it")
        if part.execution is not None and part.expect.outcome != "APPROVED":
            message = f"only an approval is carried out, and {part.expect.outcome} is expected"
            self._add(case.origin(("execution",)), "not-carried-out", message, "take execution away, or expect APPROVED")
        for index, row in enumerate(part.expect.derived or ()):
            if not isinstance(row.value, str | bool | int | float | None):
                message = f"expect.derived.{index}.value: input should be a string, a number or a boolean"
                self._add(
                    case.origin(("expect", "derived", index, "value")), "wrong-type", message, "nothing else is ever derived", value=True
                )
        for name in ("derived", "compensation", "review"):
            if part.execution is None and getattr(part.expect, name) is not None:
                message = f"expect.{name} is about a report, and the case has none"
                self._add(case.origin(("expect", name)), "not-carried-out", message, "say under execution how it is reported")

    def _report(self, details: ErrorDetails, case: SuiteCase) -> None:
        """Report what pydantic found wrong with a merged case where its author wrote it."""
        at = tuple(step for step in details["loc"] if step != "[key]")
        code = code_of_mistake(details["type"])
        named = ".".join(map(str, at))
        if code == "missing-key":
            self._add(case.origin(at[:-1]), code, f"the key {named} is missing", "add it")
        elif code == "unknown-key":
            self._add(case.origin(at), code, f"no such key here: {at[-1]}", suggestion(str(at[-1]), _keys_beside(at), len(self._messages)))
        elif code == "bad-name":
            self._add(case.origin(at), code, f"{named} is not written as it should be", _WRITING.get(str(at[-1]), ""), value=True)
        else:
            self._add(case.origin(at), code, f"{named}: {said(details)}", advice(details), value=True)

    def _check_keys(self, data: Mapping[str, object], known: tuple[str, ...], path: Path) -> None:
        for name in data:
            if name not in known:
                self._add((*path, name), "unknown-key", f"no such key here: {name}", suggestion(name, list(known), len(self._messages)))

    def _mapping(self, data: object, path: Path) -> dict[str, Any]:
        if data is None or isinstance(data, dict):
            return data or {}
        self._add(path, "wrong-type", f"{'.'.join(map(str, path))} must be a mapping", "", value=True)
        return {}

    def _list(self, data: object, path: Path) -> list[Any]:
        if data is None or isinstance(data, list):
            return data or []
        self._add(path, "wrong-type", f"{'.'.join(map(str, path))} must be a list", "", value=True)
        return []

    def _add(self, path: Path, code: str, message: str, hint: str, *, value: bool = False) -> None:
        if path in self._source.broken:
            return
        place = self._source.place(path) if value else self._source.key_place(path)
        self._messages.add(place, code, message, hint)


_WRITING: Final = {
    "now": 'write it in UTC, quoted, like "2026-01-31T12:00:00Z"',
    "subject": "write it like order/123",
    "key": "write it like order.status",
    "action": "write it like refund.create",
    "reason_code": "write it like ORDER_CANCELLED",
}
_NO_CASE: Final = CasePart(expect=ExpectCase(outcome="REJECTED"))


def _keys_beside(path: Path) -> list[str]:
    """Return the keys that a case takes where `path` names one that it does not."""
    part: object = CasePart
    for step in path[:-1]:
        part = _below(part, str(step))
    return sorted(_fields(part))


def _below(part: object, step: str) -> object:
    """Return the type of what stands under a key of a part, or of the items where `part` is a type of lists or mappings."""
    fields = _fields(part)
    if not fields:
        return get_args(part)[-1]
    annotation: object = fields[step].annotation
    # Of what may be None only the other is meant.
    return (
        next((one for one in get_args(annotation) if one is not NoneType), annotation) if NoneType in get_args(annotation) else annotation
    )


def _fields(part: object) -> Mapping[str, FieldInfo]:
    """Return the fields of a part; none of a type that is no part."""
    return part.model_fields if isinstance(part, type) and issubclass(part, BaseModel) else {}


# The columns that a table may have: the parts of a case, and the keys of those that have some of their own.
_DOTTED: Final = frozenset(
    {*CasePart.model_fields, *(f"{name}.{key}" for name in CasePart.model_fields for key in _fields(_below(CasePart, name)))}
)


def _apply(merged: _Merged, path: tuple[str, ...], item: object, origin: Path) -> None:
    """Patch a merged case at `path` with what stands at `origin` of the document (RFC 7386)."""
    data, origins = merged
    if len(path) == 2 and path[0] == "facts" and item is not None and not isinstance(item, dict):
        path = (*path, "value")  # a bare value: what else is known of the fact stays
    for depth, step in enumerate(path[:-1]):
        if not isinstance(data.get(step), dict):
            data[step] = {}
            origins[path[: depth + 1]] = origin
        data = data[step]
    last = path[-1]
    if item is None:
        data.pop(last, None)
        return
    origins[path] = origin
    if not isinstance(item, dict):
        data[last] = item
        return
    if not isinstance(data.get(last), dict):
        data[last] = {}
    for name, inner in item.items():
        _apply(merged, (*path, name), inner, (*origin, name))


def _with_earlier(merged: _Merged) -> _Merged:
    """Return a merged case whose earlier proposals say in full what they patch."""
    data, origins = merged
    patches = data.get("earlier")
    if not isinstance(patches, list):
        return merged
    # How the case itself is carried out says nothing of those before it.
    shared = {name: data[name] for name in EarlierCase.model_fields if name in data and name != "execution"}
    full: list[object] = []
    for index, patch in enumerate(patches):
        earlier: _Merged = (_copied(shared), {})
        if isinstance(patch, dict):
            for name, item in patch.items():
                _apply(earlier, (name,), item, (*origins["earlier",], index, name))
        origins.update({("earlier", index, *path): origin for path, origin in earlier[1].items()})
        full.append(earlier[0] if isinstance(patch, dict) else patch)
    return {**data, "earlier": full}, origins


def _copy(merged: _Merged) -> _Merged:
    return _copied(merged[0]), dict(merged[1])


def _copied(data: dict[str, Any]) -> dict[str, Any]:
    return {name: _copied(item) if isinstance(item, dict) else item for name, item in data.items()}
