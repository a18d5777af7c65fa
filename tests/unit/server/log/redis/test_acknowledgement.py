"""Which servers must have a write before it is answered."""

from __future__ import annotations

from typing import Any

import pytest
from gavel_server.log.redis.acknowledgement import Acknowledgement
from redis.exceptions import ResponseError

WHERE = "Redis at redis://h/0"


@pytest.mark.parametrize(
    ("setting", "expected", "commands"),
    [
        ("replicas:0", Acknowledgement(0, is_synced=False), ()),
        ("replicas:2", Acknowledgement(2, is_synced=False), (("WAIT", 2, 500),)),
        ("aof:0", Acknowledgement(0, is_synced=True), (("WAITAOF", 1, 0, 500),)),
        ("aof:16", Acknowledgement(16, is_synced=True), (("WAITAOF", 1, 16, 500),)),
    ],
)
def test_settings(setting: str, expected: Acknowledgement, commands: tuple[Any, ...]) -> None:
    """A setting names the command that waits for it, if any."""
    parsed = Acknowledgement.parse(setting)
    assert (expected, commands, bool(commands)) == (parsed, parsed.commands(500), parsed.is_needed)


@pytest.mark.parametrize("setting", ["replicas", "replicas:17", "aof:-1", "aof:x", "disk:1", "replicas:1 "])
def test_other_settings(setting: str) -> None:
    """Any other setting is refused with the forms that exist."""
    with pytest.raises(ValueError, match="use replicas:N or aof:N, with N from 0 to 16"):
        Acknowledgement.parse(setting)


@pytest.mark.parametrize(
    ("setting", "waited", "expected"),
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
def test_shortfalls(setting: str, waited: list[Any], expected: str) -> None:
    """What is missing is named; nothing is missing if enough servers confirmed."""
    assert expected == Acknowledgement.parse(setting).shortfall(waited, 500, WHERE)


def test_versions() -> None:
    """Only a Redis with WAITAOF can acknowledge by disks."""
    assert "" == Acknowledgement(1).problem((6, 2))
    assert "" == Acknowledgement(1, is_synced=True).problem((7, 2))
    assert "--ack aof:N needs Redis 7.2 or later" in Acknowledgement(1, is_synced=True).problem((7, 0))
