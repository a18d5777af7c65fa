"""A log line that callers can cause thousands of times a second, such as that of a refused call.

Making a line of structlog and dropping it (`limit`) takes several microseconds, during which all other callers wait. A line that only
repeats an earlier one is therefore counted before it is made.
"""

from __future__ import annotations

from typing import Any, Final

from gavel_server.process.logging.limit import LogLimit, kind_of

_LEVEL: Final = "info"


class _ActiveLimit:
    """The limit of this process's logging; None while it has not started."""

    limit: LogLimit | None = None


def count_repeated_lines(limit: LogLimit | None) -> None:
    """Let a limit count the repeated lines of this process; None: make every line."""
    _ActiveLimit.limit = limit


class RepeatedLine:
    """A line of one event at level info. `fields` are those that all of its lines share."""

    def __init__(self, logger: Any, event: str, **fields: str) -> None:
        """`logger` is one of structlog's."""
        self._logger: Final = logger
        self._event: Final = event
        self._fields: Final = fields
        self._kind: Final = kind_of(event, {**fields, "level": _LEVEL})

    def info(self, **fields: str) -> None:
        """Write the line with further fields, or count it."""
        limit = _ActiveLimit.limit
        if limit is None or not limit.counts(self._kind, {**self._fields, **fields, "level": _LEVEL}):
            self._logger.info(self._event, **self._fields, **fields)
