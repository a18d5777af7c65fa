"""Private files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gavel_server.process.private_files import PRIVATE_MODE, open_private


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o377])
def test_mode_does_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    """A new file and one that others could read are this user's alone, whatever the umask."""
    old = tmp_path / "old"
    old.write_text("")
    old.chmod(0o644)
    before = os.umask(umask)
    try:
        for path in (tmp_path / "new", old):
            with open(path, "a", opener=open_private) as file:
                file.write("x")
            assert PRIVATE_MODE == path.stat().st_mode & 0o777
    finally:
        os.umask(before)
