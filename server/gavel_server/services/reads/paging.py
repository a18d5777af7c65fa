"""Pages of a listing, and the opaque tokens that lead from one page to the next (AIP-158).

A token holds the position where the next page starts and a hash of the query, so that a token of another query is refused. Tokens are not
secret and nothing trusts them: a forged token can only start a page elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import Final, NamedTuple, TypeVar

from gavel_rules.limits import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX
from google.protobuf.message import Message

from gavel_server.errors import invalid
from gavel_server.fairness.turns import call_slice

# A page ends before it outgrows the 4 MiB that gRPC clients accept by default; one event has at most 1 MiB.
PAGE_BYTES_MAX: Final = 2 * 1024 * 1024
# Items of a page that are built before other tasks run.
SLICE_ITEMS: Final = 64
# Records that are sorted before other tasks run: about a millisecond.
SORTED_RECORDS: Final = 4_096
TOKEN_LENGTH_MAX: Final = 1024

Position = tuple[str | int, ...]
Item = TypeVar("Item", bound=Message)
Record = TypeVar("Record")


class Page(NamedTuple):
    """The page that a request asks for: at most `size` items after a position (None: from the start)."""

    size: int
    after: Position | None
    query: str

    def token(self, position: Position) -> str:
        """Return the token of the page that follows `position`."""
        return base64.urlsafe_b64encode(json.dumps([self.query, *position], separators=(",", ":")).encode()).decode()


def page_of(
    page_size: int, page_token: str, query: Iterable[object], position: tuple[type, ...], page_size_default: int = PAGE_SIZE_DEFAULT
) -> Page:
    """Return the page that a request asks for. Raises ServiceError INVALID_REQUEST.

    `query` is the part of the request that must not change from page to page; `position` are the types of a token's position.
    """
    violations: list[tuple[str, str]] = []
    if not 0 <= page_size <= PAGE_SIZE_MAX:
        violations.append(("page_size", f"is not between 1 and {PAGE_SIZE_MAX} (0: {page_size_default})"))
    digest = hashlib.sha256(repr(list(query)).encode()).hexdigest()[:16]
    after = None
    if page_token:
        after = _position(page_token, digest, position, violations)
    if violations:
        raise invalid(violations)
    return Page(page_size or page_size_default, after, digest)


async def fill(
    page: Page, items: Iterable[Item], position: Callable[[Item], Position], caller: str, passes: Callable[[Item], bool] | None = None
) -> tuple[list[Item], str]:
    """Return the first items that fit into the page, and the token of the next page, or "" if no items are left.

    `items` come in order and start after the page's position; those that do not pass are left out. Other tasks may run between two of them.
    """
    page_items: list[Item] = []
    size_bytes = 0
    time_slice = call_slice(SLICE_ITEMS, caller)
    for item in items:
        if passes is not None and not passes(item):
            await time_slice.spend(1)
            continue
        size_bytes += item.ByteSize()
        if page_items and (len(page_items) == page.size or size_bytes > PAGE_BYTES_MAX):
            return page_items, page.token(position(page_items[-1]))
        page_items.append(item)
        await time_slice.spend(1)
    return page_items, ""


async def sort_in_turns(
    records: Iterable[Record], place: Callable[[Record], int], after: int, caller: str, passes: Callable[[Record], bool] | None = None
) -> Iterator[Record]:
    """Return the records after a place that pass, in order. Other tasks may run while they are sorted: the state may have a million.

    Which records there are is settled before this waits for the first time.
    """
    unsorted = list(records)
    time_slice = call_slice(SORTED_RECORDS, caller)
    parts: list[list[Record]] = []
    for first in range(0, len(unsorted), SORTED_RECORDS):
        if first:
            await time_slice.spend(SORTED_RECORDS)
        part = unsorted[first : first + SORTED_RECORDS]
        parts.append(sorted((one for one in part if place(one) > after and (passes is None or passes(one))), key=place))
    return merge(*parts, key=place)


def _position(token: str, digest: str, position: tuple[type, ...], violations: list[tuple[str, str]]) -> Position | None:
    try:
        if len(token) > TOKEN_LENGTH_MAX:
            raise ValueError
        query, *values = json.loads(base64.b64decode(token, altchars=b"-_", validate=True))
        if tuple(map(type, values)) != position:
            raise ValueError
    except (ValueError, TypeError, binascii.Error, RecursionError):
        violations.append(("page_token", "was not returned by this method; start without a token"))
        return None
    if query != digest:
        violations.append(("page_token", "belongs to a request with other filters; repeat those filters, or start without a token"))
        return None
    return tuple(values)
