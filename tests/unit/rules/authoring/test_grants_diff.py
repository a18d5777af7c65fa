"""Differences between two versions of the grants."""

from __future__ import annotations

import pytest
from gavel_rules.authoring.grants.diff import diff_grants
from gavel_rules.identity.grants import CompiledGrants, compile_grants


def grants(grant: str) -> CompiledGrants:
    """Return a document with one grant."""
    return compile_grants(f"gavel: v1\nname: main\nversion: 1\ngrants:\n  - {{to: [ada], may: [publish, read]{grant}}}\n")


@pytest.mark.parametrize(
    "restriction",
    [
        "buses: [orders]",
        "produce: {types: [api]}",
        "produce: {ids: [shop]}",
        'actions: ["refund.*"]',
        'subjects: ["order/*"]',
        'facts: ["order.*"]',
        "joins: [bob]",
    ],
)
def test_each_part_counts(restriction: str) -> None:
    """A version that differs in one key of a grant differs, and each line says what the grant allows."""
    diff = diff_grants(grants(""), grants(f", {restriction}"))
    assert ("to ada; may publish, read",) == diff.removed
    assert 1 == len(diff.added)
    assert diff.added[0].startswith("to ada; may publish, read; ")
    assert ((), ()) == (diff.lost, diff.gained)


def test_order_and_description_do_not_count() -> None:
    """Neither the order of a list nor a description makes a difference."""
    assert not diff_grants(grants(", buses: [a, b]"), grants(", buses: [b, a], description: why"))


def test_rights() -> None:
    """The rights that a caller loses and gains are named."""
    other = compile_grants("gavel: v1\nname: main\nversion: 2\ngrants:\n  - {to: [ada], may: [read, grant]}\n")
    diff = diff_grants(grants(""), other)
    assert ((("ada", "publish"),), (("ada", "grant"),)) == (diff.lost, diff.gained)


@pytest.mark.parametrize(
    ("one", "several"),
    [('joins: ["a, b"]', 'joins: ["a", "b"]'), ('joins: ["a; facts b"]', "joins: [a], facts: [b]"), ("facts: ['a,b']", "facts: [a, b]")],
)
def test_names_that_look_like_several(one: str, several: str) -> None:
    """A name with a comma or a semicolon differs from several names, and is quoted."""
    diff = diff_grants(grants(f", {one}"), grants(f", {several}"))
    assert (1, 1) == (len(diff.removed), len(diff.added))
    assert '"' in diff.removed[0]
    assert '"' not in diff.added[0]
