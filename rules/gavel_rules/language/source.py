"""A rule set's text, YAML or JSON, as plain data with the place of every part.

Only what JSON can say is let through: no anchors and aliases (they can blow a small text up), no tags, no merge keys, no
timestamps, no duplicate or non-string keys, no NUL and no lone surrogate, no number that a double does not hold exactly.
JSON is read by the JSON reader, which alone knows surrogate pairs; its places are looked up with the YAML scanner only
when an error needs one.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import Reader
from ruamel.yaml.scanner import Scanner

from gavel_rules.values import INTEGER_MAX, number_problem

DOCUMENT_BYTES_MAX: Final = 1024 * 1024
DOCUMENT_DEPTH_MAX: Final = 32
# Deeper than this nothing else is said of a document: the YAML reader needs ever more time for a level.
_HOPELESS_DEPTH: Final = 2 * DOCUMENT_DEPTH_MAX
TAG_LENGTH_MAX: Final = 256
DOCUMENT_PARTS_MAX: Final = 50_000  # keys, values, lists and mappings: the YAML reader takes a second for 30,000
MESSAGES_MAX: Final = 1_000

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, order=True)
class DocumentMessage:
    """One mistake, or one warning, in a rule set document. Lines and columns count from 1, columns in characters."""

    line: int
    column: int
    code: str
    message: str
    suggestion: str = ""

    def format(self, filename: str) -> str:
        """Return "file:line:column: code: message (suggestion)" as one line: control characters of the document's are spelled out."""
        text = f"{filename}:{self.line}:{self.column}: {self.code}: {self.message}"
        text = f"{text} ({self.suggestion})" if self.suggestion else text
        return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


class Messages:
    """Collects what is wrong, each mistake once."""

    def __init__(self) -> None:
        self._found: set[DocumentMessage] = set()

    def add(self, place: tuple[int, int], code: str, message: str, suggestion: str = "") -> None:
        """Record a mistake at a (line, column)."""
        self._found.add(DocumentMessage(*place, code, message, suggestion))

    def __len__(self) -> int:
        return len(self._found)

    def sorted(self) -> tuple[DocumentMessage, ...]:
        """Return all of them by place; of very many, the first ones and how many there are besides."""
        found = sorted(self._found)
        if len(found) <= MESSAGES_MAX:
            return tuple(found)
        last = found[MESSAGES_MAX - 1]
        more = f"and {len(found) - MESSAGES_MAX} more mistakes behind this one"
        return (*found[:MESSAGES_MAX], DocumentMessage(last.line, last.column, "more-mistakes", more, "mend these first"))


class Source:
    """Plain data with the places of its parts. `data` is None where the text could not be read."""

    def __init__(self, text: str, messages: Messages) -> None:
        self.data: object = None
        # Values that JSON cannot hold. They are reported; what else might be said of them would only follow from that.
        self.broken: set[Path] = set()
        self._text = text
        self._line_starts: list[int] = []
        self._places: dict[Path, tuple[Node | None, Node]] | None = None
        if _over_limits(text, messages):
            return
        if text.lstrip().startswith("{"):
            try:
                self.data = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
            except (ValueError, RecursionError):
                self.data = None  # YAML in flow style, or broken: the YAML reader knows where.
            else:
                if _parts(self.data) > DOCUMENT_PARTS_MAX:
                    messages.add((1, 1), *_TOO_MANY_PARTS)
                    self.data = None
                else:
                    self.data = self._checked(self.data, (), messages)
                return
        root = _compose(text, messages)
        if root is not None:
            self._places = {}
            self.data = _Reader(self._places, self.broken, messages).read(root, None, ())

    def place(self, path: Path) -> tuple[int, int]:
        """Return the (line, column) of the value at `path`, or of the nearest part around it; of an empty one, its key's."""
        key, value = self._nodes(path)
        # To the library, nothing stands where the next thing begins, which is some line below.
        is_empty = isinstance(value, ScalarNode) and not value.value and value.style is None
        return _start(key if is_empty and key is not None else value)

    def key_place(self, path: Path) -> tuple[int, int]:
        """Return the (line, column) of the key at the end of `path`; of a list's item, its own."""
        key, value = self._nodes(path)
        return _start(key if key is not None else value)

    def place_within(self, path: Path, offset: int) -> tuple[int, int]:
        """Return the (line, column) of the character at `offset` of the string at `path`.

        Quotes, escapes, indentation and folding make text and value differ; but what is not white space stands in both in
        the same order, so the two are walked together.
        """
        node = self._nodes(path)[1]
        if not isinstance(node, ScalarNode) or not isinstance(node.value, str) or node.start_mark is None:
            return _start(node)
        index = node.start_mark.index
        end = node.end_mark.index
        if node.style in ("|", ">"):
            index = self._text.find("\n", index, end) + 1 or index
        elif node.style in ('"', "'"):
            index += 1
        found = index
        for position, character in enumerate(node.value[: offset + 1]):
            if character.isspace():
                continue
            at = self._text.find(character, index, end)
            if at < 0:
                continue
            index = at + 1
            found = at if position == offset else index
        return self._line_and_column(found)

    def _checked(self, value: object, path: Path, messages: Messages) -> object:
        """Hold JSON to what `_Reader` holds YAML to; return it without what is refused."""
        if len(path) > DOCUMENT_DEPTH_MAX:
            return self._refuse(path, messages, "too-deep", f"nested deeper than {DOCUMENT_DEPTH_MAX} levels", "flatten it")
        if isinstance(value, dict):
            for name in value:
                problem = _character_problem(name)
                if problem:
                    messages.add(self.key_place((*path, name)), "bad-character", f"a key {problem}", "remove it")
            return {name: self._checked(item, (*path, name), messages) for name, item in value.items()}
        if isinstance(value, list):
            return [self._checked(item, (*path, index), messages) for index, item in enumerate(value)]
        if isinstance(value, str):
            problem = _character_problem(value)
            return self._refuse(path, messages, "bad-character", f"a string {problem}", "remove it") if problem else value
        if isinstance(value, int | float):
            problem = _number_problem(value)
            hint = "use a plain decimal below 2^53"
            return self._refuse(path, messages, "bad-number", f"the number {value} {problem}", hint) if problem else value
        return value

    def _refuse(self, path: Path, messages: Messages, code: str, message: str, suggestion: str) -> object:
        """Record a mistake; return what stands in for the value."""
        messages.add(self.place(path), code, message, suggestion)
        self.broken.add(path)
        return None

    def _line_and_column(self, index: int) -> tuple[int, int]:
        if not self._line_starts:
            self._line_starts = [0, *(at + 1 for at, character in enumerate(self._text) if character == "\n")]
        line = bisect_right(self._line_starts, index)
        return line, index - self._line_starts[line - 1] + 1

    def _nodes(self, path: Path) -> tuple[Node | None, Node]:
        if self._places is None:
            self._places = {}
            # What JSON may hold and YAML not is no reason to lose all places; a JSON text that YAML cannot read otherwise has none.
            root = _compose(_NOT_IN_YAML.sub("?", self._text), Messages())
            if root is not None:
                _Reader(self._places, set(), Messages()).read(root, None, ())
        while path and path not in self._places:
            path = path[:-1]
        return self._places.get(path) or (None, _NOWHERE)


def _over_limits(text: str, messages: Messages) -> bool:
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        messages.add((1, 1), "bad-character", "the document holds a lone surrogate", "write the character itself")
        return True
    if size_bytes > DOCUMENT_BYTES_MAX:
        messages.add((1, 1), "document-too-long", f"the document has {size_bytes} bytes; the limit is {DOCUMENT_BYTES_MAX}", "split it")
        return True
    return False


def _parts(value: object) -> int:
    """Return how many nodes a JSON value is as YAML."""
    count = 0
    waiting = [value]
    while waiting:
        one = waiting.pop()
        count += 1
        if isinstance(one, dict):
            count += len(one)
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
    return count


_TOO_MANY_PARTS: Final = ("document-too-long", f"the document has more than {DOCUMENT_PARTS_MAX} keys and values", "split it")


class _TooManyPartsError(Exception):
    """Composing was stopped."""


class _TooDeepError(Exception):
    """Composing was stopped at a node, at (line, column)."""

    def __init__(self, place: tuple[int, int]) -> None:
        super().__init__(f"nested deep at {place}")
        self.place = place


class _LongTagError(Exception):
    """Scanning was stopped at a tag, at (line, column)."""

    def __init__(self, place: tuple[int, int]) -> None:
        super().__init__(f"a long tag at {place}")
        self.place = place


class _Scanner(Scanner):
    """Reads no long tag: to take one in, the library needs time by the square of its length."""

    def scan_tag(self) -> Any:
        reader = self.reader
        if _BREAK.isdisjoint(reader.prefix(TAG_LENGTH_MAX + 1)):
            mark = reader.get_mark()
            raise _LongTagError((mark.line + 1, mark.column + 1))
        return super().scan_tag()


# What ends a tag; NUL stands at the end of the text.
_BREAK: Final = frozenset("\0 \t\r\n\x85\u2028\u2029")


class _Composer(Composer):
    """Counts nodes as it makes them, and how deep they are."""

    def __init__(self, loader: YAML) -> None:
        super().__init__(loader=loader)
        self._count = 0
        self._depth = 0

    def compose_node(self, parent: Node | None, index: object) -> Node | None:
        self._count += 1
        if self._count > DOCUMENT_PARTS_MAX:
            raise _TooManyPartsError
        if self._depth > _HOPELESS_DEPTH:
            mark = self.parser.peek_event().start_mark
            raise _TooDeepError((mark.line + 1, mark.column + 1))
        self._depth += 1
        node: Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _compose(text: str, messages: Messages) -> Node | None:
    """Return the document's node graph, or None with the reason recorded."""
    try:
        parser = YAML(typ="safe", pure=True)
        parser.Composer = _Composer  # type: ignore[assignment]  # typed as the class itself, meant to be replaced
        parser.Scanner = _Scanner
        # Every anchor is refused at its place; the library's own warning about a second one of a name says nothing more.
        parser.composer.warn_double_anchors = False
        root: Node | None = parser.compose(text)
    except _TooManyPartsError:
        messages.add((1, 1), *_TOO_MANY_PARTS)
        return None
    except _LongTagError as error:
        messages.add(
            error.place, "yaml-tag", f"tags are not supported, and this one has more than {TAG_LENGTH_MAX} characters", "remove it"
        )
        return None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        messages.add(place, "yaml-syntax", *_explain_syntax(str(error.problem or "cannot be read as YAML")))
        return None
    except YAMLError:
        messages.add((1, 1), "bad-character", "the document holds a character that YAML forbids", "remove NUL and control characters")
        return None
    except _TooDeepError as error:
        messages.add(error.place, "too-deep", f"nested deeper than {_HOPELESS_DEPTH} levels", f"stay within {DOCUMENT_DEPTH_MAX}")
        return None
    if root is None:
        messages.add((1, 1), "wrong-type", "the document is empty", "start with `gavel: v1`")
    return root


def _explain_syntax(problem: str) -> tuple[str, str]:
    """Return the library's complaint as (message, suggestion); what authors run into most often gets its own words."""
    if "'\\t'" in problem:
        return problem, "YAML indents with spaces: replace the tab"
    if "another document" in problem:
        return "a second document begins here", "a file holds one document: remove `---`, or split the file"
    return problem, next((hint for signs, hint in _SYNTAX_HINTS if any(sign in problem for sign in signs)), "see yaml.org for the syntax")


# Expressions are full of what YAML takes for its own: signs of a complaint, and what was most likely meant.
_SYNTAX_HINTS: Final = (
    (
        ("but got ':'", "mapping values are not allowed"),
        "a text with a colon and a space in it, as in a ? b : c, goes into quotes; else mend brackets or indentation",
    ),
    (("<scalar>",), "a text that begins with a quote goes into the other quotes as a whole, as in '\"a\" == b'; else mend the indentation"),
    (
        (
            "cannot start any token",
            "undefined alias",
            "expected a comment",
            "expected chomping",
            "sequence entries are",
            "mapping keys are",
        ),
        "a text that begins with one of > | * & ! % @ ` - ? goes into quotes",
    ),
)


class _Reader:
    """Turns nodes into data, noting their places and what JSON could not say."""

    def __init__(self, places: dict[Path, tuple[Node | None, Node]], broken: set[Path], messages: Messages) -> None:
        self._places = places
        self._broken = broken
        self._messages = messages

    def read(self, node: Node, key: Node | None, path: Path) -> object:
        self._places[path] = (key, node)
        if node.anchor is not None:
            return self._refuse(node, path, "yaml-anchor", f"anchors and aliases are not supported: {node.anchor}", "repeat the value")
        if len(path) > DOCUMENT_DEPTH_MAX:
            return self._refuse(node, path, "too-deep", f"nested deeper than {DOCUMENT_DEPTH_MAX} levels", "flatten it")
        kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
        if isinstance(node, ScalarNode):
            return self._scalar(node, kind, path)
        if isinstance(node, MappingNode) and kind == "map":
            return self._mapping(node, path)
        if isinstance(node, SequenceNode) and kind == "seq":
            return [self.read(item, None, (*path, index)) for index, item in enumerate(node.value)]
        return self._refuse(node, path, "yaml-tag", f"the tag {node.tag} is not supported", _UNTAG)

    def _refuse(self, node: Node, path: Path, code: str, message: str, suggestion: str) -> object:
        """Record a mistake; return what stands in for the value."""
        self._messages.add(_start(node), code, message, suggestion)
        self._broken.add(path)
        return None

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, object]:
        answer: dict[str, object] = {}
        for key, value in node.value:
            place = _start(key)
            if not isinstance(key, ScalarNode) or key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                self._messages.add(place, "non-string-key", "a key must be a string", "quote it")
                continue
            name = str(key.value)
            problem = _character_problem(name)
            if problem:
                self._messages.add(place, "bad-character", f"a key {problem}", "remove it")
            elif name in answer:
                self._messages.add(place, "duplicate-key", f'"{name}" stands here twice', "keep one of them")
            else:
                answer[name] = None
                answer[name] = self.read(value, key, (*path, name))
        return answer

    def _scalar(self, node: ScalarNode, kind: str, path: Path) -> object:
        text = str(node.value)
        match kind:
            case "str":
                problem = _character_problem(text)
                return self._refuse(node, path, "bad-character", f"a string {problem}", "remove it") if problem else text
            case "null":
                return None
            case "bool" if text.lower() in ("true", "false"):
                return text.lower() == "true"
            case "int" | "float":
                try:
                    number: float = int(text) if text.lstrip("+-").isdigit() else float(text)
                    problem = "is not written as a plain decimal" if "_" in text else _number_problem(number)
                except ValueError:
                    number, problem = 0, "is not written as a plain decimal"
                hint = "use a plain decimal below 2^53"
                return self._refuse(node, path, "bad-number", f"the number {text} {problem}", hint) if problem else number
        if kind.startswith("!"):
            return self._refuse(node, path, "yaml-tag", f"the tag {kind} is not supported", _UNTAG)
        message = f"{text!r} is neither string, number, true, false nor null in YAML"
        return self._refuse(node, path, "wrong-type", message, "quote it")


def _character_problem(text: str) -> str:
    if "\0" in text:
        return "holds a NUL character"
    return "" if text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text) else "holds a lone surrogate"


def _number_problem(number: float) -> str:
    # RFC 8785, which a document's digest rests on, ends one below 2^53.
    return "is 2^53 or more" if abs(number) == INTEGER_MAX else number_problem(number)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    answer = dict(pairs)
    if len(answer) != len(pairs):
        raise ValueError("duplicate key")
    return answer


def _refuse_constant(name: str) -> object:
    raise ValueError(name)


def _start(node: Node) -> tuple[int, int]:
    mark = node.start_mark
    return (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)


_NOT_IN_YAML: Final = Reader.NON_PRINTABLE
_UNTAG: Final = "remove it; a text that begins with ! goes into quotes"
_NOWHERE: Final = ScalarNode("tag:yaml.org,2002:null", "", None, None)
