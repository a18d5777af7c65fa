"""Checks the counters of a document and compiles them.

A counter counts events of actions that its own document declares: their schemas give the params their types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from gavel_rules.language.cel.checker import Environment, ScopedExpression
from gavel_rules.language.cel.vocabulary import DOUBLE, DYN, FACT_TYPES, INT, Field, ValueType, counted_event_scope
from gavel_rules.language.cel.zones import Zone, decode_zone, encode_zone
from gavel_rules.language.counters.counter import (
    AGGREGATES,
    APPROVALS,
    COUNT,
    DISTINCT,
    EXECUTIONS,
    NEVER_MS,
    VALUE_SOURCES,
    CompiledCounter,
    CounterExpressions,
    aggregate_of,
)
from gavel_rules.language.document.canonical_form import compute_digest, to_canonical_json
from gavel_rules.language.document.diagnostics import Messages, Path
from gavel_rules.language.document.model_errors import is_misspelt
from gavel_rules.language.document.models import CalendarPart, CounterPart, RuleSetPart, matches_action, version_of, zones_of
from gavel_rules.language.document.params_schema import ParamsSchema
from gavel_rules.language.document.source import Source
from gavel_rules.language.expression_checker import ExpressionChecker
from gavel_rules.text import suggestion

# The keys that determine group and amount of an event.
_MEASURE: Final = frozenset((*AGGREGATES, "where", "by", "scale"))


class CheckedCounters(NamedTuple):
    """The counters of a document: those without mistakes, and the type of each, as far as it is known, for conditions."""

    compiled: Mapping[str, CompiledCounter]
    types: Mapping[str, ValueType]


def check_counters(
    part: RuleSetPart,
    schemas: Mapping[str, ParamsSchema | None],
    source: Source,
    messages: Messages,
    expressions: ExpressionChecker,
) -> CheckedCounters | None:
    """Return the counters of a document, and record the mistakes of the others. None in the language's first version."""
    if version_of(part) == 1:
        return None
    counters: Mapping[str, CounterPart] = getattr(part, "counters", {})
    compiled: dict[str, CompiledCounter] = {}
    types: dict[str, ValueType] = {}
    for name, counter in counters.items():
        checker = _CounterChecker(name, counter, part, schemas, source, messages, expressions)
        result = checker.check()
        if result is not None:
            compiled[name] = result
        types[name] = ValueType("counter", checker.value_type, size_max=_argument_count(source, name, counter))
    return CheckedCounters(compiled, types)


def _argument_count(source: Source, name: str, counter: CounterPart) -> int | None:
    """Return how many arguments a read of a counter has; None if a mistake may stand in for `by`."""
    if getattr(counter, "by", None) is not None:
        return 1
    document: Any = source.composed
    written = document["counters"][name]
    return 0 if isinstance(written, dict) and written.keys() <= CounterPart.model_fields.keys() - {"by"} else None


def _is_complete(part: CounterPart | CalendarPart) -> bool:
    """Return whether a part of the document has all its keys: those with a mistake are left out."""
    return all(hasattr(part, name) for name in type(part).model_fields)


class _CounterChecker:
    """Checks one counter. Attributes of its model may be missing: see `read_document`."""

    def __init__(
        self,
        name: str,
        part: CounterPart,
        document: RuleSetPart,
        schemas: Mapping[str, ParamsSchema | None],
        source: Source,
        messages: Messages,
        expressions: ExpressionChecker,
    ) -> None:
        self._name = name
        self._path: Path = ("counters", name)
        self._part = part
        self._document = document
        self._schemas = schemas
        self._source = source
        self._messages = messages
        self._expressions = expressions
        self._expanded: dict[str, str] = {}  # the expressions that use variables or constants, by key
        self._zone_text = ""  # the zone of the document by which the calendar goes
        self.value_type = DYN

    def check(self) -> CompiledCounter | None:
        """Return the counter, or record its mistakes and return None."""
        before = len(self._messages)
        part = self._part
        if not (_is_complete(part) and (part.calendar is None or _is_complete(part.calendar))):
            return None  # reported by `read_document`
        self._check_keys()
        zone = self._find_zone()
        actions = self._matched_actions()
        schemas = {action: schema for action in actions if (schema := self._schemas.get(action)) is not None}
        if len(self._messages) > before or len(schemas) < len(actions):
            return None  # a schema with a mistake is reported with its action
        if not actions and part.of not in VALUE_SOURCES:
            return None  # another key, which is reported, stands in for `action`
        environment = Environment(counted_event_scope(part.of, _shared_params(schemas), self._fact_type()), version=2)
        aggregate = aggregate_of(part)
        amount = None
        self.value_type = INT
        if aggregate != COUNT:
            amount = self._check_expression(environment, aggregate, "STRING" if aggregate == DISTINCT else "NUMBER")
            if aggregate != DISTINCT and (amount is None or amount.expression.result != "INT"):
                self.value_type = DYN if amount is None else DOUBLE
        where = self._check_expression(environment, "where", "BOOL")
        by = self._check_expression(environment, "by", "STRING")
        settle = None
        if part.settle is not None:
            reports = Environment(counted_event_scope(EXECUTIONS, _shared_params(schemas), DYN), version=2)
            settle = self._check_expression(reports, "settle", "STRING" if aggregate == DISTINCT else "NUMBER")
        if len(self._messages) > before:
            return None
        expressions = CounterExpressions(where, by, amount, settle)
        definition = self._definition(schemas)
        digest, measure = compute_digest(to_canonical_json(definition)), compute_digest(to_canonical_json(_measure_of(definition)))
        return CompiledCounter(self._name, digest, measure, part, expressions, schemas, self.value_type, zone)

    def _check_keys(self) -> None:
        """Record keys that are missing, or that contradict each other."""
        part = self._part
        source = getattr(part, "of", "")
        if source in VALUE_SOURCES:
            self._require("fact", f"a counter of {source} needs the keys of the facts", "add e.g. `fact: order.refunded`")
            self._refuse("action", f"a counter of {source} counts facts, not actions", "remove it; compare `value` or `producer.id`")
        elif source:
            self._require("action", f"a counter of {source} needs the actions that it counts", "add e.g. `action: refund.create`")
            self._refuse("fact", f"a counter of {source} counts actions, not facts", "remove it, or write `of: facts`")
        windows = [key for key in ("window_ms", "calendar") if self._is_given(key)]
        if not windows:
            self._require("window_ms", "the counter has no window", "add `window_ms`, or `calendar`")
        elif len(windows) == 2:
            self._refuse("calendar", "the counter has two windows", "remove `calendar` or `window_ms`")
        aggregates = [key for key in AGGREGATES if getattr(part, key, None) is not None]
        for key in aggregates[1:]:
            self._refuse(key, f"the counter already has `{aggregates[0]}`", "declare another counter")
        if getattr(part, "keep", None) is not None and source != APPROVALS:
            self._refuse("keep", "only approvals are reserved", "remove it, or write `of: approvals`")
        if getattr(part, "settle", None) is not None:
            if getattr(part, "keep", None) is None:
                self._refuse("settle", "only reserved approvals are settled", "add `keep: reserved`")
            elif not aggregates:
                self._refuse("settle", "a counted approval has no amount to settle", "add `sum`")

    def _require(self, key: str, message: str, hint: str) -> None:
        if not self._is_given(key):
            self._messages.add(self._source.locate_key(self._path), "missing-key", message, hint)

    def _is_given(self, key: str) -> bool:
        """Return whether the document has a value for a key, be it with a mistake that is reported already."""
        document: Any = self._source.composed
        written = document["counters"][self._name]
        is_broken = (*self._path, key) in self._source.broken_paths or is_misspelt(key, written, CounterPart)
        return is_broken or written.get(key) is not None

    def _refuse(self, key: str, message: str, hint: str) -> None:
        if getattr(self._part, key, None) is not None:
            self._messages.add(self._source.locate_key((*self._path, key)), "unknown-key", message, hint)

    def _matched_actions(self) -> list[str]:
        """Return the declared actions that the counter counts; record patterns that match none."""
        declared = sorted(self._schemas)
        matched: dict[str, None] = {}
        for index, pattern in enumerate(_names(self._part, "action")):
            names = [name for name in declared if matches_action(pattern, name)]
            if not names:
                message = f"no action under `actions` is {pattern}, so the counter could not read its params"
                place = self._source.locate_key((*self._path, "action", index))
                self._messages.add(place, "undeclared-action", message, suggestion(pattern, declared, len(self._messages)))
            matched.update(dict.fromkeys(names))
        return list(matched)

    def _fact_type(self) -> ValueType:
        """Return the type of the counted facts' values, as the document's actions declare it."""
        keys = _names(self._part, "fact")
        types = {
            getattr(fact, "type", None) or ""
            for action in self._document.actions.values()
            for fact in getattr(action, "facts", {}).values()
            if getattr(fact, "key", None) in keys
        }
        return FACT_TYPES.get(types.pop(), DYN) if len(types) == 1 else DYN

    def _check_expression(self, environment: Environment, key: str, result: str) -> ScopedExpression | None:
        text = getattr(self._part, key, None)
        if text is None:
            return None
        checked = self._expressions.check(environment, text, (*self._path, key), result, f"counter {self._name}")
        if checked is None:
            return None
        if checked.text != text:
            self._expanded[key] = checked.text
        return ScopedExpression(environment, checked)

    def _find_zone(self) -> Zone | None:
        """Return the zone by which the units of the counter's calendar begin; None for UTC. Record a mistake if the document lacks it."""
        time_zone: str = getattr(getattr(self._part, "calendar", None), "time_zone", "UTC")
        root, _, name = time_zone.partition(".")
        if root != "zones":
            return None if time_zone == "UTC" else Zone((0,), (time_zone,), NEVER_MS)
        zones = zones_of(self._document)
        if name in zones:
            self._zone_text = encode_zone(zones[name].offsets, zones[name].until)
            return decode_zone(self._zone_text)
        if name not in getattr(self._document, "zones", {}):
            place = self._source.locate((*self._path, "calendar", "time_zone"))
            known = suggestion(time_zone, [f"zones.{one}" for one in sorted(zones)], len(self._messages))
            self._messages.add(place, "unknown-name", f"there is no zone {name}", known or "declare it under `zones`")
        return None

    def _definition(self, schemas: Mapping[str, ParamsSchema]) -> Any:
        """Return all that determines what the counter counts: its keys except defaults, and the schemas of its actions."""
        document: Any = self._source.composed
        # A list of one name may be written as a text, which the model does not know.
        counted = {**self._part.model_dump(mode="json", exclude_defaults=True, warnings=False), **self._expanded}
        if self._zone_text:
            counted["calendar"] = {**counted["calendar"], "time_zone": self._zone_text}
        params = {name: document["actions"][name]["params"] for name in schemas}
        return json.loads(json.dumps({"counter": counted, "params": params, "value": self._fact_type().kind}))


def _names(part: CounterPart, key: str) -> list[str]:
    """Return the names under a key, which may be written as one text: see `read_document`."""
    names = getattr(part, key, None) or []
    return [names] if isinstance(names, str) else list(names)


def _measure_of(definition: Any) -> Any:
    """Return the part of a definition that determines the group and the amount of an event."""
    return {**definition, "counter": {key: value for key, value in definition["counter"].items() if key in _MEASURE}}


def _shared_params(schemas: Mapping[str, ParamsSchema]) -> ValueType:
    """Return the params that all actions declare with the same type; one that an action may lack is optional."""
    types = [schema.type for schema in schemas.values()]
    if not types:
        return ValueType("object")
    first, *others = types
    fields: dict[str, Field] = {}
    for name, field in first.fields.items():
        same = [other.fields.get(name) for other in others]
        if all(one is not None and one.type == field.type for one in same):
            fields[name] = Field(field.type, field.required and all(one is not None and one.required for one in same))
    return ValueType("object", fields=fields)
