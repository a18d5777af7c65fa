"""Comparison of what a case expects with its decision and the consequences of its execution.

A key that the expectation does not name is not compared. All differences are reported, as text for people.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from gavel.v1.decision_pb2 import CounterReading, Decision, FactRequirement, FactRequirementState, Outcome
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.authoring.suites.case_bus import Consequences
from gavel_rules.authoring.suites.models import CounterCase, DerivedCase, ExpectCase, HintCase
from gavel_rules.values import struct_to_dict, value_to_python

_STATE_PREFIX: Final = "FACT_REQUIREMENT_STATE_"
_OUTCOME_PREFIX: Final = "OUTCOME_"

# Parts of an expectation that are about consequences; the decision itself may be as expected.
CONSEQUENCE_PARTS: Final = frozenset({"derived", "compensation.action", "compensation.params", "review"})

Expected = TypeVar("Expected")
Actual = TypeVar("Actual")


class Difference(NamedTuple):
    """One part of a result that is not as expected, as text for people."""

    what: str  # e.g. "reason_code"
    expected: str
    found: str


def compare(expect: ExpectCase, decision: Decision, consequences: Consequences | None) -> Iterator[Difference]:
    """Yield all differences. Without consequences, the expected ones are not compared."""
    outcome = outcome_name(decision)
    if outcome != expect.outcome:
        yield Difference("outcome", expect.outcome, outcome)
    for what, expected, actual in (
        ("reason_code", expect.reason_code, decision.reason_code),
        ("rule_id", expect.rule_id, decision.rule_id),
        ("conflict_key", expect.conflict_key, decision.conflict_key),
    ):
        if expected is not None and expected != actual:
            yield Difference(what, _text(expected), _text(actual))
    if expect.terminal is not None and expect.terminal != decision.terminal:
        yield Difference("terminal", str(expect.terminal).lower(), str(decision.terminal).lower())
    for what, expected_ids, actual_ids in (
        ("matched", expect.matched, [match.rule_id for match in decision.rule_matches]),
        ("warnings", expect.warnings, [warning.code for warning in decision.warnings]),
    ):
        if expected_ids is not None and sorted(expected_ids) != sorted(actual_ids):
            yield Difference(what, _list(expected_ids), _list(actual_ids))
    details = struct_to_dict(decision.details)
    if expect.details is not None and not _equal(expect.details, details):
        yield Difference("details", _format(expect.details), _format(details))
    rows = list(decision.retry_hint.fact_requirements)
    if expect.hint is not None and not _pair_up(expect.hint, rows, _hint_fits):
        yield Difference("hint", _list(map(_format_expected_row, expect.hint)), _list(map(_format_row, rows)))
    retry_after_ms = decision.retry_hint.retry_after_ms
    if expect.retry_after_ms is not None and expect.retry_after_ms != retry_after_ms:
        yield Difference("retry_after_ms", str(expect.retry_after_ms), str(retry_after_ms))
    readings = list(decision.counters)
    if expect.counters is not None and not _pair_up(expect.counters, readings, _counter_fits):
        found = [_format_counter(row.counter, row.key, row.value) for row in readings]
        yield Difference("counters", _list(_format_counter(row.counter, row.key, row.value) for row in expect.counters), _list(found))
    if consequences is not None:
        yield from _compare_consequences(expect, consequences)


def outcome_name(decision: Decision) -> str:
    """Return the outcome of a decision as suites write it."""
    return Outcome.Name(decision.outcome).removeprefix(_OUTCOME_PREFIX)


def _compare_consequences(expect: ExpectCase, consequences: Consequences) -> Iterator[Difference]:
    facts = list(consequences.facts)
    if expect.derived is not None and not _pair_up(expect.derived, facts, _fact_fits):
        subject = consequences.report.subject
        actual = [_format_derived(one.fact.key, value_to_python(one.fact.value), one.subject, subject) for one in facts]
        yield Difference("derived", _list(_format_derived(row.key, row.value, row.subject, None) for row in expect.derived), _list(actual))
    compensation = consequences.compensation or Decision()
    if expect.compensation is not None:
        params = struct_to_dict(compensation.params)
        if expect.compensation.action != compensation.action_type:
            yield Difference("compensation.action", _text(expect.compensation.action), _text(compensation.action_type))
        elif expect.compensation.params is not None and not _equal(expect.compensation.params, params):
            yield Difference("compensation.params", _format(expect.compensation.params), _format(params))
    if expect.review is not None and expect.review != consequences.review:
        yield Difference("review", _text(expect.review), _text(consequences.review))


def _pair_up(expected: Sequence[Expected], actual: Sequence[Actual], fits: Callable[[Expected, Actual], bool]) -> bool:
    """Return whether each expected row can be paired with another actual row, with none left over."""
    if len(expected) != len(actual):
        return False
    paired: dict[int, int] = {}  # the expected row of each actual one
    candidates = [[place for place, row in enumerate(actual) if fits(one, row)] for one in expected]

    def pair(number: int, tried: set[int]) -> bool:
        """Pair an expected row; those that are paired already may move to another one (Kuhn's algorithm)."""
        for place in candidates[number]:
            if place not in tried:
                tried.add(place)
                if place not in paired or pair(paired[place], tried):
                    paired[place] = number
                    return True
        return False

    return all(pair(number, set()) for number in range(len(expected)))


def _fact_fits(expected: DerivedCase, envelope: Envelope) -> bool:
    fact = envelope.fact
    return (
        expected.key == fact.key
        and (expected.value is None or _equal(expected.value, value_to_python(fact.value)))
        and expected.subject in (None, envelope.subject)
    )


def _format_derived(key: str, value: object, subject: str | None, omitted: str | None) -> str:
    """Return a derived fact as text, without a subject that equals `omitted`."""
    parts = [key, "" if value is None else _format(value), "" if subject in (None, omitted) else f"of {subject}"]
    return " ".join(filter(None, parts))


def _hint_fits(expected: HintCase, row: FactRequirement) -> bool:
    return (
        expected.key == row.key
        and expected.state in (None, _state(row))
        and expected.subject in (None, row.subject)
        and (expected.sources is None or sorted(expected.sources) == sorted(row.sources))
    )


def _counter_fits(expected: CounterCase, reading: CounterReading) -> bool:
    return expected.counter == reading.counter and expected.key in (None, reading.key) and expected.value == reading.value


def _format_counter(counter: str, key: str | None, value: float) -> str:
    return f"{counter if key is None else f'{counter}({key})'} = {_format(value)}"


def _equal(expected: object, actual: object) -> bool:
    """Return whether two JSON values are equal: numbers by value, and true is not 1."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        return expected.keys() == actual.keys() and all(_equal(item, actual[name]) for name, item in expected.items())
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) == len(actual) and all(map(_equal, expected, actual))
    return isinstance(expected, bool) == isinstance(actual, bool) and expected == actual


def _state(row: FactRequirement) -> str:
    return FactRequirementState.Name(row.state).removeprefix(_STATE_PREFIX)


def _format_expected_row(row: HintCase) -> str:
    parts = [row.key, row.state or "", f"of {row.subject}" if row.subject else ""]
    return " ".join(filter(None, [*parts, f"from {'/'.join(sorted(row.sources))}" if row.sources is not None else ""]))


def _format_row(row: FactRequirement) -> str:
    return " ".join([row.key, _state(row), f"of {row.subject}", f"from {'/'.join(row.sources) or 'any'}"])


def _format(value: object) -> str:
    """Return a JSON value as text, whole numbers without a fraction."""
    return json.dumps(_without_fractions(value), ensure_ascii=False)


def _without_fractions(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_fractions(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_without_fractions(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _text(value: str) -> str:
    return value or '""'


def _list(items: Iterable[str]) -> str:
    return f"[{', '.join(items)}]"
