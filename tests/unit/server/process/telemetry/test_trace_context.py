"""The trace context of callers: which texts are valid, and the form in which they are recorded."""

from __future__ import annotations

import pytest
from gavel_server.process.telemetry.trace_context import parse_traceparent

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01"),
        (f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-00"),
        (f"00-{TRACE}-{SPAN}-ff", f"00-{TRACE}-{SPAN}-03"),
        (f"cc-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01"),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", f"00-{TRACE}-{SPAN}-01"),
    ],
)
def test_valid_contexts(text: str, expected: str) -> None:
    """A context of any version is taken in the form of version 00, with the flags that are known."""
    assert expected == parse_traceparent(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"00-{TRACE}-{SPAN}",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"cc-{TRACE}-{SPAN}-01-{'x' * 1000}",
    ],
)
def test_invalid_contexts(text: str) -> None:
    """Anything else is as if the caller had sent nothing."""
    assert parse_traceparent(text) == ""
