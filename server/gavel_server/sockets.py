"""Directories for unix sockets that nobody but this user may enter, and the removal of those that a killed server left behind.

The path of a unix socket is short by law of the kernel, so they are made in the temporary directory and not beside the data. A
server that is killed cannot remove its own; therefore each directory has a lock, which the kernel gives back however the process
ends, and who makes one removes those whose lock is free. A directory of another user, or one without a lock, is left alone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

PREFIX: Final = "gavel-"
LOCK: Final = "lock"


@contextmanager
def socket_directory() -> Iterator[Path]:
    """Give a new, empty directory for sockets; it is removed at the end, or by the next user of this. Raises OSError."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    directory = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        unlocked = directory / "new"
        with unlocked.open("w") as lock:
            with suppress(OSError):  # without locks nobody removes it but we
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Under this name only once it is held: a free lock means that its server is gone.
                unlocked.rename(directory / LOCK)
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    for directory in parent.glob(PREFIX + "*"):
        with suppress(OSError):  # another's, in use, or somebody has removed it meanwhile
            if directory.lstat().st_uid != os.geteuid():
                continue
            descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(descriptor)
