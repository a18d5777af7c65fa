"""The trace of the call that is being handled, for the parts of the server that add spans to it. Does not need the SDK."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final, Protocol

Attributes = Mapping[str, str | int | bool]


class CallTrace(Protocol):
    """The trace of one call that is sampled. Times are those of `time.monotonic_ns`.

    Attributes never hold payloads, subjects, or texts of callers.
    """

    def add(self, name: str, begin_ns: int, end_ns: int, attributes: Attributes) -> None:
        """Add a span below the call's own span."""

    def end(self, attributes: Attributes, *, is_failure: bool) -> None:
        """End the call's own span."""


# None: the call is not sampled, or nothing is traced.
CURRENT: Final[ContextVar[CallTrace | None]] = ContextVar("gavel_call_trace", default=None)
