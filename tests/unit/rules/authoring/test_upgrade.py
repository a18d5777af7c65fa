"""Upgrades of documents to the second version of the language."""

from __future__ import annotations

import json

import pytest
from gavel_rules.authoring.diff import diff_rule_sets
from gavel_rules.authoring.upgrade import UpgradeError, upgrade
from gavel_rules.language.rule_set import DocumentError, compile_rule_set

from tests.support.driver import document

TEXT = """\
# Refunds of the shop.
rule_set: refunds
version: 7  # since May
gavel: "v1"  # the language
actions: {refund.create: {params: {type: object, required: [amount], properties: {amount: {type: number}}}}}
variables: {small: params.amount < 10.0}
rules:
  - {id: small, action: refund.create, priority: 1, when: small, effect: approve}
"""


def test_only_the_versions_change() -> None:
    """Comments, layout and quotes stay; the language's version is the second, and the rule set's the next."""
    assert TEXT.replace("version: 7", "version: 8").replace('"v1"', '"v2"') == upgrade(TEXT)


def test_json_is_upgraded() -> None:
    """A JSON document stays JSON, and decides as before."""
    text = document()
    upgraded = upgrade(text)
    assert {**json.loads(text), "gavel": "v2", "version": 2} == json.loads(upgraded)
    assert () == diff_rule_sets(compile_rule_set(text), compile_rule_set(upgraded)).cases


def test_the_second_version_stays() -> None:
    """A document of the second version is returned unchanged."""
    assert upgrade(upgrade(TEXT)) == upgrade(TEXT)


def test_names_of_the_second_version_are_mistakes() -> None:
    """A document that uses a name which the second version takes is not upgraded: the mistake names the place."""
    with pytest.raises(DocumentError) as refused:
        upgrade(TEXT.replace("small", "history"))
    assert "shadowed-name" in {message.code for message in refused.value.messages}
    with pytest.raises(DocumentError):
        upgrade("gavel: v1\n")


def test_unusual_layouts_are_left_to_the_author() -> None:
    """A value that is written over several lines is not changed."""
    with pytest.raises(UpgradeError, match="the value of gavel on line 4"):
        upgrade(TEXT.replace('"v1"  # the language', "!!str\n  v1").replace("!!str", ">-"))


@pytest.mark.parametrize("newline", ["\x0b", "\x0c", "\x1c", "\u2028", "\x85"])
def test_other_line_ends(newline: str) -> None:
    """A text with characters that only some readers take for line ends is changed at the same places, in JSON and in YAML."""
    described = {"gavel": "v1", "rule_set": "refunds", "description": f"a{newline}b", **json.loads(document())}
    text = json.dumps(described, ensure_ascii=False, indent=1)
    if newline not in "\x0b\x0c\x1c":  # JSON escapes control characters
        assert {**described, "gavel": "v2", "version": 2} == json.loads(upgrade(text))
    text = TEXT.replace("# Refunds", f"# Refunds{newline}# ") if newline in "\u2028\x85" else TEXT
    assert text.replace("version: 7", "version: 8").replace('"v1"', '"v2"') == upgrade(text)
