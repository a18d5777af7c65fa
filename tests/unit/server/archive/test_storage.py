"""The directory of an archive on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from gavel_server.archive import storage
from gavel_server.archive.storage import Directory, create_directory
from gavel_server.process.private_files import sync_directory


def test_new_directories_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut takes no new directory away, and with it the files in it: the directory above each is synced before the file counts."""
    synced: list[Path] = []

    def sync(directory: Path) -> None:
        sync_directory(directory)
        synced.append(directory)

    monkeypatch.setattr(storage, "sync_directory", sync)
    archive = tmp_path / "new/archive"
    create_directory(str(archive))
    assert [tmp_path, tmp_path / "new"] == synced
    for name in ("segments/1", "segments/2"):
        Directory(archive / "default").write(name, b"x")
    folder = archive / "default/segments"
    assert [archive, archive / "default", folder, folder] == synced[2:]
