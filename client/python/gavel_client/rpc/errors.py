"""The client's errors: GavelClientError and its subclasses.

A refusal by policy is a Decision, not an error (constitution §6). An error means that the server could not decide, could not be
reached, or that local code failed.
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

# The client's own reason of an UNAVAILABLE: the provider of the token raises, after it has returned tokens before.
NO_TOKEN: Final = "NO_TOKEN"  # noqa: S105  # a reason

# A server resets a call whose deadline has passed by its own clock. A client whose clock is behind reports the reset as CANCELLED. This
# is the largest expected difference between the two clocks.
DEADLINE_TOLERANCE_SECONDS: Final = 0.1

# What grpc.aio reports, with INTERNAL, if the server ended a stream while a request was sent: the server's own status is lost
# (https://github.com/grpc/grpc/issues/36066).
LOST_STATUS: Final = "Internal error from Core"

_CODE_OF_NUMBER: Final[Mapping[int, grpc.StatusCode]] = {code.value[0]: code for code in grpc.StatusCode}


class Violation(NamedTuple):
    """One invalid field of a request and the reason."""

    field: str
    description: str


class GavelClientError(Exception):
    """Base of all errors of this package."""


class GavelError(GavelClientError):
    """A failed call.

    `code` is the gRPC status code. `reason` is a name of the contract's ErrorReason without prefix, e.g. "QUEUE_FULL", NO_TOKEN, or "" for
    another error that does not come from Gavel. `violations` lists all invalid fields of an INVALID_ARGUMENT. `retry_after_ms` is the
    server's advice, or None. `metadata` is that of the ErrorInfo, e.g. the refusing rule.
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
        """Return the error for a google.rpc.Status, e.g. for the `error` of a batch's result."""
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
                    violations = tuple(Violation(violation.field, violation.description) for violation in request.field_violations)
                case "google.rpc.RetryInfo":
                    retry_after_ms = RetryInfo.FromString(detail.value).retry_delay.ToMilliseconds()
        code = _CODE_OF_NUMBER.get(status.code, grpc.StatusCode.UNKNOWN)
        return cls(code, reason, status.message, violations, retry_after_ms, MappingProxyType(metadata))

    @classmethod
    def from_rpc_error(cls, error: grpc.RpcError, ends_at: float | None = None) -> GavelError:
        """Return the error for an exception of gRPC, of a synchronous or an asynchronous call.

        `ends_at` is the call's deadline on the monotonic clock, in seconds; None if the call has no deadline or the caller
        cancelled it. A call that the server cancelled at its deadline becomes DEADLINE_EXCEEDED. A stream whose status grpc.aio has lost
        becomes UNAVAILABLE.
        """
        # Key-value pairs; synchronous and asynchronous calls return different classes.
        metadata: Any = error.trailing_metadata() or ()
        for key, value in metadata:
            if key == STATUS_DETAILS_KEY and isinstance(value, bytes):
                return cls.from_status(Status.FromString(value))
        code, message = error.code(), error.details() or ""
        if code is grpc.StatusCode.INTERNAL and message == LOST_STATUS:
            return cls(grpc.StatusCode.UNAVAILABLE, "", "the server ended the stream, and gRPC lost its reason; try again")
        if code is grpc.StatusCode.CANCELLED and ends_at is not None and ends_at - time.monotonic() < DEADLINE_TOLERANCE_SECONDS:
            return cls(grpc.StatusCode.DEADLINE_EXCEEDED, "", f"the time for the call is over ({message})")
        return cls(code, "", message)


class WorkQueueError(GavelClientError):
    """A work queue cannot be used as configured; a retry would not help."""


class HandlerError(GavelClientError):
    """Raise this from an action's handler that failed without effect.

    `code` (UPPER_SNAKE_CASE, e.g. "PSP_DOWN") and `message` are recorded in the log: put no secret into them.
    """

    def __init__(self, code: str, message: str = "") -> None:
        self.code = code
        self.message = message
        super().__init__(f"{code}: {message}" if message else code)


class ProviderError(GavelClientError):
    """Raise this from a fact provider that cannot answer.

    `code` (e.g. "E_PERMISSION") and `message` are recorded in the log: put no secret into them.
    """

    def __init__(self, code: str, message: str = "") -> None:
        self.code = code
        self.message = message
        super().__init__(f"{code}: {message}" if message else code)


class RunKeyError(GavelClientError):
    """A `run_key` names a run for other work; `differences` are the parts of the work that differ: subject, action_type, params."""

    def __init__(self, run_key: str, differences: Sequence[str]) -> None:
        self.run_key = run_key
        self.differences = tuple(differences)
        super().__init__(
            f"run_key {run_key!r} names an earlier run with another {' and '.join(differences)}; use one run_key for each piece of work"
        )


class RuleSetFileError(GavelClientError):
    """A rule set's file, or one that it imports, cannot be used; the message says why."""


class TriggerFileError(GavelClientError):
    """A file of triggers is invalid; `messages` lists all mistakes as "file:line:column: code: message (suggestion)"."""

    def __init__(self, messages: Sequence[str]) -> None:
        self.messages = tuple(messages)
        super().__init__("\n".join(messages))


# Reasons whose messages name the caller, its rights and what they lack, or where its token failed, and no content of a request.
_ABOUT_THE_CALLER: Final = frozenset({"RIGHT_LACKING", "PRODUCER_NOT_ALLOWED", "UNAUTHENTICATED", NO_TOKEN})


def describe_error(error: BaseException) -> str:
    """Return a description of an error that is safe to log.

    For an error of this package it is the error's text; for any other error its type and place, because the text may hold
    parameters or secrets. Of errors of the server only those about the caller's own credentials and rights are given in words.
    """
    if isinstance(error, GavelError):
        text = f"{error.code.name} {error.reason}".rstrip()
        return f"{text}: {error.message}" if error.reason in _ABOUT_THE_CALLER and error.message else text
    if isinstance(error, GavelClientError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    return f"{type(error).__name__}{place}"
