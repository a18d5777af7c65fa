"""The tokens of an expression's text that matter for matching parentheses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_TOKEN: Final = re.compile(
    r"""(?P<text>[bB]?[rR][bB]?(?:'''[\s\S]*?'''|\"{3}[\s\S]*?\"{3}|'[^'\n]*'|"[^"\n]*")"""
    r"""|[bB]?(?:'''(?:\\[\s\S]|[^\\])*?'''|\"{3}(?:\\[\s\S]|[^\\])*?\"{3}|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"))"""
    r"""|(?P<comment>//[^\n]*)|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<word>\w+)|(?P<other>[\s\S])"""
)


def tokens(source: str, low: int, high: int) -> Iterator[re.Match[str]]:
    """Yield the tokens of a part of a text. `lastgroup` tells the kind: text, comment, open, close, word or other."""
    at = low
    while at < high:
        token = _TOKEN.match(source, at, high)
        if token is None:
            return
        yield token
        at = token.end()


def has_code(source: str, low: int, high: int) -> bool:
    """Return whether a part of a text has anything but comments and white space."""
    return any(token.lastgroup != "comment" and not token[0].isspace() for token in tokens(source, low, high))


def closing_offset(source: str, opening: int) -> int:
    """Return the offset of the parenthesis that closes the one at `opening`; the end of the text if none does."""
    depth = 0
    for token in tokens(source, opening, len(source)):
        depth += {"open": 1, "close": -1}.get(token.lastgroup or "", 0)
        if depth == 0:
            return token.start()
    return len(source)
