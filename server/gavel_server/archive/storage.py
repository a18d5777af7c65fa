"""The storage of archives: a directory, or an object store of fsspec (s3://…).

A write is whole or absent: a file is written under another name, synced and renamed; an object store does so by itself.

A missing bucket, or a missing directory above those of the buses, is not an empty archive: its file system may not be mounted. Only
`create_directory` makes that directory.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from gavel_server.errors import GavelServerError
from gavel_server.log.urls import mask_url
from gavel_server.process.private_files import make_directory, open_private, sync_directory


class ArchiveError(GavelServerError):
    """The archive cannot be used, or contradicts the log; the message says what is wrong and what to do."""


class ArchiveUnreachableError(ArchiveError):
    """The storage of the archive does not answer, or not as it should."""


class Storage(Protocol):
    """Files by name, e.g. "segments/000000000001-000000004096.zst". Every method blocks, and raises ArchiveError."""

    place: str

    def names(self, folder: str) -> list[str]:
        """Return the names of the files directly in a folder, sorted; [] if there is none."""

    def read(self, name: str) -> bytes | None:
        """Return a file's content; None if there is no such file."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file, in place of one of this name."""

    def delete(self, name: str) -> None:
        """Delete a file, if there is one."""


def open_storage(url: str, bus: str) -> Storage:
    """Return the storage of a bus's archive at a URL or path. Raises ArchiveError, also if the packages for it are not installed."""
    if "://" not in url:
        return Directory(Path(url) / bus)
    try:
        import fsspec

        file_system, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        message = f"cannot use the archive {mask_url(url)}: {error}; install gavel-arbiter[archive], or give a directory"
        raise ArchiveError(message) from error
    except Exception as error:  # some implementations of fsspec connect at once
        raise _failure(mask_url(url), error) from error
    return ObjectStore(file_system, f"{path.rstrip('/')}/{bus}", f"{mask_url(url).rstrip('/')}/{bus}")


def is_directory_missing(url: str) -> bool:
    """Return whether an archive at this URL or path needs a directory that does not exist. Raises ArchiveError."""
    try:
        return "://" not in url and not Path(url).is_dir()
    except OSError as error:
        raise _failure(url, error) from error


def create_directory(url: str) -> None:
    """Create the directory of the archives at a URL or path; an object store needs none. Raises ArchiveError."""
    if is_directory_missing(url):
        try:
            _make_directory(Path(url))
        except OSError as error:
            raise _failure(url, error) from error


class Directory:
    """The directory of one bus, below that of all buses. Its files are readable by this user only, whatever the umask."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self.place = str(path)

    def names(self, folder: str) -> list[str]:
        """See Storage."""
        try:
            return sorted(path.name for path in (self._path / folder).iterdir() if path.is_file() and not path.name.endswith(".new"))
        except FileNotFoundError:
            self._check_parent()
            return []
        except OSError as error:
            raise _failure(self.place, error) from error

    def read(self, name: str) -> bytes | None:
        """See Storage."""
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            self._check_parent()
            return None
        except OSError as error:
            raise _failure(self.place, error) from error

    def write(self, name: str, content: bytes) -> None:
        """See Storage."""
        self._check_parent()
        path = self._path / name
        # Several hosts may share the directory, where containers have the same process ids.
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
        try:
            _make_directory(path.parent)
            # Payloads are in it, as they are in the data directory.
            with open(temporary, "xb", opener=open_private) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync_directory(path.parent)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise _failure(self.place, error) from error

    def delete(self, name: str) -> None:
        """See Storage."""
        try:
            (self._path / name).unlink(missing_ok=True)
        except OSError as error:
            raise _failure(self.place, error) from error

    def _check_parent(self) -> None:
        parent = str(self._path.parent)
        if is_directory_missing(parent):
            raise ArchiveUnreachableError(f"the directory {parent} of the archive does not exist; mount its file system, or create it")


class ObjectStore:
    """A file system of fsspec whose writes replace a whole object."""

    def __init__(self, file_system: Any, path: str, place: str) -> None:
        self._file_system: Final = file_system
        self._path: Final = path
        self.place = place

    def names(self, folder: str) -> list[str]:
        """See Storage."""
        try:
            paths = self._file_system.ls(f"{self._path}/{folder}", detail=False, refresh=True)
        except FileNotFoundError as error:
            self._check_bucket(error)
            return []
        except Exception as error:  # each implementation of fsspec raises the errors of its own client
            raise _failure(self.place, error) from error
        return sorted(name for name in (one.rstrip("/").rpartition("/")[2] for one in paths) if name and name != folder)

    def read(self, name: str) -> bytes | None:
        """See Storage."""
        try:
            return bytes(self._file_system.cat_file(f"{self._path}/{name}"))
        except FileNotFoundError as error:
            self._check_bucket(error)
            return None
        except Exception as error:
            raise _failure(self.place, error) from error

    def write(self, name: str, content: bytes) -> None:
        """See Storage."""
        try:
            self._file_system.pipe_file(f"{self._path}/{name}", content)
        except Exception as error:
            raise _failure(self.place, error) from error

    def delete(self, name: str) -> None:
        """See Storage."""
        try:
            self._file_system.rm_file(f"{self._path}/{name}")
        except FileNotFoundError:
            return
        except Exception as error:
            raise _failure(self.place, error) from error

    def _check_bucket(self, error: FileNotFoundError) -> None:
        # s3fs raises the same error for a missing object and a missing bucket; S3's own error is its cause.
        if getattr(error.__cause__, "response", {}).get("Error", {}).get("Code") == "NoSuchBucket":
            raise ArchiveUnreachableError(f"the bucket of the archive {self.place} does not exist; create it, or give another archive")


def _make_directory(directory: Path) -> None:
    """Create a directory and its missing parents, on disk. Raises OSError."""
    if not directory.is_dir():
        _make_directory(directory.parent)
        make_directory(directory)
        sync_directory(directory.parent)


def _failure(place: str, error: Exception) -> ArchiveUnreachableError:
    return ArchiveUnreachableError(f"the archive {place} cannot be used: {error}")
