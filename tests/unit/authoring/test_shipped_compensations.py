"""What the shipped rule sets declare to make half-done work good is decided so: suites speak of proposals alone."""

from __future__ import annotations

import pytest
from gavel_rules.shipped import shipped_names, shipped_rule_set
from gavel_rules.values import python_to_value, struct_to_dict

from tests.unit.core.driver import PARTIAL, Core, compiled

SERVICE = "service/checkout"
KNOWN: dict[tuple[str, str], dict[str, object]] = {
    (SERVICE, "service-catalogue"): {"service.environment": "staging", "service.dependants": 3},
    ("environment/staging", "change-calendar"): {
        "change.freeze_from": "2020-01-01T00:00:00Z",
        "change.freeze_until": "2020-01-02T00:00:00Z",
    },
    ("build/b-7", "ci"): {"build.service": "checkout", "build.signed": True, "build.tests": "passed"},
    (SERVICE, "slo-monitor"): {"service.error_budget": 0.5},
}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"replaced_build": "b-6"}, ("", "service.roll_back", {"from": "b-7", "to": "b-6"})),
        ({}, ("COMPENSATION_INVALID", "service.deploy", {"build": "b-7", "percent": 5.0})),
    ],
    ids=["rolled back", "a person"],
)
def test_a_half_done_deployment(result: dict[str, object], expected: tuple[str, str, dict[str, object]]) -> None:
    """A deployment that stopped half way is rolled back to what its executor says ran before; without its word a person is called."""
    core = Core(shipped_rule_set("infrastructure-change"))
    facts = [
        core.fact(key, value, subject=subject, source=source) for (subject, source), known in KNOWN.items() for key, value in known.items()
    ]
    approval = core.propose(facts, subject=SERVICE, action_type="service.deploy", params={"build": "b-7", "percent": 5})
    core.report(core.start(approval), PARTIAL, result=python_to_value(result).struct_value)
    decision = core.events[-1].decision
    assert expected == (decision.reason_code, decision.action_type, struct_to_dict(decision.params))
    core.prove()


def test_no_other_is_declared() -> None:
    """Whoever gives another shipped action a compensation tests it here."""
    rule_sets = [compiled(shipped_rule_set(name)) for name in shipped_names()]
    actions = [action for rule_set in rule_sets for action in rule_set.actions.values()]
    assert ["service.deploy"] == [action.action_type for action in actions if action.compensation is not None]
