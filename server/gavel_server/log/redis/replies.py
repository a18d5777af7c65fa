"""The shapes of Redis's replies, and the size of the commands that ask for many keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from redis.exceptions import ReadOnlyError, ResponseError

# The most keys or ids in one call to Redis.
LOOKUPS_MAX: Final = 1000

Item = TypeVar("Item")


def chunks(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Split `items` into parts of at most LOOKUPS_MAX."""
    return (items[first : first + LOOKUPS_MAX] for first in range(0, len(items), LOOKUPS_MAX))


def pairs(flat: list[Any]) -> dict[bytes, Any]:
    """Return a flat reply, [name, value, name, value …], as a dict."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def reason(reply: Exception) -> str:
    """Return an error reply as Redis sent it, with its code in front."""
    code = getattr(reply, "status_code", None)
    return f"{code} {reply}" if code else str(reply)


def is_read_only(reply: object) -> bool:
    """Return whether a reply says that this Redis is a replica. Redis 6 wraps the refusal of a script in another error."""
    return isinstance(reply, ReadOnlyError) or (isinstance(reply, ResponseError) and "-READONLY" in str(reply))


def info_fields(text: bytes) -> dict[str, str]:
    """Return the reply of INFO, lines `name:value`, as a dict."""
    return dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
