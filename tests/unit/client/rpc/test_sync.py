"""The synchronous client on grpcio-testing's channel, without server or socket; the test plays the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
import grpc_testing
import pytest
from gavel.v1.arbitration_service_pb2 import StreamProposalsResponse, SubmitProposalResponse
from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, Producer
from gavel.v1.decision_pb2 import OUTCOME_APPROVED, Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import SubscribeEventsResponse
from gavel.v1.projection_service_pb2 import GetStatusResponse
from gavel_client import GavelError, SyncGavelClient, proposal_envelope
from gavel_client.rpc.backoff import Backoff

from tests.unit.client.fake_server import METHODS, FakeServer, refusal, status_metadata
from tests.unit.client.work_queues import WAIT_S


def proposal(subject: str = "order/1") -> Envelope:
    """A proposal of an agent."""
    agent = Producer(type=PRODUCER_TYPE_AGENT, id="agent-1")
    return proposal_envelope(subject, agent, action_type="refund.create", params={"amount": 10}, max_fact_age_ms=60_000)


@pytest.fixture
def channel() -> Any:
    """A channel to a server that the test plays."""
    return grpc_testing.channel([method.containing_service for method in METHODS.values()], grpc_testing.strict_real_time())


@pytest.fixture
def client(channel: Any, backoff: Backoff) -> Iterator[SyncGavelClient]:
    """A client on `channel` that knows that the server does not tell the bus's incarnation."""
    with SyncGavelClient(channel, bus="orders", backoff=backoff) as connected:
        connected._incarnations["orders"] = ""
        yield connected


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    """The thread in which the client blocks while the test responds."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


def answer(channel: Any, name: str, response: Any) -> Any:
    """Accept the client's call and respond to it; return its request."""
    _, request, rpc = channel.take_unary_unary(METHODS[name])
    rpc.send_initial_metadata(())
    rpc.terminate(response, (), grpc.StatusCode.OK, "")
    return request


def refuse(channel: Any, name: str, *args: Any, **details: Any) -> Any:
    """Accept the client's call and refuse it; return its request."""
    _, request, rpc = channel.take_unary_unary(METHODS[name])
    error = refusal(*args, **details)
    rpc.send_initial_metadata(())
    rpc.terminate(None, status_metadata(error), args[0], error.status.message)
    return request


def test_submit(channel: Any, client: SyncGavelClient, thread: ThreadPoolExecutor) -> None:
    """A proposal is submitted on the client's bus, and its decision returned."""
    envelope = proposal()
    calling: Future[SubmitProposalResponse] = thread.submit(client.submit_proposal, envelope)
    decided = SubmitProposalResponse(decision=Envelope(decision=Decision(outcome=OUTCOME_APPROVED)))
    request = answer(channel, "SubmitProposal", decided)
    assert decided == calling.result(WAIT_S)
    assert ("orders", envelope) == (request.bus, request.envelope)


def test_retry_sends_the_same_event(channel: Any, client: SyncGavelClient, thread: ThreadPoolExecutor) -> None:
    """A retry after a lost call sends the same event_id."""
    envelope = proposal()
    envelope.ClearField("event_id")
    calling = thread.submit(client.submit_proposal, envelope)
    first = refuse(channel, "SubmitProposal", grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN", retry_after_ms=1)
    second = answer(channel, "SubmitProposal", SubmitProposalResponse())
    calling.result(WAIT_S)
    assert first.envelope.event_id
    assert first == second


def test_error(channel: Any, client: SyncGavelClient, thread: ThreadPoolExecutor) -> None:
    """A refused call raises GavelError with all details of the status."""
    calling = thread.submit(client.submit_proposal, proposal())
    refuse(
        channel,
        "SubmitProposal",
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_REQUEST",
        violations=[("envelope.proposal.risk", "is 1.5")],
    )
    with pytest.raises(GavelError) as raised:
        calling.result(WAIT_S)
    assert (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST") == (raised.value.code, raised.value.reason)
    assert (("envelope.proposal.risk", "is 1.5"),) == raised.value.violations


def test_server_stream(channel: Any, client: SyncGavelClient) -> None:
    """A subscription is an iterator that raises GavelError where the stream breaks."""
    stream = client.subscribe_events(from_sequence_number=4)
    _, request, rpc = channel.take_unary_stream(METHODS["SubscribeEvents"])
    assert ("orders", 4) == (request.bus, request.from_sequence_number)
    event = SubscribeEventsResponse(envelope=Envelope(sequence_number=4))
    rpc.send_initial_metadata(())
    rpc.send_response(event)
    assert event == next(stream)
    error = refusal(grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
    rpc.terminate(status_metadata(error), grpc.StatusCode.UNAVAILABLE, "scripted")
    with pytest.raises(GavelError) as raised:
        next(stream)
    assert "SHUTTING_DOWN" == raised.value.reason


@pytest.mark.parametrize(("timeout_ms", "code"), [(1, grpc.StatusCode.DEADLINE_EXCEEDED), (60_000, grpc.StatusCode.CANCELLED)])
def test_cancelled_at_the_deadline(
    channel: Any, client: SyncGavelClient, thread: ThreadPoolExecutor, timeout_ms: int, code: grpc.StatusCode
) -> None:
    """A call or stream that is cancelled at its deadline is DEADLINE_EXCEEDED; one cancelled before it is CANCELLED."""
    calling = thread.submit(client.activate_rule_set, "refunds", 2, timeout_ms=timeout_ms)
    _, _, rpc = channel.take_unary_unary(METHODS["ActivateRuleSet"])
    rpc.terminate(None, (), grpc.StatusCode.CANCELLED, "reset")
    with pytest.raises(GavelError) as raised:
        calling.result(WAIT_S)
    assert code is raised.value.code
    stream = client.subscribe_events(timeout_ms=timeout_ms)
    _, _, streaming = channel.take_unary_stream(METHODS["SubscribeEvents"])
    streaming.terminate((), grpc.StatusCode.CANCELLED, "reset")
    with pytest.raises(GavelError) as raised:
        next(stream)
    assert code is raised.value.code


def test_leaving_a_stream_cancels_it(channel: Any, client: SyncGavelClient) -> None:
    """Leaving the iteration cancels the call at the server."""
    stream = client.subscribe_events()
    _, _, rpc = channel.take_unary_stream(METHODS["SubscribeEvents"])
    rpc.send_initial_metadata(())
    rpc.send_response(SubscribeEventsResponse())
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    rpc.cancelled()  # blocks until it is


def test_stream_proposals(channel: Any, client: SyncGavelClient) -> None:
    """stream_proposals sends request_ids on the client's bus and yields decisions in order of completion."""
    stream = client.stream_proposals([("a", proposal("order/1")), ("b", proposal("order/2"))])
    _, rpc = channel.take_stream_stream(METHODS["StreamProposals"])
    requests = [rpc.take_request(), rpc.take_request()]
    rpc.requests_closed()
    assert [("a", "orders", "order/1"), ("b", "orders", "order/2")] == [
        (request.request_id, request.bus, request.envelope.subject) for request in requests
    ]
    rpc.send_initial_metadata(())
    for request_id in ("b", "a"):
        rpc.send_response(StreamProposalsResponse(request_id=request_id))
    rpc.terminate((), grpc.StatusCode.OK, "")
    assert ["b", "a"] == [response.request_id for response in stream]


async def test_real_channel(server: FakeServer, backoff: Backoff) -> None:
    """The client opens a real channel and closes it."""

    def call() -> GetStatusResponse:
        with SyncGavelClient(server.target, backoff=backoff) as client:
            return client.get_status()

    server.script("GetStatus", GetStatusResponse(head_sequence_number=7))
    assert 7 == (await asyncio.to_thread(call)).head_sequence_number
