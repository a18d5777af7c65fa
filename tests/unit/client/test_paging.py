"""Walking through pages."""

from __future__ import annotations

from gavel.v1.event_service_pb2 import ListEventsResponse
from gavel_client.paging import pages, sync_pages

PAGES = {"": "two", "two": "three", "three": ""}


def listed(*, subject: str, page_token: str = "") -> ListEventsResponse:
    """Answer as a server with three pages does."""
    assert "order/1" == subject
    return ListEventsResponse(next_page_token=PAGES[page_token])


async def listed_later(*, subject: str, page_token: str = "") -> ListEventsResponse:
    """Answer likewise, as a coroutine."""
    return listed(subject=subject, page_token=page_token)


async def test_every_page_is_asked_for_once() -> None:
    """Each page comes once and in order, asked for with the same arguments; the one without a token is the last."""
    expected = ["two", "three", ""]
    assert expected == [page.next_page_token for page in sync_pages(listed, subject="order/1")]
    assert expected == [page.next_page_token async for page in pages(listed_later, subject="order/1")]
