"""What falls due keeps its order, whatever is added and taken away."""

from __future__ import annotations

import pytest
from gavel_rules.agenda import Agenda, Item
from hypothesis import given
from hypothesis import strategies as st

ITEMS = st.tuples(st.integers(0, 40), st.integers(0, 9), st.sampled_from("abc"))


def agenda_of(items: list[Item]) -> Agenda:
    """An agenda of these items, added in their order."""
    agenda = Agenda()
    for item in items:
        agenda.add(item)
    return agenda


@given(st.lists(ITEMS, unique=True), st.data())
def test_it_is_a_sorted_list(items: list[Item], data: st.DataObject) -> None:
    """Whatever was added and not removed is there in order, what is due by a time before what is not."""
    agenda = agenda_of(items)
    for item in data.draw(st.lists(st.sampled_from(items), unique=True)) if items else ():
        agenda.remove(item)
        items.remove(item)
    now_ms = data.draw(st.integers(0, 40))
    assert sorted(items) == agenda.items()
    assert [item for item in sorted(items) if item[0] <= now_ms] == agenda.until(now_ms)
    assert bool(items) == bool(agenda)
    assert not items or min(items) == agenda.first


@pytest.mark.parametrize("stride", [1, -1, 1201])
def test_thousands_keep_their_order(stride: int) -> None:
    """Added forwards, backwards or all over, many items are in order, also when every other one has been taken away."""
    items: list[Item] = [(number * stride % 2999, "") for number in range(2999)]
    agenda = agenda_of(items)
    assert sorted(items) == agenda.items()
    for item in items[::2]:
        agenda.remove(item)
    assert sorted(items[1::2]) == agenda.items()
    for item in items[1::2]:
        assert min(agenda.first, item) == agenda.first
        agenda.remove(item)
    assert not agenda


@pytest.mark.parametrize("absent", [(1, "a"), (2, "b"), (9, "")])
def test_what_is_not_there_cannot_be_removed(absent: Item) -> None:
    """To remove what was never added is an error, wherever its place would be, and changes nothing."""
    agenda = agenda_of([(2, "a"), (3, "a")])
    with pytest.raises(LookupError):
        agenda.remove(absent)
    assert [(2, "a"), (3, "a")] == agenda.items()
