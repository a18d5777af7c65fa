"""Formatting of rule sets and test suites (`gavel rules fmt`): one layout, without a change of meaning.

ruamel reads and writes the YAML and keeps comments, quotes and flow style. Indentation, spacing, blank lines and line ends become
uniform, and a flow collection over several lines becomes a block. Keys take the order of docs/rule-language.md and
docs/rule-tests.md, unless a comment stands between them: a comment belongs to what is below it. JSON is indented by two.

Formatting is idempotent. The result is compared with the input, so data and comments, and with them the digest, never change.
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

from gavel_rules.authoring.suites.models import (
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
from gavel_rules.authoring.suites.suite import SUITE_KEYS, TABLE_KEYS
from gavel_rules.errors import GavelRulesError
from gavel_rules.language.document.diagnostics import DocumentError, Messages
from gavel_rules.language.document.models import ActionPart, FactPart, RetryPart, RulePart, RuleSetPart
from gavel_rules.language.document.source import Source

# Lines are not wrapped: a rule or a row that its author wrote on one line stays there.
_LINE_LENGTH_MAX: Final = 1 << 20
# Rewriting reaches a fixed point after one pass, or after two if a comment moved.
_PASSES_MAX: Final = 5

_KeyOrder = tuple[str, ...]


class FormattingError(GavelRulesError):
    """No layout with the same meaning was found for a valid document, so the document stays as it is."""


def format_document(text: str) -> str:
    """Return a rule set or a test suite, YAML or JSON, in Gavel's layout. Its content is not checked.

    Raises DocumentError with every mistake if the text is not YAML or JSON, and FormattingError.
    """
    data = _read_data(text)
    is_json = _is_json(text)  # it may hold characters that YAML refuses, and has no comments
    write = _format_json if is_json else _format_yaml
    layout = write(text)
    if layout == text:
        return text
    comments = [] if is_json else _comments(text)
    for _ in range(_PASSES_MAX):
        next_layout = write(layout)
        if next_layout == layout:
            if _read_data(layout) != data or (not is_json and _comments(layout) != comments):
                break
            return layout
        layout = next_layout
    raise FormattingError("no layout of this document keeps its meaning, so it stays as it is; please report this as a bug")


def _read_data(text: str) -> object:
    messages = Messages()
    source = Source(text, messages)
    source.refuse_merge_keys(messages)
    if len(messages):
        raise DocumentError(messages.sorted())
    return source.data


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return text.lstrip().startswith("{")


def _format_json(text: str) -> str:
    data = json.loads(text)
    return json.dumps(_sort_keys(data), ensure_ascii=False, indent=2) + "\n"


class _Number(float):
    """A number with a fraction or an exponent and its text: ruamel's own type loses digits of some numbers."""

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


def _format_yaml(text: str) -> str:
    round_trip = YAML(typ="rt", pure=True)
    round_trip.Constructor = _Constructor
    round_trip.Representer = _Representer
    round_trip.preserve_quotes = True
    round_trip.width = _LINE_LENGTH_MAX
    round_trip.indent(mapping=2, sequence=4, offset=2)
    round_trip.allow_unicode = True
    round_trip.brace_single_entry_mapping_in_flow_sequence = True
    data = round_trip.load(text)
    _open_flow_collections(data, YAML(typ="safe", pure=True).compose(text))
    _sort_keys(data)
    output = io.StringIO()
    round_trip.dump(data, output)
    layout = _reindent_comments(text, output.getvalue())
    trimmed = _trim(layout)
    # In a block scalar, white space at the end of a line and empty lines are content.
    return trimmed if trimmed == layout or _read_data(trimmed) == _read_data(layout) else layout


def _reindent_comments(before: str, after: str) -> str:
    """Indent the comment lines of `after` like the content they belong to: ruamel leaves them in their old column.

    A comment belongs to the line below it, or to the line above it if in `before` it stood deeper than the line below.
    """
    lines = after.split("\n")
    comments_after = _comment_lines(after)
    comments_before = comments_after if before == after else _comment_lines(before)  # reading YAML is slow
    if len(comments_after) != len(comments_before):
        return after
    source = before.split("\n")
    for (number, previous, following), (at, _, following_before) in zip(comments_after, comments_before, strict=True):
        deeper = following_before is None or _depth(source[at]) > _depth(source[following_before])
        anchor = previous if deeper and previous is not None else following
        if anchor is not None:
            lines[number] = " " * _depth(lines[anchor]) + lines[number].lstrip()
    return "\n".join(lines)


def _comment_lines(text: str) -> list[tuple[int, int | None, int | None]]:
    """Return the numbers, from 0, of the lines with only a comment, each with the nearest lines of content before and after it."""
    inside: set[int] = set()
    for node in _scalars(YAML(typ="safe", pure=True).compose(text)):
        last = node.end_mark.line if node.style not in ("|", ">") else node.end_mark.line - 1
        inside.update(range(node.start_mark.line + 1, last + 1))
    comments = [number for number, line in enumerate(text.split("\n")) if number not in inside and line.lstrip().startswith("#")]
    content = [number for number, line in enumerate(text.split("\n")) if number not in comments and line.strip()]
    lines = []
    for number in comments:
        at = bisect_left(content, number)
        lines.append((number, content[at - 1] if at else None, content[at] if at < len(content) else None))
    return lines


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _open_flow_collections(data: Any, node: Node) -> None:
    """Write collections in braces or brackets that span several lines as blocks."""
    if not isinstance(node, CollectionNode):
        return
    if node.flow_style and node.start_mark.line != node.end_mark.line and node.value:
        data.fa.set_block_style()
    if isinstance(data, CommentedMap):
        for key, value in node.value:
            _open_flow_collections(data[key.value], value)
    else:
        for item, value in zip(data, node.value, strict=True):
            _open_flow_collections(item, value)


def _comments(text: str) -> list[str]:
    """Return the comments of a YAML document, sorted: the text after each # outside of its scalars."""
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


def _trim(text: str) -> str:
    """Return text without white space at line ends, with at most one blank line in a row and none at its ends."""
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", lines).strip("\n") + "\n"


def _sort_keys(data: Any) -> Any:
    """Sort the keys of a document, in place where comments allow it; return it."""
    if isinstance(data, dict):
        return _sort(data, _SUITE if "tests" in data or "cases" in data or "tables" in data else _RULE_SET)
    return data


class _Shape:
    """The order of a mapping's keys, and the shapes of the values below them. `every` is the shape of all values."""

    def __init__(self, order: _KeyOrder, below: Mapping[str, _Shape] | None = None, every: _Shape | None = None) -> None:
        self.order = order
        self.below = below or {}
        self.every = every


def _keys(model: type[BaseModel]) -> _KeyOrder:
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
_RULE_SET: Final = _Shape(
    _keys(RuleSetPart), {"actions": _Shape((), every=_ACTION), "shared": _Shape((), every=_ACTION), "rules": _Shape(_keys(RulePart))}
)


def _sort(data: Any, shape: _Shape) -> Any:
    if isinstance(data, list):
        for index, item in enumerate(data):
            data[index] = _sort(item, shape)
        return data
    if not isinstance(data, dict):
        return data
    for name, item in data.items():
        below = shape.below.get(str(name), shape.every)
        if below is not None:
            data[name] = _sort(item, below)
    names = [*(name for name in shape.order if name in data), *(name for name in data if name not in shape.order)]
    if names == list(data) or not shape.order:
        return data
    if not isinstance(data, CommentedMap):
        return {name: data[name] for name in names}
    return _move_keys(data, names)


def _move_keys(data: CommentedMap, names: list[str]) -> CommentedMap:
    """Put the keys of a mapping in this order, unless a comment stands among them.

    ruamel attaches the lines after the last value to its key; they move to the new last key.
    """
    last = list(data)[-1]
    if any(_is_commented(data, name, at_end=name == last) for name in data):
        return data
    trailing = data.ca.items.pop(last, None)
    for name in names:
        data.move_to_end(name)
    if trailing is not None:
        data.ca.items[names[-1]] = trailing
    return data


def _is_commented(data: CommentedMap, name: str, *, at_end: bool) -> bool:
    """Return whether a comment or a blank line stands at a key or below it. Those after a scalar at the end may move."""
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
