"""The synchronous client: one blocking method for each RPC of the contract.

It has the methods of `client.GavelClient` and serves scripts, the command line and threads. Threads may share one client.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from gavel.v1.administration_service_pb2 import WhoAmIRequest, WhoAmIResponse
from gavel.v1.arbitration_service_pb2 import DECISION_PHASE_DECIDED, DecisionPhase, StreamProposalsResponse, WaitDecisionResponse
from gavel.v1.arbitration_service_pb2_grpc import ArbitrationServiceStub
from gavel.v1.envelope_pb2 import Envelope

from gavel_client.rpc import calls
from gavel_client.rpc.backoff import RetryBudget
from gavel_client.rpc.calls.call import StreamCall, UnaryCall
from gavel_client.rpc.connection import CHANNEL_OPTIONS, INCARNATION_TIMEOUT_SECONDS, Connection, Stream
from gavel_client.rpc.deadlines import WAIT_TIMEOUT_MS
from gavel_client.rpc.errors import GavelError
from gavel_client.rpc.sync_methods import SyncMethods

if TYPE_CHECKING:
    from typing_extensions import Self

Response = TypeVar("Response")


class SyncGavelClient(SyncMethods, Connection[grpc.Channel]):
    """The RPCs of the contract as functions and iterators: `with SyncGavelClient(target) as client`."""

    def wait_decision(
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
            response = super().wait_decision(decision_id, phase=phase, bus=bus, timeout_ms=wait_ms)
            if response.phase >= phase or wait_ms == 0:
                return response

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
        credentials = self._credentials.channel_credentials()
        if credentials is None:
            return grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
        return grpc.secure_channel(target, credentials, options=(*CHANNEL_OPTIONS, *self._credentials.channel_options()))

    def _call(self, call: UnaryCall[Response]) -> Response:
        rpc, bus = self._rpc(call), call.bus
        retries = RetryBudget(call.timeout_ms, call.repeatable, self._backoff, self._tries_max)
        while True:
            try:
                response: Response = rpc(call.request, timeout=retries.timeout_seconds(), metadata=self._metadata(bus))
            except grpc.RpcError as error:
                time.sleep(retries.pause_seconds(error, closed=self.closed))
            else:
                self._learn_incarnation(bus, retries.timeout_seconds())
                return response

    def _learn_incarnation(self, bus: str, seconds_left: float) -> None:
        """Ask once for the incarnation of a bus, within the time that the call before has left."""
        rpc = self._incarnation_rpc(bus)
        if rpc is None:
            return
        answer: WhoAmIResponse | grpc.RpcError | None = None
        try:
            seconds = min(INCARNATION_TIMEOUT_SECONDS, seconds_left)
            answer = rpc(WhoAmIRequest(bus=bus), timeout=seconds, metadata=self._question_metadata())
        except grpc.RpcError as error:
            answer = error
        except GavelError:
            pass  # there is no token for the question; the client has logged that
        finally:
            self._keep_incarnation(bus, answer)

    def _iterate(self, call: StreamCall[Response]) -> Iterator[Response]:
        rpc = self._rpc(call)
        return self._responses(self._open_stream(rpc, call.request, call.timeout_ms, call.bus))

    def _responses(self, stream: Stream) -> Iterator[Any]:
        """Iterate over a stream's responses; leaving the iteration early cancels the call."""
        try:
            yield from stream.responses
        except grpc.RpcError as error:
            raise self._stream_error(stream, error) from error
        finally:
            stream.responses.cancel()
