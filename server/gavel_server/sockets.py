"""Unix sockets of a server's own: without a name where that can be, else in a directory that nobody but this user may enter.

A socket needs a name in the file system only to be bound. Linux keeps a descriptor of what a name stood for, through which the
processes that have it connect: `private_socket` takes the name away at once, and nothing is left behind however the server ends.

A socket that others have to find keeps its name. Where its path, beside the data, would be longer than the kernel allows, it is in a
directory in the temporary directory. A server that is killed cannot remove its own; therefore each directory has a lock, which the kernel
gives back however the process ends, and who makes one removes those whose lock is free. A directory of another user, or one without a
lock, is left alone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

PREFIX: Final = "gavel-"
LOCK: Final = "lock"
# sun_path holds 108 bytes with the final NUL on Linux, 104 on macOS.
SOCKET_PATH_BYTES_MAX: Final = 103
# What is left of that for the temporary directory: the rest of a path is "/gavel-XXXXXXXX/server.sock".
_PARENT_BYTES_MAX: Final = SOCKET_PATH_BYTES_MAX - 27
_SHORT_PARENT: Final = "/tmp"  # noqa: S108  # what is made there is this user's alone


class PrivateSocket(NamedTuple):
    """Where a socket is reached: `path` leads to it in this process, and in its children that inherit `descriptors`."""

    path: str
    descriptors: tuple[int, ...]


@contextmanager
def private_socket(listen: Callable[[str], object]) -> Iterator[PrivateSocket]:
    """Give a socket that only this user can reach; `listen` binds it to the path that it is given. Raises OSError."""
    with ExitStack() as named:
        path = named.enter_context(socket_directory()) / "server.sock"
        listen(str(path))
        descriptor = _descriptor(path)
        if descriptor is None:
            yield PrivateSocket(str(path), ())
            return
        named.close()
        try:
            yield PrivateSocket(_path(descriptor), (descriptor,))
        finally:
            os.close(descriptor)


def _descriptor(path: Path) -> int | None:
    """Return a descriptor through which a socket can be reached; None where the kernel knows no such thing, or shows none."""
    if not hasattr(os, "O_PATH"):
        return None
    descriptor = os.open(path, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(_path(descriptor))
        except OSError:
            os.close(descriptor)
            return None
    return descriptor


def _path(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


@contextmanager
def socket_directory() -> Iterator[Path]:
    """Give a new, empty directory for sockets; it is removed at the end, or by the next user of this. Raises OSError."""
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) > _PARENT_BYTES_MAX:
        parent = _SHORT_PARENT
    _remove_abandoned(Path(parent))
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
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
