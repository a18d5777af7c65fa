"""A policy of roles, derived roles and principals, as Cerbos writes it, and its translation: alike in length and in decisions."""

from __future__ import annotations

import json
import re
from itertools import product
from typing import Any

import pytest
from gavel_rules.authoring.suites.reader import read_suite
from gavel_rules.authoring.suites.runner import run_cases
from gavel_rules.language.rule_set import compile_rule_set

from tests.support.paths import ROOT

FOLDER = ROOT / "tests/data/cerbos"
LENGTH_RATIO_MAX = 1.5
ACTIONS = ("view", "create", "defer", "approve", "delete", "audit")


def essence(name: str) -> str:
    """Return a file's text without comments, blank lines and indentation."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    return "\n".join(line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#"))


def test_the_translation_is_not_much_longer() -> None:
    """The translation has at most one and a half times the characters of the original, and of its lines and words."""
    original = "\n".join(essence(name) for name in ("derived_roles.yaml", "leave_request.yaml", "principal_donald_duck.yaml"))
    translation = essence("translated.yaml")
    sizes = [(len(text), len(text.splitlines()), len(re.findall(r"\w+", text))) for text in (original, translation)]
    assert all(after <= LENGTH_RATIO_MAX * before for before, after in zip(*sizes, strict=True)), sizes


def allowed(action: str, principal: dict[str, Any], request: dict[str, Any]) -> bool:
    """Return what Cerbos decides, written out from its documentation: a deny wins, then an allow, principal policies come first."""
    if principal["id"] == "donald_duck":
        if action == "delete":
            return False
        if action == "audit" and request["dev"]:
            return True
    roles = principal["roles"]
    derived = set()
    if "employee" in roles and request["owner"] == principal["id"]:
        derived.add("owner")
    if "employee" in roles or "manager" in roles:
        derived.add("any_employee")
    if "manager" in roles and request["geography"] == principal["geography"]:
        derived.add("direct_manager")
    if "admin" in roles:
        return True
    status = request["status"]
    return (
        (action == "create" and "owner" in derived)
        or (action == "view" and bool({"owner", "direct_manager"} & derived))
        or (action == "view" and "any_employee" in derived and request["status"] == "APPROVED")
        or (action == "approve" and "direct_manager" in derived and status == "PENDING_APPROVAL")
        or (action == "defer" and "direct_manager" in derived)
        or (action == "delete" and "direct_manager" in derived and not request["dev"])
    )


@pytest.mark.long
def test_the_translation_decides_alike() -> None:
    """For each action, roles and attributes, the translation approves exactly what the original allows."""
    rule_set = compile_rule_set((FOLDER / "translated.yaml").read_text(encoding="utf-8"))
    cases: list[dict[str, Any]] = []
    people = [("maggie", []), ("maggie", ["employee"]), ("boss", ["manager"]), ("root", ["admin"]), ("donald_duck", ["employee"])]
    for action, (person, roles), owner, geography, status, dev in product(
        ACTIONS, people, ("maggie", "donald_duck"), ("GB", "US"), ("PENDING_APPROVAL", "APPROVED"), (True, False)
    ):
        principal = {"id": person, "roles": roles, "geography": "GB"}
        request = {"owner": owner, "geography": geography, "status": status, "dev": dev}
        outcome = "APPROVED" if allowed(action, principal, request) else "REJECTED"
        cases.append(
            {
                "name": f"{len(cases)}",
                "action": f"leave_request.{action}",
                "subject": "leave_request/1",
                "producer": {"id": person},
                "params": request,
                "facts": {"roles": {"value": roles}, "geography": {"value": "GB"}},
                "expect": {"outcome": outcome},
            }
        )
    results = list(run_cases(read_suite(json.dumps({"gavel": "v1", "tests": "translated.yaml", "cases": cases})), rule_set, explain=False))
    assert [] == [
        (result.case.part.action, result.case.part.model_dump()["producer"], result.differences) for result in results if not result.passed
    ]
    assert {"APPROVED", "REJECTED"} == {case["expect"]["outcome"] for case in cases}
