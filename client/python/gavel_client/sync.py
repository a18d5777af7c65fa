"""The synchronous client: one method per call of the contract, blocking.

The same methods as `client.GavelClient`, for scripts, the command line and threads; any number of threads may share one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import grpc
from gavel.v1.arbitration_service_pb2 import StreamProposalsResponse
from gavel.v1.arbitration_service_pb2_grpc import ArbitrationServiceStub
from gavel.v1.envelope_pb2 import Envelope

from gavel_client import calls
from gavel_client.backoff import Tries
from gavel_client.calls import CHANNEL_OPTIONS, StreamCall, UnaryCall
from gavel_client.connection import Connection, Stream, as_method

Arguments = ParamSpec("Arguments")
Response = TypeVar("Response")


def _blocking(
    describe: Callable[Arguments, UnaryCall[Response]],
) -> Callable[Concatenate[SyncGavelClient, Arguments], Response]:
    """Return the method that makes the described call and blocks until its answer."""

    def method(self: SyncGavelClient, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Response:
        return self._call(describe(*args, **kwargs))

    return as_method(method, describe)


def _iterated(
    describe: Callable[Arguments, StreamCall[Response]],
) -> Callable[Concatenate[SyncGavelClient, Arguments], Iterator[Response]]:
    """Return the method that makes the described call and iterates over its answers."""

    def method(self: SyncGavelClient, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Iterator[Response]:
        return self._iterate(describe(*args, **kwargs))

    return as_method(method, describe)


class SyncGavelClient(Connection[grpc.Channel]):
    """The contract's calls as functions and iterators. Use as `with SyncGavelClient(target) as client`."""

    submit_proposal = _blocking(calls.submit_proposal)
    batch_submit_proposals = _blocking(calls.batch_submit_proposals)
    preflight = _blocking(calls.preflight)
    batch_preflight = _blocking(calls.batch_preflight)
    resolve_review = _blocking(calls.resolve_review)
    revoke_decision = _blocking(calls.revoke_decision)
    publish_event = _blocking(calls.publish_event)
    batch_publish_events = _blocking(calls.batch_publish_events)
    get_event = _blocking(calls.get_event)
    list_events = _blocking(calls.list_events)
    subscribe_events = _iterated(calls.subscribe_events)
    get_trace = _blocking(calls.get_trace)
    begin_execution = _blocking(calls.begin_execution)
    renew_execution = _blocking(calls.renew_execution)
    report_execution = _blocking(calls.report_execution)
    validate_rule_set = _blocking(calls.validate_rule_set)
    deploy_rule_set = _blocking(calls.deploy_rule_set)
    activate_rule_set = _blocking(calls.activate_rule_set)
    deactivate_rule_set = _blocking(calls.deactivate_rule_set)
    get_rule_set = _blocking(calls.get_rule_set)
    list_rule_sets = _blocking(calls.list_rule_sets)
    simulate_rule_set = _iterated(calls.simulate_rule_set)
    get_projection = _blocking(calls.get_projection)
    list_pending_decisions = _blocking(calls.list_pending_decisions)
    list_pending_reviews = _blocking(calls.list_pending_reviews)
    get_status = _blocking(calls.get_status)
    verify_replay = _iterated(calls.verify_replay)
    register_contract = _blocking(calls.register_contract)
    register_provider = _blocking(calls.register_provider)
    bind_tool = _blocking(calls.bind_tool)
    resolve_tool = _blocking(calls.resolve_tool)
    list_contracts = _blocking(calls.list_contracts)

    def stream_proposals(
        self,
        proposals: Iterable[tuple[str, Envelope]],
        *,
        bus: str = "",
        timeout_ms: int | None = None,
    ) -> Iterator[StreamProposalsResponse]:
        """Submit a stream of (request_id, proposal) and iterate over the decisions, in order of completion.

        A `request_id` of at most 128 characters comes back with its answer. After an error submit again what has no answer
        yet, in the same envelopes: an event_id is decided once. `proposals` is iterated in a thread of gRPC's.
        """
        requests = (calls.stream_proposals_request(request_id, envelope, bus or self.bus) for request_id, envelope in proposals)
        rpc = self._stub(ArbitrationServiceStub).StreamProposals
        return self._responses(self._streamed(rpc, requests, timeout_ms))

    def close(self) -> None:
        """Close the channel, unless somebody else made it. Calls under way are cancelled."""
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
        rpc = self._rpc(call)
        tries = Tries(call.timeout_ms, call.repeatable, self._backoff)
        while True:
            try:
                response: Response = rpc(call.request, timeout=tries.timeout_s())
            except grpc.RpcError as error:
                time.sleep(tries.pause_s(error, closed=self.closed))
            else:
                return response

    def _iterate(self, call: StreamCall[Response]) -> Iterator[Response]:
        return self._responses(self._streamed(self._rpc(call), call.request, call.timeout_ms))

    def _responses(self, stream: Stream) -> Iterator[Any]:
        """Iterate over a stream's answers; whoever leaves early cancels the call."""
        try:
            yield from stream.answers
        except grpc.RpcError as error:
            raise self._broken(stream, error) from error
        finally:
            stream.answers.cancel()
