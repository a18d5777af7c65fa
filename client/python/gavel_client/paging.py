"""Walking through a list that comes in pages, as every list of the contract does (AIP-158).

async for page in pages(client.list_events, subject="order/1"):
    for envelope in page.envelopes: ...
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Protocol, TypeVar


class Page(Protocol):
    """What any listing answers; `next_page_token` is empty on the last page."""

    next_page_token: str


_Page = TypeVar("_Page", bound=Page)


async def pages(call: Callable[..., Awaitable[_Page]], **arguments: object) -> AsyncGenerator[_Page, None]:
    """Yield page after page of what a call of GavelClient lists, asked with these arguments. Raises what the call raises."""
    page = await call(**arguments)
    yield page
    while page.next_page_token:
        page = await call(**arguments, page_token=page.next_page_token)
        yield page


def sync_pages(call: Callable[..., _Page], **arguments: object) -> Iterator[_Page]:
    """Yield page after page of what a call of SyncGavelClient lists, asked with these arguments. Raises what the call raises."""
    page = call(**arguments)
    yield page
    while page.next_page_token:
        page = call(**arguments, page_token=page.next_page_token)
        yield page
