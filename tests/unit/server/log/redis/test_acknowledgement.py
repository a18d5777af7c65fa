"""Confirmations of writes by Redis: WAIT and WAITAOF."""

from __future__ import annotations

from typing import Any

import pytest
from gavel_server.log.acknowledgement import Acknowledgement
from gavel_server.log.redis.acknowledgement import shortfall, version_problem, wait_commands
from redis.exceptions import ResponseError

WHERE = "Redis at redis://h/0"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("replicas:0", ()),
        ("replicas:2", (("WAIT", 2, 500),)),
        ("aof:0", (("WAITAOF", 1, 0, 500),)),
        ("aof:16", (("WAITAOF", 1, 16, 500),)),
    ],
)
def test_commands(setting: str, expected: tuple[Any, ...]) -> None:
    """Each acknowledgement has the command that waits for it, if any."""
    assert expected == wait_commands(Acknowledgement.parse(setting), 500)


@pytest.mark.parametrize(
    ("setting", "replies", "expected"),
    [
        ("replicas:1", [1], ""),
        ("replicas:2", [1], "only 1 of 2 replicas confirmed within 500 ms"),
        ("replicas:2", [], f"{WHERE} did not report whether replicas have them"),
        ("aof:1", [[1, 1]], ""),
        ("aof:1", [[0, 1]], f"{WHERE} did not write them to its disk within 500 ms"),
        ("aof:1", [[1, 0]], "only 0 of 1 replicas wrote them to their disks, for which they need appendonly yes, within 500 ms"),
        (
            "aof:1",
            [ResponseError("unknown command `WAITAOF`")],
            f"{WHERE} refuses to wait for replicas: unknown command `WAITAOF`; --ack aof:N needs Redis 7.2 or later, or Valkey: "
            "upgrade it, or use --ack replicas:N",
        ),
    ],
)
def test_shortfalls(setting: str, replies: list[Any], expected: str) -> None:
    """The missing servers are named; none is missing if enough servers confirmed."""
    assert expected == shortfall(Acknowledgement.parse(setting), replies, 500, WHERE)


def test_versions() -> None:
    """Only a Redis with WAITAOF can acknowledge by disks."""
    assert "" == version_problem(Acknowledgement(1), (6, 2))
    assert "" == version_problem(Acknowledgement(1, is_synced=True), (7, 2))
    assert "--ack aof:N needs Redis 7.2 or later" in version_problem(Acknowledgement(1, is_synced=True), (7, 0))
