"""Private Unix sockets of a server: without a name where the system allows it, else in a directory that only this user may enter.

A socket needs a name in the file system only while it is bound. On Linux, processes can connect through a descriptor of the socket
file; `private_socket` removes the name at once, so nothing is left behind however the server ends.

A socket that others must find keeps its name. If its path in the data directory would be longer than the kernel allows, the socket
gets a directory in the temporary directory. A killed server cannot remove that directory. Each one therefore holds a lock, which the
kernel releases with the process, and every new directory is created after removing those whose lock is free. Directories of other
users, and those without a lock, are left alone.
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
_SOCKET: Final = "server.sock"
# sun_path holds 108 bytes with the final NUL on Linux, 104 on macOS.
SOCKET_PATH_BYTES_MAX: Final = 103
# The part of it for the temporary directory: the rest of a path is "/gavel-XXXXXXXX/server.sock".
_PARENT_BYTES_MAX: Final = SOCKET_PATH_BYTES_MAX - 27
_SHORT_PARENT: Final = "/tmp"  # noqa: S108  # only private directories are created there


class PrivateSocket(NamedTuple):
    """A socket that `path` names in this process and in children that inherit `descriptors`."""

    path: str
    descriptors: tuple[int, ...]

    def replace(self, listen: Callable[[str], object]) -> None:
        """Let `path` name a new socket, which `listen` binds. Children have to inherit `descriptors` again. Raises OSError."""
        if not self.descriptors:
            listen(self.path)
            return
        with socket_directory() as directory:
            listen(str(directory / _SOCKET))
            descriptor = _descriptor(directory / _SOCKET)
        if descriptor is None:
            raise OSError("the new private socket cannot be reached")
        os.dup2(descriptor, self.descriptors[0])
        os.close(descriptor)


@contextmanager
def private_socket(listen: Callable[[str], object]) -> Iterator[PrivateSocket]:
    """Yield a socket that only this user can reach; `listen` binds a socket to a path. Raises OSError."""
    with ExitStack() as named:
        path = named.enter_context(socket_directory()) / _SOCKET
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
    """Return a descriptor through which a socket can be reached; None if the kernel or the file system offers none."""
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
    """Yield a new, empty directory for sockets. It is removed on exit, or by a later call after a crash. Raises OSError."""
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) > _PARENT_BYTES_MAX:
        parent = _SHORT_PARENT
    _remove_abandoned(Path(parent))
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        unlocked = directory / "new"
        with unlocked.open("w") as lock:
            with suppress(OSError):  # without locks only this process removes it
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Renamed only after it is held: a free lock means that its server is gone.
                unlocked.rename(directory / LOCK)
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    for directory in parent.glob(PREFIX + "*"):
        with suppress(OSError):  # another user's, in use, or already removed
            if directory.lstat().st_uid != os.geteuid():
                continue
            descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(descriptor)
