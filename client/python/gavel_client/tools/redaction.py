"""Removal of secrets that a contract declares: JSON Pointers (RFC 6901) into {"arguments": …, "result": …}."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

REDACTED: Final = "[redacted]"
# Stands for every item of a list, and for every member of an object.
_EVERY: Final = "*"


def redact(value: Any, root: str, pointers: Iterable[str]) -> Any:
    """Return a copy of `value` with REDACTED in place of the values at the pointers under `/root`. Other pointers, and pointers to absent
    places, change nothing.
    """
    for pointer in pointers:
        first, *parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
        if first == root:
            value = _without(value, parts)
    return value


def _without(value: Any, parts: list[str]) -> Any:
    if not parts:
        return REDACTED
    part, *others = parts
    if isinstance(value, dict):
        return {name: _without(item, others) if part in (name, _EVERY) else item for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without(item, others) if part in (str(index), _EVERY) else item for index, item in enumerate(value)]
    return value
