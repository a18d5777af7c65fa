"""The values in seeds of a search."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gavel_rules.authoring.samples.seeds import Seed, seed_values
from gavel_rules.language.engines.case import Case


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("params.name", ["a"]),
        ("params.items", [[{"size": 1}, {"size": 2}, {}]]),
        ("params.items[].size", [1, 2]),
        ("params.owner.id", ["x"]),
        ("params.name.id", []),
        ("facts.state", ["paid"]),
        ("facts.other", []),
        ("producer.id", []),
    ],
)
def test_values_of_a_path(case: Callable[..., Case], path: str, expected: list[object]) -> None:
    """A path of params or facts has the values that the seeds have there, those of all elements of a list included."""
    params = {"name": "a", "items": [{"size": 1}, {"size": 2}, {}], "owner": {"id": "x"}}
    seeds = [
        Seed("one", "thing.do", params, case(params={}, facts={"state": "paid"})),
        Seed("none", "thing.do", {}, case(params={}, facts={})),
    ]
    assert expected == seed_values(seeds, path)
