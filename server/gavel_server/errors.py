"""The errors of calls, as gRPC status with details (AIP-193).

Every error has one ErrorInfo (domain "gavel"). Invalid input adds a BadRequest with all violations, a retriable error a RetryInfo. A
refusal by policy is a Decision, not an error.
"""

from __future__ import annotations

import asyncio
import hashlib
import traceback
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
from gavel.v1 import error_pb2
from gavel.v1.error_pb2 import ErrorReason
from gavel_rules.limits import VIOLATIONS_MAX
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status

if TYPE_CHECKING:
    # For the type only: this module must not load the rules engines.
    from gavel_rules.commands import Fault

DOMAIN: Final = "gavel"
_REASON_PREFIX: Final = "ERROR_REASON_"
RETRY_AFTER_MS_DEFAULT: Final = 200
# Encoded statuses that are remembered: a caller that is refused often is refused for the same reason. Each has a few KiB at most.
ENCODED_STATUSES_MAX: Final = 256

_CODES: Final[Mapping[ErrorReason.ValueType, grpc.StatusCode]] = {
    error_pb2.ERROR_REASON_INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    error_pb2.ERROR_REASON_INVALID_RULE_SET: grpc.StatusCode.INVALID_ARGUMENT,
    error_pb2.ERROR_REASON_EVENT_ID_REUSED: grpc.StatusCode.ALREADY_EXISTS,
    error_pb2.ERROR_REASON_VERSION_REUSED: grpc.StatusCode.ALREADY_EXISTS,
    error_pb2.ERROR_REASON_UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    error_pb2.ERROR_REASON_CATEGORY_NOT_ALLOWED: grpc.StatusCode.PERMISSION_DENIED,
    error_pb2.ERROR_REASON_FIELD_RESERVED: grpc.StatusCode.PERMISSION_DENIED,
    error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED: grpc.StatusCode.PERMISSION_DENIED,
    error_pb2.ERROR_REASON_RIGHT_LACKING: grpc.StatusCode.PERMISSION_DENIED,
    error_pb2.ERROR_REASON_GRANTS_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    error_pb2.ERROR_REASON_INVALID_GRANTS: grpc.StatusCode.INVALID_ARGUMENT,
    error_pb2.ERROR_REASON_BUS_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    error_pb2.ERROR_REASON_EXECUTION_ID_REUSED: grpc.StatusCode.ALREADY_EXISTS,
    error_pb2.ERROR_REASON_EVENT_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    error_pb2.ERROR_REASON_DECISION_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    error_pb2.ERROR_REASON_RULE_SET_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    error_pb2.ERROR_REASON_BUS_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    error_pb2.ERROR_REASON_TOOL_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    error_pb2.ERROR_REASON_CHECKPOINT_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    error_pb2.ERROR_REASON_CONSUMER_GROUP_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    error_pb2.ERROR_REASON_CHECKPOINT_REFUSED: grpc.StatusCode.FAILED_PRECONDITION,
    error_pb2.ERROR_REASON_ACTIVATION_RACED: grpc.StatusCode.ABORTED,
    error_pb2.ERROR_REASON_ACTION_ALREADY_GOVERNED: grpc.StatusCode.FAILED_PRECONDITION,
    error_pb2.ERROR_REASON_RULE_SETS_DISAGREE: grpc.StatusCode.FAILED_PRECONDITION,
    error_pb2.ERROR_REASON_BUS_REPLACED: grpc.StatusCode.FAILED_PRECONDITION,
    error_pb2.ERROR_REASON_HISTORY_REPLACED: grpc.StatusCode.FAILED_PRECONDITION,
    error_pb2.ERROR_REASON_WRONG_STATE: grpc.StatusCode.FAILED_PRECONDITION,
    error_pb2.ERROR_REASON_DERIVATION_MISMATCH: grpc.StatusCode.FAILED_PRECONDITION,
    error_pb2.ERROR_REASON_QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    error_pb2.ERROR_REASON_COMPILE_LIMIT_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    error_pb2.ERROR_REASON_QUOTA_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    error_pb2.ERROR_REASON_LOG_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    error_pb2.ERROR_REASON_LOG_REGRESSED: grpc.StatusCode.UNAVAILABLE,
    error_pb2.ERROR_REASON_CLOCK_SKEW: grpc.StatusCode.UNAVAILABLE,
    error_pb2.ERROR_REASON_ARBITER_VERSION_NOT_IMPLEMENTED: grpc.StatusCode.UNAVAILABLE,
    error_pb2.ERROR_REASON_SHUTTING_DOWN: grpc.StatusCode.UNAVAILABLE,
    error_pb2.ERROR_REASON_CONSUMER_SILENT: grpc.StatusCode.ABORTED,
    error_pb2.ERROR_REASON_PROJECTION_BEHIND: grpc.StatusCode.UNAVAILABLE,
    error_pb2.ERROR_REASON_INTERNAL: grpc.StatusCode.INTERNAL,
    error_pb2.ERROR_REASON_NOT_IMPLEMENTED: grpc.StatusCode.UNIMPLEMENTED,
}
# The key of trailing metadata that holds the encoded google.rpc.Status, on every implementation of gRPC.
DETAILS_KEY: Final = "grpc-status-details-bin"
# The key of trailing metadata that tells gRPC's own retries how long to wait (gRFC A6).
PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"
NO_RETRY: Final = "-1"
# Codes after which a call may be repeated. `_LASTING`: reasons with such a code after which the same request fails again.
_RETRIABLE: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED})
_LASTING: Final = frozenset({error_pb2.ERROR_REASON_COMPILE_LIMIT_EXCEEDED})


class GavelServerError(Exception):
    """The base of the server's errors. Those of the log derive from LogError, those of the command line from CommandError."""


class ServiceError(GavelServerError):
    """The error of a call. `reason` determines the code; `violations` are (field, description); `retry_after_ms` 0: that of its code."""

    def __init__(
        self,
        reason: ErrorReason.ValueType,
        message: str,
        violations: Sequence[tuple[str, str]] = (),
        retry_after_ms: int = 0,
        quota: tuple[str, str] | None = None,
    ) -> None:
        """`quota` is the subject and the description of a QuotaFailure."""
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.violations = tuple(violations)
        self.retry_after_ms = retry_after_ms
        self.quota = quota

    def copy(self) -> ServiceError:
        """Return an equal error.

        An error that answers several calls is raised as a copy in each. Each `raise` lengthens the traceback of the exception that it
        raises. A traceback keeps the frames of its calls, and they keep the requests.
        """
        return ServiceError(self.reason, self.message, self.violations, self.retry_after_ms, self.quota)

    @property
    def code(self) -> grpc.StatusCode:
        """The gRPC code of the reason."""
        return _CODES[self.reason]

    def status(self) -> Status:
        """Return the error as google.rpc.Status with its details."""
        return Status.FromString(self.encoded_status())

    def encoded_status(self) -> bytes:
        """Return the encoded google.rpc.Status."""
        return _encode_status(self.reason, self.message, self.violations, self.retry_after_ms, self.quota)


@lru_cache(ENCODED_STATUSES_MAX)
def _encode_status(
    reason: ErrorReason.ValueType,
    message: str,
    violations: tuple[tuple[str, str], ...],
    retry_after_ms: int,
    quota: tuple[str, str] | None,
) -> bytes:
    code = _CODES[reason]
    details = [_error_info(reason)]
    if violations:
        fields = [error_details_pb2.BadRequest.FieldViolation(field=field, description=text) for field, text in violations]
        details.append(_pack(error_details_pb2.BadRequest(field_violations=fields)))
    if quota is not None:
        violation = error_details_pb2.QuotaFailure.Violation(subject=quota[0], description=quota[1])
        details.append(_pack(error_details_pb2.QuotaFailure(violations=[violation])))
    delay_ms = _retry_delay_ms(reason, retry_after_ms)
    if delay_ms:
        delay = Duration(seconds=delay_ms // 1000, nanos=delay_ms % 1000 * 1_000_000)
        details.append(_pack(error_details_pb2.RetryInfo(retry_delay=delay)))
    return Status(code=code.value[0], message=message, details=details).SerializeToString()


def _retry_delay_ms(reason: ErrorReason.ValueType, retry_after_ms: int) -> int:
    """Return how long to wait before a call is repeated; 0: repeating it does not help. An error may name its delay whatever its code."""
    if retry_after_ms:
        return retry_after_ms
    if _CODES[reason] not in _RETRIABLE or reason in _LASTING:
        return 0
    return RETRY_AFTER_MS_DEFAULT


@cache
def _error_info(reason: ErrorReason.ValueType) -> AnyMessage:
    return _pack(error_details_pb2.ErrorInfo(reason=reason_name(reason), domain=DOMAIN))


def _pack(detail: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(detail)
    return packed


@cache
def reason_name(reason: ErrorReason.ValueType) -> str:
    """Return the name of a reason as callers see it: "WRONG_STATE"."""
    return ErrorReason.Name(reason).removeprefix(_REASON_PREFIX)


def invalid(violations: Sequence[tuple[str, str]]) -> ServiceError:
    """Return the error for malformed input; its message names the first violation and how many there are. It has VIOLATIONS_MAX at most."""
    field, description = violations[0]
    more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
    return ServiceError(error_pb2.ERROR_REASON_INVALID_REQUEST, f"{field} {description}{more}", violations[:VIOLATIONS_MAX])


def of_fault(fault: Fault) -> ServiceError:
    """Return the error for a command that the core could not carry out."""
    return ServiceError(fault.reason, fault.message, fault.violations, fault.retry_after_ms)


def internal(error_id: str) -> ServiceError:
    """Return the error for a bug. The server's log has the traceback under `error_id`; the caller gets only the id."""
    return ServiceError(error_pb2.ERROR_REASON_INTERNAL, f"internal error {error_id}: the server's log has details under this id")


class Bug:
    """An unexpected exception, for callers and log.

    The id is a hash of the exception's place in the code and its type. An exception that occurs a thousand times a second therefore has one
    id, and one line of the log has its traceback under that id.
    """

    def __init__(self, error: BaseException) -> None:
        frames = [f"{PurePath(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
        self.where: Final = f"{frames[-1] if frames else 'unknown'} {type(error).__name__}"
        self.error_id: Final = hashlib.sha256(" ".join([*frames, self.where]).encode()).hexdigest()[:32]

    def service_error(self) -> ServiceError:
        """Return the caller's error."""
        return internal(self.error_id)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: ServiceError) -> NoReturn:
    """End a call with an error. The delay of its RetryInfo is in the trailing metadata too, where gRPC's own retries look for it.

    Raises CancelledError if the connection is gone, as grpc.aio does a moment later.
    """
    trailing_metadata: tuple[tuple[str, str | bytes], ...] = ((DETAILS_KEY, error.encoded_status()),)
    delay_ms = _retry_delay_ms(error.reason, error.retry_after_ms)
    if delay_ms or error.code in _RETRIABLE:
        trailing_metadata = (*trailing_metadata, (PUSHBACK_KEY, str(delay_ms) if delay_ms else NO_RETRY))
    try:
        await context.abort(error.code, error.message, trailing_metadata)
    except grpc.aio.AbortError as aborted:
        asyncio.get_running_loop().call_soon(_forget_frames, aborted)
        raise
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None
    raise AssertionError("abort returned")


def _forget_frames(aborted: BaseException) -> None:
    """Drop what an exception that has ended a call refers to.

    gRPC keeps the exception in the call. Its frames keep the call, so that both stay until a rare collection of garbage.
    """
    aborted.__traceback__ = aborted.__context__ = None
