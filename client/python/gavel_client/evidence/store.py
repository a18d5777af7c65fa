"""The evidence store: bytes by their SHA-256, in a directory or an object store.

A store of https://filesystem-spec.readthedocs.io: a path, or a URL such as s3://bucket/evidence. The bytes with the hash
"sha256:abcdef…" are the file `sha256/ab/cdef…`. A file is written as a whole or not at all. It never changes: its name is its hash.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from gavel_client.directories import make_directory
from gavel_client.rpc.errors import GavelClientError

_FOLDER: Final = "sha256"
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}\Z")
_NAME: Final = re.compile(r"([0-9a-f]{2})/([0-9a-f]{62})\Z")
_LOCK: Final = ".lock"
# Of a file that is being written.
_TEMPORARY: Final = ".tmp"


class EvidenceError(GavelClientError):
    """Evidence cannot be kept or read."""


class EvidenceMissingError(EvidenceError):
    """The store has no evidence with a hash."""


class EvidenceAlteredError(EvidenceError):
    """The stored bytes do not have the hash that names them."""


@dataclass(frozen=True)
class EvidenceEntry:
    """One piece of evidence in a store."""

    hash: str
    """"sha256:" and 64 hex digits."""
    uri: str
    size_bytes: int
    written_at: datetime
    """When it was last written; a call that returns the same content writes it again."""


class EvidenceStore:
    """Evidence in a directory, or under a URL that fsspec knows. Its methods block; they may be called from any thread."""

    def __init__(self, url: str) -> None:
        """Open the store at a path or URL. A directory is created with the first evidence. Raises ValueError for an unknown scheme."""
        # Imported here, because only users of evidence need it.
        try:
            from fsspec.core import url_to_fs
            from fsspec.implementations.local import LocalFileSystem
        except ImportError as error:
            raise ImportError("evidence needs the package fsspec: pip install 'gavel-client[tools]'") from error
        files, root = url_to_fs(url)
        self._files: Final[Any] = files
        self._root: Final = str(root).rstrip("/")
        self._is_local: Final = isinstance(self._files, LocalFileSystem)

    def is_absent(self) -> bool:
        """Return whether the store is a directory that does not exist. Object stores have no directories."""
        return self._is_local and not os.path.isdir(self._root)

    def put(self, content: bytes) -> tuple[str, str]:
        """Store bytes; return their hash and URI. Raises EvidenceError."""
        content_hash = "sha256:" + hashlib.sha256(content).hexdigest()
        path = self._path(content_hash)
        try:
            with self._lock(exclusive=False):
                if self._is_local:
                    _write(path, content)
                else:
                    self._files.pipe_file(path, content)
        except Exception as error:  # each file system has its own errors
            raise EvidenceError(f"the evidence {content_hash} cannot be stored: {type(error).__name__}") from error
        return content_hash, self._uri(path)

    def get(self, content_hash: str) -> bytes:
        """Return the bytes with a hash. Raises EvidenceMissingError, EvidenceAlteredError, or EvidenceError if the store fails."""
        path = self._path(content_hash)
        try:
            content = bytes(self._files.cat_file(path))
        except FileNotFoundError:
            raise EvidenceMissingError(f"the store has no evidence {content_hash}") from None
        except Exception as error:  # each file system has its own errors
            raise EvidenceError(f"the evidence {content_hash} cannot be read: {type(error).__name__}") from error
        if content_hash != "sha256:" + hashlib.sha256(content).hexdigest():
            raise EvidenceAlteredError(f"the evidence {content_hash} has been altered: its bytes have another hash")
        return content

    def __iter__(self) -> Iterator[EvidenceEntry]:
        """Iterate over all evidence, by hash. Raises EvidenceError if the store fails."""
        folder = f"{self._root}/{_FOLDER}"
        try:
            files = self._files.find(folder, detail=True)
        except FileNotFoundError:
            return
        except Exception as error:
            raise EvidenceError(f"the store cannot be listed: {type(error).__name__}") from error
        for path, details in sorted(files.items()):
            name = _NAME.match(path[len(folder) + 1 :])
            if name is not None:
                yield EvidenceEntry(f"sha256:{name[1]}{name[2]}", self._uri(path), int(details["size"]), _write_time(self._files, path))

    def remove(self, content_hash: str, cutoff: datetime) -> bool:
        """Remove the bytes with a hash if they were last written before `cutoff`; return whether. Raises EvidenceError.

        In a directory nothing can write them between the check and the removal. In an object store a call that does so loses its evidence.
        """
        path = self._path(content_hash)
        try:
            with self._lock(exclusive=True):
                if _write_time(self._files, path) >= cutoff:
                    return False
                self._files.rm_file(path)
        except FileNotFoundError:
            return False
        except Exception as error:
            raise EvidenceError(f"the evidence {content_hash} cannot be removed: {type(error).__name__}") from error
        return True

    @contextmanager
    def _lock(self, *, exclusive: bool) -> Iterator[None]:
        """Hold the lock of a directory: shared by writers, exclusive for a removal."""
        if not self._is_local:
            yield
            return
        import fcntl

        make_directory(Path(self._root))
        with open(f"{self._root}/{_LOCK}", "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            yield

    def _path(self, content_hash: str) -> str:
        if not _HASH.match(content_hash):
            raise ValueError(f'{content_hash!r} is not "sha256:" and 64 lower-case hexadecimal digits')
        digits = content_hash[len("sha256:") :]
        return f"{self._root}/{_FOLDER}/{digits[:2]}/{digits[2:]}"

    def _uri(self, path: str) -> str:
        return str(self._files.unstrip_protocol(path))


def _write_time(files: Any, path: str) -> datetime:
    """Return the time of the last write, aware. File systems of fsspec differ in whether theirs are."""
    modified: datetime = files.modified(path)
    return modified if modified.tzinfo else modified.replace(tzinfo=timezone.utc)


def _write(path: str, content: bytes) -> None:
    """Put a whole file in place; on return its bytes are on the disk."""
    directory = os.path.dirname(path)
    make_directory(Path(directory))
    temporary = f"{path}.{os.urandom(6).hex()}{_TEMPORARY}"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    parent = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
