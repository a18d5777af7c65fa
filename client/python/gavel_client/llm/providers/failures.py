"""Failures of HTTP calls of the SDKs, by status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gavel_client.llm.errors import FailureCode

_CODES: Final[Mapping[int, FailureCode]] = {
    401: "authentication",
    402: "quota",
    403: "authentication",
    408: "timeout",
    409: "server",
    429: "rate_limit",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
RETRY_AFTER_MS_MAX: Final = 3_600_000


def failure_code(status: int) -> FailureCode:
    """Return the code of a failed call."""
    return _CODES.get(status) or ("server" if status >= 500 else "invalid_request")


def retry_after_ms(headers: Mapping[str, str]) -> int | None:
    """Return the provider's advice in the headers of a failed call; None: there is none."""
    for name, unit_ms in (("retry-after-ms", 1), ("retry-after", 1000)):
        try:
            return min(RETRY_AFTER_MS_MAX, max(0, int(float(headers[name]) * unit_ms)))
        except (KeyError, ValueError, OverflowError):
            continue
    return None
