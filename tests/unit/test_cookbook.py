"""The cookbook's pieces do what their cases say: each is added to the page's document, compiled, and its cases are run.

A piece that is a whole document stands beside the page's: its cases are run on it alone, and then both are put in force.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.authoring.suite import Suite, read_suite
from gavel_rules.authoring.testing import run_cases
from gavel_rules.language.ruleset import DocumentError, compile_rule_set
from gavel_rules.values import python_to_value, struct_to_dict
from ruamel.yaml import YAML

from tests.unit.core.driver import PARTIAL, SUCCESS, Core

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


BESIDE = [recipe for recipe in RECIPES if "gavel" in recipe.piece]


def _suite(recipe: Recipe) -> Suite:
    """Return a recipe's cases. One that stands beside the page's document knows nothing of that one's facts."""
    start = {"defaults": {**START["defaults"], "facts": {}}} if recipe in BESIDE else START
    return read_suite(json.dumps({"gavel": "v1", "tests": "cookbook.yaml", **start, **recipe.cases}))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_recipe(recipe: Recipe) -> None:
    """The piece compiles without a warning in the page's document, and its cases come out as they say."""
    document = recipe.piece if recipe in BESIDE else _merged(DOCUMENT, recipe.piece)
    rule_set = compile_rule_set(json.dumps(document))
    assert [] == [(one.case.name, one.differences) for one in run_cases(_suite(recipe), rule_set, explained=False) if not one.passed]
    assert {message.code for message in rule_set.warnings} <= {"fact-never-read", *(["never-approves"] if recipe in BESIDE else [])}


def test_without_the_piece() -> None:
    """Each recipe's cases need its piece: in the page's document as it stands, at least one of them fails or does not fit."""
    bare = compile_rule_set(json.dumps(DOCUMENT))
    idle = []
    for recipe in RECIPES:
        try:
            passed = all(one.passed for one in run_cases(_suite(recipe), bare, explained=False))
        except DocumentError:
            passed = False
        if passed:
            idle.append(recipe.name)
    assert [] == idle


def test_a_freeze_beside_the_page_s_document() -> None:
    """While the company is frozen nothing is approved or started; else what the page's document says holds."""
    (freeze,) = BESIDE
    core = Core(json.dumps(DOCUMENT))
    core.activate(json.dumps(freeze.piece))

    def says_operations(frozen: bool) -> Envelope:
        return core.fact("company.frozen", frozen, subject="company/acme", source="operations")

    def decided(subject: str) -> Envelope:
        delivered = core.fact("order.status", "delivered", subject=subject)
        return core.propose([delivered], subject=subject, trace_id=subject, params={"amount": 50, "currency": "EUR"})

    assert "NEED_MORE_FACTS" == decided("order/1").decision.reason_code
    says_operations(False)
    approved = decided("order/2")
    assert ("cookbook", ["company-freeze", "cookbook"]) == (approved.decision.policy_id, list(approved.decision.active_policy_ids))
    says_operations(True)
    refused = decided("order/3").decision
    assert ("COMPANY_FROZEN", "company-freeze", ["delivered"]) == (
        refused.reason_code,
        refused.policy_id,
        [match.rule_id for match in refused.rule_matches if match.policy_id == "cookbook"],
    )
    assert "FACT_SUPERSEDED" == core.refuse_start(approved).reason_code
    says_operations(False)
    core.start(decided("order/4"))


def test_the_saga() -> None:
    """The piece about half-done work is carried out as the page says: undone with what was paid, and a person at the second try."""
    (recipe,) = [one for one in RECIPES if one.name == "What was half done is undone"]
    core = Core(json.dumps(_merged(DOCUMENT, recipe.piece)))

    def decided(trace_id: str) -> Envelope:
        return core.propose([core.fact("order.status", "delivered")], trace_id=trace_id, params={"amount": 50, "currency": "EUR"})

    started = core.start(decided("first"))
    half = core.report(started, PARTIAL, result=python_to_value({"paid": 30}).struct_value)
    compensation = core.events[-1]
    assert ("refund.reverse", {"amount": 30.0, "currency": "EUR"}) == (
        compensation.decision.action_type,
        struct_to_dict(compensation.decision.params),
    )
    core.derive(half)
    assert "CONFLICTING_DECISION" == decided("too early").decision.reason_code
    core.derive(core.report(core.start(compensation), SUCCESS))
    assert "REVERSED_BEFORE" == decided("second").decision.reason_code
    core.prove()
