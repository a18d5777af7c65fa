"""Runs of `gavel` as processes that are forked from one that has imported it (see `forking`)."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final

from tests.e2e import forking

# Only a hanging program takes so long.
RUN_SECONDS_MAX: Final = 100


class Run:
    """A run of `gavel`, used like a `subprocess.Popen`. `streams` are its standard input, output and errors."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], streams: Sequence[IO[Any]]) -> None:
        self.arguments = list(arguments)
        self.returncode: int | None = None
        request = {"arguments": self.arguments, "environment": dict(environment), "directory": str(Path.cwd())}
        descriptors = [stream.fileno() for stream in streams]
        self._told, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            socket.send_fds(forker(), [json.dumps(request).encode()], [*descriptors, there.fileno()])
        self.pid = int(self._told.recv(64))

    def poll(self) -> int | None:
        """Return the exit status if the run has ended; a signal that ended it is a negative number."""
        return self._ended(0)

    def wait(self, timeout: float) -> int:
        """Return the exit status once the run has ended. Raises TimeoutExpired."""
        status = self._ended(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.arguments, timeout)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the run has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End the run with SIGKILL, if it has not ended."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            told = self._told.recv(64)
            assert told, "the process that forks runs of gavel has ended"
            self.returncode = int(told)
            self._told.close()
        return self.returncode


def run_to_its_end(arguments: Sequence[str | Path], environment: Mapping[str, str], text: str = "") -> subprocess.CompletedProcess[str]:
    """Run `gavel` with `text` as its standard input; return how it ended and what it said."""
    with TemporaryFile("w+") as given, TemporaryFile("w+") as said, TemporaryFile("w+") as complained:
        given.write(text)
        given.seek(0)
        run = Run([*map(str, arguments)], environment, (given, said, complained))
        try:
            status = run.wait(RUN_SECONDS_MAX)
        finally:
            run.kill()
        for stream in (said, complained):
            stream.seek(0)
        return subprocess.CompletedProcess(["gavel", *arguments], status, said.read(), complained.read())


@cache
def forker() -> socket.socket:
    """Return the way to the process that `forking` is; started with the first call, it ends when this process does."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        command = [sys.executable, "-P", forking.__file__, str(there.fileno())]
        subprocess.Popen(command, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL)
    return here
