"""Pages of a listing, and the opaque tokens that lead from one to the next (AIP-158).

A token holds where the next page starts and a hash of what was asked, so that one query's token is not taken for another's.
Tokens are not secret and nothing trusts them: a forged one can only start a page elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

from gavel_rules.limits import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX
from google.protobuf.message import Message

from gavel_server.errors import invalid

# A page ends early rather than outgrow the 4 MiB that gRPC clients take unless told otherwise; one event has at most 1 MiB.
PAGE_BYTES_MAX: Final = 2 * 1024 * 1024
TOKEN_LENGTH_MAX: Final = 1024

Position = tuple[str | int, ...]
Item = TypeVar("Item", bound=Message)


class Page(NamedTuple):
    """What a listing was asked for: how many items, and after which position (None: from the start)."""

    size: int
    after: Position | None
    query: str

    def token(self, position: Position) -> str:
        """Return the token of the page that follows `position`."""
        return base64.urlsafe_b64encode(json.dumps([self.query, *position], separators=(",", ":")).encode()).decode()


def page_of(page_size: int, page_token: str, query: Iterable[object], position: tuple[type, ...]) -> Page:
    """Return the page that a request asks for; `query` is everything that must not change from page to page.

    `position` gives the types of what a token holds. Raises ServiceError INVALID_ARGUMENT.
    """
    violations: list[tuple[str, str]] = []
    if not 0 <= page_size <= PAGE_SIZE_MAX:
        violations.append(("page_size", f"is not between 1 and {PAGE_SIZE_MAX} (0: {PAGE_SIZE_DEFAULT})"))
    digest = hashlib.sha256(repr(list(query)).encode()).hexdigest()[:16]
    after = None
    if page_token:
        after = _position(page_token, digest, position, violations)
    if violations:
        raise invalid(violations)
    return Page(page_size or PAGE_SIZE_DEFAULT, after, digest)


def fill(page: Page, items: Iterable[Item], position: Callable[[Item], Position]) -> tuple[list[Item], str]:
    """Return the first items that fit the page, and the token of the next page; "" if they were all.

    `items` start after the page's position, in order.
    """
    taken: list[Item] = []
    size_bytes = 0
    for item in items:
        size_bytes += item.ByteSize()
        if taken and (len(taken) == page.size or size_bytes > PAGE_BYTES_MAX):
            return taken, page.token(position(taken[-1]))
        taken.append(item)
    return taken, ""


def _position(token: str, digest: str, position: tuple[type, ...], violations: list[tuple[str, str]]) -> Position | None:
    try:
        if len(token) > TOKEN_LENGTH_MAX:
            raise ValueError
        query, *values = json.loads(base64.b64decode(token, altchars=b"-_", validate=True))
        if tuple(map(type, values)) != position:
            raise ValueError
    except (ValueError, TypeError, binascii.Error, RecursionError):
        violations.append(("page_token", "is not one that this call gave; begin without one"))
        return None
    if query != digest:
        violations.append(("page_token", "belongs to a call with other filters; repeat those, or begin without a token"))
        return None
    return tuple(values)
