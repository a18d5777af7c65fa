"""The contract of an archive's storage, run on a directory and on an S3-compatible object store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gavel_server.archive.storage import ArchiveError, ArchiveUnreachableError, Storage, create_directory, open_storage

from tests.support.stores.object_store import BUCKET, create_bucket, object_store


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    """A running object store."""
    with object_store() as environment:
        yield environment


@pytest.fixture(params=["directory", "s3"])
def url(request: pytest.FixtureRequest, store: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty archive."""
    create_bucket(store, monkeypatch)
    url = str(tmp_path / "new/archive") if request.param == "directory" else f"s3://{BUCKET}/{tmp_path.name}"
    create_directory(url)
    return url


@pytest.fixture
def storage(url: str) -> Storage:
    """An empty storage."""
    return open_storage(url, "default")


def test_empty(storage: Storage) -> None:
    """An empty storage has no names and no files, and deleting one is no error."""
    assert ([], None) == (storage.names("segments"), storage.read("segments/1.zst"))
    storage.delete("segments/1.zst")


def test_written(storage: Storage, url: str) -> None:
    """Every reader gets the written bytes, and a second write replaces them."""
    for content in (b"", b"\x00\xff" * 100_000, b"new"):
        storage.write("segments/000000000001-000000000002.zst", content)
        assert content == open_storage(url, "default").read("segments/000000000001-000000000002.zst")


def test_names(storage: Storage) -> None:
    """The names of a folder are sorted, without those of folders below it."""
    for name in ("segments/b", "segments/a", "tile/0/000", "head.json"):
        storage.write(name, b"x")
    assert ["a", "b"] == storage.names("segments")
    storage.delete("segments/a")
    assert (["b"], None) == (storage.names("segments"), storage.read("segments/a"))


def test_buses_are_apart(storage: Storage, url: str) -> None:
    """Each bus has files of its own."""
    storage.write("segments/a", b"x")
    assert [] == open_storage(url, "other").names("segments")


@pytest.mark.parametrize("place", ["away/archive", "s3://away/archive"])
def test_missing(store: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """A missing bucket or directory is no empty archive, but one that cannot be reached; a write does not create it."""
    create_bucket(store, monkeypatch)
    monkeypatch.chdir(tmp_path)
    storage = open_storage(place, "default")
    for call in (lambda: storage.names("segments"), lambda: storage.read("segments/a"), lambda: storage.write("segments/a", b"x")):
        with pytest.raises(ArchiveUnreachableError, match="away/archive"):
            call()
    assert [] == [*tmp_path.iterdir()]


def test_unusable(tmp_path: Path) -> None:
    """A directory that cannot be made, and a scheme that nobody knows, are errors that name the place."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ArchiveError, match=str(tmp_path / "file")):
        create_directory(str(tmp_path / "file"))
    with pytest.raises(ArchiveError, match=str(tmp_path / "file")):
        open_storage(str(tmp_path / "file"), "default").write("segments/a", b"x")
    with pytest.raises(ArchiveError, match="cannot use the archive nonsense://x"):
        open_storage("nonsense://x", "default")


def test_passwords_are_masked() -> None:
    """The password in a URL is in no message, also if the store does not answer."""
    with pytest.raises(ArchiveUnreachableError, match="cannot be used") as unreachable:
        open_storage("ftp://gavel:secret@127.0.0.1:1/archive", "default").names("segments")
    assert "secret" not in str(unreachable.value)
    assert "secret" not in open_storage("webhdfs://gavel:secret@127.0.0.1:1/archive", "default").place
