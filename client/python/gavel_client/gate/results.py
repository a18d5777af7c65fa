"""Between a tool's output and the report of its attempt.

A tool of a framework knows nothing of Gavel, so only `HandlerError` says that it had no effect. Any other end without an output leaves
the effect unknown. It is reported as PARTIAL, which no rule set retries, and a person has to look at it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from gavel.v1.execution_pb2 import Execution

from gavel_client.envelopes import content_hash
from gavel_client.handlers import HandlerResult
from gavel_client.rpc.errors import HandlerError, describe_error
from gavel_client.values import from_struct, to_struct

# A larger output is recorded by its hash alone.
OUTPUT_BYTES_MAX: Final = 32 * 1024
TOOL_ERROR: Final = "TOOL_ERROR"
TOOL_CANCELLED: Final = "TOOL_CANCELLED"
TOOL_PAUSED: Final = "TOOL_PAUSED"
LEASE_OVER: Final = "LEASE_OVER"
OUTPUT: Final = "output"
OUTPUT_HASH: Final = "output_hash"


def success(output: object) -> HandlerResult:
    """Return the result of a tool that returned `output`.

    A mapping of JSON values, or its JSON text, is the report's `result`, so that rule sets can derive facts from it. Any other JSON value
    is its field `output`. Values that are not JSON are not recorded.
    """
    value = _parse(output)
    result = value if isinstance(value, Mapping) else {OUTPUT: value}
    try:
        to_struct(result)
        if len(json.dumps(value).encode()) > OUTPUT_BYTES_MAX:
            result = {OUTPUT_HASH: content_hash(value)}
    except (TypeError, ValueError):
        result = {}
    return HandlerResult.success(result)


def failure(error: BaseException) -> HandlerResult:
    """Return the result of a tool that raised `error`."""
    if isinstance(error, HandlerError):
        return HandlerResult.failed(error.code, error.message)
    if isinstance(error, asyncio.CancelledError):
        return unknown("the call was cancelled", TOOL_CANCELLED)
    return unknown(describe_error(error))


def unknown(reason: str, error_code: str = TOOL_ERROR) -> HandlerResult:
    """Return the result of a tool that ended without an output, for a reason that is recorded."""
    return HandlerResult.partial((), error_code, f"{reason}; the effect is unknown")


def paused() -> HandlerResult:
    """Return the result of a tool that asked its framework for a confirmation or for credentials in place of acting."""
    return HandlerResult.aborted(TOOL_PAUSED)


def output_of(execution: Execution) -> Any:
    """Return the output in a report; None if it has none."""
    result = from_struct(execution.result)
    return result.get(OUTPUT) if set(result) <= {OUTPUT, OUTPUT_HASH} else result


def _parse(output: object) -> object:
    """Return the object in a JSON text, as frameworks write the output of a tool that returns a dict; otherwise the output itself."""
    if not isinstance(output, str) or not output.startswith("{"):
        return output
    try:
        value = json.loads(output)
    except (ValueError, RecursionError):
        return output
    return value if isinstance(value, dict) else output
