"""Texts for people."""

from __future__ import annotations


def clipped(text: str, length_max: int) -> str:
    """Return a text of at most so many characters, the last of them … where it was longer."""
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"
