"""Texts that match a regular expression, for patterns of schemas and conditions.

Only plain patterns are understood; any other gives no text. No text is certain to match, so the caller checks it.
"""

from __future__ import annotations

import re
from typing import Final

from gavel_rules.authoring.samples.hints import TEXT_LENGTH_MAX

PATTERN_DEPTH_MAX: Final = 32
CHOICES_MAX: Final = 8

_ESCAPES: Final = {"d": "0", "w": "a", "s": " ", "b": "", "A": "", "z": "", "n": "\n", "t": "\t", "D": "a", "W": " ", "S": "a"}


def matching_texts(pattern: str) -> list[str]:
    """Return texts that a regular expression matches; each takes other alternatives of it. [] if the expression is not understood."""
    try:
        return list(dict.fromkeys(_PatternText(pattern, choice).text() for choice in range(CHOICES_MAX)))
    except (IndexError, ValueError):
        return []


class _PatternText:
    """Parses a regular expression into a short text that matches it: the n-th alternative, the fewest repetitions.

    Raises ValueError or IndexError if the pattern is not understood, or if the text would be too long.
    """

    def __init__(self, pattern: str, choice: int) -> None:
        self._pattern = pattern
        self._choice = choice
        self._position = 0
        self._depth = 0

    def text(self) -> str:
        text = self._alternatives()
        if self._position < len(self._pattern):
            raise ValueError(self._pattern)
        return text

    def _peek(self) -> str:
        return self._pattern[self._position] if self._position < len(self._pattern) else ""

    def _next(self) -> str:
        self._position += 1
        return self._pattern[self._position - 1]

    def _alternatives(self) -> str:
        self._depth += 1
        if self._depth > PATTERN_DEPTH_MAX:
            raise ValueError(self._pattern)
        texts = [self._sequence()]
        while self._peek() == "|":
            self._next()
            texts.append(self._sequence())
        self._depth -= 1
        return texts[self._choice % len(texts)]

    def _sequence(self) -> str:
        text = ""
        while self._peek() not in ("", "|", ")"):
            atom = self._atom()
            repetitions = self._repetitions()
            if len(text) + len(atom) * repetitions > TEXT_LENGTH_MAX:
                raise ValueError(self._pattern)
            text += atom * repetitions
        return text

    def _atom(self) -> str:
        character = self._next()
        if character == "(":
            opening = re.compile(r"\?(?:P?<\w+>|[a-zA-Z]*:)").match(self._pattern, self._position)
            if opening is not None:
                self._position = opening.end()
            elif self._peek() == "?":
                raise ValueError(self._pattern)
            inner = self._alternatives()
            if self._next() != ")":
                raise ValueError(self._pattern)
            return inner
        if character == "[":
            return self._character_class()
        if character == "\\":
            return _ESCAPES.get(escape := self._next(), escape)
        return {".": "a", "^": "", "$": ""}.get(character, character)

    def _character_class(self) -> str:
        is_negated = self._peek() == "^"
        self._position += is_negated
        members: list[tuple[str, str]] = []
        while not members or self._peek() != "]":
            first = self._member()
            last = first
            if self._peek() == "-" and self._pattern[self._position + 1] != "]":
                self._next()
                last = self._member()
            members.append((first, last))
        self._next()
        if not is_negated:
            return members[self._choice % len(members)][0]
        return next((one for one in "a1 _-A." if not any(first <= one <= last for first, last in members)), "§")

    def _member(self) -> str:
        character = self._next()
        return _ESCAPES.get(escape := self._next(), escape) if character == "\\" else character

    def _repetitions(self) -> int:
        least = 1
        match self._peek():
            case "*" | "?":
                self._next()
                least = 0
            case "+":
                self._next()
            case "{":
                count = re.compile(r"\{(\d+)(?:,\d*)?\}").match(self._pattern, self._position)
                if count is None:
                    return least
                least = min(int(count[1]), TEXT_LENGTH_MAX)
                self._position = count.end()
            case _:
                return least
        if self._peek() in ("?", "+"):  # lazy or possessive: the same texts match
            self._next()
        return least
