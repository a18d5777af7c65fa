"""Suites of grants documents: their mistakes, and cases that name no possible call."""

from __future__ import annotations

import pytest
from gavel_rules.authoring.grants.suite import read_grant_suite
from gavel_rules.identity.grants import compile_grants
from gavel_rules.language.document.diagnostics import DocumentError

HEAD = "gavel: v1\ntests: grants.yaml\ncases:\n"
GRANTS = compile_grants("""\
gavel: v1
name: main
version: 1
grants:
  - {to: [ada], may: [propose, read], produce: {types: [agent]}, actions: ["refund.*"], subjects: ["order/*"]}
  - {to: [ada], may: [publish], facts: ["order.*"]}
  - {to: [ada], may: [operate, review], actions: ["refund.*"]}
  - {to: [bob], may: [propose], actions: ["refund.*"], subjects: ["order/*"]}
  - {to: [bob], may: [propose], actions: ["refund.*"]}
""")


def failure(case: str) -> str:
    """Return how a case fails."""
    (result,) = read_grant_suite(f"{HEAD}  - {{name: x, {case}}}\n").run(GRANTS)
    return result.failure


def mistakes(text: str) -> list[tuple[str, str]]:
    """Return place, code and message of each mistake of a suite, with its suggestion."""
    with pytest.raises(DocumentError) as refused:
        read_grant_suite(text)
    return [(f"{one.line}:{one.column}: {one.code}: {one.message}", one.suggestion) for one in refused.value.messages]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("caller: {name: ada}, right: propose, expect: allowed", "missing-key: grant 1 restricts produce and action and subject, which"),
        (
            "caller: {name: ada}, right: propose, produce: {type: agent, id: a}, action: refund.create, expect: allowed",
            "missing-key: grant 1 restricts subject, which the case leaves out; add what a call has there",
        ),
        ("caller: {name: bob}, right: propose, action: refund.create, expect: allowed", ""),
        ("caller: {name: bob}, right: propose, subject: order/1, expect: allowed", "missing-key: grant 4 restricts action, which"),
        ("caller: {name: ada}, right: read, expect: allowed", ""),
        ("caller: {name: ada}, right: publish, expect: allowed", ""),
        ("caller: {name: ada}, right: operate, expect: allowed", ""),
        ("caller: {name: ada}, right: review, expect: allowed", "missing-key: grant 3 restricts action, which"),
        ("caller: {name: ada}, right: propose, expect: denied", "expected denied, but it is allowed"),
        ("caller: {name: ada}, right: execute, expect: denied", ""),
        ("caller: {name: ada}, right: execute, expect: allowed", "expected allowed, but it is denied: no grant of main version 1 gives"),
    ],
)
def test_an_allowed_call_has_all_parts(case: str, expected: str) -> None:
    """A case that expects `allowed` fails if it leaves out a part that its grant restricts and that every call of its right has."""
    actual = failure(case)
    assert actual.startswith(expected)
    assert bool(actual) == bool(expected)


@pytest.mark.parametrize("text", ["- 1\n", "5\n", "text\n"])
def test_a_suite_is_a_mapping(text: str) -> None:
    """A suite that is not a mapping is one mistake."""
    assert [("1:1: wrong-type: the suite is not a mapping", "start with `gavel: v1`")] == mistakes(text)


@pytest.mark.parametrize(
    ("parts", "code", "hint"),
    [
        ("caller: {name: a, groups: [group:x]}", "bad-name", "write the group's name without group:"),
        ("caller: {name: a, groups: ['']}", "out-of-range", ""),
        ("caller: {name: a, group: x}", "unknown-key", "did you mean groups?"),
        ("caller: {name: a, x: y}", "unknown-key", "known: groups, method, name"),
        ("caller: {name: a}, produce: {type: agent, id: a, x: y}", "unknown-key", "known: id, type"),
        ("caller: {name: a}, bus: My Bus", "bad-name", "write it like default"),
        ("caller: {name: a}, produce: {type: agent, id: a b}", "bad-name", "write it like orders-db"),
        ("caller: {name: a}, action: Refund", "bad-name", "write it like refund.create"),
        ("caller: {name: a}, subject: order", "bad-name", "write it like order/123"),
        ("caller: {name: a}, facts: [Order]", "bad-name", "write it like order.status"),
    ],
)
def test_values_that_no_call_has(parts: str, code: str, hint: str) -> None:
    """A value that no call can have, and an unknown key, are mistakes, with what to write."""
    ((mistake, suggestion),) = mistakes(f"{HEAD}  - {{name: x, {parts}, right: propose, expect: denied}}\n")
    assert (code, hint) == (mistake.split(": ")[1], suggestion)
