"""Reading of test suites. It is a pure function of the text; `runner` checks what needs the rule set.

Every mistake of a suite is reported at once, each where its author wrote it, even if a case inherits it from another layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gavel_rules.authoring.suites.case_keys import COLUMNS, keys_beside, part_below, part_fields
from gavel_rules.authoring.suites.merged_case import MergedCase
from gavel_rules.authoring.suites.models import CasePart, ExecutionCase, ExpectCase
from gavel_rules.authoring.suites.suite import SUITE_KEYS, TABLE_KEYS, Suite, SuiteCase
from gavel_rules.language.document.diagnostics import DocumentError, Messages, Path
from gavel_rules.language.document.model_errors import describe_error, diagnostic_code, suggest_fix
from gavel_rules.language.document.source import Source
from gavel_rules.text import suggestion
from gavel_rules.values import problems

CASES_MAX: Final = 10_000
NAME_LENGTH_MAX: Final = 200

Mistake = tuple[Path, str, str, str]  # place, code, message, suggestion

_TEXT_KEYS: Final = ("tests", "description")
_FORMAT_HINTS: Final = {
    "now": 'write it in UTC, quoted, like "2026-01-31T12:00:00Z"',
    "subject": "write it like order/123",
    "key": "write it like order.status",
    "action": "write it like refund.create",
    "reason_code": "write it like ORDER_CANCELLED",
}
_TABLE_FORM: Final = "a table has a name, columns and rows"
_EMPTY_CASE: Final = CasePart(expect=ExpectCase(outcome="REJECTED"))


def read_suite(text: str) -> Suite:
    """Return the suite of a document, YAML or JSON. Raises DocumentError with every mistake, sorted by place."""
    messages = Messages()
    source = Source(text, messages)
    source.refuse_merge_keys(messages)
    suite = _SuiteReader(source, messages).read_suite()
    if len(messages) or suite is None:
        raise DocumentError(messages.sorted())
    return suite


def read_case(text: str, name: str) -> Suite:
    """Return a suite of one case from a document that holds the keys of a case, with or without `expect`.

    Raises DocumentError with every mistake, sorted by place.
    """
    messages = Messages()
    source = Source(text, messages)
    source.refuse_merge_keys(messages)
    suite = _SuiteReader(source, messages).read_case(name)
    if len(messages) or suite is None:
        raise DocumentError(messages.sorted())
    return suite


def suite_error(source: Source, mistakes: Iterable[Mistake]) -> DocumentError:
    """Return the error of a suite with these mistakes."""
    messages = Messages()
    for path, code, message, hint in mistakes:
        messages.add(source.locate_key(path), code, message, hint)
    return DocumentError(messages.sorted())


def _form(path: Path, error_type: str) -> str:
    """Return the form of a list or of a part with keys; "" of any other value, or if the value has that form."""
    if error_type == "list_type":
        return f"write a list, e.g. [{_FORMS[path[-1]]}]" if path[-1] in _FORMS else ""
    part = path[-1] if isinstance(path[-1], str) else path[-2]
    return f"write its keys, e.g. {_FORMS[part]}" if error_type == "model_type" and part in _FORMS else ""


# Examples of the parts of a case, of which some stand in lists.
_FORMS: Final[Mapping[str | int, str]] = {
    "earlier": "{age_ms: 60000}",
    "counters": "{counter: spent, value: 5}",
    "hint": "{key: order.status}",
    "derived": "{key: order.refunded, value: 5}",
    "expect": "{outcome: APPROVED}",
    "execution": "{status: SUCCESS}",
    "compensation": "{action: refund.cancel}",
    "producer": "{id: support-agent}",
}


class _SuiteReader:
    """Reads one suite and collects its mistakes in `messages`."""

    def __init__(self, source: Source, messages: Messages) -> None:
        self._source = source
        self._messages = messages
        self._names: dict[str, Path] = {}
        self._cases: list[SuiteCase] = []

    def read_suite(self) -> Suite | None:
        data = self._source.data
        if not isinstance(data, dict):
            if not len(self._messages):
                self._add((), "wrong-type", "the suite is not a mapping", "start with `gavel: v1`")
            return None
        self._check_keys(data, SUITE_KEYS, ())
        if "gavel" in data and data["gavel"] != "v1":
            self._add(("gavel",), "unknown-value", "gavel: the version of the format must be v1", "write `gavel: v1`", value=True)
        for name in ("gavel", "tests"):
            if name not in data:
                self._add((), "missing-key", f"the key {name} is missing", "add it")
        tests: Any = data.get("tests")
        files: list[Any] = tests if isinstance(tests, list) and tests and all(isinstance(file, str) for file in tests) else [tests]
        for name in _TEXT_KEYS:
            if not isinstance(files[0] if name == "tests" and name in data else data.get(name, ""), str):
                self._add((name,), "wrong-type", f"{name}: input should be a valid string", "quote it", value=True)
        defaults = MergedCase()
        for name, item in self._mapping(data.get("defaults"), ("defaults",)).items():
            defaults.patch((name,), item, ("defaults", name))
        for index, case in enumerate(self._list(data.get("cases"), ("cases",))):
            self._read_case(case, defaults, ("cases", index))
        for index, table in enumerate(self._list(data.get("tables"), ("tables",))):
            self._read_table(table, defaults, ("tables", index))
        if not self._cases and not len(self._messages):
            self._add((), "no-cases", "the suite has no cases", "add one under `cases` or `tables`")
        if len(self._messages):
            return None
        return Suite(files[0], tuple(files[1:]), data.get("description", ""), tuple(self._cases), self._source)

    def read_case(self, name: str) -> Suite | None:
        data = self._source.data
        if not isinstance(data, dict):
            if not len(self._messages):
                self._add((), "wrong-type", "the case is not a mapping", "start with `params:` or `facts:`")
            return None
        merged = MergedCase()
        for key, item in {"expect": {"outcome": "APPROVED"}, **data}.items():
            merged.patch((key,), item, (key,))
        self._add_case(name, merged, (), ())
        return Suite("", (), "", tuple(self._cases), self._source)

    # Cases and tables

    def _read_case(self, data: object, defaults: MergedCase, path: Path) -> None:
        case = self._mapping(data, path)
        if not case:
            self._refuse_empty(data, path, "the case", "give it a name and `expect`")
            return
        merged = defaults.copy()
        for name, item in case.items():
            if name != "name":
                merged.patch((name,), item, (*path, name))
        if "name" not in case:
            self._add(path, "missing-key", "the key name is missing", "say in a few words what must hold")
        else:
            self._add_case(case["name"], merged, path, (*path, "name"))

    def _read_table(self, data: object, defaults: MergedCase, path: Path) -> None:
        table = self._mapping(data, path)
        if not table:
            self._refuse_empty(data, path, "the table", _TABLE_FORM)
            return
        for name in TABLE_KEYS:
            if name not in table:
                self._add(path, "missing-key", f"the key {name} is missing", _TABLE_FORM)
        shared = defaults.copy()
        for name, item in table.items():
            if name not in TABLE_KEYS:
                shared.patch((name,), item, (*path, name))
        mistakes = len(self._messages)
        columns = [
            self._column(column, (*path, "columns", index))
            for index, column in enumerate(self._list(table.get("columns"), (*path, "columns")))
        ]
        for index, column in enumerate(columns):
            if column and column in columns[:index]:
                self._add((*path, "columns", index), "unknown-column", f"the column {'.'.join(column)} appears twice", "keep one of them")
        if len(self._messages) > mistakes or "name" not in table:
            return
        rows = self._list(table.get("rows"), (*path, "rows"))
        if "rows" in table and not rows:
            self._refuse_empty(table["rows"], (*path, "rows"), "the list of rows", "write a row for each case")
        for index, row in enumerate(rows):
            self._read_row(row, columns, shared, str(table["name"]), (*path, "rows", index))

    def _column(self, column: object, path: Path) -> tuple[str, ...]:
        """Return the path of a column in a case; () if it is reported as a mistake."""
        if not isinstance(column, str):
            self._add(path, "wrong-type", "the column is not a dotted name", "write it like params.amount")
            return ()
        steps = tuple(column.split("."))
        if steps == ("name",):
            return steps
        part: object = CasePart
        for depth, step in enumerate(steps):
            fields = part_fields(part)
            if not fields:
                break
            if step not in fields:
                prefix = ".".join((*steps[:depth], ""))
                names = sorted(prefix + name for name in (fields if depth else {"name", *COLUMNS}))
                hint = suggestion(".".join(steps[: depth + 1]), names, len(self._messages))
                self._add(path, "unknown-column", f"a case has no key {column}", hint)
                return ()
            part = part_below(part, step)
        return steps

    def _read_row(self, data: object, columns: list[tuple[str, ...]], shared_case: MergedCase, table: str, path: Path) -> None:
        cells = self._list(data, path)
        if len(cells) != len(columns):
            message = f"the row has {len(cells)} cells, but the table has {len(columns)} columns"
            self._add(path, "wrong-row", message, "write null in a cell that has no value")
            return
        merged = shared_case.copy()
        name = f"row {int(path[-1]) + 1}"
        for index, (column, cell) in enumerate(zip(columns, cells, strict=True)):
            if column == ("name",):
                if isinstance(cell, str):
                    name = cell
                elif cell is not None:
                    self._add((*path, index), "wrong-type", "name: input should be a valid string", "quote it", value=True)
            else:
                merged.patch(column, cell, (*path, index))
        self._add_case(f"{table}: {name}", merged, path, path)

    def _add_case(self, name: object, case_data: MergedCase, path: Path, place: Path) -> None:
        """Check a merged case and add it to the suite."""
        full = case_data.with_full_earlier()
        if not isinstance(name, str) or not name or len(name) > NAME_LENGTH_MAX or "\n" in name:
            message = f"the name is not one line of 1 to {NAME_LENGTH_MAX} characters"
            self._add(place, "wrong-type", message, "say in a few words what must hold", value=True)
            return
        if name in self._names:
            self._add(place, "duplicate-name", f"another case is named {name!r}", "names are unique in a suite", value=True)
            return
        self._names[name] = place
        if len(self._names) == CASES_MAX + 1:
            self._add(place, "too-many-cases", f"the suite has more than {CASES_MAX} cases", "split it")
        try:
            case = SuiteCase(name, CasePart.model_validate(full.data), path, full.origins)
        except ValidationError as error:
            for details in error.errors(include_url=False):
                self._report(details, SuiteCase(name, _EMPTY_CASE, path, full.origins))
            return
        mistakes = len(self._messages)
        self._check_case(case)
        if len(self._messages) == mistakes:
            self._cases.append(case)

    # Checks

    def _check_case(self, case: SuiteCase) -> None:
        """Report values that no event can carry, and names that the case does not define."""
        part = case.part
        try:
            now_ms = case.now_ms
        except ValueError:
            message = f"now: {part.now} is not a valid time"
            self._add(case.origin(("now",)), "wrong-type", message, "write it like 2026-01-31T12:00:00Z", value=True)
            return
        for name, fact in part.facts.items():
            for path, problem in problems(fact.value, f"facts.{name}"):
                self._add(
                    case.origin(("facts", name, "value")), "out-of-range", f"{path} {problem}", "an event cannot carry it", value=True
                )
            if fact.value is None and not fact.retracted:
                self._add(case.origin(("facts", name)), "missing-key", f"facts.{name} has no value", "add value, or retracted: true")
            if fact.retracted:
                self._refuse_together(case, name, "value", "retracted", "a retracted fact has no value")
                self._refuse_together(case, name, "tier", "retracted", "a retraction is a FACT, of tier 1")
            elif fact.tier is not None and fact.tier > 1:
                self._refuse_together(case, name, "max_age_ms", "tier", "only a FACT, of tier 1, sets a limit for itself")
            if fact.age_ms >= now_ms:
                message = f"facts.{name} would date from before 1970"
                self._add(case.origin(("facts", name, "age_ms")), "out-of-range", message, "reduce age_ms")
        for path, problem in problems(part.params, "params"):
            self._add(case.origin(("params",)), "out-of-range", f"{path} {problem}", "an event cannot carry it")
        for index, name in enumerate(part.cites or ()):
            if name not in part.facts:
                hint = suggestion(name, sorted(part.facts), len(self._messages))
                self._add(case.origin(("cites", index)), "unknown-name", f"the case has no fact {name}", hint)
        self._check_execution(case)

    def _refuse_together(self, case: SuiteCase, name: str, key: str, other: str, reason: str) -> None:
        """Report a key of a fact that has no effect beside another one. A key of another layer is inherited, and no mistake."""
        place, beside = case.origins.get(("facts", name, key)), case.origins.get(("facts", name, other))
        if place is not None and beside is not None and place[:-1] == beside[:-1]:
            self._add(place, "unknown-key", f"facts.{name}.{key} has no effect: {reason}", f"remove {key} or {other}")

    def _check_execution(self, case: SuiteCase) -> None:
        """Report an execution of a proposal that is not approved, and expected consequences without an execution."""
        part = case.part
        self._check_proposal_execution(case, (), part.execution, part.expect)
        for index, earlier in enumerate(part.earlier):
            self._check_proposal_execution(case, ("earlier", index), earlier.execution, earlier.expect)

    def _check_proposal_execution(self, case: SuiteCase, path: Path, execution: ExecutionCase | None, expect: ExpectCase) -> None:
        """Report these mistakes of one proposal, the case's own or an earlier one; `path` is its place in the case."""
        for at, problem in problems(execution.result, "execution.result") if execution is not None else ():
            self._add(case.origin((*path, "execution", "result")), "out-of-range", f"{at} {problem}", "an event cannot carry it")
        if execution is not None and expect.outcome != "APPROVED":
            message = f"only an approval can have an execution, but the case expects {expect.outcome}"
            self._add(case.origin((*path, "execution")), "not-carried-out", message, "remove `execution`, or expect APPROVED")
        for index, row in enumerate(expect.derived or ()):
            if not isinstance(row.value, str | bool | int | float | None):
                place = (*path, "expect", "derived", index, "value")
                message = f"{'.'.join(map(str, place))}: input should be a string, a number or a boolean"
                self._add(case.origin(place), "wrong-type", message, "no derivation gives any other type", value=True)
        for name in ("derived", "compensation", "review"):
            if execution is None and getattr(expect, name) is not None:
                place = (*path, "expect", name)
                message = f"{'.'.join(map(str, place))} needs a report, but its proposal has no execution"
                self._add(case.origin(place), "not-carried-out", message, "add `execution`")

    def _check_keys(self, data: Mapping[str, object], known: tuple[str, ...], path: Path) -> None:
        for name in data:
            if name not in known:
                self._add((*path, name), "unknown-key", f"no such key here: {name}", suggestion(name, list(known), len(self._messages)))

    def _refuse_empty(self, data: object, path: Path, what: str, hint: str) -> None:
        """Report an empty mapping or list; a value of another type is reported where it is read."""
        if data is None or data in ({}, []):
            self._add(path, "missing-key", f"{what} is empty", hint)

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

    def _report(self, details: ErrorDetails, case: SuiteCase) -> None:
        """Report an error of pydantic in a merged case at the place where its author wrote the value."""
        path = tuple(step for step in details["loc"] if step != "[key]")
        code = diagnostic_code(details["type"])
        name = ".".join(map(str, path))
        if code == "missing-key":
            self._add(case.origin(path[:-1]), code, f"the key {name} is missing", "add it")
        elif code == "unknown-key":
            known = keys_beside(path)
            is_expected = "expect" in known and path[-1] in ExpectCase.model_fields
            hint = "write it under `expect`" if is_expected else suggestion(str(path[-1]), known, len(self._messages))
            self._add(case.origin(path), code, f"no such key here: {path[-1]}", hint)
        elif code == "bad-name":
            message = f"{name} does not have the required form"
            self._add(case.origin(path), code, message, _FORMAT_HINTS.get(str(path[-1]), ""), value=True)
        else:
            hint = "" if details["input"] is None else _form(path, details["type"])
            self._add(case.origin(path), code, f"{name}: {describe_error(details)}", hint or suggest_fix(details), value=True)

    def _add(self, path: Path, code: str, message: str, hint: str, *, value: bool = False) -> None:
        """Add a mistake at a key, or with `value` at its value. Parts that could not be read are not reported again."""
        if path in self._source.broken_paths:
            return
        place = self._source.locate(path) if value else self._source.locate_key(path)
        self._messages.add(place, code, message, hint)
