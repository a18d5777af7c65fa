"""Formatting changes the layout of rule sets and suites, but not their meaning."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, Final

import pytest
from gavel_rules.authoring.format import format_document
from gavel_rules.language.rule_set import DocumentError, compile_rule_set
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tests.support.driver import document
from tests.support.paths import ROOT

FILES: Final = sorted([*(ROOT / "rules/sets").glob("*.yaml")])

UNTIDY: Final = """\
# What the set is about.
version: 1   # the first
gavel: v1


rule_set: tidy
description: "a # that is no comment"
actions:
    refund.create:
          params: {type: object,
                   properties: {amount: {type: number}}}
          facts:
            # on the order
            status: {type: string, max_age_ms: 1000, key: order.status}
rules:
- when: |
    params.amount > 1   # CEL has no comments like this

    && true
  id: broken
  effect: approve
  action: refund.create
  priority: 1

  # the last of the broken one
# the second
- {effect: approve, when: facts.status == 'x', action: refund.create, id: two, priority: 2}
"""

TIDY: Final = """\
# What the set is about.
version: 1   # the first
gavel: v1

rule_set: tidy
description: "a # that is no comment"
actions:
  refund.create:
    params:
      type: object
      properties: {amount: {type: number}}
    facts:
      # on the order
      status: {key: order.status, type: string, max_age_ms: 1000}
rules:
  - id: broken
    action: refund.create
    priority: 1
    when: |
      params.amount > 1   # CEL has no comments like this

      && true
    effect: approve

    # the last of the broken one
  # the second
  - {id: two, action: refund.create, priority: 2, when: facts.status == 'x', effect: approve}
"""


def test_layout() -> None:
    """Indentation, spacing, blank lines and the order of keys become uniform; comments, quotes and braces on one line stay."""
    assert format_document(UNTIDY) == TIDY


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_shipped_files(file: Path) -> None:
    """Every shipped file is formatted."""
    text = file.read_text(encoding="utf-8")
    assert text == format_document(text), f"run `gavel rules fmt {file}`"


def test_json_that_is_no_yaml() -> None:
    """JSON with characters that YAML refuses is formatted too."""
    assert '{\n  "gavel": "v2",\n  "description": "a\x7f"\n}\n' == format_document('{"description": "a\x7f", "gavel": "v2"}')


def test_json() -> None:
    """JSON stays JSON, with its keys in order and the same digest."""
    text = document()
    formatted = format_document(text)
    assert json.loads(text) == json.loads(formatted)
    assert ["gavel", "rule_set", "version", "actions", "rules"] == list(json.loads(formatted))
    assert compile_rule_set(text).digest == compile_rule_set(formatted).digest
    assert formatted == format_document(formatted)


def test_unreadable_documents() -> None:
    """A document that is not YAML is a mistake with its place; mistakes of content do not prevent formatting."""
    with pytest.raises(DocumentError, match="yaml-syntax"):
        format_document("rules: [1")
    assert "gavel: v9\n" == format_document("gavel:   v9")


_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=20)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-1e9, 1e9) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.long
@settings(max_examples=30, derandomize=True, deadline=None, database=None)
@given(
    st.dictionaries(st.sampled_from(["rules", "actions", "version", "x", "gavel"]), _VALUES, min_size=1), st.booleans(), st.integers(2, 6)
)
def test_any_data(data: dict[str, Any], flow: bool, indent: int) -> None:
    """Formatting keeps the data of any document and is idempotent."""
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = flow
    writer.indent = indent
    out = io.StringIO()
    writer.dump(data, out)
    try:
        formatted = format_document(out.getvalue())
    except DocumentError:
        return  # YAML can say more than a document may
    read = YAML(typ="safe", pure=True).load(formatted)
    assert read == data
    assert formatted == format_document(formatted)


def test_merge_keys() -> None:
    """A merge key, which Gavel does not read as one, is a mistake with its place; a key with this name is quoted."""
    with pytest.raises(DocumentError) as failure:
        format_document("a: 1\nb:\n  <<: {c: 1}\n")
    assert [(3, 3, "non-string-key")] == [(one.line, one.column, one.code) for one in failure.value.messages]
    assert 'b:\n  "<<": {c: 1}\n' == format_document('b:\n    "<<": {c: 1}\n')
