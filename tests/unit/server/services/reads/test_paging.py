"""Cutting listings into pages."""

from __future__ import annotations

import asyncio

import pytest
from gavel.v1.projection_service_pb2 import PendingDecision
from gavel_server.errors import ServiceError
from gavel_server.services.reads.paging import PAGE_BYTES_MAX, SORTED_RECORDS, fill, page_of, sort_in_turns
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.integers(0, PAGE_BYTES_MAX // 2), max_size=12), st.integers(1, 5))
def test_pages_hold_each_item_once(sizes: list[int], page_size: int) -> None:
    """Whatever the sizes of the items, the pages of a listing hold each item once, in order, within the page limit."""
    items = [PendingDecision(sequence_number=number, subject="x" * size) for number, size in enumerate(sizes, 1)]
    numbers: list[int] = []
    token = ""
    while True:
        page = page_of(page_size, token, ("items",), (int,))
        after = page.after[0] if page.after else 0
        following = [item for item in items if item.sequence_number > int(after)]
        items_of_page, token = asyncio.run(fill(page, following, lambda item: (item.sequence_number,), "unix:"))
        assert len(items_of_page) <= page_size
        assert sum(item.ByteSize() for item in items_of_page) <= PAGE_BYTES_MAX
        numbers.extend(item.sequence_number for item in items_of_page)
        if not token:
            break
        assert items_of_page != []

    assert numbers == list(range(1, len(sizes) + 1))


async def test_other_tasks_run_while_many_records_are_sorted() -> None:
    """Records are sorted in parts, between which other tasks run; the answer is of the moment of the call, whatever these change."""
    records = {number * 7919 % 10_007: number * 7919 % 10_007 for number in range(10_007)}
    turns = 0

    async def change() -> None:
        nonlocal turns
        while True:
            turns += 1
            records.popitem()
            await asyncio.sleep(0)

    changing = asyncio.create_task(change())
    numbers = await sort_in_turns(records.values(), lambda record: record, 5_000, "unix:", lambda record: record % 2 == 0)
    changing.cancel()
    assert turns >= 10_007 // SORTED_RECORDS
    assert list(range(5_002, 10_007, 2)) == list(numbers)


@given(st.text())
def test_any_text_as_a_page_token(text: str) -> None:
    """Any text that is not a page token is refused as malformed, without an unexpected error."""
    if not text:
        return
    with pytest.raises(ServiceError, match="page_token"):
        page_of(0, text, ("items",), (int,))
