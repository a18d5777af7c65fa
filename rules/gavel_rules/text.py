"""Text for people: truncation, escapes, and suggestions for unknown names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

SUGGESTED_MAX: Final = 100
KNOWN_NAMES_MAX: Final = 250
NAME_LENGTH_MAX: Final = 64


DID_YOU_MEAN: Final = "did you mean"


def suggestion(name: str, known: Sequence[str], reported: int = 0) -> str:
    """Return the nearest known name as a suggestion, all known names if they are few, or "".

    `reported` counts the mistakes reported so far. From SUGGESTED_MAX on the suggestion is "".
    """
    if reported >= SUGGESTED_MAX:
        return ""
    ordinary = [one for one in known[:KNOWN_NAMES_MAX] if len(one) <= NAME_LENGTH_MAX]
    near = get_close_matches(name, ordinary, n=1, cutoff=0.6) if len(name) <= NAME_LENGTH_MAX else []
    if near:
        return f"{DID_YOU_MEAN} {near[0]}?"
    return f"known: {', '.join(known)}" if 0 < len(known) <= 12 and len(known) == len(ordinary) else ""


def clip(text: str, length_max: int) -> str:
    """Return a text cut to `length_max` characters, with … as the last one if it was longer."""
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"


def printable(text: str) -> str:
    """Return a text with its control and format characters escaped, as they would forge lines or control a terminal."""
    return text if text.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def printable_json(text: str) -> str:
    """Return JSON text with the control and format characters in its strings escaped; line feeds between its values stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)
