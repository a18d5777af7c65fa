"""Iteration over pages."""

from __future__ import annotations

import pytest
from gavel.v1.event_service_pb2 import ListEventsResponse
from gavel.v1.projection_service_pb2 import GetProjectionResponse, Projection
from gavel_client.rpc.paging import pages, sync_pages, sync_whole_projection, whole_projection

PAGES = {"": "two", "two": "three", "three": ""}


def listed(*, subject: str, page_token: str = "") -> ListEventsResponse:
    """Return one of three pages."""
    assert "order/1" == subject
    return ListEventsResponse(next_page_token=PAGES[page_token])


async def listed_later(*, subject: str, page_token: str = "") -> ListEventsResponse:
    """Return one of three pages, as a coroutine function."""
    return listed(subject=subject, page_token=page_token)


async def test_every_page_is_requested_once() -> None:
    """Each page is requested once and in order, with the same arguments, until a page without a token."""
    expected = ["two", "three", ""]
    assert expected == [page.next_page_token for page in sync_pages(listed, subject="order/1")]
    assert expected == [page.next_page_token async for page in pages(listed_later, subject="order/1")]


class Subject:
    """A subject whose projection has three pages, read while the bus moves on at some of the calls."""

    def __init__(self, *moves: int) -> None:
        self.calls = 0
        self._moves = moves
        self._version = 1

    def read(self, *, subject: str, page_token: str = "") -> GetProjectionResponse:
        """Return a page."""
        self.calls += 1
        self._version += self.calls in self._moves
        assert "order/1" == subject
        page = Projection(subject=subject, projection_version=self._version)
        page.facts.add(key=page_token or "one")
        return GetProjectionResponse(projection=page, next_page_token=PAGES[page_token])

    async def read_later(self, *, subject: str, page_token: str = "") -> GetProjectionResponse:
        """Return a page, as a coroutine function."""
        return self.read(subject=subject, page_token=page_token)


@pytest.mark.parametrize(
    ("moves", "calls", "version"),
    [((), 3, 1), ((2,), 5, 2), ((3, 6), 9, 3), ((2, 4, 6), 7, 3)],
    ids=["rests", "moves once", "moves twice", "moves in each try"],
)
async def test_a_whole_projection(moves: tuple[int, ...], calls: int, version: int) -> None:
    """All pages are read again if the bus has moved on between two of them; the last try is combined under its lowest version."""
    subject, later = Subject(*moves), Subject(*moves)
    whole = sync_whole_projection(subject.read, subject="order/1")
    assert whole == await whole_projection(later.read_later, subject="order/1")
    assert (calls, calls, "") == (subject.calls, later.calls, whole.next_page_token)
    assert ["one", "two", "three"] == [one.key for one in whole.projection.facts]
    assert version == whole.projection.projection_version
