"""The recipes of the cookbook: each is added to the page's document and compiled, and its cases are run.

A recipe that is a whole rule set is tested alone, and then together with the page's document.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.authoring.suites.reader import read_suite
from gavel_rules.authoring.suites.runner import run_cases
from gavel_rules.authoring.suites.suite import Suite
from gavel_rules.language.rule_set import DocumentError, compile_rule_set
from gavel_rules.values import python_to_value, struct_to_dict
from ruamel.yaml import YAML

from tests.support.driver import PARTIAL, SUCCESS, Core
from tests.support.paths import ROOT

PAGE: Final = ROOT / "docs/cookbook.md"


class Recipe(NamedTuple):
    """A section of the cookbook: a piece of a rule set, and its cases."""

    name: str
    piece: dict[str, Any]
    cases: dict[str, Any]


def _blocks(text: str) -> list[dict[str, Any]]:
    return [YAML(typ="safe").load(block) for block in re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)]


def _page() -> tuple[dict[str, Any], dict[str, Any], list[Recipe]]:
    """Return the page's document, the defaults of its cases, and its recipes."""
    head, *sections = re.split(r"^### (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    document, defaults = _blocks(head)
    recipes = [Recipe(name, *_blocks(text)) for name, text in zip(sections[::2], sections[1::2], strict=True)]
    return document, defaults, recipes


DOCUMENT, DEFAULTS, RECIPES = _page()


def _merge(base: Any, piece: Any) -> Any:
    """Add a piece to a document: mappings are merged, rules are put before the existing ones, other values replace."""
    if not isinstance(base, dict) or not isinstance(piece, dict):
        return piece
    merged = dict(base)
    for name, part in piece.items():
        merged[name] = [*part, *base["rules"]] if name == "rules" else _merge(base.get(name), part)
    return merged


RULE_SETS = [recipe for recipe in RECIPES if "rule_set" in recipe.piece]


def _suite(recipe: Recipe) -> Suite:
    """Return a recipe's cases; those of a whole rule set start without the facts of the page's document."""
    defaults = {"defaults": {**DEFAULTS["defaults"], "facts": {}}} if recipe in RULE_SETS else DEFAULTS
    return read_suite(json.dumps({"gavel": "v1", "tests": "cookbook.yaml", **defaults, **recipe.cases}))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_recipe(recipe: Recipe) -> None:
    """Each recipe compiles without unexpected warnings, and all its cases pass."""
    document = recipe.piece if recipe in RULE_SETS else _merge(DOCUMENT, recipe.piece)
    rule_set = compile_rule_set(json.dumps(document))
    assert [] == [(one.case.name, one.differences) for one in run_cases(_suite(recipe), rule_set, explain=False) if not one.passed]
    assert {message.code for message in rule_set.warnings} <= {"fact-never-read", *(["never-approves"] if recipe in RULE_SETS else [])}


def test_without_the_piece() -> None:
    """At least one case of each recipe fails, or is not valid, without the recipe's piece."""
    bare = compile_rule_set(json.dumps(DOCUMENT))
    passing = []
    for recipe in RECIPES:
        try:
            passed = all(one.passed for one in run_cases(_suite(recipe), bare, explain=False))
        except DocumentError:
            passed = False
        if passed:
            passing.append(recipe.name)
    assert [] == passing


def test_company_freeze() -> None:
    """A freeze prevents approvals and starts; otherwise the page's document decides."""
    (freeze,) = RULE_SETS
    core = Core(json.dumps(DOCUMENT))
    core.activate(json.dumps(freeze.piece))

    def publish_frozen(frozen: bool) -> Envelope:
        return core.fact("company.frozen", frozen, subject="company/acme", source="operations")

    def decide(subject: str) -> Envelope:
        delivered = core.fact("order.status", "delivered", subject=subject)
        return core.propose([delivered], subject=subject, trace_id=subject, params={"amount": 50, "currency": "EUR"})

    assert "NEED_MORE_FACTS" == decide("order/1").decision.reason_code
    publish_frozen(False)
    approved = decide("order/2")
    assert ("cookbook", ["company-freeze", "cookbook"]) == (approved.decision.policy_id, list(approved.decision.active_policy_ids))
    publish_frozen(True)
    refused = decide("order/3").decision
    assert ("COMPANY_FROZEN", "company-freeze", ["delivered"]) == (
        refused.reason_code,
        refused.policy_id,
        [match.rule_id for match in refused.rule_matches if match.policy_id == "cookbook"],
    )
    assert "FACT_SUPERSEDED" == core.refuse_start(approved).reason_code
    publish_frozen(False)
    core.start(decide("order/4"))


def test_compensation() -> None:
    """A partial execution is compensated with the amount paid, and a second refund goes to review."""
    (recipe,) = [one for one in RECIPES if one.name == "Compensation of a partial execution"]
    core = Core(json.dumps(_merge(DOCUMENT, recipe.piece)))

    def decide(trace_id: str) -> Envelope:
        return core.propose([core.fact("order.status", "delivered")], trace_id=trace_id, params={"amount": 50, "currency": "EUR"})

    started = core.start(decide("first"))
    partial = core.report(started, PARTIAL, result=python_to_value({"paid": 30}).struct_value)
    compensation = core.events[-1]
    assert ("refund.reverse", {"amount": 30.0, "currency": "EUR"}) == (
        compensation.decision.action_type,
        struct_to_dict(compensation.decision.params),
    )
    core.derive(partial)
    assert "CONFLICTING_DECISION" == decide("too early").decision.reason_code
    core.derive(core.report(core.start(compensation), SUCCESS))
    assert "REVERSED_BEFORE" == decide("second").decision.reason_code
    core.prove()
