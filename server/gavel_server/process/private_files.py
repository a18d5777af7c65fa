"""Files and directories that only this user may read and write, and those that others may read, whatever the umask."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

PRIVATE_MODE: Final = 0o600
PUBLIC_MODE: Final = 0o644
PRIVATE_DIRECTORY_MODE: Final = 0o700
PUBLIC_DIRECTORY_MODE: Final = 0o755


def open_private(path: str, flags: int) -> int:
    """Open a file as the `opener` of `open`. A file that exists becomes private too. Raises OSError."""
    descriptor = os.open(path, flags, PRIVATE_MODE)
    try:
        # The umask may have taken bits away, and an earlier release may have left some.
        os.fchmod(descriptor, PRIVATE_MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_public(path: str, flags: int) -> int:
    """Open a file that others may read, as the `opener` of `open`. Raises OSError."""
    return os.open(path, flags, PUBLIC_MODE)


def make_directory(path: Path, mode: int = PRIVATE_DIRECTORY_MODE) -> None:
    """Create a directory and its missing parents, all with the mode; `Path.mkdir` leaves that of the parents to the umask. Raises OSError.

    A user who may write in a directory can replace the private files in it.
    """
    try:
        path.mkdir(mode, exist_ok=True)
    except FileNotFoundError:
        make_directory(path.parent, mode)
        path.mkdir(mode, exist_ok=True)


def sync_directory(directory: Path) -> None:
    """Write the entries of a directory to disk, as a file that was renamed into it needs. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
