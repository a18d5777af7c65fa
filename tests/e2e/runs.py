"""Runs of `gavel` as processes forked from one that has already imported it (see `forking`)."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, NamedTuple

from gavel_server.process.allocator import TUNABLES, TUNABLES_VARIABLE

from tests.e2e import forking
from tests.support.machine.checking_allocator import checks_of_build

PROGRAM: Final = "gavel_server.cli.main"  # `gavel`
# Only a program that hangs runs longer.
RUN_SECONDS_MAX: Final = 100
# The log of a campaign has a million events.
REPLAY_SECONDS_MAX: Final = 1_200


class Run:
    """A run of `gavel`, or of another `program`, with the interface of `subprocess.Popen`. `streams` are stdin, stdout and stderr."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], streams: Sequence[IO[Any]], program: str = PROGRAM
    ) -> None:
        self.arguments = list(arguments)
        self.returncode: int | None = None
        request = {"program": program, "arguments": self.arguments, "environment": dict(environment), "directory": str(Path.cwd())}
        descriptors = [stream.fileno() for stream in streams]
        self._answers, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            socket.send_fds(forker().control, [json.dumps(request).encode()], [*descriptors, there.fileno()])
        self.pid = int(self._answers.recv(64))

    def poll(self) -> int | None:
        """Return the exit status if the run has ended, else None; a signal that ended it is a negative number."""
        return self._wait(0)

    def wait(self, timeout: float) -> int:
        """Return the exit status once the run has ended. Raises TimeoutExpired."""
        status = self._wait(timeout)
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

    def _wait(self, timeout: float) -> int | None:
        if self.returncode is None and select.select([self._answers], [], [], timeout)[0]:
            answer = self._answers.recv(64)
            assert answer, "the process that forks runs of gavel has ended"
            self.returncode = int(answer)
            self._answers.close()
        return self.returncode


def run_gavel(
    arguments: Sequence[str | Path], environment: Mapping[str, str], text: str = "", seconds: float = RUN_SECONDS_MAX
) -> subprocess.CompletedProcess[str]:
    """Run `gavel` to its end, for at most `seconds`, with `text` as stdin; return exit status and output."""
    with TemporaryFile("w+") as stdin, TemporaryFile("w+") as stdout, TemporaryFile("w+") as stderr:
        stdin.write(text)
        stdin.seek(0)
        run = Run([*map(str, arguments)], environment, (stdin, stdout, stderr))
        try:
            status = run.wait(seconds)
        finally:
            run.kill()
        for stream in (stdout, stderr):
            stream.seek(0)
        return subprocess.CompletedProcess(["gavel", *arguments], status, stdout.read(), stderr.read())


class Forker(NamedTuple):
    """A `forking` process: the socket to it, and the abstract address where it listens."""

    control: socket.socket
    address: str

    def command(self, program: str = PROGRAM) -> tuple[str, ...]:
        """Return a command that stands for a run of `gavel`, or of another program, a module with a function `main`."""
        return forking.relay_command(self.address, program)


@cache
def forker() -> Forker:
    """Return the `forking` process of this one. The first call starts it; it ends with this process."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    address = f"gavel-tests-{uuid.uuid4().hex}"
    with there, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{address}")
        listener.listen()
        descriptors = [there.fileno(), listener.fileno()]
        command = [sys.executable, "-P", forking.__file__, *map(str, descriptors)]
        # Allocators read their settings when a program starts, so the variables of a run come too late.
        environment = {TUNABLES_VARIABLE: TUNABLES, **os.environ, **checks_of_build()}
        subprocess.Popen(command, env=environment, pass_fds=descriptors, stdin=subprocess.DEVNULL)
    return Forker(here, address)
