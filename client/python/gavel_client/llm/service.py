"""The service layer: one call of a model, with retries and failover over several providers, recorded in the log.

    service = LLMService([openai_responses("gpt-5.2"), anthropic_messages("claude-opus-4-6")], recorder=InvocationRecorder(client, AGENT))
    response = await service.complete(LLMRequest([UserMessage("…")]), context=LLMContext.of(complaint))

It returns the provider's response whole. All attempts are in `provider_meta`, the event of the call is in `extras["gavel_invocation"]`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from gavel.v1.envelope_pb2 import Envelope
from google.protobuf.struct_pb2 import Struct

from gavel_client.llm.attempts import Attempts, RetryPolicy
from gavel_client.llm.errors import InvalidOutputError, LLMFailedError, LLMProviderError
from gavel_client.llm.invocations import INVOCATION, Invocation, InvocationRecorder, LLMContext, check_request, check_response
from gavel_client.llm.models import LLMProviderMeta, LLMResponse, LLMStreamEvent
from gavel_client.llm.provider import LLMProvider, completed_event, error_event
from gavel_client.llm.requests import AssistantMessage, LLMRequest, UserMessage
from gavel_client.rpc.errors import describe_error
from gavel_client.tools.records import clip
from gavel_client.tools.schemas import Schemas
from gavel_client.values import to_struct

if TYPE_CHECKING:
    from typing_extensions import Self

OUTPUTS_MAX_DEFAULT: Final = 2
# How long a cancelled call waits for its record.
LAST_RECORD_SECONDS: Final = 5.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LLMJson:
    """A decoded output that matches its schema, and the response that it came from."""

    value: Any
    response: LLMResponse


@dataclass(frozen=True)
class _Call:
    """One call: what is asked, the hash of its prompt if it is recorded, and the attempts so far."""

    request: LLMRequest
    context: LLMContext | None
    prompt_hash: str
    attempts: Attempts

    def invocation(self, response: LLMResponse | None) -> Invocation:
        """Return the call for its record."""
        provider, attempts = self.attempts.provider, self.attempts
        settings = provider.settings(self.request)
        return Invocation(self.request, self.prompt_hash, settings, provider.model, attempts.provider_meta, attempts.duration_ms, response)


class LLMService:
    """Asks `providers` in order: the first one, and another only after it has failed.

    With a `recorder` every call is recorded as the diagnostic LlmInvocationCommitted, also a call that fails or that its caller cancels. An
    answer whose event cannot be recorded is not given out.
    """

    def __init__(
        self, providers: Sequence[LLMProvider], *, recorder: InvocationRecorder | None = None, policy: RetryPolicy | None = None
    ) -> None:
        if not providers:
            raise ValueError("a service needs at least one provider")
        self._providers = tuple(providers)
        self._recorder = recorder
        self._policy = policy or RetryPolicy()

    @property
    def is_recorded(self) -> bool:
        """Whether every call leaves its event."""
        return self._recorder is not None

    @cached_property
    def _schemas(self) -> Schemas:
        return Schemas()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections of the providers."""
        for provider in self._providers:
            await provider.close()

    async def complete(self, request: LLMRequest, *, context: LLMContext | None = None) -> LLMResponse:
        """Return the model's answer.

        Raises LLMFailedError if no provider answered, UnknownProviderEvent for an answer that its adapter does not know, GavelError if the
        call cannot be recorded, InvalidRequestError for a request that no event can hold, before it is sent.
        """
        call = self._begin(request, context)
        attempts = call.attempts
        try:
            while True:
                timeout_ms = attempts.begin()
                try:
                    response = await attempts.provider.complete(request, timeout_ms=timeout_ms)
                    self._check(call, response)
                    break
                except LLMProviderError as error:
                    await attempts.fail(error)
        except (Exception, asyncio.CancelledError) as error:
            await self._record_failure(call, error)
            raise
        return await self._record(call, attempts.succeed(response))

    async def stream(self, request: LLMRequest, *, context: LLMContext | None = None) -> AsyncGenerator[LLMStreamEvent, None]:
        """Yield the answer as it comes; the last event has the response that `complete` returns.

        Another attempt follows a failure only before the first event: afterwards the caller has seen a part of the answer. Then the last
        event is "response.error", and the iteration raises LLMFailedError. Raises what `complete` raises.
        """
        call = self._begin(request, context)
        attempts = call.attempts
        answer: LLMResponse | None = None
        has_output = False
        try:
            while answer is None:
                events = attempts.provider.stream(request, timeout_ms=attempts.begin())
                try:
                    async with aclosing(events):
                        async for event in events:
                            if event.chunk.response is not None:
                                self._check(call, event.chunk.response)
                                answer = event.chunk.response
                            elif event.event_type != "response.error":  # its exception follows
                                has_output = True
                                yield event
                except LLMProviderError as error:
                    if not has_output:
                        await attempts.fail(error)
                        continue
                    attempts.end(error)
                    yield error_event(error, attempts.provider_meta)
                    raise LLMFailedError(attempts.provider_meta) from error
        except (Exception, asyncio.CancelledError, GeneratorExit) as error:
            await self._record_failure(call, error)
            raise
        yield completed_event(await self._record(call, attempts.succeed(answer)))

    async def complete_json(
        self,
        request: LLMRequest,
        schema: Mapping[str, Any],
        *,
        context: LLMContext | None = None,
        outputs_max: int = OUTPUTS_MAX_DEFAULT,
    ) -> LLMJson:
        """Return the model's answer decoded from JSON, if it matches `schema` (JSON Schema 2020-12), and the response.

        An output that does not match is sent back with its problems, up to `outputs_max` outputs in all; each is a call of its own. The
        attempts of all of them are in the response's `provider_meta`. Raises InvalidOutputError if the last one does not match either,
        ValueError for a schema that no Struct can hold or that cannot be used, and what `complete` raises.
        """
        request, checked = dataclasses.replace(request, output_schema=schema), to_struct(schema, "schema")
        self._schemas.check(checked)
        rejected: tuple[LLMProviderMeta, ...] = ()
        for remaining in reversed(range(outputs_max)):
            response = await self.complete(request, context=context)
            response = dataclasses.replace(response, provider_meta=rejected + response.provider_meta)
            value, problem = self._decode(response, checked)
            if not problem:
                return LLMJson(value, response)
            if not remaining:
                raise InvalidOutputError(problem, response)
            *earlier, last = response.provider_meta
            failure = {"code": "invalid_output", "message": problem}
            rejected = (*earlier, dataclasses.replace(last, extra={**last.extra, "error": failure}))
            advice = UserMessage(f"The output does not match the schema: {problem}. Answer with the corrected JSON alone.")
            request = dataclasses.replace(request, messages=[*request.messages, AssistantMessage(response), advice])
        raise ValueError(f"outputs_max is {outputs_max}; it must be positive")

    def _decode(self, response: LLMResponse, schema: Struct) -> tuple[Any, str]:
        """Return the decoded output and the problem with it; "" if there is none."""
        if response.finish_reason != "stop":
            return None, f"the answer ended by {response.finish_reason}"
        try:
            value = json.loads(response.text)
        except (ValueError, RecursionError) as error:
            return None, f"the output is not JSON: {error}"
        return value, clip(self._schemas.problem(schema, value, "output"))

    def _begin(self, request: LLMRequest, context: LLMContext | None) -> _Call:
        """Begin a call. Raises InvalidRequestError for a request that cannot be recorded: its answer would be paid for and lost."""
        is_recorded = self._recorder is not None
        prompt_hash = check_request(request, [provider.settings(request) for provider in self._providers]) if is_recorded else ""
        return _Call(request, context, prompt_hash, Attempts(self._providers, self._policy))

    def _check(self, call: _Call, response: LLMResponse) -> None:
        """Raise LLMProviderError for an answer that cannot be recorded."""
        if self._recorder is not None:
            check_response(call.request, response, call.attempts.provider.name)

    async def _record(self, call: _Call, response: LLMResponse) -> LLMResponse:
        if self._recorder is None:
            return response
        event = await _to_its_end(self._recorder.record(call.invocation(response), call.context))
        entry = {"event_id": event.event_id, "sequence_number": event.sequence_number, "trace_id": event.trace_id}
        return dataclasses.replace(response, extras={**response.extras, INVOCATION: entry})

    async def _record_failure(self, call: _Call, error: BaseException) -> None:
        call.attempts.abandon(error)
        if self._recorder is None:
            return
        recording = self._recorder.record(call.invocation(None), call.context)
        if isinstance(error, Exception):
            await _to_its_end(recording)
        else:
            await _wait_for_last_record(asyncio.ensure_future(recording))


async def _to_its_end(recording: Coroutine[Any, Any, Envelope]) -> Envelope:
    """Return the recorded event. A caller that leaves meanwhile does not stop the recording."""
    task = asyncio.ensure_future(recording)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _wait_for_last_record(task)
        raise


async def _wait_for_last_record(recording: asyncio.Future[Envelope]) -> None:
    """Wait for a record for a moment; the caller, which goes, learns of no other error than its own."""
    await asyncio.wait({recording}, timeout=LAST_RECORD_SECONDS)
    if not recording.done():
        recording.cancel()
        _logger.warning("a cancelled call of a model is not recorded within %.0f s", LAST_RECORD_SECONDS)
        return
    problem = None if recording.cancelled() else recording.exception()
    if problem is not None:
        _logger.warning("a cancelled call of a model is not recorded: %s", describe_error(problem))
