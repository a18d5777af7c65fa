"""The producer of a proposal in rules: its verified groups in conditions and conflict keys, and its facts by a subject template."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel.v1.decision_pb2 import Decision
from gavel_rules.authoring.diff import diff_rule_sets
from gavel_rules.authoring.suites.reader import read_suite
from gavel_rules.authoring.suites.runner import run_cases
from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_rules.language.rule_set import DocumentError
from gavel_rules.preflight import preflight

from tests.support.driver import AGENT, Core, compile_cached, document

ROLES: dict[str, Any] = {
    "key": "agent.roles",
    "subject": '"agent/" + producer.id',
    "max_age_ms": 60_000,
    "value": {"type": "array", "maxItems": 20, "items": {"type": "string", "maxLength": 64}},
}
RULES = [
    {"id": "suspended", "when": '"suspended" in producer.groups', "effect": "reject", "reason_code": "SUSPENDED"},
    {"id": "by-role", "when": '"refunder" in facts.roles', "effect": "approve"},
    {"id": "by-group", "when": 'producer.groups.exists(group, group.startsWith("refund-"))', "effect": "approve"},
]
TEXT = document({"roles": ROLES}, RULES, gavel="v2", conflict_key='"risk" in producer.groups ? "risk" : subject')
OWN_ROLES = f"agent/{AGENT.id}"


def outcome(decision: Decision) -> str:
    """Return the rule that decided, or the reason code."""
    return decision.rule_id or decision.reason_code


def proposed(principal: Principal, roles: list[str]) -> Core:
    """Return a bus on which a caller has proposed, with these roles of its agent in the log."""
    core = Core(TEXT)
    fact = core.fact("agent.roles", roles, subject=OWN_ROLES)
    core.principal = principal
    core.propose([fact])
    return core


@pytest.mark.parametrize(
    ("principal", "roles", "expected"),
    [
        (Principal("ada", "token", groups=("refund-eu",)), [], "by-group"),
        (Principal("ada", "token", groups=("other",)), [], "NO_RULE_MATCHED"),
        (Principal("ada", "token", groups=("suspended",)), ["refunder"], "SUSPENDED"),
        (Principal("ada", "token"), ["refunder"], "by-role"),
        (ANONYMOUS, ["refunder"], "by-role"),
        (ANONYMOUS, [], "NO_RULE_MATCHED"),
    ],
)
def test_rules_read_groups_and_facts_of_the_producer(principal: Principal, roles: list[str], expected: str) -> None:
    """Conditions see the caller's verified groups, none without authentication, and the fact about the producer; a replay decides alike."""
    core = proposed(principal, roles)
    decision = core.events[-1].decision
    assert expected in (decision.rule_id, decision.reason_code)
    core.prove()


def test_the_conflict_key_reads_groups() -> None:
    """A conflict key may depend on the groups of the proposer."""
    core = proposed(Principal("ada", "token", groups=("risk",)), ["refunder"])
    assert "risk" == core.events[-1].decision.conflict_key


def test_a_dry_run_has_the_groups_of_its_caller() -> None:
    """A preflight decides with the groups of the principal that asks, and leaves none behind for the next one."""
    core = Core(TEXT)
    fact = core.fact("agent.roles", [], subject=OWN_ROLES)
    command = core.proposal([fact])
    cited = core.references(command).cited_events
    answers = [
        preflight(core.state, command.proposal, cited, core.now_ms, None, principal)
        for principal in (Principal("ada", "token", groups=("refund-eu",)), ANONYMOUS)
    ]
    assert ["by-group", "NO_RULE_MATCHED"] == [outcome(answer) for answer in answers if isinstance(answer, Decision)]


def test_the_missing_fact_names_the_producer() -> None:
    """Without the fact about the producer, the retry hint names the subject that the template gives for it."""
    core = Core(TEXT)
    decision = core.propose().decision
    assert [OWN_ROLES] == [row.subject for row in decision.retry_hint.fact_requirements]


def test_an_execution_begins_only_while_the_producers_fact_holds() -> None:
    """The check before an execution reads the fact about the producer again: a lost role stops the approval."""
    core = proposed(Principal("ada", "token"), ["refunder"])
    approval = core.events[-1]
    core.fact("agent.roles", [], subject=OWN_ROLES)
    assert "FACT_SUPERSEDED" == core.refuse_start(approval).reason_code


def test_suites_set_groups_and_type() -> None:
    """A case gives its producer a type and groups, and the fact about the producer is placed where the template asks for it."""
    cases = [
        {
            "name": "group",
            "producer": {"id": "bot", "groups": ["refund-eu"]},
            "facts": {"roles": {"value": []}},
            "expect": {"rule_id": "by-group"},
        },
        {
            "name": "role",
            "producer": {"id": "bot", "type": "AGENT"},
            "facts": {"roles": {"value": ["refunder"]}},
            "expect": {"rule_id": "by-role"},
        },
    ]
    for case in cases:
        case["expect"] = {"outcome": "APPROVED", **case["expect"]}  # type: ignore[dict-item]
    suite = {"gavel": "v1", "tests": "rules.yaml", "defaults": {"params": {"amount": 5}}, "cases": cases}
    results = list(run_cases(read_suite(json.dumps(suite)), compile_cached(TEXT)))
    assert [()] * 2 == [result.differences for result in results]


def test_diff_finds_groups() -> None:
    """`diff` makes a case with the groups whose meaning a change of a condition alters."""
    other = TEXT.replace('\\"suspended\\" in producer.groups', '\\"banned\\" in producer.groups')
    (change, *_) = diff_rule_sets(compile_cached(TEXT), compile_cached(other)).cases
    groups = change.context["producer.groups"]
    assert isinstance(groups, list)
    assert {"suspended", "banned"} & {*groups}


@pytest.mark.parametrize(
    "changes",
    [
        {"rules": [{"id": "a", "when": '"x" in producer.groups', "effect": "approve"}]},
        {"facts": {"roles": {**ROLES, "value": {"type": "string"}}}},
        {"conflict_key": "producer.groups[0]"},
    ],
)
def test_the_first_version_has_no_groups(changes: dict[str, Any]) -> None:
    """In the first version of the language, groups are unknown, and templates do not know the producer."""
    with pytest.raises(DocumentError) as refused:
        compile_cached(document(**changes))
    assert {"unknown-name", "unknown-key"} & {message.code for message in refused.value.messages}
