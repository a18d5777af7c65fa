"""Which servers must have a write before its caller is answered."""

from __future__ import annotations

import pytest
from gavel_server.log.acknowledgement import Acknowledgement


@pytest.mark.parametrize(
    ("setting", "expected", "is_needed"),
    [
        ("replicas:0", Acknowledgement(0, is_synced=False), False),
        ("replicas:2", Acknowledgement(2, is_synced=False), True),
        ("aof:0", Acknowledgement(0, is_synced=True), True),
        ("aof:16", Acknowledgement(16, is_synced=True), True),
    ],
)
def test_settings(setting: str, expected: Acknowledgement, is_needed: bool) -> None:
    """A setting names the replicas and the disks, and whether an answer waits for them."""
    parsed = Acknowledgement.parse(setting)
    assert (expected, is_needed) == (parsed, parsed.is_needed)


@pytest.mark.parametrize("setting", ["replicas", "replicas:17", "aof:-1", "aof:x", "disk:1", "replicas:1 "])
def test_other_settings(setting: str) -> None:
    """Any other setting is refused with the forms that exist."""
    with pytest.raises(ValueError, match="use replicas:N or aof:N, with N from 0 to 16"):
        Acknowledgement.parse(setting)
