"""Iteration over the pages of a list; every list of the contract is paged (AIP-158).

async for page in pages(client.list_events, subject="order/1"):
    for envelope in page.envelopes: ...

The projection of a subject is paged, too: `whole_projection(client.get_projection, subject="order/1")` reads all pages at one version.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Final, Protocol, TypeVar

from gavel.v1.projection_service_pb2 import GetProjectionResponse

# How many times a projection is read from its first page if the bus moves between two pages.
PROJECTION_TRIES_MAX: Final = 3


class Page(Protocol):
    """A response of any listing; `next_page_token` is empty on the last page."""

    next_page_token: str


_Page = TypeVar("_Page", bound=Page)


async def pages(call: Callable[..., Awaitable[_Page]], **arguments: object) -> AsyncGenerator[_Page, None]:
    """Yield the pages of a listing method of GavelClient, called with `arguments`. Raises what the method raises."""
    page = await call(**arguments)
    yield page
    while page.next_page_token:
        page = await call(**arguments, page_token=page.next_page_token)
        yield page


def sync_pages(call: Callable[..., _Page], **arguments: object) -> Iterator[_Page]:
    """Yield the pages of a listing method of SyncGavelClient, called with `arguments`. Raises what the method raises."""
    page = call(**arguments)
    yield page
    while page.next_page_token:
        page = call(**arguments, page_token=page.next_page_token)
        yield page


async def whole_projection(call: Callable[..., Awaitable[GetProjectionResponse]], **arguments: object) -> GetProjectionResponse:
    """Return the whole projection of a subject; `call` is GavelClient.get_projection. Raises what the method raises.

    All pages have one version if the bus does not move while they are read, in one of PROJECTION_TRIES_MAX tries. Otherwise the pages of
    the last try are combined under the lowest of their versions; they may contain later events.
    """
    tries = 0
    while True:
        tries += 1
        read: list[GetProjectionResponse] = []
        async for page in pages(call, **arguments):
            read.append(page)
            if tries < PROJECTION_TRIES_MAX and _has_moved(read):
                break
        else:
            return _combine(read)


def sync_whole_projection(call: Callable[..., GetProjectionResponse], **arguments: object) -> GetProjectionResponse:
    """Return the whole projection of a subject, as `whole_projection` does; `call` is SyncGavelClient.get_projection."""
    tries = 0
    while True:
        tries += 1
        read: list[GetProjectionResponse] = []
        for page in sync_pages(call, **arguments):
            read.append(page)
            if tries < PROJECTION_TRIES_MAX and _has_moved(read):
                break
        else:
            return _combine(read)


def _has_moved(pages: list[GetProjectionResponse]) -> bool:
    return pages[0].projection.projection_version != pages[-1].projection.projection_version


def _combine(pages: list[GetProjectionResponse]) -> GetProjectionResponse:
    response = GetProjectionResponse()
    for page in pages:
        response.projection.MergeFrom(page.projection)
    response.projection.projection_version = min(page.projection.projection_version for page in pages)
    return response
