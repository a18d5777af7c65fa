"""The locks that keep other writers out of a data directory (ADR 0014).

The server holds `gavel.lock`, which also names its process id and the URL of its Redis. Only the Redis inherits `redis.lock`; that
lock is held exactly as long as a Redis runs on the directory, however its parent died. Locks decide; a process id, which may have
been reused, is never trusted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
from pathlib import Path

from gavel_server.log.redis.errors import DataDirectoryInUseError, EmbeddedRedisError
from gavel_server.process.polling import wait_until
from gavel_server.process.private_files import make_directory, open_private


def lock_directory(directory: Path) -> int:
    """Create a data directory if it is missing, and lock it; return the descriptor that holds the lock.

    Raises DataDirectoryInUseError, EmbeddedRedisError.
    """
    try:
        make_directory(directory)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        lock = open_private(str(directory / "gavel.lock"), os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise EmbeddedRedisError(f"cannot use {directory} as data directory: {error.strerror}") from error
    if not _try_lock(lock, directory):
        os.close(lock)
        holder, url = _read_note(directory)
        raise DataDirectoryInUseError(
            f"another gavel serve (pid {holder}) uses {directory}; stop it, or give another directory with --data", url
        )
    return lock


def note_url(lock: int, url: str) -> None:
    """Write this process's id and the URL of its Redis to `gavel.lock`."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n{url}\n".encode(), 0)


def last_url(data_directory: Path) -> str | None:
    """Return the URL of the last Redis on the directory, running or not; None if there was none."""
    return _read_note(data_directory)[1]


async def lock_redis(directory: Path, timeout_ms: int) -> int:
    """End a Redis that a killed server left behind; return a descriptor of `redis.lock` that holds the lock.

    `timeout_ms` bounds the wait after SIGTERM and again after SIGKILL. Raises EmbeddedRedisError.
    """
    path = directory / "redis.lock"
    lock = open_private(str(path), os.O_RDWR | os.O_CREAT)
    try:
        if _try_lock(lock, directory):
            return lock
        for number in (signal.SIGTERM, signal.SIGKILL):
            for holder in _lock_holders(path):
                with contextlib.suppress(OSError):  # it has ended, or belongs to another user: the lock decides
                    os.kill(holder, number)
            if await wait_until(lambda: _try_lock(lock, directory), timeout_ms):
                return lock
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    holders = ", ".join(map(str, _lock_holders(path))) or "unknown"
    raise EmbeddedRedisError(f"a Redis of an earlier run (pid {holders}) still holds {path} and cannot be ended; end it, then start again")


def _read_note(data_directory: Path) -> tuple[str, str | None]:
    """Return the contents of `gavel.lock`: the process id of its holder and the URL of its Redis."""
    try:
        process_id, url = (data_directory / "gavel.lock").read_text(errors="replace").splitlines()
    except (OSError, ValueError):
        return "unknown", None
    return process_id, url


def _try_lock(lock: int, directory: Path) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise EmbeddedRedisError(f"{directory} is on a file system without locks ({error.strerror}); use a local disk") from error
    return True


def _lock_holders(path: Path) -> list[int]:
    """Return the processes that hold the lock on `path`, from /proc; [] without /proc."""
    file = path.stat()
    holders = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            for link in (process / "fd").iterdir():
                if os.path.samestat(link.stat(), file) and "FLOCK" in (process / "fdinfo" / link.name).read_text():
                    holders.append(int(process.name))
                    break
        except OSError:
            continue  # it has ended, or belongs to another user
    return holders
