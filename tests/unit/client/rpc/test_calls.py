"""The asynchronous client: requests from plain arguments, retries, errors, streams."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator

import grpc
import pytest
from gavel.v1.arbitration_service_pb2 import DECISION_PHASE_UNSPECIFIED, StreamProposalsResponse, SubmitProposalResponse
from gavel.v1.common_pb2 import EVENT_CATEGORY_FACT_EVENT, PRODUCER_TYPE_AGENT, PRODUCER_TYPE_EXECUTOR, Producer
from gavel.v1.decision_pb2 import OUTCOME_REJECTED, Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import Checkpoint, SubscribeEventsResponse
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
from gavel.v1.projection_service_pb2 import GetStatusResponse
from gavel_client import GavelClient, GavelError, SyncGavelClient, Violation, proposal_envelope
from gavel_client.rpc import calls
from gavel_client.rpc.backoff import Backoff

from tests.support.ports import free_port
from tests.unit.client.fake_server import METHODS, FakeServer, refusal
from tests.unit.client.work_queues import WAIT_S

AGENT = Producer(type=PRODUCER_TYPE_AGENT, id="agent-1")


def proposal() -> Envelope:
    """A proposal without an event_id, as built by hand."""
    envelope = proposal_envelope("order/1", AGENT, action_type="refund.create", params={"amount": 10}, max_fact_age_ms=60_000)
    envelope.ClearField("event_id")
    return envelope


def snake_case(name: str) -> str:
    """SubmitProposal -> submit_proposal."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@pytest.mark.parametrize("client_type", [GavelClient, SyncGavelClient])
def test_every_call_has_a_method(client_type: type) -> None:
    """Every RPC of the contract has a method of its name in both clients, with documentation and its own signature."""
    assert len(METHODS) == 47
    for name in METHODS:
        method = getattr(client_type, snake_case(name))
        assert method.__doc__
        assert "timeout_ms" in inspect.signature(method).parameters, name


ARGUMENTS: dict[str, tuple[tuple[object, ...], dict[str, object]]] = {
    "SubmitProposal": ((proposal(),), {}),
    "BatchSubmitProposals": (([proposal(), proposal()],), {}),
    "Preflight": ((proposal(),), {"rule_set_override": "text", "explain": True}),
    "BatchPreflight": (([proposal()],), {}),
    "ResolveReview": (("decision-1", REVIEW_VERDICT_APPROVE), {"reviewer": "ann", "reason": "seen"}),
    "RevokeDecision": (("decision-1",), {"revoked_by": "ann", "reason": "wrong"}),
    "WaitDecision": (("decision-1",), {"phase": DECISION_PHASE_UNSPECIFIED}),
    "PublishEvent": ((proposal(),), {}),
    "BatchPublishEvents": (([proposal()],), {}),
    "AcceptClock": ((), {"accepted_by": "ann", "reason": "set wrongly"}),
    "AcceptLoss": ((), {"head_sequence_number": 7, "accepted_by": "ann", "reason": "the disk is gone"}),
    "UpgradeBus": ((), {"from_arbiter_version": 2, "arbiter_version": 3, "upgraded_by": "ann", "reason": "remedies"}),
    "GetEvent": ((), {"sequence_number": 7}),
    "ListEvents": (
        (),
        {
            "categories": [EVENT_CATEGORY_FACT_EVENT],
            "subject": "order/1",
            "trace_id": "t",
            "from_sequence_number": 2,
            "to_sequence_number": 9,
            "page_size": 3,
            "page_token": "p",
        },
    ),
    "GetTrace": (("t",), {}),
    "BeginExecution": (("decision-1",), {"producer": Producer(type=PRODUCER_TYPE_EXECUTOR, id="x"), "lease_ms": 500}),
    "RenewExecution": (("decision-1", "exec_1"), {"producer": Producer(type=PRODUCER_TYPE_EXECUTOR, id="x"), "lease_ms": 500}),
    "ReportExecution": ((proposal(),), {}),
    "ValidateRuleSet": (("text",), {}),
    "DeployRuleSet": (("text",), {"reason": "why"}),
    "ActivateRuleSet": (("refunds", 2), {"expected_active_version": 0}),
    "DeactivateRuleSet": (("refunds",), {"expected_active_version": 2}),
    "GetRuleSet": (("refunds",), {"version": 2}),
    "ListRuleSets": ((), {"page_size": 3}),
    "GetProjection": (("order/1",), {"min_sequence_number": 4}),
    "ListPendingDecisions": ((), {"page_size": 3}),
    "ListPendingReviews": ((), {"page_size": 3}),
    "GetStatus": ((), {"include_projection_digest": True}),
    "RegisterContract": ((None,), {"event_id": "e"}),
    "RegisterProvider": ((None,), {"event_id": "e"}),
    "BindTool": ((None,), {"event_id": "e"}),
    "UnbindTool": (("read",), {"session_id": "s", "event_id": "e"}),
    "ResolveTool": (("read",), {"session_id": "s", "canonical_only": True}),
    "ListContracts": ((), {"page_size": 3}),
    "ListProviders": ((), {"page_size": 3, "page_token": "p"}),
    "ListBindings": ((), {"page_size": 3, "page_token": "p"}),
    "WhoAmI": ((), {}),
    "ValidateGrants": (("text",), {}),
    "DeployGrants": (("text",), {"reason": "seen", "expected_version": 2}),
    "GetGrants": ((), {"version": 3}),
    "ListGrants": ((), {"page_size": 3, "page_token": "p"}),
    "CreateBus": ((), {}),
    "ListBuses": ((), {"page_size": 3, "page_token": "p"}),
}


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.server_streaming])
async def test_unary_call(name: str, server: FakeServer, client: GavelClient, bus: str) -> None:
    """A method calls its own RPC with exactly its arguments, on the client's bus, and returns the response of that RPC."""
    arguments, keywords = ARGUMENTS[name]
    response = await getattr(client, snake_case(name))(*arguments, **keywords)
    assert METHODS[name].output_type.full_name == response.DESCRIPTOR.full_name
    (request,) = server.requests[name]
    assert bus == getattr(request, "bus", bus)  # ListBuses alone names none
    for argument, value in keywords.items():
        assert value == getattr(request, argument), argument
    # Whatever the caller gave by position is in the request too.
    text = str(request)
    for value in arguments:
        if isinstance(value, str):
            assert value in text
    assert [name] == list(server.requests)


async def test_bus_of_a_call(server: FakeServer, client: GavelClient) -> None:
    """The bus of a call takes precedence over the client's."""
    await client.get_status(bus="other")
    assert "other" == server.requests["GetStatus"][0].bus


async def test_event_id_is_filled_once(server: FakeServer, client: GavelClient) -> None:
    """An envelope without event_id gets one UUIDv7 for all tries of a call; the caller's envelope stays unchanged."""
    envelope = proposal()
    server.script("SubmitProposal", refusal(grpc.StatusCode.UNAVAILABLE), refusal(grpc.StatusCode.UNAVAILABLE))
    await client.submit_proposal(envelope)
    ids = {request.envelope.event_id for request in server.requests["SubmitProposal"]}
    assert 3 == len(server.requests["SubmitProposal"])
    assert 1 == len(ids)
    assert 7 == uuid.UUID(ids.pop()).version
    assert "" == envelope.event_id


async def test_event_id_of_the_caller(server: FakeServer, client: GavelClient) -> None:
    """The caller's event_id is sent unchanged, also in every item of a batch."""
    envelope = proposal()
    envelope.event_id = str(uuid.uuid4())
    await client.batch_publish_events([envelope, proposal()])
    first, second = server.requests["BatchPublishEvents"][0].envelopes
    assert envelope.event_id == first.event_id
    assert 7 == uuid.UUID(second.event_id).version


async def test_refusal_is_a_value(server: FakeServer, client: GavelClient) -> None:
    """A rejection by policy is returned, not raised."""
    server.script("SubmitProposal", SubmitProposalResponse(decision=Envelope(decision=Decision(outcome=OUTCOME_REJECTED))))
    response = await client.submit_proposal(proposal())
    assert OUTCOME_REJECTED == response.decision.decision.outcome


async def test_error_carries_all_details(server: FakeServer, client: GavelClient) -> None:
    """A failed call raises GavelError with the code, the reason, every violation and the server's advice."""
    server.script(
        "SubmitProposal",
        refusal(
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_REQUEST",
            "2 fields are wrong",
            violations=[("envelope.proposal.risk", "is 1.5, must be 0..1"), ("envelope.subject", "is empty")],
        ),
    )
    with pytest.raises(GavelError) as raised:
        await client.submit_proposal(proposal())
    error = raised.value
    assert grpc.StatusCode.INVALID_ARGUMENT is error.code
    assert "INVALID_REQUEST" == error.reason
    assert "2 fields are wrong" == error.message
    assert (
        Violation("envelope.proposal.risk", "is 1.5, must be 0..1"),
        Violation("envelope.subject", "is empty"),
    ) == error.violations
    assert error.retry_after_ms is None
    assert "INVALID_ARGUMENT (INVALID_REQUEST): 2 fields are wrong\n  envelope.proposal.risk: is 1.5, must be 0..1\n" in str(error)
    assert 1 == len(server.requests["SubmitProposal"])


async def test_full_queue_is_retried(server: FakeServer, client: GavelClient) -> None:
    """RESOURCE_EXHAUSTED with advice is retried even for a call that is not repeatable, because it had no effect."""
    server.script("ActivateRuleSet", refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_after_ms=1))
    await client.activate_rule_set("refunds", 2)
    assert 2 == len(server.requests["ActivateRuleSet"])


async def test_retried_verdict_keeps_its_event_id(server: FakeServer, client: GavelClient) -> None:
    """A retried verdict keeps its event_id, so that the log holds it once."""
    server.script("ResolveReview", refusal(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE", retry_after_ms=1))
    await client.resolve_review("decision-1", REVIEW_VERDICT_APPROVE, reviewer="ann", reason="seen")
    first, second = server.requests["ResolveReview"]
    assert first == second
    assert first.event_id


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("ActivateRuleSet", refusal(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE")),
        ("SubmitProposal", refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "COMPILE_LIMIT_EXCEEDED")),
        ("SubmitProposal", refusal(grpc.StatusCode.DEADLINE_EXCEEDED)),
        ("SubmitProposal", refusal(grpc.StatusCode.INTERNAL, "INTERNAL")),
        ("SubmitProposal", refusal(grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")),
    ],
)
async def test_unsafe_and_permanent_errors_are_not_retried(name: str, error: Exception, server: FakeServer, client: GavelClient) -> None:
    """A call that may have taken effect, and an error that is not transient, are not retried."""
    server.script(name, error)
    arguments, keywords = ARGUMENTS[name]
    with pytest.raises(GavelError):
        await getattr(client, snake_case(name))(*arguments, **keywords)
    assert 1 == len(server.requests[name])


async def test_unavailable_server_is_tried_until_the_deadline(server: FakeServer, client: GavelClient) -> None:
    """A call to an unavailable server is tried again and again, as long as its deadline allows, and succeeds once the server is back."""
    unavailable = [refusal(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE", retry_after_ms=1)] * 50
    server.script("GetStatus", *unavailable, GetStatusResponse(head_sequence_number=7))
    assert 7 == (await client.get_status(timeout_ms=100_000)).head_sequence_number
    assert 51 == len(server.requests["GetStatus"])


async def test_server_that_cannot_be_reached_is_tried_until_the_deadline(backoff: Backoff) -> None:
    """A call to an address where no server listens yet succeeds once one does; every try before it fails to connect."""
    port = free_port()
    async with GavelClient(f"127.0.0.1:{port}", backoff=backoff) as client:
        call = asyncio.create_task(client.get_status(timeout_ms=100_000))
        with pytest.raises(GavelError) as raised:
            async with GavelClient(f"127.0.0.1:{port}", backoff=backoff, tries_max=20) as other:
                await other.get_status()
        assert "failed to connect" in raised.value.message.lower()
        async with FakeServer(port) as server:
            server.script("GetStatus", GetStatusResponse(head_sequence_number=7))
            assert 7 == (await call).head_sequence_number


async def test_tries_are_limited(server: FakeServer, backoff: Backoff) -> None:
    """With `tries_max` a call is tried that often; then the last error is raised."""
    server.answers["GetStatus"] = lambda _: refusal(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE", retry_after_ms=1)
    async with GavelClient(server.target, backoff=backoff, tries_max=3) as client:
        with pytest.raises(GavelError) as raised:
            await client.get_status()
    assert "LOG_UNAVAILABLE" == raised.value.reason
    assert 3 == len(server.requests["GetStatus"])


async def test_advice_beyond_the_deadline(server: FakeServer, client: GavelClient) -> None:
    """A call does not pause beyond its deadline; the error holds the server's advice."""
    server.script("GetStatus", refusal(grpc.StatusCode.UNAVAILABLE, "CLOCK_SKEW", retry_after_ms=60_000))
    with pytest.raises(GavelError) as raised:
        await client.get_status(timeout_ms=5_000)
    assert ("CLOCK_SKEW", 60_000) == (raised.value.reason, raised.value.retry_after_ms)


async def test_deadline(server: FakeServer, client: GavelClient) -> None:
    """A call to a server that does not respond ends at the deadline."""
    server.answers["GetStatus"] = lambda _: asyncio.sleep(60)
    with pytest.raises(GavelError) as raised:
        await client.get_status(timeout_ms=50)
    assert grpc.StatusCode.DEADLINE_EXCEEDED is raised.value.code


@pytest.mark.parametrize(("timeout_ms", "code"), [(50, grpc.StatusCode.DEADLINE_EXCEEDED), (60_000, grpc.StatusCode.CANCELLED)])
async def test_cancelled_at_the_deadline(server: FakeServer, backoff: Backoff, timeout_ms: int, code: grpc.StatusCode) -> None:
    """A call or stream that is cancelled at its deadline is DEADLINE_EXCEEDED; one cancelled before it is CANCELLED."""
    server.answers["GetStatus"] = server.answers["ActivateRuleSet"] = lambda _: refusal(grpc.StatusCode.CANCELLED)
    server.answers["SubscribeEvents"] = lambda _: [refusal(grpc.StatusCode.CANCELLED)]
    async with GavelClient(server.target, backoff=backoff, tries_max=5) as client:
        for call in (
            client.get_status(timeout_ms=timeout_ms),
            client.activate_rule_set("refunds", 2, timeout_ms=timeout_ms),
            anext(client.subscribe_events(timeout_ms=timeout_ms)),
        ):
            with pytest.raises(GavelError) as raised:
                await call
            assert code is raised.value.code


async def test_no_server(backoff: Backoff) -> None:
    """Without a server the error is UNAVAILABLE and names the address."""
    async with GavelClient("127.0.0.1:1", backoff=backoff, tries_max=3) as client:
        with pytest.raises(GavelError) as raised:
            await client.get_status()
    assert grpc.StatusCode.UNAVAILABLE is raised.value.code
    assert "127.0.0.1:1" in raised.value.message


async def test_get_event_needs_one_key(client: GavelClient) -> None:
    """get_event requires either the event_id or the sequence number."""
    for keywords in ({}, {"event_id": "a", "sequence_number": 1}):
        with pytest.raises(ValueError, match="either event_id or sequence_number"):
            await client.get_event(**keywords)  # type: ignore[arg-type]


async def test_server_stream(server: FakeServer, client: GavelClient, bus: str) -> None:
    """A subscription yields the streamed responses, then raises the stream's error."""
    sent = [
        SubscribeEventsResponse(envelope=Envelope(sequence_number=3)),
        SubscribeEventsResponse(checkpoint=Checkpoint(sequence_number=9)),
    ]
    server.script("SubscribeEvents", [*sent, refusal(grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")])
    stream = client.subscribe_events(from_sequence_number=3, subject_prefix="order/")
    assert sent == [await anext(stream), await anext(stream)]
    with pytest.raises(GavelError) as raised:
        await anext(stream)
    assert "SHUTTING_DOWN" == raised.value.reason
    (request,) = server.requests["SubscribeEvents"]
    assert (bus, 3, "order/") == (request.bus, request.from_sequence_number, request.subject_prefix)


async def test_other_streams(server: FakeServer, client: GavelClient) -> None:
    """simulate_rule_set and verify_replay call their own streaming RPCs."""
    assert [] == [item async for item in client.simulate_rule_set("text", to_sequence_number=5)]
    assert [] == [item async for item in client.verify_replay(from_sequence_number=2)]
    assert ("text", 5) == (server.requests["SimulateRuleSet"][0].document, server.requests["SimulateRuleSet"][0].to_sequence_number)
    assert 2 == server.requests["VerifyReplay"][0].from_sequence_number


async def test_stream_proposals(server: FakeServer, client: GavelClient, bus: str) -> None:
    """stream_proposals sends proposals with request_ids and event_ids, on the client's bus, and yields the responses."""
    server.script("StreamProposals", [StreamProposalsResponse(request_id="b"), StreamProposalsResponse(request_id="a")])

    async def proposals() -> AsyncIterator[tuple[str, Envelope]]:
        yield "a", proposal()
        yield "b", proposal()

    answers = [answer.request_id async for answer in client.stream_proposals(proposals())]
    assert ["b", "a"] == answers
    (requests,) = server.requests["StreamProposals"]
    assert [("a", bus), ("b", bus)] == [(request.request_id, request.bus) for request in requests]
    assert 2 == len({request.envelope.event_id for request in requests} - {""})


async def test_leaving_a_stream_cancels_it(server: FakeServer, client: GavelClient) -> None:
    """Leaving the iteration cancels the call at the server."""
    called, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(_: object) -> list[SubscribeEventsResponse]:
        called.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return []

    server.answers["SubscribeEvents"] = endless
    stream = client.subscribe_events()
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.wait_for(called.wait(), WAIT_S)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.wait_for(cancelled.wait(), WAIT_S)


async def test_unix_socket(backoff: Backoff, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A target may be a unix socket."""
    path = tmp_path_factory.mktemp("s") / "g.sock"
    server = FakeServer()
    server._server.add_insecure_port(f"unix:{path}")
    async with server, GavelClient(f"unix:{path}", backoff=backoff) as client:
        await client.get_status()
    assert 1 == len(server.requests["GetStatus"])


async def test_channel_of_the_caller_stays_open(server: FakeServer) -> None:
    """The client uses the caller's channel and does not close it."""
    async with grpc.aio.insecure_channel(server.target) as channel:
        async with GavelClient(channel) as client:
            await client.get_status()
        async with GavelClient(channel) as client:
            await client.get_status()
    assert 2 == len(server.requests["GetStatus"])


def test_import_opens_nothing() -> None:
    """Importing the package and constructing clients starts no thread and opens no connection."""
    program = (
        "import socket, threading\n"
        "def refuse(*_, **__): raise AssertionError('a socket was opened')\n"
        "socket.socket.connect = refuse\n"
        "import gavel_client, gavel_client.executor.executor, gavel_client.consumers.fact_derivation\n"
        "gavel_client.GavelClient(); gavel_client.SyncGavelClient()\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_description_is_data() -> None:
    """The description of a call is data: its request, its deadline and whether it is repeatable."""
    call = calls.activate_rule_set("refunds", 2, timeout_ms=1_234)
    assert ("refunds", 1_234, False) == (call.request.policy_id, call.timeout_ms, call.repeatable)
