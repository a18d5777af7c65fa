"""Directories of the client."""

from __future__ import annotations

import os
from pathlib import Path

from gavel_client.evidence.store import EvidenceStore
from gavel_client.mcp.open_calls import OpenCalls
from gavel_client.mcp.tasks import Tasks


async def no_decision(_: str) -> None:
    """Find no decision."""


def modes_below(directory: Path) -> list[int]:
    """Return the modes of the directories below a directory."""
    return [path.stat().st_mode & 0o777 for path in directory.rglob("*") if path.is_dir()]


async def test_directories_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    """Every new directory on the way to open calls, cancelled tasks and evidence is this user's alone: others could replace files there."""
    before = os.umask(0)
    try:
        OpenCalls(tmp_path / "state/proxy/calls").open("agent", "git.git_commit", {}, task="a")
        await Tasks(tmp_path / "other/proxy/cancelled").cancel("agent", "0190f2a4-7e3b-7c5d-8f10-0123456789ab", no_decision)
        EvidenceStore(str(tmp_path / "kept/evidence")).put(b"result")
    finally:
        os.umask(before)
    modes = modes_below(tmp_path)
    assert len(modes) >= 10
    assert {0o700} == set(modes)
