"""The asynchronous client: one method per call of the contract, awaited.

Methods take plain arguments and return the contract's messages; `calls` documents each. A call that failed raises
GavelError; a refusal by policy is a decision and raises nothing. A client belongs to one event loop; its tasks share it.
Nothing is opened at import or by constructing a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import grpc
import grpc.aio
from gavel.v1.arbitration_service_pb2 import StreamProposalsRequest, StreamProposalsResponse
from gavel.v1.arbitration_service_pb2_grpc import ArbitrationServiceStub
from gavel.v1.envelope_pb2 import Envelope

from gavel_client import calls
from gavel_client.backoff import Tries
from gavel_client.calls import CHANNEL_OPTIONS, StreamCall, UnaryCall
from gavel_client.connection import Connection, Stream, as_method

Arguments = ParamSpec("Arguments")
Response = TypeVar("Response")


def _awaited(
    describe: Callable[Arguments, UnaryCall[Response]],
) -> Callable[Concatenate[GavelClient, Arguments], Coroutine[Any, Any, Response]]:
    """Return the method that makes the described call and awaits its answer."""

    async def method(self: GavelClient, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Response:
        return await self._call(describe(*args, **kwargs))

    return as_method(method, describe)


def _iterated(
    describe: Callable[Arguments, StreamCall[Response]],
) -> Callable[Concatenate[GavelClient, Arguments], AsyncGenerator[Response, None]]:
    """Return the method that makes the described call and iterates over its answers."""

    def method(self: GavelClient, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> AsyncGenerator[Response, None]:
        return self._iterate(describe(*args, **kwargs))

    return as_method(method, describe)


class GavelClient(Connection[grpc.aio.Channel]):
    """The contract's calls as coroutines and asynchronous iterators. Use as `async with GavelClient(target) as client`."""

    submit_proposal = _awaited(calls.submit_proposal)
    batch_submit_proposals = _awaited(calls.batch_submit_proposals)
    preflight = _awaited(calls.preflight)
    batch_preflight = _awaited(calls.batch_preflight)
    resolve_review = _awaited(calls.resolve_review)
    revoke_decision = _awaited(calls.revoke_decision)
    publish_event = _awaited(calls.publish_event)
    batch_publish_events = _awaited(calls.batch_publish_events)
    get_event = _awaited(calls.get_event)
    list_events = _awaited(calls.list_events)
    subscribe_events = _iterated(calls.subscribe_events)
    get_trace = _awaited(calls.get_trace)
    begin_execution = _awaited(calls.begin_execution)
    renew_execution = _awaited(calls.renew_execution)
    report_execution = _awaited(calls.report_execution)
    validate_rule_set = _awaited(calls.validate_rule_set)
    deploy_rule_set = _awaited(calls.deploy_rule_set)
    activate_rule_set = _awaited(calls.activate_rule_set)
    deactivate_rule_set = _awaited(calls.deactivate_rule_set)
    get_rule_set = _awaited(calls.get_rule_set)
    list_rule_sets = _awaited(calls.list_rule_sets)
    simulate_rule_set = _iterated(calls.simulate_rule_set)
    get_projection = _awaited(calls.get_projection)
    list_pending_decisions = _awaited(calls.list_pending_decisions)
    list_pending_reviews = _awaited(calls.list_pending_reviews)
    get_status = _awaited(calls.get_status)
    verify_replay = _iterated(calls.verify_replay)
    register_contract = _awaited(calls.register_contract)
    register_provider = _awaited(calls.register_provider)
    bind_tool = _awaited(calls.bind_tool)
    resolve_tool = _awaited(calls.resolve_tool)
    list_contracts = _awaited(calls.list_contracts)

    async def stream_proposals(
        self,
        proposals: AsyncIterable[tuple[str, Envelope]],
        *,
        bus: str = "",
        timeout_ms: int | None = None,
    ) -> AsyncGenerator[StreamProposalsResponse, None]:
        """Submit a stream of (request_id, proposal) and iterate over the decisions, in order of completion.

        A `request_id` of at most 128 characters comes back with its answer. After an error submit again what has no answer
        yet, in the same envelopes: an event_id is decided once.
        """

        async def requests() -> AsyncIterator[StreamProposalsRequest]:
            async for request_id, envelope in proposals:
                yield calls.stream_proposals_request(request_id, envelope, bus or self.bus)

        rpc = self._stub(ArbitrationServiceStub).StreamProposals
        async with aclosing(self._responses(self._streamed(rpc, requests(), timeout_ms))) as responses:
            async for response in responses:
                yield response

    async def close(self) -> None:
        """Close the channel, unless somebody else made it. Calls under way are cancelled."""
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
        rpc = self._rpc(call)
        tries = Tries(call.timeout_ms, call.repeatable, self._backoff)
        while True:
            try:
                response: Response = await rpc(call.request, timeout=tries.timeout_s())
            except grpc.RpcError as error:
                await asyncio.sleep(tries.pause_s(error, closed=self.closed))
            else:
                return response

    def _iterate(self, call: StreamCall[Response]) -> AsyncGenerator[Response, None]:
        return self._responses(self._streamed(self._rpc(call), call.request, call.timeout_ms))

    async def _responses(self, stream: Stream) -> AsyncGenerator[Any, None]:
        """Iterate over a stream's answers; whoever leaves early cancels the call."""
        try:
            async for response in stream.answers:
                yield response
        except grpc.RpcError as error:
            raise self._broken(stream, error) from error
        finally:
            stream.answers.cancel()
