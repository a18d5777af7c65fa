"""What a case of a suite expects, held against what was decided and what followed from the report of its execution.

What an expectation does not name is not compared. Everything that differs is named at once, as people read it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from gavel.v1.decision_pb2 import Decision, FactRequirement, FactRequirementState, Outcome
from gavel.v1.fact_pb2 import Fact

from gavel_rules.authoring.case_bus import CarriedOut
from gavel_rules.authoring.suite_parts import DerivedCase, ExpectCase, HintCase
from gavel_rules.values import struct_to_dict, value_to_python

_STATE_PREFIX: Final = "FACT_REQUIREMENT_STATE_"
_OUTCOME_PREFIX: Final = "OUTCOME_"

# What differs of what followed from a report; the decision itself may be as expected.
CONSEQUENCES: Final = frozenset({"derived", "compensation.action", "compensation.params", "review"})

Wanted = TypeVar("Wanted")
Found = TypeVar("Found")


class Difference(NamedTuple):
    """One thing that came out otherwise than expected, as people read it."""

    what: str  # e.g. "reason_code"
    expected: str
    found: str


def differences(expect: ExpectCase, decision: Decision, carried_out: CarriedOut | None) -> Iterator[Difference]:
    """Yield everything that differs. Without an execution nothing is said of what follows one."""
    outcome = Outcome.Name(decision.outcome).removeprefix(_OUTCOME_PREFIX)
    if outcome != expect.outcome:
        yield Difference("outcome", expect.outcome, outcome)
    for what, wanted, found in (
        ("reason_code", expect.reason_code, decision.reason_code),
        ("rule_id", expect.rule_id, decision.rule_id),
        ("conflict_key", expect.conflict_key, decision.conflict_key),
    ):
        if wanted is not None and wanted != found:
            yield Difference(what, _text(wanted), _text(found))
    if expect.terminal is not None and expect.terminal != decision.terminal:
        yield Difference("terminal", str(expect.terminal).lower(), str(decision.terminal).lower())
    for what, names, given in (
        ("matched", expect.matched, [match.rule_id for match in decision.rule_matches]),
        ("warnings", expect.warnings, [warning.code for warning in decision.warnings]),
    ):
        if names is not None and sorted(names) != sorted(given):
            yield Difference(what, _listed(names), _listed(given))
    rows = list(decision.retry_hint.fact_requirements)
    if expect.hint is not None and not _paired(expect.hint, rows, _fits):
        yield Difference("hint", _listed(map(_wanted_row, expect.hint)), _listed(map(_found_row, rows)))
    if carried_out is not None:
        yield from _after(expect, carried_out)


def _after(expect: ExpectCase, carried_out: CarriedOut) -> Iterator[Difference]:
    """Yield what differs of what followed from a report."""
    facts = list(carried_out.facts)
    if expect.derived is not None and not _paired(expect.derived, facts, _derived_so):
        wanted = [row.key if row.value is None else f"{row.key} {shown(row.value)}" for row in expect.derived]
        yield Difference("derived", _listed(wanted), _listed([f"{fact.key} {shown(value_to_python(fact.value))}" for fact in facts]))
    found = carried_out.compensation or Decision()
    if expect.compensation is not None:
        if expect.compensation.action != found.action_type:
            yield Difference("compensation.action", _text(expect.compensation.action), _text(found.action_type))
        elif expect.compensation.params is not None and not _same(expect.compensation.params, struct_to_dict(found.params)):
            yield Difference("compensation.params", shown(expect.compensation.params), shown(struct_to_dict(found.params)))
    if expect.review is not None and expect.review != carried_out.review:
        yield Difference("review", _text(expect.review), _text(carried_out.review))


def _derived_so(wanted: DerivedCase, fact: Fact) -> bool:
    return wanted.key == fact.key and (wanted.value is None or _same(wanted.value, value_to_python(fact.value)))


def _same(wanted: object, found: object) -> bool:
    """Whether two JSON values are one: numbers by what they are worth, and true is not 1."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return wanted.keys() == found.keys() and all(_same(item, found[name]) for name, item in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(_same, wanted, found))
    return isinstance(wanted, bool) == isinstance(found, bool) and wanted == found


def shown(value: object) -> str:
    """Return a JSON value as people read it: whole numbers without a fraction."""
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: _plain(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _paired(wanted: Sequence[Wanted], found: Sequence[Found], fits: Callable[[Wanted, Found], bool]) -> bool:
    """Whether expected and found rows can be paired, none being left over."""
    if len(wanted) != len(found):
        return False
    if not wanted:
        return True
    first, *others = wanted
    return any(fits(first, row) and _paired(others, [*found[:index], *found[index + 1 :]], fits) for index, row in enumerate(found))


def _fits(wanted: HintCase, row: FactRequirement) -> bool:
    return (
        wanted.key == row.key
        and wanted.state in (None, _state(row))
        and wanted.subject in (None, row.subject)
        and (wanted.sources is None or sorted(wanted.sources) == sorted(row.sources))
    )


def _state(row: FactRequirement) -> str:
    return FactRequirementState.Name(row.state).removeprefix(_STATE_PREFIX)


def _wanted_row(row: HintCase) -> str:
    parts = [row.key, row.state or "", f"of {row.subject}" if row.subject else ""]
    return " ".join(filter(None, [*parts, f"from {'/'.join(sorted(row.sources))}" if row.sources is not None else ""]))


def _found_row(row: FactRequirement) -> str:
    return " ".join([row.key, _state(row), f"of {row.subject}", f"from {'/'.join(row.sources) or 'any'}"])


def _text(value: str) -> str:
    return value or '""'


def _listed(items: Iterator[str] | list[str]) -> str:
    return f"[{', '.join(items)}]"
