"""A counter in two versions of a rule set: how long events count under each, and how old the earlier events of a history are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, Final

from gavel_rules.authoring.samples.attributes import BASE_TIME_MS
from gavel_rules.language.cel.checker import ScopedExpression
from gavel_rules.language.cel.syntax_tree import Node
from gavel_rules.language.cel.tree_queries import find_variables
from gavel_rules.language.cel.vocabulary import ValueType
from gavel_rules.language.cel.zones import decode_zone, encode_zone
from gavel_rules.language.counters.counter import LONGEST_UNIT_MS, VALUE_SOURCES, CompiledCounter, CounterError
from gavel_rules.language.rule_set import CompiledRuleSet

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_YEAR_MS: Final = 366 * 24 * _HOUR_MS
_STEP_MS: Final = 13 * _HOUR_MS  # between the times of a year at which calendars are compared
_STRETCH_TIMES_MAX: Final = 16  # at which calendars are compared between two changes of the clocks


class CounterVersions:
    """A counter in both versions; the same one twice if it was not edited, or if one version lacks it.

    `clock_changes_ms` are the times at which the clocks of either version's calendar change, ascending.
    """

    def __init__(self, before: CompiledCounter, after: CompiledCounter, clock_changes_ms: Sequence[int]) -> None:
        self.before: Final = before
        self.after: Final = after
        self._clock_changes_ms = clock_changes_ms

    def __iter__(self) -> Iterator[CompiledCounter]:
        return iter((self.before, self.after))

    @property
    def counts_facts(self) -> bool:
        """Whether either version counts facts or observations."""
        return any(counter.source in VALUE_SOURCES for counter in self)

    @cached_property
    def counts_differ(self) -> bool:
        """Whether the versions may count an event differently. Limits and the layout of expressions do not matter."""
        before, after = (
            (
                counter.source,
                counter.actions,
                counter.fact_keys,
                counter.aggregate,
                counter.is_whole,
                counter.scale,
                counter.is_reserved,
                *map(_meaning, counter.expressions),
            )
            for counter in self
        )
        return before != after or self._differing_lapse_ms(BASE_TIME_MS) is not None

    @property
    def limits_differ(self) -> bool:
        """Whether the versions may have room for different events."""
        before, after = ((counter.groups_max, counter.entries_max, counter.distinct_max) for counter in self)
        return before != after

    def telling_time_ms(self, now_ms: int) -> int:
        """Return a time at which events of some age count under one version only; `now_ms` if it is one, or if there is none.

        Otherwise it is in the year after `now_ms`, because two zones may have the same days for half a year, or around a change of the
        clocks, because an edited zone may have the same offsets until then.
        """
        if _lifetime_ms(self.before, now_ms) != _lifetime_ms(self.after, now_ms):
            return now_ms
        lapse_ms = self._differing_lapse_ms(now_ms)
        return now_ms if lapse_ms is None else lapse_ms

    def _differing_lapse_ms(self, start_ms: int) -> int | None:
        """Return the time at which the first of the versions stops counting an event that both do not count equally long."""
        for at_ms in chain(range(start_ms, start_ms + _YEAR_MS, _STEP_MS), self._times_of_clock_changes_ms(start_ms)):
            lapses = [_lapses_at_ms(counter, at_ms) for counter in self]
            if lapses[0] != lapses[1]:
                return min(lapses)
        return None

    def _times_of_clock_changes_ms(self, start_ms: int) -> Iterator[int]:
        """Yield times before, at and after each change of the clocks: first of the changes from `start_ms` on.

        If the offsets differ between two changes, the first unit that ends there ends at another time.
        """
        stretches = sorted(pairwise(self._clock_changes_ms), key=lambda stretch: (stretch[0] < start_ms, stretch))
        for begin_ms, end_ms in stretches:
            yield begin_ms - 1
            yield from range(begin_ms, end_ms, max((end_ms - begin_ms) // _STRETCH_TIMES_MAX, _MINUTE_MS))


def pair_counters(names: Iterable[str], old: CompiledRuleSet, new: CompiledRuleSet) -> dict[str, CounterVersions]:
    """Return counters by name. One that a version lacks is that of the other version."""
    documents = [json.loads(version.canonical_json) for version in (old, new)]
    return {
        name: CounterVersions(
            old.counters.get(name) or new.counters[name],
            new.counters.get(name) or old.counters[name],
            sorted({time_ms for document in documents for time_ms in _clock_changes_ms(name, document)}),
        )
        for name in names
    }


def _clock_changes_ms(name: str, document: Mapping[str, Any]) -> Iterator[int]:
    """Yield the times from which the offsets of a counter's zone hold, and that at which its data ends."""
    time_zone = document.get("counters", {}).get(name, {}).get("calendar", {}).get("time_zone", "")
    part = document.get("zones", {}).get(time_zone.removeprefix("zones."))
    zone = decode_zone(encode_zone(part["offsets"], part["until"])) if part is not None else None
    if zone is not None:
        yield from (minute * _MINUTE_MS for minute in (*zone.starts, zone.until))


def ages_ms(counters: Iterable[CounterVersions], now_ms: int) -> list[int]:
    """Return ages at `now_ms` of earlier events: those at which only one version counts them, now, and around the end of each lifetime."""
    lifetimes = [sorted(_lifetime_ms(counter, now_ms) for counter in versions) for versions in counters]
    middles = [(first + last) // 2 if first < last else first // 2 for first, last in lifetimes]
    edges = [edge for each in lifetimes for lifetime in each for edge in (lifetime - 1, lifetime)]
    return [age for age in dict.fromkeys([*middles, 0, *edges]) if age >= 0]


def is_counted(counter: CompiledCounter, recorded_at_ms: int, now_ms: int) -> bool:
    """Return whether an event that was recorded at a time still counts."""
    return _lapses_at_ms(counter, recorded_at_ms) > now_ms


def _lapses_at_ms(counter: CompiledCounter, recorded_at_ms: int) -> int:
    """Return the time from which an event no longer counts: that of the event itself outside of the counter's zone."""
    try:
        return counter.lapses_at_ms(recorded_at_ms)
    except CounterError:
        return recorded_at_ms


def _lifetime_ms(counter: CompiledCounter, now_ms: int) -> int:
    """Return for how long before `now_ms` recorded events count: the window, or the time since the hour, day, week or month began."""
    if counter.window_ms:
        return counter.window_ms
    counted, lapsed = 0, LONGEST_UNIT_MS
    while lapsed - counted > 1:
        middle = (counted + lapsed) // 2
        if is_counted(counter, now_ms - middle, now_ms):
            counted = middle
        else:
            lapsed = middle
    return counted


def _meaning(scoped: ScopedExpression | None) -> tuple[Node, dict[str, ValueType]] | None:
    """Return the tree of an expression and the types of the values that it reads: those of params come from the schema."""
    if scoped is None:
        return None
    tree = scoped.expression.tree
    return tree, dict(find_variables(tree, scoped.environment.types))
