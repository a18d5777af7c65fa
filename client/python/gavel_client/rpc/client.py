"""The asynchronous client: one coroutine method for each RPC of the contract.

Methods take plain arguments and return the contract's messages; `calls` documents each. A failed call raises GavelError; a
refusal by policy is a decision and raises nothing. A client belongs to one event loop, whose tasks may share it. Neither the
import nor the constructor opens a connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio
from gavel.v1.administration_service_pb2 import WhoAmIRequest, WhoAmIResponse
from gavel.v1.arbitration_service_pb2 import (
    DECISION_PHASE_DECIDED,
    DecisionPhase,
    StreamProposalsRequest,
    StreamProposalsResponse,
    WaitDecisionResponse,
)
from gavel.v1.arbitration_service_pb2_grpc import ArbitrationServiceStub
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.work_service_pb2 import ConsumeRequest, ConsumeResponse
from gavel.v1.work_service_pb2_grpc import WorkServiceStub

from gavel_client.rpc import calls
from gavel_client.rpc.async_methods import AsyncMethods
from gavel_client.rpc.backoff import RetryBudget
from gavel_client.rpc.calls.call import StreamCall, UnaryCall
from gavel_client.rpc.connection import CHANNEL_OPTIONS, INCARNATION_TIMEOUT_SECONDS, Connection, Stream
from gavel_client.rpc.deadlines import WAIT_TIMEOUT_MS
from gavel_client.rpc.errors import GavelError

if TYPE_CHECKING:
    from typing_extensions import Self

Response = TypeVar("Response")


class GavelClient(AsyncMethods, Connection[grpc.aio.Channel]):
    """The RPCs of the contract as coroutines and asynchronous iterators: `async with GavelClient(target) as client`."""

    async def wait_decision(
        self,
        decision_id: str,
        *,
        phase: DecisionPhase.ValueType = DECISION_PHASE_DECIDED,
        bus: str = "",
        timeout_ms: int = WAIT_TIMEOUT_MS,
    ) -> WaitDecisionResponse:
        """Wait until a decision has reached a phase: DECIDED, EXECUTED or CLOSED.

        `decision_id` may also be the event_id of a proposal. The response holds the latest decision, the last report and the phase
        reached, which is lower than the requested one if `timeout_ms` has passed; 0 returns at once. One call of the server waits at most
        60 s, so this method may make several.
        """
        ends_at = time.monotonic() + timeout_ms / 1000
        while True:
            wait_ms = calls.poll_ms(ends_at)
            response = await super().wait_decision(decision_id, phase=phase, bus=bus, timeout_ms=wait_ms)
            if response.phase >= phase or wait_ms == 0:
                return response

    async def stream_proposals(
        self,
        proposals: AsyncIterable[tuple[str, Envelope]],
        *,
        bus: str = "",
        timeout_ms: int | None = None,
    ) -> AsyncGenerator[StreamProposalsResponse, None]:
        """Submit a stream of (request_id, proposal) pairs; iterate over the decisions, in order of completion.

        Each response carries the `request_id` (at most 128 characters) of its proposal. After an error, submit the envelopes
        without a response again: an event_id is decided only once.
        """

        async def requests() -> AsyncIterator[StreamProposalsRequest]:
            async for request_id, envelope in proposals:
                yield calls.stream_proposals_request(request_id, envelope, bus or self.bus)

        rpc = self._stub(ArbitrationServiceStub).StreamProposals
        async with aclosing(self._responses(self._open_stream(rpc, requests(), timeout_ms, bus or self.bus))) as responses:
            async for response in responses:
                yield response

    async def consume(self, requests: AsyncIterable[ConsumeRequest]) -> AsyncGenerator[ConsumeResponse, None]:
        """Consume a work queue: the first request opens the stream, the others settle items. Iterate over the items.

        `consumers.WorkStream` keeps such a stream open.
        """
        rpc = self._stub(WorkServiceStub).Consume
        async with aclosing(self._responses(self._open_stream(rpc, requests, None, self.bus))) as responses:
            async for response in responses:
                yield response

    async def close(self) -> None:
        """Close the channel, unless the caller provided it. Calls in progress are cancelled."""
        channel = self._release_channel()
        if channel is not None:
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def _open_channel(self, target: str) -> grpc.aio.Channel:
        credentials = self._credentials.channel_credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(target, credentials, options=(*CHANNEL_OPTIONS, *self._credentials.channel_options()))

    async def _call(self, call: UnaryCall[Response]) -> Response:
        rpc, bus = self._rpc(call), call.bus
        retries = RetryBudget(call.timeout_ms, call.repeatable, self._backoff, self._tries_max)
        while True:
            try:
                response: Response = await rpc(call.request, timeout=retries.timeout_seconds(), metadata=self._metadata(bus))
            except grpc.RpcError as error:
                await asyncio.sleep(retries.pause_seconds(error, closed=self.closed))
            else:
                await self._learn_incarnation(bus, retries.timeout_seconds())
                return response

    async def _learn_incarnation(self, bus: str, seconds_left: float) -> None:
        """Ask once for the incarnation of a bus, within the time that the call before has left."""
        rpc = self._incarnation_rpc(bus)
        if rpc is None:
            return
        answer: WhoAmIResponse | grpc.RpcError | None = None
        try:
            seconds = min(INCARNATION_TIMEOUT_SECONDS, seconds_left)
            answer = await rpc(WhoAmIRequest(bus=bus), timeout=seconds, metadata=self._question_metadata())
        except grpc.RpcError as error:
            answer = error
        except GavelError:
            pass  # there is no token for the question; the client has logged that
        finally:
            self._keep_incarnation(bus, answer)

    def _iterate(self, call: StreamCall[Response]) -> AsyncGenerator[Response, None]:
        rpc = self._rpc(call)
        return self._responses(self._open_stream(rpc, call.request, call.timeout_ms, call.bus))

    async def _responses(self, stream: Stream) -> AsyncGenerator[Any, None]:
        """Iterate over a stream's responses; leaving the iteration early cancels the call."""
        try:
            async for response in stream.responses:
                yield response
        except grpc.RpcError as error:
            raise self._stream_error(stream, error) from error
        finally:
            stream.responses.cancel()
