"""The cookbook's pieces do what their cases say: each is added to the page's document, compiled, and its cases are run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from gavel_rules.ruleset import DocumentError, compile_rule_set
from gavel_rules.suite import read_suite
from gavel_rules.testing import run_cases
from ruamel.yaml import YAML

PAGE: Final = Path(__file__).parents[2] / "docs/cookbook.md"


class Recipe(NamedTuple):
    """A heading's piece of a rule set and its cases."""

    name: str
    piece: dict[str, Any]
    cases: dict[str, Any]


def _blocks(text: str) -> list[dict[str, Any]]:
    return [YAML(typ="safe").load(block) for block in re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)]


def _page() -> tuple[dict[str, Any], dict[str, Any], list[Recipe]]:
    """Return the page's document, what its cases start from, and its recipes."""
    head, *sections = re.split(r"^### (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    document, start = _blocks(head)
    recipes = [Recipe(name, *_blocks(text)) for name, text in zip(sections[::2], sections[1::2], strict=True)]
    return document, start, recipes


DOCUMENT, START, RECIPES = _page()


def _merged(base: Any, piece: Any) -> Any:
    """Add a piece to a document: mappings are merged, rules go on top of those there are, anything else replaces."""
    if not isinstance(base, dict) or not isinstance(piece, dict):
        return piece
    merged = dict(base)
    for name, part in piece.items():
        merged[name] = [*part, *base["rules"]] if name == "rules" else _merged(base.get(name), part)
    return merged


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_recipe(recipe: Recipe) -> None:
    """The piece compiles without a warning in the page's document, and its cases come out as they say."""
    rule_set = compile_rule_set(json.dumps(_merged(DOCUMENT, recipe.piece)))
    suite = read_suite(json.dumps({"gavel": "v1", "tests": "cookbook.yaml", **START, **recipe.cases}))
    assert [] == [(one.case.name, one.differences) for one in run_cases(suite, rule_set, explained=False) if not one.passed]
    assert {message.code for message in rule_set.warnings} <= {"fact-never-read"}


def test_without_the_piece() -> None:
    """Each recipe's cases need its piece: in the page's document as it stands, at least one of them fails or does not fit."""
    bare = compile_rule_set(json.dumps(DOCUMENT))
    idle = []
    for recipe in RECIPES:
        suite = read_suite(json.dumps({"gavel": "v1", "tests": "cookbook.yaml", **START, **recipe.cases}))
        try:
            passed = all(one.passed for one in run_cases(suite, bare, explained=False))
        except DocumentError:
            passed = False
        if passed:
            idle.append(recipe.name)
    assert ["Try again, but not for ever"] == idle
