"""Asking providers for what a rejection lacks, and recording what they say: one round of an agent's loop (seeds 002 §5.3, §5.6).

A tool is called only after its TOOL_CALL is in the log, and what came of it follows, failures too. Providers are asked side by
side. This module decides nothing: whether the loop goes on is `proposal_loop`'s to say.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from gavel.v1.envelope_pb2 import Envelope

from gavel_client.calls import WRITE_TIMEOUT_MS
from gavel_client.envelopes import EnvelopeFields, observation_envelope, tool_call_envelope, tool_result_envelope
from gavel_client.errors import GavelError, ProviderError, where_and_what
from gavel_client.loop_results import LoopStoppedError, ProviderFailure, Round, StopReason
from gavel_client.patience import LAST_WORD_MS, Patience, called
from gavel_client.providers import FactNeed, FactProvider, Provider, ToolProvider, ToolReading
from gavel_client.threaded import AgentCalls

_logger = logging.getLogger(__name__)


class Consultation:
    """What is asked because of one rejection. `again` is the proposal to come: its producer speaks, its versions are bound."""

    def __init__(self, client: AgentCalls, patience: Patience, current: Round, again: Envelope) -> None:
        self._client = client
        self._patience = patience
        self._round = current
        self._again = again

    async def answers(self, needs: Sequence[tuple[Provider, FactNeed]]) -> list[Envelope]:
        """Return the recorded facts and observations that answer all needs; stops the loop if some are not answered."""
        asked = [self._ask(provider, need) for provider, need in needs]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found: list[Envelope] = []
        for (_, need), answer in zip(needs, answers, strict=True):
            if isinstance(answer, ProviderError):
                self._round.failures.append(ProviderFailure(need, answer.code, answer.message))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.extend(answer)
        if self._round.failures:
            first = self._round.failures[0]
            keys = ", ".join(first.need.keys)
            if self._patience.ms_left() <= 0:
                raise LoopStoppedError(StopReason.DEADLINE, f"the time was up before {keys} of {first.need.subject} was there")
            raise LoopStoppedError(StopReason.PROVIDER_FAILED, f"{keys} of {first.need.subject}: {first.code} {first.message}".rstrip())
        return found

    async def _ask(self, provider: Provider, need: FactNeed) -> Sequence[Envelope]:
        """Return the events that answer a need, as recorded. Raises ProviderError."""
        if isinstance(provider, FactProvider):
            answer = await self._answered(provider.ask, need, provider.timeout_ms)
            found = _recorded_facts(answer)
            self._round.published.extend(found)
        else:
            found = [await self._read(provider, need)]
        missing = set(need.keys) - {key for event in found if event.subject == need.subject for key in _keys(event)}
        if missing:
            raise ProviderError("NOT_ANSWERED", f"the provider has nothing of {', '.join(sorted(missing))}")
        for row in need.rows:
            # What was too old when it was recorded would be refused as stale once more.
            age_ms = min(_age_ms(event) for event in found if event.subject == need.subject and row.key in _keys(event))
            if age_ms > row.max_age_ms:
                raise ProviderError(
                    "TOO_OLD", f"what the provider has of {row.key} is {age_ms} ms old; at most {row.max_age_ms} ms are wanted"
                )
        return found

    async def _read(self, tool: ToolProvider, need: FactNeed) -> Envelope:
        """Call a tool; return the observation, after its call and its answer are recorded. Raises ProviderError."""
        fields: EnvelopeFields = {"trace_id": need.trace_id, "causation_id": need.causation_id}
        if self._again.HasField("version_binding"):
            fields["version_binding"] = self._again.version_binding
        call = await self._publish(
            tool_call_envelope(
                need.subject,
                self._again.producer,
                tool_name=tool.tool_name,
                arguments=tool.arguments(need),
                tool_version=tool.tool_version,
                caller_role=tool.caller_role,
                arguments_summary=f"{', '.join(need.keys)} of {need.subject}",
                **fields,
            ),
        )
        began_at = time.monotonic()
        try:
            reading = await self._answered(tool.read, need, tool.timeout_ms)
            if not isinstance(reading, ToolReading):
                raise ProviderError("INVALID_READING", f"the provider returned {type(reading).__name__}, not a ToolReading")
            answer, observation = _reading_envelopes(call, reading, tool, fields, int((time.monotonic() - began_at) * 1000))
        except ProviderError as error:
            duration_ms = int((time.monotonic() - began_at) * 1000)
            await self._publish(tool_result_envelope(call, error_code=error.code, result_summary=error.message, duration_ms=duration_ms))
            raise
        recorded = await self._publish(answer)
        observation.observation.evidence_ref = recorded.event_id
        observation.causation_id = recorded.event_id
        return await self._publish(observation)

    async def _answered(self, function: Callable[[FactNeed], Any], need: FactNeed, timeout_ms: int) -> Any:
        """Call a provider within its time and the run's, again where Gavel was away when it published.

        Whatever it raises besides becomes a ProviderError, a stranger's text left out.
        """
        try:
            async with asyncio.timeout(min(timeout_ms, max(self._patience.ms_left(), 0)) / 1000):
                return await self._patience.judged(lambda: called(function, need))
        except ProviderError:
            raise
        except TimeoutError:
            raise ProviderError("E_TIMEOUT", "the provider took too long") from None
        except Exception as error:  # whatever a provider does wrong must not end the agent
            _logger.warning("trace=%s provider of %s failed: %s", need.trace_id, ", ".join(need.keys), where_and_what(error))
            raise ProviderError("PROVIDER_EXCEPTION", where_and_what(error)) from error

    async def _publish(self, envelope: Envelope) -> Envelope:
        try:
            response = await self._patience.judged(
                lambda: self._client.publish_event(envelope, timeout_ms=self._patience.call_ms(WRITE_TIMEOUT_MS)), LAST_WORD_MS
            )
        except GavelError as error:
            if not error.violations:
                raise
            # What the provider said cannot be recorded; the fields name the place.
            raise ProviderError("INVALID_READING", "; ".join(": ".join(violation) for violation in error.violations)) from error
        self._round.published.append(response.envelope)
        return response.envelope


def _reading_envelopes(
    call: Envelope, reading: ToolReading, tool: ToolProvider, fields: EnvelopeFields, duration_ms: int
) -> tuple[Envelope, Envelope]:
    """Return the TOOL_RESULT and the OBSERVATION of a reading. Raises ProviderError if it cannot be written down."""
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
            observed_at=reading.observed_at,
            confidence=reading.confidence,
            **fields,
        )
    except (ValueError, TypeError) as error:
        raise ProviderError("INVALID_READING", f"the reading cannot be written down: {type(error).__name__}") from error
    return answer, observation


def _recorded_facts(answer: object) -> list[Envelope]:
    """Return a fact provider's answer, checked. Raises ProviderError."""
    found = list(answer) if isinstance(answer, Sequence) else [answer]
    for event in found:
        if not isinstance(event, Envelope) or event.WhichOneof("payload") != "fact" or not event.sequence_number:
            raise ProviderError("INVALID_FACT", "a fact provider returns facts as recorded: the envelopes that PublishEvent answered with")
    return [event for event in found if isinstance(event, Envelope)]


def _age_ms(event: Envelope) -> int:
    """Return how old a recorded fact or observation was when it was recorded."""
    stated_at = event.occurred_at if event.WhichOneof("payload") == "fact" else event.observation.observed_at
    return event.recorded_at.ToMilliseconds() - stated_at.ToMilliseconds()


def _keys(event: Envelope) -> Sequence[str]:
    return [event.fact.key] if event.WhichOneof("payload") == "fact" else list(event.observation.extracted_fields)
