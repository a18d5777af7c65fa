"""`gavel rules fmt`: one layout for rule sets and their tests, which changes nothing that they say.

YAML is read and written by ruamel's round trip, which keeps comments, quotes and flow style: indentation, spacing, blank
lines and line ends become the same everywhere, and what is in braces over several lines is written as a block. Keys take
the order in which docs/rule-language.md and docs/rule-tests.md list them, where no comment stands between them: a comment
belongs to what is below it, and moving keys would tear the two apart. JSON is written with an indentation of two.

Formatting twice is formatting once, and the result is compared with what was read: data or comments that would come out
otherwise, and so another digest, are never handed out.
"""

from __future__ import annotations

import io
import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import RoundTripConstructor
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode
from ruamel.yaml.representer import RoundTripRepresenter

from gavel_rules.authoring.suite import SUITE_KEYS, TABLE_KEYS
from gavel_rules.authoring.suite_parts import (
    CasePart,
    CompensationCase,
    DerivedCase,
    EarlierCase,
    ErrorCase,
    ExecutionCase,
    ExpectCase,
    FactCase,
    HintCase,
)
from gavel_rules.errors import GavelRulesError
from gavel_rules.language.document import DocumentError
from gavel_rules.language.parts import ActionPart, FactPart, RetryPart, RulePart, RuleSetPart
from gavel_rules.language.source import Messages, Source

# Lines are as long as their author made them: a rule or a row on a line is read as one.
_LINE_LENGTH_MAX: Final = 1 << 20
# The round trip settles after one pass, or after a second one where a comment has moved.
_PASSES_MAX: Final = 5

_Order = tuple[str, ...]


class FormattingError(GavelRulesError):
    """The document is valid, but no layout was found that says the same. It is left as it is."""


def formatted(text: str) -> str:
    """Return a rule set or a test suite, YAML or JSON, in Gavel's layout.

    DocumentError: the text cannot be read, with every reason. FormattingError: see there. Mistakes of content are no matter here.
    """
    data = _data(text)
    comments = _comments(text)
    write = _json if _is_json(text) else _yaml
    laid_out = write(text)
    for _ in range(_PASSES_MAX):
        again = write(laid_out)
        if again == laid_out:
            if _data(laid_out) != data or _comments(laid_out) != comments:
                break
            return laid_out
        laid_out = again
    raise FormattingError("no layout of this document says the same; it is left as it is: please report it as a bug")


def _data(text: str) -> object:
    messages = Messages()
    source = Source(text, messages)
    if len(messages):
        raise DocumentError(messages.sorted())
    return source.data


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return text.lstrip().startswith("{")


def _json(text: str) -> str:
    data = json.loads(text)
    return json.dumps(_arranged(data), ensure_ascii=False, indent=2) + "\n"


class _Number(float):
    """A number with a fraction or an exponent, as its author wrote it: ruamel's own loses digits of some."""

    text = ""


class _Constructor(RoundTripConstructor):
    def construct_number(self, node: ScalarNode) -> _Number:
        number = _Number(node.value)
        number.text = node.value
        return number


class _Representer(RoundTripRepresenter):
    def represent_number(self, number: _Number) -> Node:
        return self.represent_scalar("tag:yaml.org,2002:float", number.text)


_Constructor.add_constructor("tag:yaml.org,2002:float", _Constructor.construct_number)
_Representer.add_representer(_Number, _Representer.represent_number)


def _yaml(text: str) -> str:
    round_trip = YAML(typ="rt", pure=True)
    round_trip.Constructor = _Constructor
    round_trip.Representer = _Representer
    round_trip.preserve_quotes = True
    round_trip.width = _LINE_LENGTH_MAX
    round_trip.indent(mapping=2, sequence=4, offset=2)
    round_trip.allow_unicode = True
    round_trip.brace_single_entry_mapping_in_flow_sequence = True
    data = round_trip.load(text)
    _open(data, YAML(typ="safe", pure=True).compose(text))
    _arranged(data)
    written = io.StringIO()
    round_trip.dump(data, written)
    laid_out = _reindented(text, written.getvalue())
    spaced = _spaced(laid_out)
    # In a block of text, white space at a line's end and empty lines are its author's.
    return spaced if _data(spaced) == _data(laid_out) else laid_out


def _reindented(before: str, after: str) -> str:
    """Put the comments that have a line to themselves where what they belong to stands now.

    That is what follows, or what comes before where the comment stood deeper than what follows. The round trip leaves them
    in the column that they had.
    """
    lines = after.split("\n")
    moved = _own_lines(after)
    placed = _own_lines(before)
    if len(moved) != len(placed):
        return after
    for (number, previous, following), (at, _, next_before) in zip(moved, placed, strict=True):
        source = before.split("\n")
        deeper = next_before is None or _depth(source[at]) > _depth(source[next_before])
        anchor = previous if deeper and previous is not None else following
        if anchor is not None:
            lines[number] = " " * _depth(lines[anchor]) + lines[number].lstrip()
    return "\n".join(lines)


def _own_lines(text: str) -> list[tuple[int, int | None, int | None]]:
    """Return the lines that hold a comment alone, each with the nearest lines of content before and after it; from 0."""
    inside: set[int] = set()
    for node in _scalars(YAML(typ="safe", pure=True).compose(text)):
        last = node.end_mark.line if node.style not in ("|", ">") else node.end_mark.line - 1
        inside.update(range(node.start_mark.line + 1, last + 1))
    comments = [number for number, line in enumerate(text.split("\n")) if number not in inside and line.lstrip().startswith("#")]
    content = [number for number, line in enumerate(text.split("\n")) if number not in comments and line.strip()]
    found = []
    for number in comments:
        at = bisect_left(content, number)
        found.append((number, content[at - 1] if at else None, content[at] if at < len(content) else None))
    return found


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _open(data: Any, node: Node) -> None:
    """Let collections in braces or brackets that span lines be written as blocks."""
    if not isinstance(node, CollectionNode):
        return
    if node.flow_style and node.start_mark.line != node.end_mark.line and node.value:
        data.fa.set_block_style()
    if isinstance(data, CommentedMap):
        for key, value in node.value:
            _open(data[key.value], value)
    else:
        for item, value in zip(data, node.value, strict=True):
            _open(item, value)


def _comments(text: str) -> list[str]:
    """Return the comments of a YAML document, sorted: what follows a # outside of its scalars."""
    between = []
    at = 0
    for node in _scalars(YAML(typ="safe", pure=True).compose(text)):
        between.append(text[at : node.start_mark.index])
        at = node.end_mark.index
    between.append(text[at:])
    return sorted(comment.rstrip() for part in between for comment in re.findall(r"#.*", part))


def _scalars(node: Node) -> Iterator[ScalarNode]:
    if isinstance(node, ScalarNode):
        yield node
    elif isinstance(node, MappingNode):
        for pair in node.value:
            for part in pair:
                yield from _scalars(part)
    else:
        for item in node.value:
            yield from _scalars(item)


def _spaced(text: str) -> str:
    """Return text without white space at line ends, with at most one blank line in a row and none at its ends."""
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", lines).strip("\n") + "\n"


def _arranged(data: Any) -> Any:
    """Put the keys of a document in their order, in place where comments allow it; return it."""
    if isinstance(data, dict):
        return _sorted(data, _SUITE if "tests" in data or "cases" in data or "tables" in data else _RULE_SET)
    return data


class _Shape:
    """The order of a mapping's keys, and the shapes of what is below them. `every` is that of all values."""

    def __init__(self, order: _Order, below: Mapping[str, _Shape] | None = None, every: _Shape | None = None) -> None:
        self.order = order
        self.below = below or {}
        self.every = every


def _keys(model: type[BaseModel]) -> _Order:
    return tuple(model.model_fields)


_EXECUTION: Final = _Shape(_keys(ExecutionCase), {"error": _Shape(_keys(ErrorCase))})
_CASE_BELOW: Final[Mapping[str, _Shape]] = {
    "facts": _Shape((), every=_Shape(_keys(FactCase))),
    "execution": _EXECUTION,
    "expect": _Shape(
        _keys(ExpectCase),
        {"hint": _Shape(_keys(HintCase)), "derived": _Shape(_keys(DerivedCase)), "compensation": _Shape(_keys(CompensationCase))},
    ),
    "earlier": _Shape(_keys(EarlierCase), {"execution": _EXECUTION}),
}
_CASE_KEYS: Final = ("name", *_keys(CasePart))
_SUITE: Final = _Shape(
    SUITE_KEYS,
    {
        "defaults": _Shape(_CASE_KEYS, _CASE_BELOW),
        "cases": _Shape(_CASE_KEYS, _CASE_BELOW),
        "tables": _Shape((*_CASE_KEYS, *TABLE_KEYS[1:]), _CASE_BELOW),
    },
)
_ACTION: Final = _Shape(_keys(ActionPart), {"facts": _Shape((), every=_Shape(_keys(FactPart))), "retry": _Shape(_keys(RetryPart))})
_RULE_SET: Final = _Shape(_keys(RuleSetPart), {"actions": _Shape((), every=_ACTION), "rules": _Shape(_keys(RulePart))})


def _sorted(data: Any, shape: _Shape) -> Any:
    if isinstance(data, list):
        for index, item in enumerate(data):
            data[index] = _sorted(item, shape)
        return data
    if not isinstance(data, dict):
        return data
    for name, item in data.items():
        below = shape.below.get(str(name), shape.every)
        if below is not None:
            data[name] = _sorted(item, below)
    names = [*(name for name in shape.order if name in data), *(name for name in data if name not in shape.order)]
    if names == list(data) or not shape.order:
        return data
    if not isinstance(data, CommentedMap):
        return {name: data[name] for name in names}
    return _moved(data, names)


def _moved(data: CommentedMap, names: list[str]) -> CommentedMap:
    """Put the keys of a mapping in this order, unless a comment stands among them.

    ruamel keeps what follows the last value, blank lines too, with its key; that moves to the key that is last then.
    """
    last = list(data)[-1]
    if any(_commented(data, name, at_end=name == last) for name in data):
        return data
    trailing = data.ca.items.pop(last, None)
    for name in names:
        data.move_to_end(name)
    if trailing is not None:
        data.ca.items[names[-1]] = trailing
    return data


def _commented(data: CommentedMap, name: str, *, at_end: bool) -> bool:
    """Whether a comment, or a blank line, stands at a key or below it; at the end of the mapping only a scalar's may move."""
    value = data[name]
    if isinstance(value, CommentedMap | CommentedSeq) and _has_comments(value):
        return True
    token = data.ca.items.get(name)
    return token is not None and not (at_end and not isinstance(value, CommentedMap | CommentedSeq))


def _has_comments(value: Any) -> bool:
    if isinstance(value, CommentedMap):
        return bool(value.ca.items) or value.ca.comment is not None or any(map(_has_comments, value.values()))
    if isinstance(value, CommentedSeq):
        return bool(value.ca.items) or value.ca.comment is not None or any(map(_has_comments, value))
    return False
