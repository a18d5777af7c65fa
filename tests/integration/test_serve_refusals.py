"""A server that cannot start says why and what to do, in one sentence, and never calls it a bug."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def _serve(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gavel_server.cli", "serve", "--listen", "127.0.0.1:0", "--data", str(data), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--redis", "redis://:secret@127.0.0.1:9"),
            "gavel: bus default cannot be opened: cannot connect to Redis at redis://***@127.0.0.1:9",
        ),
        (("--redis", "nowhere"), "gavel: the Redis URL nowhere is malformed; use redis://host:6379/0"),
    ],
)
def test_a_redis_that_cannot_be_used_is_named(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    """A Redis that is away, or a URL that is none, ends the start with that sentence, without its password."""
    ended = _serve(tmp_path, *arguments)
    assert (1, "") == (ended.returncode, ended.stdout)
    assert sentence in ended.stderr
    assert "secret" not in ended.stderr
    assert "this is a bug" not in ended.stderr


def test_a_broken_checkpoint_is_named(tmp_path: Path) -> None:
    """A checkpoint file that cannot be read ends the start with its path and the two ways out."""
    checkpoint = tmp_path / "checkpoint.json"
    checkpoint.write_text("{broken")
    ended = _serve(tmp_path)
    assert 1 == ended.returncode
    assert f"gavel: {checkpoint} is not a checkpoint of acknowledged events" in ended.stderr
    assert "restore it, or remove it to accept what the log holds" in ended.stderr
    assert "this is a bug" not in ended.stderr
