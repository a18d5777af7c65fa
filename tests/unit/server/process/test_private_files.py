"""Private files and directories."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gavel_server.archive.storage import Directory, create_directory
from gavel_server.log.redis.data_directory import lock_directory
from gavel_server.process.private_files import make_directory, open_private
from gavel_server.proofs.tiles import LocalTiles


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
            assert 0o600 == path.stat().st_mode & 0o777
    finally:
        os.umask(before)


def test_directories_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    """Every new directory on the way to the data and to archives is this user's alone; nobody else writes in those of tiles."""
    before = os.umask(0)
    try:
        make_directory(tmp_path / "one/two")
        os.close(lock_directory(tmp_path / "parent/data"))
        create_directory(str(tmp_path / "archive"))
        Directory(tmp_path / "archive/orders").write("segments/1-2.zst", b"x")
        LocalTiles(tmp_path / "tiles").write("tile/0/000", b"x")
    finally:
        os.umask(before)
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    private = {"one", "one/two", "parent", "parent/data", "archive", "archive/orders", "archive/orders/segments"}
    public = {"tiles", "tiles/tile", "tiles/tile/0"}
    assert {**dict.fromkeys(private, 0o700), **dict.fromkeys(public, 0o755)} == {name: modes[name] for name in private | public}
    assert 0o644 == modes["tiles/tile/0/000"]
