"""Patterns of grants: a text in which `*` stands for any characters, none included. Everything else is literal.

Matching never backtracks. At worst its time is proportional to the product of the lengths of pattern and text.
"""

from __future__ import annotations

from typing import Final

ANY: Final = "*"


def matches(pattern: str, text: str) -> bool:
    """Return whether a pattern matches a text."""
    if ANY not in pattern:
        return pattern == text
    first, *middle, last = pattern.split(ANY)
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    place, end = len(first), len(text) - len(last)
    for part in middle:
        # The leftmost place leaves the most room for the parts that follow.
        index = text.find(part, place, end)
        if index < 0:
            return False
        place = index + len(part)
    return True


def covers(wide: str, narrow: str) -> bool:
    """Return whether every text that `narrow` matches is matched by `wide`. May return False for patterns with several `*`."""
    return wide in (ANY, narrow) or (narrow.count(ANY) <= 1 and matches(wide, narrow.replace(ANY, "\x00\x01")))
