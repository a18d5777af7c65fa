"""What carries out an action: handlers, what they are told, and what they answer.

A handler is a coroutine function that acts on the outside world. It may be called again for the same decision (after a crash, a
lost lease, a retry), so it must pass on `context.idempotency_key`, or look before it acts. It is cancelled when it takes too
long or when its lease cannot be kept; whatever else it started it must end then.

    handlers = Handlers()

    @handlers.action("refund.create", timeout_ms=10_000)
    async def create_refund(context: ExecutionContext) -> HandlerResult:
        refund = await psp.refund(context.params["amount"], idempotency_key=context.idempotency_key)
        return HandlerResult.success({"refund_id": refund.id})
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import (
    EXECUTION_STATUS_ABORTED,
    EXECUTION_STATUS_FAILED,
    EXECUTION_STATUS_PARTIAL,
    EXECUTION_STATUS_SUCCESS,
    EXECUTION_STATUS_TIMEOUT,
    ExecutionStatus,
)

HANDLER_TIMEOUT_MS_DEFAULT: Final = 60_000


@dataclass(frozen=True)
class ExecutionContext:
    """What a handler carries out: exactly the action and parameters that were approved."""

    decision: Envelope
    """The DECISION as it stands in the log."""
    params: dict[str, Any]
    """`decision.decision.params` as Python values."""
    attempt: int
    """From 1."""
    execution_id: str
    """The attempt's id, "exec_" and 12 hex digits."""

    @property
    def idempotency_key(self) -> str:
        """The decision_id: the same for every attempt. Hand it to whatever must not act twice."""
        return self.decision.decision.decision_id


@dataclass(frozen=True)
class HandlerResult:
    """How an attempt ended. Make one by the function of its status."""

    status: ExecutionStatus.ValueType
    result: Mapping[str, object] = field(default_factory=dict)
    error_code: str = ""
    error_message: str = ""
    completed_steps: Sequence[str] = ()
    reason_code: str = ""

    @classmethod
    def success(cls, result: Mapping[str, object] | None = None) -> HandlerResult:
        """Done. `result` (JSON values) goes into the log and into derivations; put no secret into it."""
        return cls(EXECUTION_STATUS_SUCCESS, result=result or {})

    @classmethod
    def failed(cls, error_code: str, error_message: str = "") -> HandlerResult:
        """Failed without effect. May be tried again as the rule set says."""
        return cls(EXECUTION_STATUS_FAILED, error_code=error_code, error_message=error_message)

    @classmethod
    def partial(
        cls, completed_steps: Sequence[str], error_code: str, error_message: str = "", result: Mapping[str, object] | None = None
    ) -> HandlerResult:
        """Half done: these steps have had their effect, and the rest needs compensation or a person. Never retried."""
        return cls(
            EXECUTION_STATUS_PARTIAL,
            result=result or {},
            error_code=error_code,
            error_message=error_message,
            completed_steps=completed_steps,
        )

    @classmethod
    def timeout(cls, error_code: str, error_message: str = "") -> HandlerResult:
        """Nobody knows in time whether it happened. May be tried again as the rule set says."""
        return cls(EXECUTION_STATUS_TIMEOUT, error_code=error_code, error_message=error_message)

    @classmethod
    def aborted(cls, reason_code: str) -> HandlerResult:
        """Given up before any effect, for a reason in UPPER_SNAKE_CASE. Never retried."""
        return cls(EXECUTION_STATUS_ABORTED, reason_code=reason_code)


Handler = Callable[[ExecutionContext], Awaitable[HandlerResult]]


class ActionHandler(NamedTuple):
    """A handler and how long it may take."""

    handle: Handler
    timeout_ms: int


class Handlers(Mapping[str, ActionHandler]):
    """Which handler carries out which action type."""

    def __init__(self) -> None:
        self._handlers: dict[str, ActionHandler] = {}

    def action(self, action_type: str, *, timeout_ms: int = HANDLER_TIMEOUT_MS_DEFAULT) -> Callable[[Handler], Handler]:
        """Register the decorated coroutine function for `action_type`.

        Raises TypeError for a plain function, which would hold up every other attempt and the renewal of its own lease, and
        ValueError if the action has a handler already.
        """

        def register(handler: Handler) -> Handler:
            if not (inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)):
                raise TypeError(
                    f"the handler of {action_type} is no coroutine function; write `async def`, and run what blocks in asyncio.to_thread"
                )
            if action_type in self._handlers:
                raise ValueError(f"the action {action_type} has a handler already")
            self._handlers[action_type] = ActionHandler(handler, timeout_ms)
            return handler

        return register

    def __getitem__(self, action_type: str) -> ActionHandler:
        return self._handlers[action_type]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)
