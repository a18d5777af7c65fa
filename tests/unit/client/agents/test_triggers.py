"""Triggers: their filters, their windows, and files of triggers."""

from __future__ import annotations

from pathlib import Path

import pytest
from gavel.v1.common_pb2 import EVENT_CATEGORY_FACT_EVENT, EVENT_CATEGORY_PROPOSAL_EVENT, EventCategory
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import Checkpoint
from gavel_client import GavelClientError, PositionFile, Trigger, TriggerFileError, TriggerPositions, load_triggers
from gavel_client.agents.triggers import WINDOW_EVENTS_MAX, WINDOW_MS_MAX, TriggerWindows
from hypothesis import given
from hypothesis import strategies as st


def event(
    number: int, subject: str = "order/1", name: str = "OrderCreated", category: EventCategory.ValueType = EVENT_CATEGORY_FACT_EVENT
) -> Envelope:
    """Return an event as recorded in the log."""
    return Envelope(sequence_number=number, event_id=str(number), subject=subject, event_name=name, event_category=category)


@pytest.mark.parametrize(
    ("trigger", "matches"),
    [
        (Trigger("a"), True),
        (Trigger("a", categories=frozenset({EVENT_CATEGORY_FACT_EVENT})), True),
        (Trigger("a", categories=frozenset({EVENT_CATEGORY_PROPOSAL_EVENT})), False),
        (Trigger("a", event_names=("Parcel*", "Order*")), True),
        (Trigger("a", event_names=("order*",)), False),
        (Trigger("a", subjects=("order/*",)), True),
        (Trigger("a", subjects=("order/?",)), True),
        (Trigger("a", subjects=("order",)), False),
        (Trigger("a", event_names=("OrderCreated",), subjects=("parcel/*",)), False),
    ],
)
def test_filters(trigger: Trigger, matches: bool) -> None:
    """An empty filter passes all events; patterns match the whole text and are case-sensitive."""
    assert matches == trigger.matches(event(1))


def test_window_fires_once() -> None:
    """Matching events join an open window; an event at its close opens the next window."""
    windows = TriggerWindows([Trigger("orders", window_ms=100)], {}, 1)
    for number, now_ms in ((1, 1000.0), (2, 1099.0), (3, 1100.0)):
        windows.offer(event(number), now_ms)
    assert windows.due(1099) is None
    assert 1100 == windows.next_due_ms()
    firing = windows.due(1100)
    assert firing is not None
    assert [1, 2] == [one.sequence_number for one in firing.events]
    assert {"orders": 1} == windows.positions()
    windows.complete(firing)
    assert {"orders": 3} == windows.positions()
    assert 1200 == windows.next_due_ms()


def test_highest_priority_fires_first() -> None:
    """Of several due triggers the one with the highest priority fires first, whatever the order of their events."""
    windows = TriggerWindows([Trigger("low"), Trigger("high", subjects=("order/2",), priority=5)], {}, 1)
    windows.offer(event(1), 0)
    windows.offer(event(2, "order/2"), 1)
    order = []
    while (firing := windows.due(10)) is not None:
        order.append((firing.trigger.name, [one.sequence_number for one in firing.events]))
        windows.complete(firing)
    assert [("high", [2]), ("low", [1]), ("low", [2])] == order


def test_full_window_closes_at_once() -> None:
    """A window with the maximum number of events closes; the next event opens another window."""
    windows = TriggerWindows([Trigger("all", window_ms=WINDOW_MS_MAX)], {}, 1)
    for number in range(1, WINDOW_EVENTS_MAX + 2):
        windows.offer(event(number), float(number))
    firing = windows.due(WINDOW_EVENTS_MAX)
    assert firing is not None
    assert WINDOW_EVENTS_MAX == len(firing.events)
    assert WINDOW_EVENTS_MAX + 1 == windows.event_count


@given(
    count=st.integers(0, 30),
    stop=st.integers(0, 60),
    window_ms=st.integers(0, 5),
    other_ms=st.integers(0, 5),
    gap_ms=st.integers(0, 3),
)
def test_restart_handles_each_event_once(count: int, stop: int, window_ms: int, other_ms: int, gap_ms: int) -> None:
    """After a stop at any step, a restart from the stored positions handles each event once for each trigger."""
    triggers = [Trigger("one", window_ms=window_ms), Trigger("two", window_ms=other_ms, subjects=("order/2",), priority=1)]
    log = [event(number, f"order/{1 + number % 2}") for number in range(1, count + 1)]
    answered: list[tuple[str, int]] = []
    positions: dict[str, int] = {}
    steps = 0
    for last in (False, True):
        windows = TriggerWindows(triggers, positions, 1)
        now_ms = 0.0
        for one in [*log[windows.next_sequence_number - 1 :], None]:
            now_ms = now_ms + gap_ms if one is not None else now_ms + 100
            while (firing := windows.due(now_ms)) is not None and (last or steps < stop):
                answered += [(firing.trigger.name, event.sequence_number) for event in firing.events]
                windows.complete(firing)
                steps += 1
            if one is not None and (last or steps < stop):
                windows.offer(one, now_ms)
                steps += 1
            assert sum(len(window.events) for queue in windows._windows.values() for window in queue) == windows.event_count
        positions = windows.positions()
    expected = [("one", one.sequence_number) for one in log] + [("two", one.sequence_number) for one in log if one.subject == "order/2"]
    assert sorted(expected) == sorted(answered)


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "Orders"},
        {"name": "a", "window_ms": -1},
        {"name": "a", "window_ms": WINDOW_MS_MAX + 1},
        {"name": "a", "priority": 2**40},
    ],
)
def test_invalid_triggers(arguments: dict[str, object]) -> None:
    """The constructor of a trigger refuses an invalid name and numbers out of range."""
    with pytest.raises(ValueError, match=r"trigger's name|window_ms|priority"):
        Trigger(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="triggers is empty"):
        TriggerWindows([], {}, 1)
    with pytest.raises(ValueError, match="two triggers are called a"):
        TriggerWindows([Trigger("a"), Trigger("a")], {}, 1)


def test_trigger_file(tmp_path: Path) -> None:
    """A file can set every argument of a trigger."""
    file = tmp_path / "triggers.yaml"
    file.write_text(
        "triggers:\n"
        "  - name: new-orders\n"
        "    categories: [FACT_EVENT]\n"
        "    event_names: [OrderCreated]\n"
        "    subjects: ['order/*']\n"
        "    window_ms: 500\n"
        "    priority: 10\n"
        "  - {name: rest}\n"
    )
    orders = Trigger("new-orders", frozenset({EVENT_CATEGORY_FACT_EVENT}), ("OrderCreated",), ("order/*",), 500, 10)
    assert (orders, Trigger("rest")) == load_triggers(file)


def test_all_mistakes_of_a_trigger_file(tmp_path: Path) -> None:
    """The error lists every mistake with its place and a suggestion."""
    file = tmp_path / "t.yaml"
    file.write_text(
        "triggers:\n"
        "  - name: a\n    windowms: 5\n    categories: [FACTS]\n"
        "  - name: b\n    window_ms: soon\n"
        "  - {name: C, window_ms: -1, windowms: 5}\n  - {name: d}\n  - {name: d}\n"
        "more: 1\n"
    )
    known = ", ".join(name.removeprefix("EVENT_CATEGORY_") for name in EventCategory.keys()[1:])
    with pytest.raises(TriggerFileError) as caught:
        load_triggers(file)
    assert [
        f"{file}:3:5: unknown-key: windowms is not a key of a trigger (did you mean window_ms?)",
        f"{file}:4:18: unknown-category: FACTS is not a category (the categories are {known})",
        f"{file}:6:16: wrong-type: window_ms is not an integer",
        f"{file}:7:12: out-of-range: the trigger's name 'C' must be a lower-case letter and up to 63 characters of a-z, 0-9, _ and -",
        f"{file}:7:26: out-of-range: window_ms of C is -1; it must be between 0 and {WINDOW_MS_MAX}",
        f"{file}:7:30: unknown-key: windowms is not a key of a trigger (did you mean window_ms?)",
        f"{file}:9:12: duplicate-name: another trigger is named d (use unique names)",
        f"{file}:10:1: unknown-key: more is not a key of this file (the only key is triggers)",
    ] == list(caught.value.messages)


@pytest.mark.parametrize("text", ["", "[]", "triggers: 5", "triggers: [5]", "triggers: [{window_ms: 5}]", "triggers: [{name: 5}]", "a: &b"])
def test_files_without_triggers(tmp_path: Path, text: str) -> None:
    """A file without a list of triggers is an error with a place, not an empty list."""
    file = tmp_path / "t.yaml"
    file.write_text(text)
    with pytest.raises(TriggerFileError, match=rf"{file}:\d+:\d+: "):
        load_triggers(file)


def test_position_file(tmp_path: Path) -> None:
    """A position file returns the stored positions; a file with other content is an error and is not overwritten."""
    position = PositionFile(tmp_path / "position.json")
    assert TriggerPositions() == position.read()
    for last_read in (None, Checkpoint(sequence_number=8, chain_hash=b"8" * 32)):
        positions = TriggerPositions({"a": 7}, last_read)
        position.keep(positions)
        assert positions == PositionFile(tmp_path / "position.json").read()
    valid = (tmp_path / "position.json").read_text()
    for invalid in ("", "[]", '{"a": 7}', valid.replace("7", '"7"', 1), valid.replace("8", "0", 1), valid.replace("38", "xx", 1)):
        (tmp_path / "position.json").write_text(invalid)
        with pytest.raises(GavelClientError, match="remove it to start from the beginning"):
            position.read()
