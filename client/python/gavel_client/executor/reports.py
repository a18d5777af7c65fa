"""Reports: from the end of a handler to the EXECUTION event of its attempt.

An attempt has one report. Its event_id is a hash of the attempt, so that the log holds it once, however often it is sent. A report
never understates an effect: a handler that succeeded with an unusable result has done something that a person must examine.
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
from gavel_client.handlers import HandlerResult
from gavel_client.rpc.errors import HandlerError, describe_error
from gavel_client.values import escape_surrogates, to_struct

# Error codes of the executor itself.
HANDLER_EXCEPTION: Final = "HANDLER_EXCEPTION"
HANDLER_CANCELLED: Final = "HANDLER_CANCELLED"
INVALID_RESULT: Final = "INVALID_RESULT"
# Characters of the problem that such a report names.
PROBLEM_LENGTH_MAX: Final = 1_000

# The namespace of the reports' UUIDv5 (RFC 9562 §5.5).
_REPORTS: Final = uuid.UUID("5f0d7d2e-6d0c-4c52-9a6c-3a1f4f8f0c11")


def handler_result(handler: asyncio.Future[HandlerResult]) -> HandlerResult:
    """Return the result of a handler that has ended.

    An exception means FAILED, without effect; a handler that may have had an effect must catch the exception and return PARTIAL.
    The text of an exception other than HandlerError is not recorded, because it may hold secrets.
    """
    if handler.cancelled():
        return HandlerResult.timeout(HANDLER_CANCELLED, "the handler cancelled itself")
    error = handler.exception()
    if isinstance(error, HandlerError):
        return HandlerResult.failed(error.code, error.message)
    if error is not None:
        return HandlerResult.failed(HANDLER_EXCEPTION, describe_error(error))
    result: object = handler.result()
    if not isinstance(result, HandlerResult):
        return HandlerResult.partial((), INVALID_RESULT, f"the handler returned {type(result).__name__}, not a HandlerResult")
    return result


def report_envelope(
    started: ExecutionStarted, producer: Producer, result: HandlerResult, began_at: Timestamp, ended_at: Timestamp
) -> Envelope:
    """Return the report of an attempt. A result that no report can hold becomes INVALID_RESULT."""
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
        # No causation_id: the server fills it in, and would look for the decision in its idempotency window, which may be over.
    )
    try:
        details = Execution(reason_code=result.reason_code, completed_steps=result.completed_steps)
        if result.error_code or result.error_message:
            details.error.CopyFrom(ExecutionError(code=result.error_code, message=result.error_message))
        if result.result:
            details.result.CopyFrom(to_struct(result.result, "result"))
    except (TypeError, ValueError) as error:
        return strip_result(report, str(error))
    except Exception as error:  # noqa: BLE001  # a mapping of the handler may raise anything
        return strip_result(report, describe_error(error))
    report.execution.MergeFrom(details)
    return report


def strip_result(report: Envelope, problem: str) -> Envelope:
    """Return the report without the handler's details, which cannot be recorded because of `problem`.

    SUCCESS becomes PARTIAL, for a person or a compensation, because the effect of the action is unknown.
    """
    execution = report.execution
    status = EXECUTION_STATUS_PARTIAL if execution.status == EXECUTION_STATUS_SUCCESS else execution.status
    quotable = escape_surrogates(problem[:PROBLEM_LENGTH_MAX])  # it may quote what the handler returned
    message = f"the handler's {ExecutionStatus.Name(execution.status)} cannot be recorded: {quotable}"
    stripped = Envelope()
    stripped.CopyFrom(report)
    stripped.execution.CopyFrom(
        Execution(
            decision_id=execution.decision_id,
            execution_id=execution.execution_id,
            attempt=execution.attempt,
            status=status,
            error=ExecutionError(code=INVALID_RESULT, message=message),
            started_at=execution.started_at,
            finished_at=execution.finished_at,
        )
    )
    return stripped


def now() -> Timestamp:
    """Return the wall clock's time. It is for people only; no decision depends on it."""
    moment = Timestamp()
    moment.GetCurrentTime()
    return moment
