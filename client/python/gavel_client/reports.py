"""From how a handler ended to the report of its attempt.

One attempt has one report: its event_id is a hash of the attempt, so that however often it is sent, by whatever path, the log
holds it once. What happened is never made to look smaller than it may be: a handler that said it was done and cannot say with
what has done something, which a person has to look at.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Final

from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import EXECUTION_STATUS_PARTIAL, EXECUTION_STATUS_SUCCESS, Execution, ExecutionError, ExecutionStatus
from gavel.v1.execution_service_pb2 import ExecutionStarted
from google.protobuf.timestamp_pb2 import Timestamp

from gavel_client.envelopes import execution_envelope
from gavel_client.errors import HandlerError, where_and_what
from gavel_client.handlers import HandlerResult
from gavel_client.values import to_struct

# Error codes of the runtime's own.
HANDLER_EXCEPTION: Final = "HANDLER_EXCEPTION"
HANDLER_CANCELLED: Final = "HANDLER_CANCELLED"
INVALID_RESULT: Final = "INVALID_RESULT"

# The name space of the reports' UUIDv5.
_REPORTS: Final = uuid.UUID("5f0d7d2e-6d0c-4c52-9a6c-3a1f4f8f0c11")


def result_of(handler: asyncio.Future[HandlerResult]) -> HandlerResult:
    """Return how a handler ended by itself.

    An exception is FAILED, that is, without effect: a handler that may have had one must catch it and say PARTIAL. The text of
    an exception that is not a HandlerError stays out of the log, as it may hold secrets.
    """
    if handler.cancelled():
        return HandlerResult.timeout(HANDLER_CANCELLED, "the handler cancelled itself")
    error = handler.exception()
    if isinstance(error, HandlerError):
        return HandlerResult.failed(error.code, error.message)
    if error is not None:
        return HandlerResult.failed(HANDLER_EXCEPTION, where_and_what(error))
    result: object = handler.result()
    if not isinstance(result, HandlerResult):
        return HandlerResult.partial((), INVALID_RESULT, f"the handler returned {type(result).__name__}, not a HandlerResult")
    return result


def report_envelope(
    started: ExecutionStarted, producer: Producer, result: HandlerResult, began_at: Timestamp, ended_at: Timestamp
) -> Envelope:
    """Return the report of an attempt. A result with values that no report can hold is reported as INVALID_RESULT."""
    decision = started.decision
    execution = Execution(
        decision_id=decision.event_id,
        execution_id=started.execution_id,
        attempt=started.attempt,
        status=result.status,
        started_at=began_at,
        finished_at=ended_at,
    )
    report = execution_envelope(
        decision.subject,
        producer,
        execution,
        event_id=str(uuid.uuid5(_REPORTS, f"{decision.bus}/{decision.event_id}/{started.execution_id}")),
        trace_id=decision.trace_id,
        causation_id=decision.event_id,
    )
    try:
        told = Execution(reason_code=result.reason_code, completed_steps=result.completed_steps)
        if result.error_code or result.error_message:
            told.error.CopyFrom(ExecutionError(code=result.error_code, message=result.error_message))
        if result.result:
            told.result.CopyFrom(to_struct(result.result, "result"))
    except (TypeError, ValueError) as error:
        return without_result(report, str(error))
    report.execution.MergeFrom(told)
    return report


def without_result(report: Envelope, problem: str) -> Envelope:
    """Return the report without what the handler said of it, which cannot be recorded: `problem` says why.

    SUCCESS becomes PARTIAL, for a person or a compensation: something was done, and nobody knows what.
    """
    told = report.execution
    status = EXECUTION_STATUS_PARTIAL if told.status == EXECUTION_STATUS_SUCCESS else told.status
    message = f"the handler's {ExecutionStatus.Name(told.status)} cannot be recorded: {problem}"
    stripped = Envelope()
    stripped.CopyFrom(report)
    stripped.execution.CopyFrom(
        Execution(
            decision_id=told.decision_id,
            execution_id=told.execution_id,
            attempt=told.attempt,
            status=status,
            error=ExecutionError(code=INVALID_RESULT, message=message),
            started_at=told.started_at,
            finished_at=told.finished_at,
        )
    )
    return stripped


def now() -> Timestamp:
    """Return the wall clock's time; it informs people and decides nothing."""
    moment = Timestamp()
    moment.GetCurrentTime()
    return moment
