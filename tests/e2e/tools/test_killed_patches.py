"""Files of the workspace whose writer is killed at every line of its work: each is whole, before or after the change, or absent."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.runs import forker
from tests.e2e.tools.patch_process import BEFORE

PATCHED, CREATED = "/workspace/a.txt", "/workspace/new.txt"
AFTER = "1 two " * 4_000
# The writer executes more lines than this.
POINTS_MIN = 20


@pytest.mark.parametrize(
    ("tool", "arguments", "before", "after"),
    [
        ("fs.patch_text", {"path": PATCHED, "find": "one", "replace": "1", "all": True}, [BEFORE, None], [AFTER, None]),
        pytest.param(
            "fs.patch_text", {"path": PATCHED, "old": BEFORE, "new": AFTER}, [BEFORE, None], [AFTER, None], marks=pytest.mark.long
        ),
        pytest.param("fs.write_text", {"path": PATCHED, "text": AFTER}, [BEFORE, None], [AFTER, None], marks=pytest.mark.long),
        pytest.param(
            "fs.write_text",
            {"path": PATCHED, "text": AFTER, "mode": "append"},
            [BEFORE, None],
            [BEFORE + AFTER, None],
            marks=pytest.mark.long,
        ),
        ("fs.write_text", {"path": CREATED, "text": AFTER, "mode": "create"}, [BEFORE, None], [BEFORE, AFTER]),
    ],
)
def test_a_killed_writer(tmp_path: Path, tool: str, arguments: dict[str, Any], before: list[str], after: list[str]) -> None:
    """After `kill -9` at any line of a patch or write, the file has the old content or the new one, and nothing in between."""
    command = (*forker().command("tests.e2e.tools.patch_process"), str(tmp_path))
    run = subprocess.run(command, input=json.dumps([tool, arguments]) + "\n", capture_output=True, text=True, check=False, timeout=120)
    assert 0 == run.returncode, run.stderr
    contents, status = json.loads(run.stdout)
    assert (0, after, True) == (status, contents[-1], len(contents) > POINTS_MIN)
    # The change happens in one step: every earlier point leaves the old files, and every later one the new files.
    changed_at = contents.index(after)
    assert [before] * changed_at + [after] * (len(contents) - changed_at) == contents
    assert 0 < changed_at < len(contents) - 1
