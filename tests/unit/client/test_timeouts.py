"""Timeouts on every version of Python."""

from __future__ import annotations

import ast

from tests.support.paths import ROOT

CLIENT = ROOT / "client/python/gavel_client"


def test_the_name_of_a_timeout() -> None:
    """A module that uses `timeouts.timeout` catches asyncio.TimeoutError: on Python 3.10 the built-in TimeoutError is another class."""
    users = [path for path in CLIENT.rglob("*.py") if "from gavel_client.timeouts import" in path.read_text()]
    assert len(users) > 3
    trees = {str(path.relative_to(CLIENT)): ast.parse(path.read_text()) for path in users}
    assert [] == [
        (name, node.lineno)
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == "TimeoutError"
    ]
