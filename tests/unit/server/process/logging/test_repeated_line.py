"""Lines that callers can cause thousands of times are counted before they are made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
from gavel_server.process.logging.limit import LogLimit
from gavel_server.process.logging.repeated_line import RepeatedLine, count_repeated_lines


class Clock:
    """A clock that a test sets."""

    seconds = 100.0

    def now(self) -> float:
        """Return the time."""
        return self.seconds


class Logger:
    """Keeps the lines that are made, and asks the limit about each as the process's logging does."""

    def __init__(self, limit: LogLimit) -> None:
        self._limit = limit
        self.lines: list[str] = []
        self.written: list[str] = []

    def info(self, event: str, **fields: str) -> None:
        """Take a line."""
        self.lines.append(fields["problem"])
        if self._limit.admits(event, {**fields, "level": "info"}):
            self.written.append(fields["problem"])


@pytest.fixture
def clock() -> Clock:
    """The clock of the limit."""
    return Clock()


@pytest.fixture
def limit(clock: Clock) -> Iterator[LogLimit]:
    """The limit of this process's logging."""
    limit = LogLimit(clock.now)
    count_repeated_lines(limit)
    yield limit
    count_repeated_lines(None)


def test_repetitions_are_counted(clock: Clock, limit: LogLimit) -> None:
    """Only the first line of a second is made; the summary has the latest fields and the number of the others."""
    logger = Logger(limit)
    full, missing = (RepeatedLine(logger, "call.refused", method="M", reason=reason) for reason in ("QUEUE_FULL", "BUS_NOT_FOUND"))
    for number in range(3):
        full.info(problem=str(number))
    missing.info(problem="other")
    assert ["0", "other"] == logger.lines
    clock.seconds += 1
    summary = {"level": "info", "method": "M", "reason": "QUEUE_FULL", "problem": "2", "count": 2}
    assert [("call.refused", summary)] == limit.summaries()


def test_every_line_is_counted(clock: Clock, limit: LogLimit) -> None:
    """The lines that are written and the counts of the summaries add up to the lines that were logged, over many seconds."""
    logger = Logger(limit)
    lines = [RepeatedLine(logger, "call.refused", method="M", reason=str(number)) for number in range(15)]
    counted = 0
    for second in range(20):
        for number in range(100):
            lines[second * number % 15].info(problem="p")
        clock.seconds += 0.3
        counted += sum(int(fields["count"]) for _, fields in limit.summaries())
    counted += sum(int(fields["count"]) for _, fields in limit.summaries(final=True))
    assert 20 * 100 == len(logger.written) + counted


def test_without_logging() -> None:
    """While the process's logging has not started, every line is made."""
    line = RepeatedLine(structlog.get_logger(), "call.refused", method="M", reason="QUEUE_FULL")
    with structlog.testing.capture_logs() as lines:
        line.info(problem="a")
        line.info(problem="a")
    assert [{"event": "call.refused", "method": "M", "reason": "QUEUE_FULL", "problem": "a", "log_level": "info"}] * 2 == lines
