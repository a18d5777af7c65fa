"""Warnings about grants documents."""

from __future__ import annotations

import pytest
from gavel_rules.authoring.grants.lint import lint_grants
from gavel_rules.identity.grants import compile_grants
from gavel_rules.language.rule_set import compile_rule_set

DOCUMENT = "gavel: v1\nname: main\nversion: 1\ngrants:\n  - {to: [ada], may: [grant]}\n"


def codes(grant: str) -> list[str]:
    """Return the warnings about one more grant."""
    document = f"{DOCUMENT}  - {{to: [bob], {grant}}}\n"
    return [message.code for message in lint_grants(document, compile_grants(document))]


@pytest.mark.parametrize(
    ("grant", "expected"),
    [
        ('may: [execute, read], produce: {ids: [x]}, subjects: ["order/*"]', ["reads-all-subjects"]),
        ('may: [review, subscribe], subjects: ["order/*"]', ["reads-all-subjects"]),
        ('may: [execute], produce: {ids: [x]}, subjects: ["order/*"]', []),
        ("may: [execute, read], produce: {ids: [x]}", []),
        ('may: [read], subjects: ["order/*"]', ["restricts-nothing"]),
        ('may: [operate], subjects: ["order/*"], actions: ["refund.*"]', []),
        ("may: [publish]", ["any-producer"]),
        ('may: [read], joins: ["svc:*", "*", "group:", "group:a"]', ["no-such-caller", "no-such-caller"]),
        ("may: [read], joins: [gavel:x, anonymous, uid:5, login:ada]", ["no-such-caller", "no-such-caller"]),
        ('may: [read], buses: [Orders, "orders-*"]', ["matches-nothing"]),
        ('may: [operate], subjects: [order, "order/*", "*"]', ["matches-nothing"]),
        ("may: [grant], joins: [ada]", []),
    ],
)
def test_warnings(grant: str, expected: list[str]) -> None:
    """A grant gets the warnings that it deserves: subjects do not restrict reading, so a grant that seems to say so is warned of."""
    assert expected == codes(grant)


def test_nobody_may_grant() -> None:
    """A document that nobody could replace is warned of."""
    document = "gavel: v1\nname: main\nversion: 1\ngrants:\n  - {to: [bob], may: [read]}\n"
    assert ["nobody-may-grant"] == [message.code for message in lint_grants(document, compile_grants(document))]


def test_unreachable_with_joins() -> None:
    """A grant that lets its callers join more traces is not covered by one that lets them join fewer."""
    grants = "  - {to: [bob], may: [read], joins: [ada, eve]}\n  - {to: [bob], may: [read], joins: [ada]}\n"
    document = DOCUMENT + grants
    warnings = [message.message for message in lint_grants(document, compile_grants(document))]
    assert ["grant 2 allows all that this grant allows"] == warnings


REVIEWED = """
gavel: v1
rule_set: refunds
version: 4
actions:
  refund.create:
    params: {type: object}
    facts: {status: {key: order.status, type: string, max_age_ms: 1000}}
    review: {groups: [risk], escalate_after_ms: 1000, escalate_to: [leads]}
rules:
  - {id: large, action: refund.create, priority: 2, when: "facts.status == 'large'", effect: review,
     reason_code: LARGE, review: {groups: [board]}}
  - {id: odd, action: refund.create, priority: 1, when: "facts.status == 'odd'", effect: review, reason_code: ODD}
"""


@pytest.mark.parametrize(
    ("reviewing", "expected"),
    [
        ('{to: ["group:risk", "group:leads", "group:board"], may: [review]}', []),
        ('{to: ["*"], may: [review], actions: ["refund.*"]}', []),
        (
            '{to: ["group:risk", "group:board"], may: [review]}',
            ["group:leads review refund.create, but rule set refunds version 4 escalates"],
        ),
        (
            '{to: ["group:risk", "group:leads"], may: [review]}',
            ["group:board review refund.create, but rule set refunds version 4 asks it"],
        ),
        (
            '{to: ["group:risk", "group:leads", "group:board"], may: [review], actions: ["payout.*"]}',
            ["group:board", "group:leads", "group:risk"],
        ),
        ('{to: ["group:risk", "group:leads", "group:board", "risk"], may: [read]}', ["group:board", "group:leads", "group:risk"]),
    ],
)
def test_groups_that_may_not_review(reviewing: str, expected: list[str]) -> None:
    """A group that reviews name, at first or after an escalation, needs a grant to review the action."""
    document = f"{DOCUMENT}  - {reviewing}\n"
    warnings = lint_grants(document, compile_grants(document), [compile_rule_set(REVIEWED)])
    messages = [message.message for message in warnings if message.code == "group-may-not-review"]
    assert len(expected) == len(messages)
    assert all(f"no grant lets {start}" in message for start, message in zip(expected, messages, strict=True))


@pytest.mark.parametrize(
    ("grant", "expected"),
    [
        ("{to: [bob], may: [propose, execute]}", []),
        ("{to: [bob], may: [propose]}", ["nobody may execute"]),
        ('{to: [bob], may: [propose, execute], actions: ["refnd.*"]}', ["nobody may propose or execute"]),
        ('{to: [bob], may: [propose, execute], buses: ["orders-*"]}', []),
        ("{to: [bob], may: [propose, execute], buses: [other]}", ["nobody may propose or execute"]),
    ],
)
def test_actions_without_grants(grant: str, expected: list[str]) -> None:
    """An action of a rule set that nobody may propose or execute on its bus is warned of, with the rights that are missing."""
    document = f"{DOCUMENT}  - {grant}\n"
    warnings = lint_grants(document, compile_grants(document), [compile_rule_set(REVIEWED)], "orders-eu")
    action = "refund.create, an action of rule set refunds version 4"
    messages = [f"no grant lets anybody {one.removeprefix('nobody may ')} {action}" for one in expected]
    assert messages == [message.message for message in warnings if message.code == "action-without-grant"]


def test_reviews_without_groups() -> None:
    """A review for which no group is named needs somebody who may review."""
    document = f"{DOCUMENT}  - {{to: [bob], may: [propose, execute]}}\n"
    with_groups = "    review: {groups: [risk], escalate_after_ms: 1000, escalate_to: [leads]}\n"
    rules = REVIEWED.replace(", review: {groups: [board]}", "").replace(with_groups, "")
    warnings = lint_grants(document, compile_grants(document), [compile_rule_set(rules)])
    expected = "no grant lets anybody review refund.create, an action of rule set refunds version 4"
    assert [expected] == [message.message for message in warnings if message.code == "action-without-grant"]
