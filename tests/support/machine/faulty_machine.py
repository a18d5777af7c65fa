"""A machine whose clock steps, whose disk is slow or full, or that has no memory, for the processes that get its environment.

A library between the processes and the C library does it (`faulty_machine.c`), so nothing needs root, and nothing else on the host notices.
Programs that are linked statically, as the native front is, do not see it.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import struct
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.missing import report_missing
from tests.support.paths import ROOT

_SOURCE = Path(__file__).with_name("faulty_machine.c")
_FORMAT = struct.Struct("=qqqq")


class FaultyMachine:
    """The faults of one machine, which a test sets while its processes run. `path` is the file that they read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Beside the file, where the user of the processes may read both.
        self._library = path.with_suffix(".so")
        shutil.copyfile(_library(), self._library)
        self._library.chmod(0o755)
        self._clock_ahead_ms = 0
        self._sync_delay_ms = 0
        self._is_full = False
        self._lacks_memory = False
        self._write()
        path.chmod(0o644)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process on this machine."""
        return {"LD_PRELOAD": str(self._library), "FAULTY_MACHINE": str(self._path)}

    @contextmanager
    def clock_ahead(self, milliseconds: int) -> Iterator[None]:
        """Let the wall clock be ahead, or behind if negative, for the duration of the block."""
        self._clock_ahead_ms = milliseconds
        yield from self._apply()

    @contextmanager
    def slow_disk(self, milliseconds: int) -> Iterator[None]:
        """Let each sync take longer for the duration of the block."""
        self._sync_delay_ms = milliseconds
        yield from self._apply()

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Let every write to a file fail for the duration of the block."""
        self._is_full = True
        yield from self._apply()

    @contextmanager
    def no_memory(self) -> Iterator[None]:
        """Refuse every larger block of memory that a process asks the C library for, for the duration of the block."""
        self._lacks_memory = True
        yield from self._apply()

    def _apply(self) -> Iterator[None]:
        """Let the processes see the faults until the end of a block, and none afterwards."""
        self._write()
        try:
            yield
        finally:
            self._clock_ahead_ms, self._sync_delay_ms, self._is_full, self._lacks_memory = 0, 0, False, False
            self._write()

    def _write(self) -> None:
        # In place: the processes have the file mapped.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, _FORMAT.pack(self._clock_ahead_ms, self._sync_delay_ms, self._is_full, self._lacks_memory))
        finally:
            os.close(descriptor)


@functools.cache
def _library() -> Path:
    """Return the compiled library. Ends the test if the machine has no C compiler."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        report_missing(f"there is no C compiler: {compiler[0]} is not on PATH")
    library = ROOT / "build/faulty_machine.so"
    library.parent.mkdir(exist_ok=True)
    # Several processes of the tests may compile at once.
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        compiled = Path(folder) / library.name
        command = [*compiler, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(compiled), str(_SOURCE), "-ldl"]
        subprocess.run(command, check=True)
        compiled.replace(library)
    return library
