"""Damaged documents: whatever is wrong with a document, it either compiles or has mistakes with places."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from gavel_rules.authoring.format import format_document
from gavel_rules.language.document.diagnostics import MESSAGE_LENGTH_MAX, DocumentMessage, Messages
from gavel_rules.language.document.source import Source
from gavel_rules.language.rule_set import CompiledRuleSet, DocumentError, compile_rule_set
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.rules.language.document.test_sharing import TEXT

MORE = """\
zones: {ny: {name: America/New_York, offsets: ["2026-01-01T00:00:00Z -05:00"], until: "2027-01-01T00:00:00Z"}}
calendars: {holidays: ["2026-12-25"]}
counters: {drained: {of: approvals, action: "node.*", by: subject, window_ms: 1000}}
derivations: [{id: last, version: 1, on: {action: node.drain, status: SUCCESS}, key: node.last, value: execution.result.last}]
"""
RULE = {
    "id": "closed",
    "action": "node.drain",
    "priority": 900,
    "when": "history.drained(subject) > 3 && now.getHours(zones.ny) > 3 && !(now.toDate(zones.ny) in calendars.holidays)",
    "effect": "reject",
    "reason_code": "CLOSED",
    "detail": {"left": "constants.replicas - 1.0"},
    "retry_after": "history.drained.frees(subject, 1, 3)",
}
JUNK: list[Any] = [
    *(
        None,
        True,
        0,
        -1,
        1.5,
        -0.0,
        2**53,
        "",
        "a.b",
        "*",
        "in",
        "\x7f",
        "\ud800",
        "now",
        "1.0 // c",
        "[1.0, 'a']",
        "cel.bind(x, 1, x > 0)",
    ),
    *("constants", "(constants).replicas", "history.drained", "zones.ny"),
    *([], {}, [[]], ["a.b"], {"\ud800": 1}, {"type": "string"}, {"const": True}),
]
NAMES = ["use", "history", "constants", "documents", "imports", "value", "subjects", "\ud800"]
CUTS = ["", "(", ")", "'", "//", "constants.", "`", "\n"]
Path = tuple[str | int, ...]


def sample() -> dict[str, Any]:
    """Return a valid document with every section of the second version."""
    data = Source(TEXT + MORE, Messages()).data
    assert isinstance(data, dict)
    data["rules"].append(RULE)
    return data


def places(value: object, path: Path = ()) -> Iterator[Path]:
    """Yield the path of every part but the whole."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """Draw the sample with one to three parts replaced, removed, renamed or cut."""
    data: Any = copy.deepcopy(sample())
    for _ in range(draw(st.integers(1, 3))):
        *above, key = draw(st.sampled_from(list(places(data)) or [("gavel",)]))
        part = data
        for step in above:
            part = part[step]
        match draw(st.integers(0, 3)):
            case 0:
                part[key] = copy.deepcopy(draw(st.sampled_from(JUNK)))
            case 1:
                del part[key]
            case 2 if isinstance(part, dict):
                part[draw(st.sampled_from(NAMES))] = part.pop(key)
            case _ if isinstance(part[key], str) and part[key]:
                at = draw(st.integers(0, len(part[key])))
                part[key] = part[key][:at] + draw(st.sampled_from(CUTS)) + part[key][at + 1 :]
    return json.dumps(data)


def compiled(text: str) -> tuple[CompiledRuleSet | None, tuple[DocumentMessage, ...]]:
    """Return the compiled document, or None and its mistakes."""
    try:
        return compile_rule_set(text), ()
    except DocumentError as error:
        return None, tuple(error.messages)


def test_the_sample_is_valid() -> None:
    """The document that is damaged compiles."""
    assert "services" == compile_rule_set(json.dumps(sample())).policy_id


@pytest.mark.long
@settings(max_examples=150, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(text=damaged())
def test_a_damaged_document_has_mistakes_with_places(text: str) -> None:
    """A damaged document has mistakes, each with a place; one that is still valid keeps its digest in canonical form and layout."""
    rule_set, mistakes = compiled(text)
    assert [] == [one for one in mistakes if one.line < 1 or one.column < 1 or not one.message]
    if rule_set is None:
        assert mistakes
        return
    assert rule_set.digest == compile_rule_set(rule_set.canonical_json).digest == compile_rule_set(format_document(text)).digest


def test_messages_are_cut() -> None:
    """Messages that quote a long name of the document are cut: a thousand of them would be hundreds of times as long as the document."""
    facts = ", ".join(f"a{number}: 1" for number in range(100))
    action = f"  ? {'n' * 20_000}\n  : {{params: {{type: object}}, facts: {{{facts}}}}}\n"
    with pytest.raises(DocumentError) as invalid:
        compile_rule_set(f"gavel: v1\nrule_set: r\nversion: 1\nactions:\n{action}rules: []\n")
    lengths = [len(message.message) for message in invalid.value.messages]
    assert len(lengths) > 100
    assert MESSAGE_LENGTH_MAX == max(lengths)
