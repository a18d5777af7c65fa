"""Places of the parts of JSON documents."""

from __future__ import annotations

import json
from typing import Any

from gavel_rules.language.document.diagnostics import Messages
from gavel_rules.language.document.json_places import find_places
from gavel_rules.language.document.source import Source
from gavel_rules.language.document.yaml_reader import DOCUMENT_DEPTH_MAX, Places, compose, read_nodes
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml.nodes import Node, ScalarNode

# Without escapes that JSON and YAML read differently, and short enough for keys of YAML.
TEXTS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(-9, 9) | TEXTS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXTS, values, max_size=3),
    max_leaves=12,
)


def described(places: Places) -> dict[Any, Any]:
    """Return places as comparable values: of each part, what is known of its key and of its value."""

    def describe(node: Node | None) -> tuple[object, ...]:
        if node is None:
            return ()
        start = (node.start_mark.index, node.start_mark.line, node.start_mark.column)
        return (*start, node.end_mark.index, node.value, node.style) if isinstance(node, ScalarNode) else (*start, type(node).__name__)

    return {path: (describe(key), describe(value)) for path, (key, value) in places.items()}


@given(st.dictionaries(TEXTS, VALUES, max_size=4), st.sampled_from([None, 0, 3]), st.booleans())
def test_places_are_those_of_the_yaml_reader(data: dict[str, Any], indent: int | None, after_line_ends: bool) -> None:
    """A JSON text has the places that the YAML reader finds in it, whatever its layout is."""
    text = json.dumps(data, indent=indent)
    text = f"\n  {text}\r\n" if after_line_ends else text
    root = compose(text, Messages())
    assert root is not None
    expected: Places = {}
    read_nodes(root, expected, set(), Messages())
    assert described(expected) == described(find_places(text))


def test_depth_is_bounded() -> None:
    """A part that is nested too deeply has the place of the part around it that is not."""
    depth = DOCUMENT_DEPTH_MAX + 200
    places = find_places('{"a":' + "[" * depth + "7" + "]" * depth + ',\n"b": 1}')
    assert DOCUMENT_DEPTH_MAX + 1 == max(map(len, places))
    assert (1, 5) == (places["b",][1].start_mark.line, places["b",][1].start_mark.column)


def test_text_that_cannot_be_read_has_no_places() -> None:
    """Any part of a text that is neither JSON nor YAML is reported at the beginning."""
    for text in ('{"a": [1}', '{"a": "\ud800"}', '{"a" 1', "{]"):
        assert (1, 1) == Source(text, Messages()).locate(("a",))
