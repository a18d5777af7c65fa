"""The client's errors: one base, five leaves.

A refusal by policy is a Decision and never an error (seeds 002 §6). What stands here says that something could not be
decided, reached or carried out.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import grpc
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

# Where gRPC puts a serialized google.rpc.Status (AIP-193).
STATUS_DETAILS_KEY: Final = "grpc-status-details-bin"

# A server that sees a call's deadline pass resets the call, and a caller who has not reached it by his own clock hears CANCELLED: by how
# much the two may be apart.
DEADLINE_NEAR_SECONDS: Final = 0.1

_CODE_OF_NUMBER: Final[Mapping[int, grpc.StatusCode]] = {code.value[0]: code for code in grpc.StatusCode}


class Violation(NamedTuple):
    """One thing that is wrong with a request: which field, and why."""

    field: str
    description: str


class GavelClientError(Exception):
    """Base of everything that this package raises for reasons of its own."""


class GavelError(GavelClientError):
    """A call failed: the server, or the way to it, could not decide.

    `code` is gRPC's; `reason` a name of the contract's ErrorReason without prefix, e.g. "QUEUE_FULL", or "" where the
    error did not come from Gavel; `violations` is filled for INVALID_ARGUMENT, every one at once; `retry_after_ms` is the
    server's advice, None without one; `metadata` is the ErrorInfo's, e.g. the rule that refused.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: str,
        message: str,
        violations: tuple[Violation, ...] = (),
        retry_after_ms: int | None = None,
        metadata: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.code = code
        self.reason = reason
        self.message = message
        self.violations = violations
        self.retry_after_ms = retry_after_ms
        self.metadata = metadata
        super().__init__(code, reason, message)

    def __str__(self) -> str:
        name = f"{self.code.name} ({self.reason})" if self.reason else self.code.name
        lines = [f"{name}: {self.message}"]
        lines += [f"  {violation.field}: {violation.description}" for violation in self.violations]
        return "\n".join(lines)

    @classmethod
    def from_status(cls, status: Status) -> GavelError:
        """Read a google.rpc.Status, e.g. the `error` of one result of a batch."""
        reason = ""
        violations: tuple[Violation, ...] = ()
        retry_after_ms: int | None = None
        metadata: Mapping[str, str] = {}
        for detail in status.details:
            match detail.TypeName():
                case "google.rpc.ErrorInfo":
                    info = ErrorInfo.FromString(detail.value)
                    reason, metadata = info.reason, dict(info.metadata)
                case "google.rpc.BadRequest":
                    request = BadRequest.FromString(detail.value)
                    violations = tuple(Violation(found.field, found.description) for found in request.field_violations)
                case "google.rpc.RetryInfo":
                    retry_after_ms = RetryInfo.FromString(detail.value).retry_delay.ToMilliseconds()
        code = _CODE_OF_NUMBER.get(status.code, grpc.StatusCode.UNKNOWN)
        return cls(code, reason, status.message, violations, retry_after_ms, MappingProxyType(metadata))

    @classmethod
    def from_rpc_error(cls, error: grpc.RpcError, ends_at: float | None = None) -> GavelError:
        """Read what gRPC raised, of a synchronous or an asynchronous call.

        `ends_at` is the call's deadline on the monotonic clock, in seconds; a call that was cancelled then, and not by the caller, is
        DEADLINE_EXCEEDED. None: it has no deadline, or the caller has cancelled it.
        """
        # Pairs, of one class in synchronous calls and of another in asynchronous ones.
        metadata: Any = error.trailing_metadata() or ()
        for key, value in metadata:
            if key == STATUS_DETAILS_KEY and isinstance(value, bytes):
                return cls.from_status(Status.FromString(value))
        code, message = error.code(), error.details() or ""
        if code is grpc.StatusCode.CANCELLED and ends_at is not None and ends_at - time.monotonic() < DEADLINE_NEAR_SECONDS:
            return cls(grpc.StatusCode.DEADLINE_EXCEEDED, "", f"the time for the call is over ({message})")
        return cls(code, "", message)


class WorkQueueError(GavelClientError):
    """A work queue cannot be used as configured; waiting would not help."""


class HandlerError(GavelClientError):
    """Raised by an action's handler that failed without effect, to name why.

    `code` (UPPER_SNAKE_CASE, e.g. "PSP_DOWN") and `message` go into the log as they are: put no secret into them.
    """

    def __init__(self, code: str, message: str = "") -> None:
        self.code = code
        self.message = message
        super().__init__(f"{code}: {message}" if message else code)


class ProviderError(GavelClientError):
    """Raised by a fact provider that cannot answer, to name why; `code` is like "E_PERMISSION".

    `code` and `message` go into the log as they are: put no secret into them.
    """

    def __init__(self, code: str, message: str = "") -> None:
        self.code = code
        self.message = message
        super().__init__(f"{code}: {message}" if message else code)


class TriggerFileError(GavelClientError):
    """A file of triggers has mistakes; `messages` are all of them, each "file:line:column: code: message (suggestion)"."""

    def __init__(self, messages: Sequence[str]) -> None:
        self.messages = tuple(messages)
        super().__init__("\n".join(messages))


def where_and_what(error: BaseException) -> str:
    """Return what may be logged of any error: an error of this package's own in its words, a stranger's type and place.

    The text of a stranger's error is left out, as it may hold parameters or secrets.
    """
    if isinstance(error, GavelError):
        return f"{error.code.name} {error.reason}".rstrip()
    if isinstance(error, GavelClientError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    return f"{type(error).__name__}{place}"
