"""The asynchronous client: one coroutine method for each RPC of the contract.

Methods take plain arguments and return the contract's messages; `calls` documents each. A failed call raises GavelError; a
refusal by policy is a decision and raises nothing. A client belongs to one event loop, whose tasks may share it. Neither the
import nor the constructor opens a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import grpc
import grpc.aio
from gavel.v1.arbitration_service_pb2 import StreamProposalsRequest, StreamProposalsResponse
from gavel.v1.arbitration_service_pb2_grpc import ArbitrationServiceStub
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.projection_service_pb2 import GetStatusRequest

from gavel_client.rpc import calls
from gavel_client.rpc.backoff import RetryBudget
from gavel_client.rpc.calls import CHANNEL_OPTIONS, StreamCall, UnaryCall
from gavel_client.rpc.connection import INCARNATION_QUESTION, INCARNATION_TIMEOUT_SECONDS, Connection, Stream, as_method

if TYPE_CHECKING:
    from typing_extensions import Self

Arguments = ParamSpec("Arguments")
Response = TypeVar("Response")


def _coroutine(
    describe: Callable[Arguments, UnaryCall[Response]],
) -> Callable[Concatenate[GavelClient, Arguments], Coroutine[Any, Any, Response]]:
    """Return the method that makes the described call and awaits its response."""

    async def method(self: GavelClient, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Response:
        return await self._call(describe(*args, **kwargs))

    return as_method(method, describe)


def _iterator(
    describe: Callable[Arguments, StreamCall[Response]],
) -> Callable[Concatenate[GavelClient, Arguments], AsyncGenerator[Response, None]]:
    """Return the method that makes the described call and iterates over its responses."""

    def method(self: GavelClient, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> AsyncGenerator[Response, None]:
        return self._iterate(describe(*args, **kwargs))

    return as_method(method, describe)


class GavelClient(Connection[grpc.aio.Channel]):
    """The RPCs of the contract as coroutines and asynchronous iterators: `async with GavelClient(target) as client`."""

    submit_proposal = _coroutine(calls.submit_proposal)
    batch_submit_proposals = _coroutine(calls.batch_submit_proposals)
    preflight = _coroutine(calls.preflight)
    batch_preflight = _coroutine(calls.batch_preflight)
    resolve_review = _coroutine(calls.resolve_review)
    revoke_decision = _coroutine(calls.revoke_decision)
    accept_clock = _coroutine(calls.accept_clock)
    publish_event = _coroutine(calls.publish_event)
    batch_publish_events = _coroutine(calls.batch_publish_events)
    get_event = _coroutine(calls.get_event)
    list_events = _coroutine(calls.list_events)
    subscribe_events = _iterator(calls.subscribe_events)
    get_trace = _coroutine(calls.get_trace)
    begin_execution = _coroutine(calls.begin_execution)
    renew_execution = _coroutine(calls.renew_execution)
    report_execution = _coroutine(calls.report_execution)
    validate_rule_set = _coroutine(calls.validate_rule_set)
    deploy_rule_set = _coroutine(calls.deploy_rule_set)
    activate_rule_set = _coroutine(calls.activate_rule_set)
    deactivate_rule_set = _coroutine(calls.deactivate_rule_set)
    get_rule_set = _coroutine(calls.get_rule_set)
    list_rule_sets = _coroutine(calls.list_rule_sets)
    simulate_rule_set = _iterator(calls.simulate_rule_set)
    get_projection = _coroutine(calls.get_projection)
    list_pending_decisions = _coroutine(calls.list_pending_decisions)
    list_pending_reviews = _coroutine(calls.list_pending_reviews)
    get_status = _coroutine(calls.get_status)
    verify_replay = _iterator(calls.verify_replay)
    register_contract = _coroutine(calls.register_contract)
    register_provider = _coroutine(calls.register_provider)
    bind_tool = _coroutine(calls.bind_tool)
    resolve_tool = _coroutine(calls.resolve_tool)
    list_contracts = _coroutine(calls.list_contracts)

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
        return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)

    async def _call(self, call: UnaryCall[Response]) -> Response:
        rpc, bus = self._rpc(call), call.request.bus
        retries = RetryBudget(call.timeout_ms, call.repeatable, self._backoff, self._tries_max)
        while True:
            try:
                response: Response = await rpc(call.request, timeout=retries.timeout_s(), metadata=self._metadata(bus))
            except grpc.RpcError as error:
                await asyncio.sleep(retries.pause_s(error, closed=self.closed))
            else:
                await self._learn_incarnation(bus)
                return response

    async def _learn_incarnation(self, bus: str) -> None:
        """Ask once for the incarnation of a bus."""
        rpc = self._status_rpc(bus)
        if rpc is None:
            return
        try:
            answer = await rpc(GetStatusRequest(bus=bus), timeout=INCARNATION_TIMEOUT_SECONDS, metadata=INCARNATION_QUESTION)
            self._keep_incarnation(bus, answer)
        except grpc.RpcError as error:
            self._keep_incarnation(bus, error)

    def _iterate(self, call: StreamCall[Response]) -> AsyncGenerator[Response, None]:
        rpc = self._rpc(call)
        return self._responses(self._open_stream(rpc, call.request, call.timeout_ms, call.request.bus))

    async def _responses(self, stream: Stream) -> AsyncGenerator[Any, None]:
        """Iterate over a stream's responses; leaving the iteration early cancels the call."""
        try:
            async for response in stream.responses:
                yield response
        except grpc.RpcError as error:
            raise self._stream_error(stream, error) from error
        finally:
            stream.responses.cancel()
