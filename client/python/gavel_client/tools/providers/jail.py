"""A directory that tools see as /workspace, and nothing beyond it.

A path is opened component by component, each from the open directory before it, and no component may be a symbolic link. So `..`, links
and directories that change during the call lead nowhere else: there is no moment between a check of a path and its use. The last component
must be an ordinary file with one name, on the file system of the root: a second name may be that of a file outside.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from gavel_client.tools.errors import CONFLICT, PATH, PERMISSION, QUOTA, TOOL, ToolError

ROOT: Final = "/workspace"
PATH_BYTES_MAX: Final = 4096
_NAME_BYTES_MAX: Final = 255
# Nothing waits for the other end of a FIFO, and no terminal becomes that of this process.
_SAFE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# Python has no function for renameat2, which renames a file without replacing another one.
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_RENAME_NOREPLACE: Final = 1
_CODES: Final = {
    errno.ENOENT: (PATH, "does not exist"),
    errno.ENOTDIR: (PATH, "is not a directory, or lies under something that is not one"),
    errno.EISDIR: (PATH, "is a directory"),
    errno.ENAMETOOLONG: (PATH, "is too long"),
    errno.EEXIST: (CONFLICT, "exists already"),
    errno.ELOOP: (PERMISSION, "is a symbolic link, or lies under one"),
    errno.EMLINK: (PERMISSION, "is a symbolic link, or lies under one"),
    errno.EACCES: (PERMISSION, "may not be used by this provider"),
    errno.EPERM: (PERMISSION, "may not be used by this provider"),
    errno.EROFS: (PERMISSION, "is on a read-only file system"),
    errno.ENXIO: (PERMISSION, "is not an ordinary file"),
    errno.ENOSPC: (QUOTA, "has no room left"),
    errno.EDQUOT: (QUOTA, "has no room left"),
    errno.EFBIG: (QUOTA, "is too large"),
}

# Takes an open directory, and raises ToolError if the call must not go through it.
Check = Callable[[int], None]


class Jail:
    """A directory as the root of all paths. Close it after use."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Open `directory`, which must exist. Raises OSError."""
        self._root: Final = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._device: Final = os.fstat(self._root).st_dev

    def close(self) -> None:
        """Release the directory."""
        os.close(self._root)

    def read(self, path: str, bytes_max: int) -> bytes:
        """Return the content of a file. Raises ToolError; E_QUOTA if it has more than `bytes_max` bytes."""
        with self._directory_of(path) as (directory, name), _translate_errors(path):
            descriptor = os.open(name, os.O_RDONLY | _SAFE, dir_fd=directory)
            with os.fdopen(descriptor, "rb") as file:
                self._check_ordinary(os.fstat(descriptor), path)
                content = file.read(bytes_max + 1)
        if len(content) > bytes_max:
            raise ToolError(QUOTA, f"{path} has more than {bytes_max} bytes")
        return content

    def exists(self, path: str) -> bool:
        """Return whether there is an ordinary file at a path. Raises ToolError if there is something else."""
        with self._directory_of(path) as (directory, name), _translate_errors(path):
            try:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                return False
            self._check_ordinary(status, path)
            return True

    def write(self, path: str, content: bytes, *, replaces: bool, check: Check = lambda directory: None) -> None:
        """Put a whole file in place in one step. With `replaces` it may take the place of another file. Raises ToolError.

        `check` gets each open directory of the path, from the root on.
        """
        with self._directory_of(path, check) as (directory, name), _translate_errors(path):
            mode = 0o644
            if replaces:
                with suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    self._check_ordinary(status, path)
                    mode = stat.S_IMODE(status.st_mode) & 0o777
            temporary = f".{os.urandom(8).hex()}.tmp"
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o600, dir_fd=directory)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fchmod(descriptor, mode)
                    os.fsync(descriptor)
                if replaces:
                    os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
                else:
                    _rename_new(directory, temporary, name)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=directory)
                raise

    @contextmanager
    def directory(self, path: str) -> Iterator[int]:
        """Yield the open directory at a path, which may be the root itself. Raises ToolError."""
        with self._opened(_components(path) if path != ROOT else [], path) as directory:
            yield directory

    @contextmanager
    def _directory_of(self, path: str, check: Check = lambda directory: None) -> Iterator[tuple[int, str]]:
        """Yield the open directory of a path, and the last component."""
        *components, name = _components(path)
        with self._opened(components, path, check) as directory:
            yield directory, name

    @contextmanager
    def _opened(self, components: list[str], path: str, check: Check = lambda directory: None) -> Iterator[int]:
        directory = os.dup(self._root)
        try:
            with _translate_errors(path):
                check(directory)
                for component in components:
                    inner = os.open(component, os.O_RDONLY | os.O_DIRECTORY | _SAFE, dir_fd=directory)
                    os.close(directory)
                    directory = inner
                    if os.fstat(directory).st_dev != self._device:
                        raise ToolError(PERMISSION, f"{path} lies on another file system")
                    check(directory)
            yield directory
        finally:
            os.close(directory)

    def _check_ordinary(self, status: os.stat_result, path: str) -> None:
        if stat.S_ISDIR(status.st_mode):
            raise ToolError(PATH, f"{path} is a directory")
        if stat.S_ISLNK(status.st_mode):
            raise ToolError(PERMISSION, f"{path} is a symbolic link")
        if not stat.S_ISREG(status.st_mode):
            raise ToolError(PERMISSION, f"{path} is not an ordinary file")
        if status.st_nlink > 1:
            raise ToolError(PERMISSION, f"{path} has another name (a hard link), which may lie outside")
        if status.st_dev != self._device:
            raise ToolError(PERMISSION, f"{path} lies on another file system")


def _rename_new(directory: int, source: str, target: str) -> None:
    """Rename a file to a name that no file has. Raises OSError, EEXIST if a file has the name.

    Some file systems, such as NFS, cannot do so in one step. There an empty file takes the name first.
    """
    rename = getattr(_LIBC, "renameat2", None)
    if rename is not None:
        if rename(directory, os.fsencode(source), directory, os.fsencode(target), _RENAME_NOREPLACE) == 0:
            return
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(number, os.strerror(number))
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o600, dir_fd=directory))
    try:
        os.rename(source, target, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(target, dir_fd=directory)
        raise


def _components(path: str) -> list[str]:
    """Return the components of a path under /workspace. Raises ToolError E_PATH."""
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        raise ToolError(PATH, "the path holds characters that no file name has") from None
    if len(encoded) > PATH_BYTES_MAX or "\0" in path:
        raise ToolError(PATH, f"the path is longer than {PATH_BYTES_MAX} bytes, or holds a NUL character")
    if not path.startswith(f"{ROOT}/"):
        raise ToolError(PATH, f"{path} is not under {ROOT}")
    components = path[len(ROOT) + 1 :].split("/")
    for component in components:
        if component in ("", ".", "..") or len(component.encode()) > _NAME_BYTES_MAX:
            raise ToolError(PATH, f"{path} is not a plain path under {ROOT}: no empty parts, `.` or `..`")
    return components


@contextmanager
def _translate_errors(path: str) -> Iterator[None]:
    """Turn an error of the system into that of the tool."""
    try:
        yield
    except OSError as error:
        code, problem = _CODES.get(error.errno or 0, (TOOL, f"cannot be used: {os.strerror(error.errno or 0)}"))
        raise ToolError(code, f"{path} {problem}") from None
