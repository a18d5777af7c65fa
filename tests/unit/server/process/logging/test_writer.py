"""The thread that writes log lines never holds up those who log."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
from gavel_server.process.logging.writer import LINE_BYTES_MAX, LINES_DROPPED, LogWriter

WAIT_SECONDS_MAX = 60


class Pipe:
    """A pipe with a log writer at one end."""

    def __init__(self) -> None:
        self.reader, self.descriptor = os.pipe()
        self.dropped: list[int] = []
        self.reported = threading.Event()
        self.writer = LogWriter(self.descriptor, lambda: None, self.report)
        self.writer.start()

    def report(self, count: int) -> None:
        """Note what was dropped."""
        self.dropped.append(count)
        self.reported.set()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A pipe that is closed after the test."""
    pipe = Pipe()
    yield pipe
    os.close(pipe.reader)
    pipe.writer.close()
    os.close(pipe.descriptor)


def dropped_lines() -> float:
    """Return the metric."""
    return float(next(iter(LINES_DROPPED.collect())).samples[0].value)


def test_lines_arrive_in_order(pipe: Pipe) -> None:
    """Lines are written whole and in order, with characters that UTF-8 lacks escaped."""
    for number in range(100):
        pipe.writer.write(f"line {number} \ud800\n")
    pipe.writer.close()
    os.set_blocking(pipe.reader, False)
    assert [f"line {number} \\ud800" for number in range(100)] == os.read(pipe.reader, 1 << 16).decode().splitlines()


def test_reader_that_stops(pipe: Pipe) -> None:
    """While nobody reads, writing returns and what the buffer cannot hold is dropped and counted; once it is read, lines arrive again."""
    before = dropped_lines()
    line = "x" * 999 + "\n"
    for _ in range(5_000):
        pipe.writer.write(line)
    dropped = dropped_lines() - before
    assert 3_000 < dropped < 5_000
    received = b""
    while received.count(b"\n") < 5_000 - dropped:
        received += os.read(pipe.reader, 1 << 16)
    assert pipe.reported.wait(WAIT_SECONDS_MAX)
    assert dropped == sum(pipe.dropped)
    pipe.writer.write("again\n")
    assert b"again\n" == os.read(pipe.reader, 100)


def test_reader_that_has_gone() -> None:
    """A reader that has closed the log costs lines, not the server."""
    pipe = Pipe()
    before = dropped_lines()
    os.close(pipe.reader)
    for _ in range(10):
        pipe.writer.write("line\n")
    pipe.writer.close()
    os.close(pipe.descriptor)
    assert 10 == dropped_lines() - before


def test_non_blocking_descriptor(pipe: Pipe) -> None:
    """A descriptor that another process has made non-blocking loses nothing."""
    os.set_blocking(pipe.descriptor, False)
    line = "x" * 999 + "\n"
    for _ in range(500):
        pipe.writer.write(line)
    received = b""
    while len(received) < 500_000:
        received += os.read(pipe.reader, 1 << 16)
    assert line.encode() * 500 == received


def test_long_lines_are_cut(pipe: Pipe) -> None:
    """A line that is too long is cut between characters."""
    pipe.writer.write("ü" * LINE_BYTES_MAX + "\n")
    received = os.read(pipe.reader, 1 << 20)
    assert len(received) <= LINE_BYTES_MAX
    assert received.decode().endswith("ü …\n")
