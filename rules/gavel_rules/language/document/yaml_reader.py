"""Reads YAML into plain JSON data, with the place of every part.

YAML says more than JSON. Anchors, aliases, tags, timestamps, duplicate keys and keys that are not strings are refused at their place. So
are characters that no event can carry, and numbers that a double does not hold exactly. Anchors would also let a small text grow without
bound. A merge key is read as the name `<<`, because logs may hold rule sets with one; the tools of authors refuse it
(`Source.refuse_merge_keys`).

Parts, depth and the length of tags are limited while the library composes, because its time grows faster than the text.
"""

from __future__ import annotations

from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.parser import Parser
from ruamel.yaml.reader import Reader
from ruamel.yaml.scanner import Scanner

from gavel_rules.errors import GavelRulesError
from gavel_rules.language.document.diagnostics import Messages, Path
from gavel_rules.values import INTEGER_MAX, number_problem

DOCUMENT_PARTS_MAX: Final = 50_000  # keys, values, lists and mappings; the library reads 30,000 in a second
DOCUMENT_DEPTH_MAX: Final = 32
_COMPOSE_DEPTH: Final = 2 * DOCUMENT_DEPTH_MAX  # composing stops here: each further level takes the library longer
TAG_LENGTH_MAX: Final = 256

MERGE_TAG: Final = "tag:yaml.org,2002:merge"

Places = dict[Path, tuple[Node | None, Node]]  # the nodes of each part: its key, None in a list, and its value

TOO_MANY_PARTS: Final = ("document-too-long", f"the document has more than {DOCUMENT_PARTS_MAX} keys and values", "split it")


def compose(text: str, messages: Messages) -> Node | None:
    """Return the document's node graph; None with the reason recorded."""
    try:
        loader = YAML(typ="safe", pure=True)
        loader.Reader, loader.Scanner = Reader, _Scanner
        loader.Parser, loader.Composer = _Parser, _Composer  # type: ignore[assignment]  # typed as the classes themselves, meant to be replaced
        root: Node | None = loader.compose(text)
    except _LimitError as error:
        messages.add(error.place, *error.diagnostic)
        return None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        messages.add(place, "yaml-syntax", *_explain_syntax(str(error.problem or "cannot be read as YAML")))
        return None
    except YAMLError:
        messages.add((1, 1), "bad-character", "the document holds a character that YAML forbids", "remove NUL and control characters")
        return None
    if root is None:
        messages.add((1, 1), "wrong-type", "the document is empty", "start with `gavel: v1`")
    return root


def read_nodes(root: Node, places: Places, broken_paths: set[Path], messages: Messages) -> object:
    """Return a node graph as JSON data.

    Fills `places`, and `broken_paths` with the parts that were refused: a mistake is recorded for each, and None stands in for it.
    """
    return _NodeReader(places, broken_paths, messages).read(root, None, ())


def start_of(node: Node) -> tuple[int, int]:
    """Return the (line, column) of a node."""
    mark = node.start_mark
    return (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)


def character_problem(text: str) -> str:
    """Return why no event can carry a text, as a predicate ("holds a NUL character"); "" where one can."""
    if "\0" in text:
        return "holds a NUL character"
    return "" if text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text) else "holds a lone surrogate"


def document_number_problem(number: float) -> str:
    """Return why canonical JSON cannot hold a number, as a predicate; "" where it can."""
    # RFC 8785 refuses 2^53 itself, unlike the params and facts of events.
    return "is 2^53 or more" if abs(number) == INTEGER_MAX else number_problem(number)


class _LimitError(GavelRulesError):
    """The document passes a limit, and composing stopped."""

    def __init__(self, place: tuple[int, int], code: str, message: str, suggestion: str) -> None:
        super().__init__(message)
        self.place = place
        self.diagnostic = (code, message, suggestion)


# The library finds its parts again, through two properties, at every use. The classes below hold them as attributes.


class _Scanner(Scanner):
    """Refuses long tags: the library's time grows with the square of their length."""

    reader: Any = None

    def __init__(self, loader: YAML) -> None:
        self.reader = loader.reader
        self._has_token = False
        super().__init__(loader=loader)

    def peek_token(self) -> Any:
        # The parser asks several times for each token. Only taking one can make another necessary.
        if not self._has_token:
            while self.need_more_tokens():
                self.fetch_more_tokens()
            self._has_token = True
        return self.tokens[0] if self.tokens else None

    def check_token(self, *choices: type) -> bool:
        token = self.peek_token()
        return token is not None and (not choices or isinstance(token, choices))

    def get_token(self) -> Any:
        token = self.peek_token()
        if token is not None:
            self.tokens_taken += 1
            del self.tokens[0]
            self._has_token = False
        return token

    def fetch_more_tokens(self) -> Any:
        try:
            return super().fetch_more_tokens()
        except (ValueError, OverflowError) as error:  # from Python's int() and chr()
            mark = self.reader.get_mark()
            message = "this number is too large for a version of YAML, or for the code of a character"
            raise _LimitError((mark.line + 1, mark.column + 1), "yaml-syntax", message, "correct it") from error

    def scan_tag(self) -> Any:
        reader = self.reader
        if _TAG_ENDS.isdisjoint(reader.prefix(TAG_LENGTH_MAX + 1)):
            mark = reader.get_mark()
            message = f"tags are not supported, and this one has more than {TAG_LENGTH_MAX} characters"
            raise _LimitError((mark.line + 1, mark.column + 1), "yaml-tag", message, "remove it")
        return super().scan_tag()


_TAG_ENDS: Final = frozenset("\0 \t\r\n\x85\u2028\u2029")  # NUL marks the end of the text


class _Parser(Parser):
    scanner: Any = None

    def __init__(self, loader: YAML) -> None:
        self.scanner = loader.scanner
        super().__init__(loader)


class _Composer(Composer):
    """Limits the number of nodes and their depth while they are made."""

    parser: Any = None
    resolver: Any = None

    def __init__(self, loader: YAML) -> None:
        super().__init__(loader=loader)
        self.parser = loader.parser
        self.resolver = loader.resolver
        # Every anchor is refused at its place. The library's own warning about a repeated one adds nothing.
        self.warn_double_anchors = False
        self._count = 0
        self._depth = 0

    def compose_node(self, parent: Node | None, index: object) -> Node | None:
        self._count += 1
        if self._count > DOCUMENT_PARTS_MAX:
            raise _LimitError((1, 1), *TOO_MANY_PARTS)
        if self._depth > _COMPOSE_DEPTH:
            mark = self.parser.peek_event().start_mark
            message = f"nested deeper than {_COMPOSE_DEPTH} levels"
            raise _LimitError((mark.line + 1, mark.column + 1), "too-deep", message, f"stay within {DOCUMENT_DEPTH_MAX}")
        self._depth += 1
        node: Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _explain_syntax(problem: str) -> tuple[str, str]:
    """Return the library's complaint as (message, suggestion), with a hint for the usual mistakes of authors."""
    if "'\\t'" in problem:
        return problem, "YAML indents with spaces: replace the tab"
    if "another document" in problem:
        return "a second document begins here", "a file holds one document: remove `---`, or split the file"
    return problem, next((hint for signs, hint in _SYNTAX_HINTS if any(sign in problem for sign in signs)), "see yaml.org for the syntax")


# Expressions use many characters that YAML reads as syntax. Fragments of complaints, and what was most likely meant.
_SYNTAX_HINTS: Final = (
    (
        ("but got ':'", "mapping values are not allowed"),
        "quote a text that holds a colon and a space, as in a ? b : c; otherwise correct brackets or indentation",
    ),
    (("<scalar>",), "quote a text that begins with a quote, as in '\"a\" == b'; otherwise correct the indentation"),
    (
        (
            "cannot start any token",
            "undefined alias",
            "expected a comment",
            "expected chomping",
            "sequence entries are",
            "mapping keys are",
        ),
        "quote a text that begins with one of > | * & ! % @ ` - ?",
    ),
)


class _NodeReader:
    """Turns nodes into data, with their places."""

    def __init__(self, places: Places, broken_paths: set[Path], messages: Messages) -> None:
        self._places = places
        self._broken_paths = broken_paths
        self._messages = messages

    def read(self, node: Node, key: Node | None, path: Path) -> object:
        self._places[path] = (key, node)
        if node.anchor is not None:
            return self._refuse(node, path, "yaml-anchor", f"anchors and aliases are not supported: {node.anchor}", "repeat the value")
        if len(path) > DOCUMENT_DEPTH_MAX:
            return self._refuse(node, path, "too-deep", f"nested deeper than {DOCUMENT_DEPTH_MAX} levels", "flatten it")
        kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
        if isinstance(node, ScalarNode):
            return self._read_scalar(node, kind, path)
        if isinstance(node, MappingNode) and kind == "map":
            return self._read_mapping(node, path)
        if isinstance(node, SequenceNode) and kind == "seq":
            return [self.read(item, None, (*path, index)) for index, item in enumerate(node.value)]
        return self._refuse(node, path, "yaml-tag", f"the tag {node.tag} is not supported", _REMOVE_TAG)

    def _refuse(self, node: Node, path: Path, code: str, message: str, suggestion: str) -> object:
        """Record a mistake; return None, which stands in for the value."""
        self._messages.add(start_of(node), code, message, suggestion)
        self._broken_paths.add(path)
        return None

    def _read_mapping(self, node: MappingNode, path: Path) -> dict[str, object]:
        answer: dict[str, object] = {}
        for key, value in node.value:
            place = start_of(key)
            if not isinstance(key, ScalarNode) or key.tag not in ("tag:yaml.org,2002:str", MERGE_TAG):
                self._messages.add(place, "non-string-key", "a key must be a string", "quote it")
                continue
            name = str(key.value)
            problem = character_problem(name)
            if problem:
                self._messages.add(place, "bad-character", f"a key {problem}", "remove it")
            elif name in answer:
                self._messages.add(place, "duplicate-key", f'the key "{name}" appears twice', "keep one of them")
            else:
                answer[name] = None
                answer[name] = self.read(value, key, (*path, name))
        return answer

    def _read_scalar(self, node: ScalarNode, kind: str, path: Path) -> object:
        text = str(node.value)
        match kind:
            case "str":
                problem = character_problem(text)
                return self._refuse(node, path, "bad-character", f"a string {problem}", "remove it") if problem else text
            case "null":
                return None
            case "bool" if text.lower() in ("true", "false"):
                return text.lower() == "true"
            case "int" | "float":
                try:
                    number: float = int(text) if text.lstrip("+-").isdigit() else float(text)
                    problem = "is not written as a plain decimal" if "_" in text else document_number_problem(number)
                except ValueError:
                    number, problem = 0, "is not written as a plain decimal"
                plain = text.replace("_", "")
                hint = f"write {plain}" if plain != text and plain.isdigit() else "use a plain decimal below 2^53"
                return self._refuse(node, path, "bad-number", f"the number {text} {problem}", hint) if problem else number
        if kind.startswith("!"):
            return self._refuse(node, path, "yaml-tag", f"the tag {kind} is not supported", _REMOVE_TAG)
        message = f"{text!r} is not a string, number, true, false or null in YAML"
        return self._refuse(node, path, "wrong-type", message, "quote it")


_REMOVE_TAG: Final = "remove it, or quote a text that begins with !"
