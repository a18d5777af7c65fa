"""A running program that prints a line for each step."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.world import STOP_SECONDS_MAX, WAIT_SECONDS_MAX


class Program:
    """A process whose output a test follows."""

    def __init__(self, command: Sequence[str | Path], log: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GAVEL_")}
        self._log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))

    def await_line(self, start: str) -> list[str]:
        """Return the words of the next line that starts with `start`; the lines before it are dropped."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line {start!r} in time; its log:\n{self._log.read_text()}") from None
            if line.startswith(start):
                return line.split()

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()
        assert -signal.SIGKILL == self.process.wait(STOP_SECONDS_MAX)

    def terminate(self) -> None:
        """Let it end by itself after SIGTERM; it must succeed."""
        self.process.terminate()
        assert 0 == self.process.wait(STOP_SECONDS_MAX), self._log.read_text()

    def peers(self) -> set[str]:
        """Return the peers of its connections: "tcp:PORT" of the other side, or "unix"."""
        inodes = set()
        for descriptor in Path(f"/proc/{self.process.pid}/fd").iterdir():
            if match := re.fullmatch(r"socket:\[(\d+)\]", str(descriptor.readlink())):
                inodes.add(match[1])
        peers = set()
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{self.process.pid}/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[9] in inodes:
                    inodes.remove(words[9])
                    peers.add(f"tcp:{int(words[2].rpartition(':')[2], 16)}")
        return peers | ({"unix"} if inodes else set())


@contextmanager
def run_program(command: Sequence[str | Path], log: Path) -> Iterator[Program]:
    """Run a program; kill it at the end if it still runs."""
    program = Program(command, log)
    try:
        yield program
    finally:
        program.process.kill()
        program.process.wait()
