"""What triggers match, how windows gather, and what a file of triggers may say."""

from __future__ import annotations

from pathlib import Path

import pytest
from gavel.v1.common_pb2 import EVENT_CATEGORY_FACT_EVENT, EVENT_CATEGORY_PROPOSAL_EVENT, EventCategory
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClientError, PositionFile, Trigger, TriggerFileError, load_triggers
from gavel_client.triggers import WINDOW_EVENTS_MAX, WINDOW_MS_MAX, TriggerWindows
from hypothesis import given
from hypothesis import strategies as st


def event(
    number: int, subject: str = "order/1", name: str = "OrderCreated", category: EventCategory.ValueType = EVENT_CATEGORY_FACT_EVENT
) -> Envelope:
    """Return an event as the log has it."""
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
def test_all_filters_have_to_pass(trigger: Trigger, matches: bool) -> None:
    """An empty filter passes all; patterns are of the whole text, and case counts."""
    assert matches == trigger.matches(event(1))


def test_a_window_gathers_and_fires_once() -> None:
    """What matches while the window is open joins; what comes as it closes opens the next one."""
    windows = TriggerWindows([Trigger("orders", window_ms=100)], {}, 1)
    for number, now_ms in ((1, 1000.0), (2, 1099.0), (3, 1100.0)):
        windows.offer(event(number), now_ms)
    assert windows.due(1099) is None
    assert 1100 == windows.next_due_ms()
    firing = windows.due(1100)
    assert firing is not None
    assert [1, 2] == [one.sequence_number for one in firing.events]
    assert {"orders": 1} == windows.positions()
    windows.answered(firing)
    assert {"orders": 3} == windows.positions()
    assert 1200 == windows.next_due_ms()


def test_the_highest_priority_goes_first() -> None:
    """Of what is due together the highest priority is answered first, whatever came first."""
    windows = TriggerWindows([Trigger("low"), Trigger("high", subjects=("order/2",), priority=5)], {}, 1)
    windows.offer(event(1), 0)
    windows.offer(event(2, "order/2"), 1)
    order = []
    while (firing := windows.due(10)) is not None:
        order.append((firing.trigger.name, [one.sequence_number for one in firing.events]))
        windows.answered(firing)
    assert [("high", [2]), ("low", [1]), ("low", [2])] == order


def test_a_full_window_closes_at_once() -> None:
    """A firing has a limit of events; the next one opens another window."""
    windows = TriggerWindows([Trigger("all", window_ms=WINDOW_MS_MAX)], {}, 1)
    for number in range(1, WINDOW_EVENTS_MAX + 2):
        windows.offer(event(number), float(number))
    firing = windows.due(WINDOW_EVENTS_MAX)
    assert firing is not None
    assert WINDOW_EVENTS_MAX == len(firing.events)
    assert WINDOW_EVENTS_MAX + 1 == windows.waiting


@given(
    count=st.integers(0, 30),
    stop=st.integers(0, 60),
    window_ms=st.integers(0, 5),
    other_ms=st.integers(0, 5),
    gap_ms=st.integers(0, 3),
)
def test_a_restart_loses_nothing_and_repeats_no_answer(count: int, stop: int, window_ms: int, other_ms: int, gap_ms: int) -> None:
    """Whenever it stops, who goes on from the kept positions answers each event once for each trigger."""
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
                answered += [(firing.trigger.name, seen.sequence_number) for seen in firing.events]
                windows.answered(firing)
                steps += 1
            if one is not None and (last or steps < stop):
                windows.offer(one, now_ms)
                steps += 1
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
def test_triggers_that_make_no_sense(arguments: dict[str, object]) -> None:
    """A name that is none, and numbers out of range, are refused where the trigger is made."""
    with pytest.raises(ValueError, match=r"trigger's name|window_ms|priority"):
        Trigger(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no trigger"):
        TriggerWindows([], {}, 1)
    with pytest.raises(ValueError, match="two triggers are called a"):
        TriggerWindows([Trigger("a"), Trigger("a")], {}, 1)


def test_a_file_of_triggers(tmp_path: Path) -> None:
    """A file says what code can say."""
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


def test_all_mistakes_of_a_file_at_once(tmp_path: Path) -> None:
    """Every mistake is named with its place and what to do."""
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
        f"{file}:3:5: unknown-key: windowms is not known (did you mean window_ms?)",
        f"{file}:4:18: unknown-category: FACTS is no category (there are {known})",
        f"{file}:6:16: wrong-type: window_ms is not a whole number",
        f"{file}:7:12: out-of-range: the trigger's name 'C' is not a lower-case letter and up to 63 of a-z, 0-9, _ and -",
        f"{file}:7:26: out-of-range: window_ms of C is -1; it is between 0 and {WINDOW_MS_MAX}",
        f"{file}:7:30: unknown-key: windowms is not known (did you mean window_ms?)",
        f"{file}:9:12: duplicate-name: d is there already (names must differ)",
        f"{file}:10:1: unknown-key: more is not known here (only triggers is)",
    ] == list(caught.value.messages)


@pytest.mark.parametrize("text", ["", "[]", "triggers: 5", "triggers: [5]", "triggers: [{window_ms: 5}]", "triggers: [{name: 5}]", "a: &b"])
def test_files_that_hold_no_triggers(tmp_path: Path, text: str) -> None:
    """What is no list of triggers is refused with a place, never read as none."""
    file = tmp_path / "t.yaml"
    file.write_text(text)
    with pytest.raises(TriggerFileError, match=rf"{file}:\d+:\d+: "):
        load_triggers(file)


def test_a_position_file(tmp_path: Path) -> None:
    """What was kept is read again; a file that holds something else is refused, not overwritten."""
    position = PositionFile(tmp_path / "position.json")
    assert {} == position.read()
    position.keep({"a": 7})
    assert {"a": 7} == PositionFile(tmp_path / "position.json").read()
    (tmp_path / "position.json").write_text('{"a": "7"}')
    with pytest.raises(GavelClientError, match="remove it to begin anew"):
        position.read()
