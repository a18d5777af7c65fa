"""Collection of the evidence that a rejection requires, in one round of a proposal loop (constitution §5.3, §5.6).

A tool is called only after its TOOL_CALL is in the log; its result or failure is recorded too. Providers are called concurrently.
This module does not decide whether the loop continues; `proposal_loop` does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from gavel.v1.envelope_pb2 import Envelope

from gavel_client.agents.deadline import LAST_RECORD_MS, Deadline, call_function
from gavel_client.agents.loop_results import LoopStoppedError, ProviderFailure, Round, StopReason
from gavel_client.agents.providers import FactNeed, FactProvider, Provider, RuntimeProvider, ToolProvider, ToolReading
from gavel_client.agents.threaded_client import LoopClient
from gavel_client.envelopes import EnvelopeFields, observation_envelope, tool_call_envelope, tool_result_envelope
from gavel_client.rpc.deadlines import WRITE_TIMEOUT_MS
from gavel_client.rpc.errors import GavelError, ProviderError, describe_error
from gavel_client.timeouts import timeout
from gavel_client.tools.invocation import ToolContext

_logger = logging.getLogger(__name__)


class EvidenceCollector:
    """Calls the providers after one rejection. Tool calls are made in the name and with the versions of `next_proposal`."""

    def __init__(self, client: LoopClient, deadline: Deadline, current: Round, next_proposal: Envelope) -> None:
        self._client = client
        self._deadline = deadline
        self._round = current
        self._next_proposal = next_proposal

    async def collect(self, needs: Sequence[tuple[Provider, FactNeed]]) -> list[Envelope]:
        """Return the recorded facts and observations for all needs. Raises LoopStoppedError if a provider fails."""
        calls = [self._meet(provider, need) for provider, need in needs]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        events: list[Envelope] = []
        for (_, need), answer in zip(needs, answers, strict=True):
            if isinstance(answer, ProviderError):
                self._round.failures.append(ProviderFailure(need, answer.code, answer.message))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                events.extend(answer)
        if self._round.failures:
            first = self._round.failures[0]
            keys = ", ".join(first.need.keys)
            if self._deadline.ms_left() <= 0:
                raise LoopStoppedError(StopReason.DEADLINE, f"the deadline passed before {keys} of {first.need.subject} arrived")
            raise LoopStoppedError(StopReason.PROVIDER_FAILED, f"{keys} of {first.need.subject}: {first.code} {first.message}".rstrip())
        return events

    async def _meet(self, provider: Provider, need: FactNeed) -> Sequence[Envelope]:
        """Return the recorded events that meet a need. Raises ProviderError."""
        if isinstance(provider, FactProvider):
            answer = await self._call_provider(provider.publish, need, provider.timeout_ms)
            events = _recorded_facts(answer)
            self._round.published.extend(events)
        elif isinstance(provider, RuntimeProvider):
            events = [await self._call_through_runtime(provider, need)]
        else:
            events = [await self._call_tool(provider, need)]
        missing = set(need.keys) - {key for event in events if event.subject == need.subject for key in _keys(event)}
        if missing:
            raise ProviderError("NOT_ANSWERED", f"the provider returned nothing for {', '.join(sorted(missing))}")
        for row in need.rows:
            # Evidence that was too old when it was recorded would be refused as stale again.
            age_ms = min(_age_ms(event) for event in events if event.subject == need.subject and row.key in _keys(event))
            if age_ms > row.max_age_ms:
                raise ProviderError("TOO_OLD", f"{row.key} from the provider is {age_ms} ms old; the limit is {row.max_age_ms} ms")
        return events

    async def _call_tool(self, tool: ToolProvider, need: FactNeed) -> Envelope:
        """Call a tool and record the call, the result and the observation; return the latter. Raises ProviderError."""
        fields: EnvelopeFields = {"trace_id": need.trace_id, "causation_id": need.causation_id}
        if self._next_proposal.HasField("version_binding"):
            fields["version_binding"] = self._next_proposal.version_binding
        call = await self._publish(
            tool_call_envelope(
                need.subject,
                self._next_proposal.producer,
                tool_name=tool.tool_name,
                arguments=tool.arguments(need),
                tool_version=tool.tool_version,
                caller_role=tool.caller_role,
                arguments_summary=f"{', '.join(need.keys)} of {need.subject}",
                **fields,
            ),
        )
        began_at = tried_at = time.monotonic()

        async def read(need: FactNeed) -> object:
            nonlocal tried_at
            tried_at = time.monotonic()
            return await call_function(tool.read, need)

        try:
            reading = await self._call_provider(read, need, tool.timeout_ms)
            if not isinstance(reading, ToolReading):
                raise ProviderError("INVALID_READING", f"the provider returned {type(reading).__name__}, not a ToolReading")
            duration_ms = int((time.monotonic() - began_at) * 1000)
            read_at = time_of_call(call, tried_at - began_at)
            answer, observation = _reading_envelopes(call, reading, tool, fields, duration_ms, read_at)
        except ProviderError as error:
            duration_ms = int((time.monotonic() - began_at) * 1000)
            await self._publish(tool_result_envelope(call, error_code=error.code, result_summary=error.message, duration_ms=duration_ms))
            raise
        recorded = await self._publish(answer)
        observation.observation.evidence_ref = recorded.event_id
        observation.causation_id = recorded.event_id
        return await self._publish(observation)

    async def _call_through_runtime(self, provider: RuntimeProvider, need: FactNeed) -> Envelope:
        """Let the runtime call a tool, and record the observation of its result; return the latter. Raises ProviderError."""
        proposal = self._next_proposal
        context = ToolContext(
            need.subject,
            trace_id=need.trace_id,
            causation_id=need.causation_id,
            agent_id=proposal.producer.id,
            caller_role=provider.caller_role,
            timeout_ms=max(1, int(min(provider.timeout_ms, self._deadline.ms_left()))),
            arguments_summary=f"{', '.join(need.keys)} of {need.subject}",
            version_binding=proposal.version_binding if proposal.HasField("version_binding") else None,
        )
        try:
            outcome = await provider.runtime.invoke(provider.tool_name, provider.arguments(need), context)
        except GavelError as error:
            raise ProviderError(error.reason or error.code.name, describe_error(error)) from error
        self._round.published += [event for event in (outcome.call, outcome.result) if event.sequence_number]
        if outcome.error is not None:
            raise ProviderError(outcome.error.code, outcome.error.message)
        data = outcome.data or {}
        fields = await self._call_provider(lambda need: provider.read(need, data), need, provider.timeout_ms)
        try:
            observation = observation_envelope(
                need.subject,
                proposal.producer,
                source_tool=outcome.canonical_tool,
                extracted_fields=fields,
                evidence=outcome.result,
                observed_at=time_of_call(outcome.call),
                trace_id=outcome.result.trace_id,
                causation_id=outcome.result.event_id,
                version_binding=context.version_binding,
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise ProviderError("INVALID_READING", f"the values read in the result cannot be recorded: {error}") from error
        return await self._publish(observation)

    async def _call_provider(self, function: Callable[[FactNeed], Any], need: FactNeed, timeout_ms: int) -> Any:
        """Call a provider within its timeout and the run's deadline; retry if the server was unavailable.

        Any other exception becomes a ProviderError without the exception's text.
        """
        try:
            async with timeout(min(timeout_ms, max(self._deadline.ms_left(), 0)) / 1000):
                return await self._deadline.call(lambda: call_function(function, need))
        except ProviderError:
            raise
        except asyncio.TimeoutError:
            raise ProviderError("E_TIMEOUT", "the provider took too long") from None
        except LoopStoppedError as stop:
            raise ProviderError("E_TIMEOUT", stop.detail) from stop
        except Exception as error:  # a provider's exception must not end the agent
            _logger.warning("trace=%s provider of %s failed: %s", need.trace_id, ", ".join(need.keys), describe_error(error))
            raise ProviderError("PROVIDER_EXCEPTION", describe_error(error)) from error

    async def _publish(self, envelope: Envelope) -> Envelope:
        try:
            response = await self._deadline.call(
                lambda: self._client.publish_event(envelope, timeout_ms=self._deadline.call_ms(WRITE_TIMEOUT_MS)), LAST_RECORD_MS
            )
        except GavelError as error:
            if not error.violations:
                raise
            # The provider's values cannot be recorded; the violations name the fields.
            raise ProviderError("INVALID_READING", "; ".join(": ".join(violation) for violation in error.violations)) from error
        self._round.published.append(response.envelope)
        return response.envelope


def _reading_envelopes(
    call: Envelope, reading: ToolReading, tool: ToolProvider, fields: EnvelopeFields, duration_ms: int, read_at: datetime | None
) -> tuple[Envelope, Envelope]:
    """Return the TOOL_RESULT and the OBSERVATION of a reading, by default of `read_at`.

    Raises ProviderError if its values cannot be recorded.
    """
    try:
        answer = tool_result_envelope(
            call,
            result=reading.result,
            result_summary=reading.summary,
            query_ref=reading.query_ref,
            evidence_uri=reading.evidence_uri,
            duration_ms=duration_ms,
        )
        observation = observation_envelope(
            call.subject,
            call.producer,
            source_tool=tool.tool_name,
            extracted_fields=reading.fields,
            query_ref=reading.query_ref,
            evidence=answer,
            observed_at=reading.observed_at or read_at,
            confidence=reading.confidence,
            **fields,
        )
    except (ValueError, TypeError) as error:
        raise ProviderError("INVALID_READING", f"the reading cannot be recorded: {type(error).__name__}") from error
    return answer, observation


def time_of_call(call: Envelope, later_seconds: float = 0.0) -> datetime | None:
    """Return the time by the bus's clock so long after a TOOL_CALL was recorded; None if it was not recorded.

    What a try reads is read after it began, however long the server is away before it records the reading.
    """
    if not call.HasField("recorded_at"):
        return None
    return call.recorded_at.ToDatetime(timezone.utc) + timedelta(seconds=later_seconds)


def _recorded_facts(answer: object) -> list[Envelope]:
    """Check the return value of a fact provider and return its facts. Raises ProviderError."""
    events = list(answer) if isinstance(answer, Sequence) else [answer]
    for event in events:
        if not isinstance(event, Envelope) or event.WhichOneof("payload") != "fact" or not event.sequence_number:
            raise ProviderError("INVALID_FACT", "the provider returned no recorded facts; return the envelopes that publish_event returned")
    return [event for event in events if isinstance(event, Envelope)]


def _age_ms(event: Envelope) -> int:
    """Return the age of a fact or observation at its recording."""
    stated_at = event.occurred_at if event.WhichOneof("payload") == "fact" else event.observation.observed_at
    return event.recorded_at.ToMilliseconds() - stated_at.ToMilliseconds()


def _keys(event: Envelope) -> Sequence[str]:
    return [event.fact.key] if event.WhichOneof("payload") == "fact" else list(event.observation.extracted_fields)
