"""A document's text, YAML or JSON, as plain JSON data with the place of every part.

JSON is read by Python's JSON reader, because YAML does not know surrogate pairs. The places in a JSON text are found only when a
diagnostic needs one. Both readers refuse the same characters, numbers and depths.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

from ruamel.yaml.nodes import Node, ScalarNode

from gavel_rules.language.document.diagnostics import Messages, Path
from gavel_rules.language.document.json_places import find_places
from gavel_rules.language.document.yaml_reader import (
    DOCUMENT_DEPTH_MAX,
    DOCUMENT_PARTS_MAX,
    MERGE_TAG,
    TOO_MANY_PARTS,
    Places,
    character_problem,
    compose,
    document_number_problem,
    read_nodes,
    start_of,
)

DOCUMENT_BYTES_MAX: Final = 1024 * 1024

_NO_NODE: Final = ScalarNode("tag:yaml.org,2002:null", "", None, None)


class Source:
    """A document as data, with the places of its parts.

    `data` is None where the text could not be read. `broken_paths` are the parts that were refused: each has its mistake recorded,
    and anything further that is wrong with it would only follow from that.
    """

    def __init__(self, text: str, messages: Messages) -> None:
        self.data: object = None
        self.composed: object = None  # `data` with what comes from elsewhere written out: see `composition`
        self._origins: Mapping[Path, Path] = {}
        self.broken_paths: set[Path] = set()
        self._text = text
        self._line_starts: list[int] = []
        self._places: Places | None = {}  # None: of a JSON text, not yet found
        if not _is_over_limits(text, messages):
            self._read(text, messages)
            self.composed = self.data

    def _read(self, text: str, messages: Messages) -> None:
        if text.lstrip().startswith("{"):
            try:
                self.data = json.loads(text, object_pairs_hook=_to_unique_dict, parse_constant=_refuse_constant)
            except (ValueError, RecursionError):
                self.data = None  # YAML in flow style, or broken JSON: the YAML reader finds the place
            else:
                if _count_parts(self.data) > DOCUMENT_PARTS_MAX:
                    messages.add((1, 1), *TOO_MANY_PARTS)
                    self.data = None
                else:
                    self._places = None
                    self.data = self._check_json(self.data, (), messages)
                return
        root = compose(text, messages)
        if root is not None:
            self._places = {}
            self.data = read_nodes(root, self._places, self.broken_paths, messages)

    def refuse_merge_keys(self, messages: Messages) -> None:
        """Record a mistake for each merge key, which other readers of YAML understand otherwise."""
        for key, _ in (self._places or {}).values():
            if key is not None and key.tag == MERGE_TAG:
                hint = 'repeat the values, or quote "<<"'
                messages.add(start_of(key), "non-string-key", "merge keys are not supported", hint)

    def compose(self, data: object, origins: Mapping[Path, Path]) -> None:
        """Set the composed data, in which the parts at `origins` come from other places of the document."""
        self.composed = data
        self._origins = origins

    def written_path(self, path: Path) -> Path:
        """Return the place in the document of a part of the composed data."""
        for length in range(len(path), 0, -1):
            origin = self._origins.get(path[:length])
            if origin is not None:
                return self.written_path((*origin, *path[length:]))
        return path

    def locate(self, path: Path) -> tuple[int, int]:
        """Return the (line, column) of the value at `path`, of its key if the value is empty, or of the nearest part around it."""
        key, value = self._nodes(path)
        # The library places an empty value where the next thing begins, some lines below.
        is_empty = isinstance(value, ScalarNode) and not value.value and value.style is None
        return start_of(key if is_empty and key is not None else value)

    def locate_key(self, path: Path) -> tuple[int, int]:
        """Return the (line, column) of the key at the end of `path`; for an item of a list, the item's own."""
        key, value = self._nodes(path)
        return start_of(key if key is not None else value)

    def offset(self, path: Path) -> int:
        """Return the index in the text at which the value at `path`, or the nearest part around it, begins."""
        mark = self._nodes(path)[1].start_mark
        return mark.index if mark is not None else 0

    def locate_within(self, path: Path, offset: int) -> tuple[int, int]:
        """Return the (line, column) of the character at `offset` of the string at `path`.

        Quotes, escapes, indentation and folding make the text differ from the value. The other characters of the value occur in the text in
        the same order, so the two are walked side by side.
        """
        node = self._nodes(path)[1]
        if not isinstance(node, ScalarNode) or not isinstance(node.value, str) or node.start_mark is None:
            return start_of(node)
        index = node.start_mark.index
        end = node.end_mark.index
        if node.style in ("|", ">"):
            index = self._text.find("\n", index, end) + 1 or index
        elif node.style in ('"', "'"):
            index += 1
        answer = index
        for position, character in enumerate(node.value[: offset + 1]):
            if character.isspace():
                continue
            at = self._text.find(character, index, end)
            if at < 0:
                continue
            index = at + 1
            answer = at if position == offset else index
        return self._line_and_column(answer)

    def _check_json(self, value: object, path: Path, messages: Messages) -> object:
        """Return JSON data without the parts that the YAML reader would refuse; record a mistake for each."""
        if len(path) > DOCUMENT_DEPTH_MAX:
            return self._refuse(path, messages, "too-deep", f"nested deeper than {DOCUMENT_DEPTH_MAX} levels", "flatten it")
        if isinstance(value, dict):
            sound = {}
            for name, item in value.items():
                problem = character_problem(name)
                if problem:
                    messages.add(self.locate_key((*path, name)), "bad-character", f"a key {problem}", "remove it")
                else:
                    sound[name] = self._check_json(item, (*path, name), messages)
            return sound
        if isinstance(value, list):
            return [self._check_json(item, (*path, index), messages) for index, item in enumerate(value)]
        if isinstance(value, str):
            problem = character_problem(value)
            return self._refuse(path, messages, "bad-character", f"a string {problem}", "remove it") if problem else value
        if isinstance(value, int | float):
            problem = document_number_problem(value)
            hint = "use a plain decimal below 2^53"
            return self._refuse(path, messages, "bad-number", f"the number {value} {problem}", hint) if problem else value
        return value

    def _refuse(self, path: Path, messages: Messages, code: str, message: str, suggestion: str) -> object:
        """Record a mistake; return None, which stands in for the value."""
        messages.add(self.locate(path), code, message, suggestion)
        self.broken_paths.add(path)
        return None

    def _line_and_column(self, index: int) -> tuple[int, int]:
        if not self._line_starts:
            self._line_starts = [0, *(at + 1 for at, character in enumerate(self._text) if character == "\n")]
        line = bisect_right(self._line_starts, index)
        return line, index - self._line_starts[line - 1] + 1

    def _nodes(self, path: Path) -> tuple[Node | None, Node]:
        if self._places is None:
            self._places = find_places(self._text)
        path = self.written_path(path)
        while path and path not in self._places:
            path = path[:-1]
        return self._places.get(path) or (None, _NO_NODE)


def _is_over_limits(text: str, messages: Messages) -> bool:
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        messages.add((1, 1), "bad-character", "the document holds a lone surrogate", "write the character itself")
        return True
    if size_bytes > DOCUMENT_BYTES_MAX:
        messages.add((1, 1), "document-too-long", f"the document has {size_bytes} bytes; the limit is {DOCUMENT_BYTES_MAX}", "split it")
        return True
    return False


def _count_parts(value: object) -> int:
    """Return how many nodes a JSON value has when it is read as YAML."""
    count = 0
    queue = [value]
    while queue:
        one = queue.pop()
        count += 1
        if isinstance(one, dict):
            count += len(one)
            queue.extend(one.values())
        elif isinstance(one, list):
            queue.extend(one)
    return count


def _to_unique_dict(pairs: list[tuple[str, object]]) -> dict[str, object]:
    answer = dict(pairs)
    if len(answer) != len(pairs):
        raise ValueError("duplicate key")
    return answer


def _refuse_constant(name: str) -> object:
    raise ValueError(name)
