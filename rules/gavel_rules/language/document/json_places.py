"""Finds the place of every part of a JSON text, for diagnostics.

Python's JSON reader gives no places, and the YAML reader takes ten times as long. One pass over the tokens is enough, because the JSON
reader has accepted the text.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from typing import Final

from ruamel.yaml.error import FileMark
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gavel_rules.language.document.diagnostics import Path
from gavel_rules.language.document.yaml_reader import DOCUMENT_DEPTH_MAX, Places


def find_places(text: str) -> Places:
    """Return the nodes of a JSON text, which must be valid, down to the first level that is too deep; mappings and lists are empty."""
    answer: Places = {}
    marks = _Marks(text)
    path: Path = ()  # of the next value
    key: Node | None = None
    parents: list[tuple[Path, int | None]] = []  # the open collections: path, and the index of the current item or None in a mapping
    expects_key = False
    for token in _TOKEN.finditer(text):
        symbol = token[0][0]
        match symbol:
            case ":":
                continue
            case "}" | "]":
                parents.pop()
                expects_key = False
                continue
            case ",":
                parent, index = parents.pop()
                parents.append((parent, None if index is None else index + 1))
                expects_key = index is None
                key, path = None, parent if index is None else _child(parent, index + 1)
                continue
        node = marks.node(token)
        if expects_key:
            key, path = node, _child(parents[-1][0], node.value)
            expects_key = False
            continue
        if len(path) == len(parents):
            answer[path] = (key, node)
        if symbol == "{":
            parents.append((path, None))
            expects_key = True
        elif symbol == "[":
            parents.append((path, 0))
            key, path = None, _child(path, 0)
    return answer


_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_LINE_END: Final = re.compile(r"\r\n?|\n")


def _child(parent: Path, step: str | int) -> Path:
    """Return the path of a part; that of its parent if the part is deeper than documents may be, and one level more."""
    return (*parent, step) if len(parent) <= DOCUMENT_DEPTH_MAX else parent


class _Marks:
    """Makes the nodes of tokens, with their lines and columns."""

    def __init__(self, text: str) -> None:
        self._line_starts = [0, *(match.end() for match in _LINE_END.finditer(text))]

    def node(self, token: re.Match[str]) -> Node:
        text = token[0]
        start, end = self._mark(token.start()), self._mark(token.end())
        match text[0]:
            case "{":
                return MappingNode("tag:yaml.org,2002:map", [], start, None)
            case "[":
                return SequenceNode("tag:yaml.org,2002:seq", [], start, None)
            case '"':
                return ScalarNode("tag:yaml.org,2002:str", json.loads(text), start, end, style='"')
        return ScalarNode("tag:yaml.org,2002:null", text, start, end)

    def _mark(self, index: int) -> FileMark:
        line = bisect_right(self._line_starts, index) - 1
        return FileMark("<unicode string>", index, line, index - self._line_starts[line])
