"""Handlers: the functions of an application that carry out actions, their context and their result.

A handler is a function that acts on the outside world. The executor may call it again for the same decision (after a crash, a lost
lease, a retry). The handler must therefore pass `context.idempotency_key` on, or check before it acts. The executor cancels a handler
that exceeds its timeout or loses its lease; the handler must then stop everything it started.

A coroutine function runs in the executor's event loop and must not block it. A plain function runs in a thread. A thread cannot be
cancelled: a plain function looks at `context.cancelled` between its steps, and returns or raises once it is true.

    handlers = Handlers()

    @handlers.action("refund.create", timeout_ms=10_000)
    async def create_refund(context: ExecutionContext) -> HandlerResult:
        refund = await psp.refund(context.params["amount"], idempotency_key=context.idempotency_key)
        return HandlerResult.success({"refund_id": refund.id})
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import (
    EXECUTION_STATUS_ABORTED,
    EXECUTION_STATUS_FAILED,
    EXECUTION_STATUS_PARTIAL,
    EXECUTION_STATUS_SUCCESS,
    EXECUTION_STATUS_TIMEOUT,
    ExecutionStatus,
)

if TYPE_CHECKING:
    from gavel_client.tools.invocation import ToolOutcome

HANDLER_TIMEOUT_MS_DEFAULT: Final = 60_000


class ToolCaller(Protocol):
    """Calls tools for handlers: `gavel_client.tools.ToolRuntime`."""

    async def execute(self, name: str, execution: ExecutionContext, *, timeout_ms: int) -> ToolOutcome:
        """Call a tool with the params of the decision that an attempt carries out."""

    def execute_blocking(self, name: str, execution: ExecutionContext, *, timeout_ms: int) -> ToolOutcome:
        """Call a tool like `execute`, from another thread than that of the event loop."""


@dataclass(frozen=True)
class ExecutionContext:
    """The approved action and parameters, for one attempt to carry them out."""

    decision: Envelope
    """The DECISION as recorded in the log."""
    params: dict[str, Any]
    """`decision.decision.params` as Python values."""
    attempt: int
    """Number of the attempt, from 1."""
    execution_id: str
    """Id of the attempt, "exec_" and 12 hex digits."""
    cancellation: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)
    """Set by the executor when the handler must stop."""

    tools: ToolCaller | None = field(default=None, repr=False, compare=False)
    """The runtime of tools of the executor, if it has one."""

    async def call_tool(self, name: str, *, timeout_ms: int = HANDLER_TIMEOUT_MS_DEFAULT) -> ToolOutcome:
        """Call a tool with the decision's params, as the runtime's guard requires of tools with effects outside (docs/tools.md).

        Raises RuntimeError if the executor has no runtime, and GavelError like ToolRuntime.invoke.
        """
        return await self._tool_caller().execute(name, self, timeout_ms=timeout_ms)

    def call_tool_blocking(self, name: str, *, timeout_ms: int = HANDLER_TIMEOUT_MS_DEFAULT) -> ToolOutcome:
        """Call a tool like `call_tool`, from a plain function, which runs in a thread. The call ends when the handler must stop."""
        return self._tool_caller().execute_blocking(name, self, timeout_ms=timeout_ms)

    def _tool_caller(self) -> ToolCaller:
        if self.tools is None:
            raise RuntimeError("the executor has no runtime of tools; pass Executor(tools=...)")
        return self.tools

    @property
    def cancelled(self) -> bool:
        """Whether the handler must stop: its time is over, its lease is lost, or the executor stops."""
        return self.cancellation.is_set()

    @property
    def idempotency_key(self) -> str:
        """The decision_id, which is the same for every attempt. Pass it to every system that must act only once."""
        return self.decision.decision.decision_id


@dataclass(frozen=True)
class HandlerResult:
    """The outcome of an attempt. Create it with the class method of its status."""

    status: ExecutionStatus.ValueType
    result: Mapping[str, object] = field(default_factory=dict)
    error_code: str = ""
    error_message: str = ""
    completed_steps: Sequence[str] = ()
    reason_code: str = ""

    @classmethod
    def success(cls, result: Mapping[str, object] | None = None) -> HandlerResult:
        """The action succeeded. `result` (JSON values) is recorded and read by derivations; put no secret into it."""
        return cls(EXECUTION_STATUS_SUCCESS, result=result or {})

    @classmethod
    def failed(cls, error_code: str, error_message: str = "") -> HandlerResult:
        """The action failed without effect. The rule set's retry policy applies."""
        return cls(EXECUTION_STATUS_FAILED, error_code=error_code, error_message=error_message)

    @classmethod
    def partial(
        cls, completed_steps: Sequence[str], error_code: str, error_message: str = "", result: Mapping[str, object] | None = None
    ) -> HandlerResult:
        """Only `completed_steps` took effect; compensation or a person is needed. The action is never retried."""
        return cls(
            EXECUTION_STATUS_PARTIAL,
            result=result or {},
            error_code=error_code,
            error_message=error_message,
            completed_steps=completed_steps,
        )

    @classmethod
    def timeout(cls, error_code: str, error_message: str = "") -> HandlerResult:
        """The outcome was not known in time. The rule set's retry policy applies."""
        return cls(EXECUTION_STATUS_TIMEOUT, error_code=error_code, error_message=error_message)

    @classmethod
    def aborted(cls, reason_code: str) -> HandlerResult:
        """The handler gave up before any effect. `reason_code` is in UPPER_SNAKE_CASE. The action is never retried."""
        return cls(EXECUTION_STATUS_ABORTED, reason_code=reason_code)


Handler = Callable[[ExecutionContext], Awaitable[HandlerResult] | HandlerResult]
_Handler = TypeVar("_Handler", bound=Handler)


class ActionHandler(NamedTuple):
    """A handler and its timeout."""

    handle: Handler
    timeout_ms: int

    @property
    def is_coroutine_function(self) -> bool:
        """Whether the handler runs in the event loop; otherwise it runs in a thread."""
        return inspect.iscoroutinefunction(self.handle) or inspect.iscoroutinefunction(type(self.handle).__call__)


class Handlers(Mapping[str, ActionHandler]):
    """Handlers by action type."""

    def __init__(self) -> None:
        self._handlers: dict[str, ActionHandler] = {}

    def action(self, action_type: str, *, timeout_ms: int = HANDLER_TIMEOUT_MS_DEFAULT) -> Callable[[_Handler], _Handler]:
        """Register the decorated function for `action_type`. Raises ValueError if the action already has a handler."""

        def register(handler: _Handler) -> _Handler:
            if not callable(handler):
                raise TypeError(f"the handler of {action_type} is {type(handler).__name__}, not a function")
            if action_type in self._handlers:
                raise ValueError(f"the action {action_type} already has a handler; register one handler for each action")
            self._handlers[action_type] = ActionHandler(handler, timeout_ms)
            return handler

        return register

    def __getitem__(self, action_type: str) -> ActionHandler:
        return self._handlers[action_type]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)
