"""The trace context that callers send in their metadata (W3C Trace Context, https://www.w3.org/TR/trace-context).

Only a context that is valid is used or recorded. It is always recorded in the form of version 00.
"""

from __future__ import annotations

import re
from typing import Final

TRACEPARENT_KEY: Final = "traceparent"
TRACESTATE_KEY: Final = "tracestate"

_TRACEPARENT: Final = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<rest>-.*)?"
)
# "sampled", and "random" of Trace Context level 2.
_KNOWN_FLAGS: Final = 0x03
_INVALID_VERSION: Final = "ff"
_TEXT_LENGTH_MAX: Final = 512


def parse_traceparent(text: str) -> str:
    """Return a `traceparent` of any version as one of version 00, or "" if it is not valid."""
    match = _TRACEPARENT.fullmatch(text) if len(text) <= _TEXT_LENGTH_MAX else None
    if match is None:
        return ""
    version, trace, span, flags = match["version"], match["trace"], match["span"], match["flags"]
    # Later versions may append parts; version 00 has none.
    if version == _INVALID_VERSION or (version == "00" and match["rest"] is not None) or not int(trace, 16) or not int(span, 16):
        return ""
    return f"00-{trace}-{span}-{int(flags, 16) & _KNOWN_FLAGS:02x}"
