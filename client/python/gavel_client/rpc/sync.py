"""The synchronous client: one blocking method for each RPC of the contract.

It has the methods of `client.GavelClient` and serves scripts, the command line and threads. Threads may share one client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import grpc
from gavel.v1.arbitration_service_pb2 import StreamProposalsResponse
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


def _function(
    describe: Callable[Arguments, UnaryCall[Response]],
) -> Callable[Concatenate[SyncGavelClient, Arguments], Response]:
    """Return the method that makes the described call and blocks until its response."""

    def method(self: SyncGavelClient, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Response:
        return self._call(describe(*args, **kwargs))

    return as_method(method, describe)


def _iterator(
    describe: Callable[Arguments, StreamCall[Response]],
) -> Callable[Concatenate[SyncGavelClient, Arguments], Iterator[Response]]:
    """Return the method that makes the described call and iterates over its responses."""

    def method(self: SyncGavelClient, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Iterator[Response]:
        return self._iterate(describe(*args, **kwargs))

    return as_method(method, describe)


class SyncGavelClient(Connection[grpc.Channel]):
    """The RPCs of the contract as functions and iterators: `with SyncGavelClient(target) as client`."""

    submit_proposal = _function(calls.submit_proposal)
    batch_submit_proposals = _function(calls.batch_submit_proposals)
    preflight = _function(calls.preflight)
    batch_preflight = _function(calls.batch_preflight)
    resolve_review = _function(calls.resolve_review)
    revoke_decision = _function(calls.revoke_decision)
    accept_clock = _function(calls.accept_clock)
    publish_event = _function(calls.publish_event)
    batch_publish_events = _function(calls.batch_publish_events)
    get_event = _function(calls.get_event)
    list_events = _function(calls.list_events)
    subscribe_events = _iterator(calls.subscribe_events)
    get_trace = _function(calls.get_trace)
    begin_execution = _function(calls.begin_execution)
    renew_execution = _function(calls.renew_execution)
    report_execution = _function(calls.report_execution)
    validate_rule_set = _function(calls.validate_rule_set)
    deploy_rule_set = _function(calls.deploy_rule_set)
    activate_rule_set = _function(calls.activate_rule_set)
    deactivate_rule_set = _function(calls.deactivate_rule_set)
    get_rule_set = _function(calls.get_rule_set)
    list_rule_sets = _function(calls.list_rule_sets)
    simulate_rule_set = _iterator(calls.simulate_rule_set)
    get_projection = _function(calls.get_projection)
    list_pending_decisions = _function(calls.list_pending_decisions)
    list_pending_reviews = _function(calls.list_pending_reviews)
    get_status = _function(calls.get_status)
    verify_replay = _iterator(calls.verify_replay)
    register_contract = _function(calls.register_contract)
    register_provider = _function(calls.register_provider)
    bind_tool = _function(calls.bind_tool)
    resolve_tool = _function(calls.resolve_tool)
    list_contracts = _function(calls.list_contracts)

    def stream_proposals(
        self,
        proposals: Iterable[tuple[str, Envelope]],
        *,
        bus: str = "",
        timeout_ms: int | None = None,
    ) -> Iterator[StreamProposalsResponse]:
        """Submit a stream of (request_id, proposal) pairs; iterate over the decisions, in order of completion.

        Each response carries the `request_id` (at most 128 characters) of its proposal. After an error, submit the envelopes
        without a response again: an event_id is decided only once. A thread of gRPC iterates over `proposals`.
        """
        requests = (calls.stream_proposals_request(request_id, envelope, bus or self.bus) for request_id, envelope in proposals)
        rpc = self._stub(ArbitrationServiceStub).StreamProposals
        return self._responses(self._open_stream(rpc, requests, timeout_ms, bus or self.bus))

    def close(self) -> None:
        """Close the channel, unless the caller provided it. Calls in progress are cancelled."""
        channel = self._release_channel()
        if channel is not None:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open_channel(self, target: str) -> grpc.Channel:
        return grpc.insecure_channel(target, options=CHANNEL_OPTIONS)

    def _call(self, call: UnaryCall[Response]) -> Response:
        rpc, bus = self._rpc(call), call.request.bus
        retries = RetryBudget(call.timeout_ms, call.repeatable, self._backoff, self._tries_max)
        while True:
            try:
                response: Response = rpc(call.request, timeout=retries.timeout_s(), metadata=self._metadata(bus))
            except grpc.RpcError as error:
                time.sleep(retries.pause_s(error, closed=self.closed))
            else:
                self._learn_incarnation(bus)
                return response

    def _learn_incarnation(self, bus: str) -> None:
        """Ask once for the incarnation of a bus."""
        rpc = self._status_rpc(bus)
        if rpc is None:
            return
        try:
            answer = rpc(GetStatusRequest(bus=bus), timeout=INCARNATION_TIMEOUT_SECONDS, metadata=INCARNATION_QUESTION)
            self._keep_incarnation(bus, answer)
        except grpc.RpcError as error:
            self._keep_incarnation(bus, error)

    def _iterate(self, call: StreamCall[Response]) -> Iterator[Response]:
        rpc = self._rpc(call)
        return self._responses(self._open_stream(rpc, call.request, call.timeout_ms, call.request.bus))

    def _responses(self, stream: Stream) -> Iterator[Any]:
        """Iterate over a stream's responses; leaving the iteration early cancels the call."""
        try:
            yield from stream.responses
        except grpc.RpcError as error:
            raise self._stream_error(stream, error) from error
        finally:
            stream.responses.cancel()
