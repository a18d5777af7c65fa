"""What may be meant by a name that is not known.

Looking for the nearest name takes time by the square of the names' length, and a document may name thousands that nobody knows. So
it is done for names of ordinary length only, among as many, and for the first mistakes: whoever made more of them knows what is meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

SUGGESTED_MAX: Final = 100
KNOWN_MAX: Final = 250
NAME_LENGTH_MAX: Final = 64


def suggestion(name: str, known: Sequence[str], reported: int = 0) -> str:
    """Return the nearest known name as a suggestion, or all of them when they are few, or "".

    `reported` is how many mistakes there are already: from SUGGESTED_MAX on nothing is suggested.
    """
    if reported >= SUGGESTED_MAX:
        return ""
    ordinary = [one for one in known[:KNOWN_MAX] if len(one) <= NAME_LENGTH_MAX]
    near = get_close_matches(name, ordinary, n=1, cutoff=0.6) if len(name) <= NAME_LENGTH_MAX else []
    if near:
        return f"did you mean {near[0]}?"
    return f"known: {', '.join(known)}" if 0 < len(known) <= 12 and len(known) == len(ordinary) else ""
