"""One call on its way through the steps of the runtime."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.tool_service_pb2 import ResolveToolResponse

from gavel_client.envelopes import content_hash, new_execution_id
from gavel_client.rpc.errors import GavelError, describe_error
from gavel_client.tools.errors import ARGS, CODES, PERMISSION, QUOTA, TIMEOUT, TOOL, UNKNOWN_EFFECT, ToolError
from gavel_client.tools.hooks import ToolHook
from gavel_client.tools.invocation import ToolContext, ToolData, ToolFailure, ToolInvocation, ToolOutcome
from gavel_client.tools.provider import Provider
from gavel_client.tools.records import ToolRecorder, clip
from gavel_client.tools.schemas import Schemas
from gavel_client.values import to_json

RESULT_BYTES_MAX: Final = 16 * 1024 * 1024
# Time for a provider to stop.
CANCEL_GRACE_MS: Final = 2_000

_CANCELLED: Final = ToolFailure(TIMEOUT, "the caller cancelled the call; whether it took effect is unknown")
_logger = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class CallParts:
    """The parts that all calls of a runtime share."""

    recorder: ToolRecorder
    providers: Mapping[str, Provider]
    hooks: Sequence[ToolHook]
    schemas: Schemas


class Call:
    """A call of a resolved tool. Run it once."""

    def __init__(
        self, parts: CallParts, name: str, arguments: Mapping[str, Any], context: ToolContext, resolution: ResolveToolResponse
    ) -> None:
        self._parts: Final = parts
        self._guard: Final = resolution.guard
        self._cancelled = False
        self._step: asyncio.Task[Any] | None = None
        self._invocation = ToolInvocation(
            requested_tool=name,
            contract=resolution.contract,
            provider_id=resolution.provider.provider_id,
            execution_id=new_execution_id(),
            arguments=arguments,
            context=context,
        )

    def cancel(self) -> None:
        """Stop the tool. The events until then are recorded all the same."""
        self._cancelled = True
        if self._step is not None:
            self._step.cancel()

    async def run(self) -> ToolOutcome:
        """Go through the steps. Raises GavelError if nothing was carried out for lack of the server, and CancelledError if the call was
        cancelled before its TOOL_CALL.
        """
        failure: ToolFailure | None = None
        try:
            await self._prepare()
        except ToolError as error:
            failure = _failure(error)
        except _RefusedError as error:
            failure = error.failure
        call, failure = await self._record_call(failure)
        began_at = time.monotonic()
        answer = failure or await self._carry_out()
        duration_ms = int((time.monotonic() - began_at) * 1000)
        try:
            return await self._parts.recorder.record_result(self._invocation, call, answer, duration_ms)
        except GavelError as error:
            if failure is not None:
                raise
            # The tool may have taken effect, so the caller must not take this for a call that never was.
            return self._parts.recorder.lost_outcome(self._invocation, call, error)

    async def _prepare(self) -> None:
        """Check the arguments, ask the guard, and let hooks patch the arguments. Raises ToolError, or _RefusedError of the guard."""
        await self._take_arguments(self._invocation.arguments)
        self._ask_guard()
        if self._invocation.provider_id not in self._parts.providers:
            provider_id = self._invocation.provider_id
            raise ToolError(
                TOOL, f"this runtime does not have the provider {provider_id}; add it to its profile, or bind the tool to another"
            )
        for hook in self._parts.hooks:
            patch = await self._await_hook(hook.before_call(self._invocation))
            if patch is not None:
                await self._take_arguments(patch)
        self._ask_guard()

    async def _take_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Make `arguments` those of the call. Raises ToolError E_ARGS if they do not match the contract."""
        try:
            plain = await asyncio.to_thread(to_json, arguments, "arguments")
        except (TypeError, ValueError) as error:
            self._invocation = replace(self._invocation, arguments={})
            raise ToolError(ARGS, str(error)) from None
        self._invocation = replace(self._invocation, arguments=plain)
        problem = await asyncio.to_thread(self._parts.schemas.problem, self._invocation.contract.argument_schema, plain, "arguments")
        if problem or not isinstance(plain, dict):
            raise ToolError(ARGS, problem or "the arguments are not an object")

    def _ask_guard(self) -> None:
        """Raise _RefusedError if the call has effects outside, and does not carry out a decision with the decision's params."""
        if self._guard.agents_may_call:
            return
        execution = self._invocation.context.execution
        if execution is None:
            raise _RefusedError(self._guard.reason)
        if execution.cancelled:
            raise _RefusedError("the attempt must stop: its time is over, its lease is lost, or the executor stops")
        if content_hash(execution.params) != content_hash(self._invocation.arguments):
            raise _RefusedError(f"the arguments are not the params of decision {execution.idempotency_key}")

    async def _record_call(self, failure: ToolFailure | None) -> tuple[Envelope, ToolFailure | None]:
        """Record the TOOL_CALL; return it, and why the call fails if it does."""
        record_call = self._parts.recorder.record_call
        carries_out = failure is None and not self._guard.agents_may_call
        try:
            return await record_call(self._invocation, carries_out=carries_out), failure
        except GavelError as error:
            if not carries_out or error.reason != "WRONG_STATE":
                raise
            # The server says that the attempt does not run, or not under its lease. The try is recorded.
            return await record_call(self._invocation, carries_out=False), ToolFailure(PERMISSION, error.message, refused=True)

    async def _carry_out(self) -> ToolData | ToolFailure:
        """Let the provider act, check its answer, and let hooks see it. A cancelled call has no other answer than that."""
        try:
            answer = await self._ask_provider()
            for hook in self._parts.hooks:
                answer = await self._show_answer(hook, answer)
        except asyncio.CancelledError:
            return _CANCELLED
        return answer

    async def _ask_provider(self) -> ToolData | ToolFailure:
        """Return the provider's answer within the time of the call. Raises CancelledError."""
        if self._cancelled:
            raise asyncio.CancelledError
        invocation = self._invocation
        provider = self._parts.providers[invocation.provider_id]
        self._step = step = asyncio.create_task(_run(provider.invoke(invocation)))
        try:
            await asyncio.wait({step}, timeout=invocation.context.timeout_ms / 1000)
        except asyncio.CancelledError:
            # The event loop ends.
            self.cancel()
        is_overdue = not step.done() and not self._cancelled
        if not step.done():
            step.cancel()
            await asyncio.wait({step}, timeout=CANCEL_GRACE_MS / 1000)
        if is_overdue:
            message = f"the tool took longer than {invocation.context.timeout_ms} ms; whether it took effect is unknown"
            return ToolFailure(TIMEOUT, message)
        if not step.done() or step.cancelled():
            raise asyncio.CancelledError
        try:
            answer = step.result()
        except ToolError as error:
            return _failure(error)
        except Exception as error:  # noqa: BLE001  # a provider's exception is the tool's failure
            _logger.warning("tool=%s execution=%s failed: %s", invocation.canonical_tool, invocation.execution_id, describe_error(error))
            return ToolFailure(TOOL, f"the tool failed: {describe_error(error)}")
        try:
            return await asyncio.to_thread(self._checked, answer)
        except ToolError as error:
            return replace(_failure(error), may_have_acted=True)
        except Exception as error:  # noqa: BLE001  # the answer's own classes may fail
            return ToolFailure(TOOL, f"the result cannot be read: {describe_error(error)}", may_have_acted=True)

    async def _show_answer(self, hook: ToolHook, answer: ToolData | ToolFailure) -> ToolData | ToolFailure:
        """Let a hook see an answer, and patch the data of a result. Raises CancelledError."""
        try:
            patch = await self._await_hook(hook.after_result(self._invocation, answer))
            if patch is None:
                return answer
            if isinstance(answer, ToolFailure):
                _logger.warning("%s patched a failure, which stays one", type(hook).__name__)
                return answer
            return await asyncio.to_thread(self._checked, replace(answer, data=patch))
        except ToolError as error:
            had_acted = isinstance(answer, ToolData) or answer.may_have_acted or answer.code in UNKNOWN_EFFECT
            return replace(_failure(error), may_have_acted=had_acted)
        except Exception as error:  # noqa: BLE001  # the patch's own classes may fail
            return ToolFailure(TOOL, f"the patched result cannot be read: {describe_error(error)}", may_have_acted=True)

    def _checked(self, answer: object) -> ToolData:
        """Return an answer as plain JSON data. Raises ToolError if it is not JSON, or does not match the contract."""
        if not isinstance(answer, ToolData):
            raise ToolError(TOOL, f"the tool returned {type(answer).__name__}, not ToolData")
        try:
            data = to_json(answer.data, "result")
            size_bytes = len(json.dumps(data, ensure_ascii=False).encode())
        except (TypeError, ValueError) as error:
            raise ToolError(TOOL, f"the result is not JSON: {error}") from None
        if not isinstance(data, dict):
            raise ToolError(TOOL, "the result is not a JSON object")
        if size_bytes > RESULT_BYTES_MAX:
            raise ToolError(QUOTA, f"the result has {size_bytes} bytes; the limit is {RESULT_BYTES_MAX}")
        problem = self._parts.schemas.problem(self._invocation.contract.result_schema, data, "result")
        if problem:
            raise ToolError(TOOL, f"the result does not match the contract: {problem}")
        return replace(answer, data=data)

    async def _await_hook(self, hook: Coroutine[Any, Any, _Answer]) -> _Answer:
        """Await a hook. Raises ToolError; any other exception of the hook becomes E_TOOL, without its text."""
        self._step = step = asyncio.create_task(_run(hook))
        try:
            return await step
        except (ToolError, asyncio.CancelledError):
            raise
        except Exception as error:
            _logger.warning("a hook of %s failed: %s", self._invocation.canonical_tool, describe_error(error))
            raise ToolError(TOOL, f"a hook failed: {describe_error(error)}") from error


class _RefusedError(Exception):
    """The guard refuses the call."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.failure: Final = ToolFailure(PERMISSION, message, refused=True)


def _failure(error: ToolError) -> ToolFailure:
    """Return the failure that an error of a provider or hook becomes; its code, text and details may be anything."""
    try:
        details = to_json(error.details, "details")
    except Exception as problem:  # noqa: BLE001  # the details' own classes may fail
        details = {"details": f"cannot be recorded: {describe_error(problem)}"}
    return ToolFailure(error.code if error.code in CODES else TOOL, clip(error.message), details)


async def _run(step: Coroutine[Any, Any, _Answer]) -> _Answer:
    """Await a step. An exit of a provider or hook ends its call only; asyncio would end the process."""
    try:
        return await step
    except SystemExit as error:
        raise ToolError(TOOL, describe_error(error)) from error
