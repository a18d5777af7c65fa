"""What may be meant by a name that is not known."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return the nearest known name as a suggestion, or all of them when they are few, or ""."""
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    return f"known: {', '.join(known)}" if 0 < len(known) <= 12 else ""
