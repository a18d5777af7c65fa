"""The asynchronous client: requests from plain arguments, repeated tries, errors, streams."""

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
from gavel.v1.arbitration_service_pb2 import StreamProposalsResponse, SubmitProposalResponse
from gavel.v1.common_pb2 import EVENT_CATEGORY_FACT_EVENT, PRODUCER_TYPE_AGENT, PRODUCER_TYPE_EXECUTOR, Producer
from gavel.v1.decision_pb2 import OUTCOME_REJECTED, Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import Checkpoint, SubscribeEventsResponse
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
from gavel_client import GavelClient, GavelError, SyncGavelClient, Violation, calls, proposal_envelope
from gavel_client.backoff import Backoff

from tests.unit.client.fake_server import METHODS, FakeServer, refused
from tests.unit.client.redis_helpers import WAIT_S

AGENT = Producer(type=PRODUCER_TYPE_AGENT, id="agent-1")


def proposal() -> Envelope:
    """A proposal without an event_id, as a caller may build it by hand."""
    envelope = proposal_envelope("order/1", AGENT, action_type="refund.create", params={"amount": 10}, max_fact_age_ms=60_000)
    envelope.ClearField("event_id")
    return envelope


def snake_case(name: str) -> str:
    """SubmitProposal -> submit_proposal."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


@pytest.mark.parametrize("client_type", [GavelClient, SyncGavelClient])
def test_every_call_has_a_method(client_type: type) -> None:
    """Every RPC of the contract has a method of its name in both clients, with documentation and its own signature."""
    assert len(METHODS) == 33
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
    "PublishEvent": ((proposal(),), {}),
    "BatchPublishEvents": (([proposal()],), {}),
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
    "DeployRuleSet": (("text",), {}),
    "ActivateRuleSet": (("refunds", 2), {"expected_active_version": 0}),
    "DeactivateRuleSet": (("refunds",), {"expected_active_version": 2}),
    "GetRuleSet": (("refunds",), {"version": 2}),
    "ListRuleSets": ((), {"page_size": 3}),
    "GetProjection": (("order/1",), {"min_sequence_number": 4}),
    "ListPendingDecisions": ((), {"page_size": 3}),
    "ListPendingReviews": ((), {"page_size": 3}),
    "GetStatus": ((), {"include_projection_digest": True}),
    "RegisterContract": ((None,), {}),
    "RegisterProvider": ((None,), {}),
    "BindTool": ((None,), {}),
    "ResolveTool": (("read",), {"session_id": "s"}),
    "ListContracts": ((), {"page_size": 3}),
}


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.server_streaming])
async def test_unary_call(name: str, server: FakeServer, client: GavelClient, bus: str) -> None:
    """A method sends its own RPC exactly its arguments, on the client's bus, and returns that RPC's response."""
    arguments, keywords = ARGUMENTS[name]
    response = await getattr(client, snake_case(name))(*arguments, **keywords)
    assert METHODS[name].output_type.full_name == response.DESCRIPTOR.full_name
    (request,) = server.requests[name]
    assert bus == request.bus
    for argument, value in keywords.items():
        assert value == getattr(request, argument), argument
    # Whatever the caller gave by position is in the request too.
    text = str(request)
    for value in arguments:
        if isinstance(value, str):
            assert value in text
    assert [name] == list(server.requests)


async def test_call_names_another_bus(server: FakeServer, client: GavelClient) -> None:
    """A bus named with a call goes before the client's own."""
    await client.get_status(bus="other")
    assert "other" == server.requests["GetStatus"][0].bus


async def test_event_id_is_filled_once(server: FakeServer, client: GavelClient) -> None:
    """An envelope without event_id gets a UUIDv7 that all tries of a call share; the caller's envelope stays as it was."""
    envelope = proposal()
    server.script("SubmitProposal", refused(grpc.StatusCode.UNAVAILABLE), refused(grpc.StatusCode.UNAVAILABLE))
    await client.submit_proposal(envelope)
    ids = {request.envelope.event_id for request in server.requests["SubmitProposal"]}
    assert 3 == len(server.requests["SubmitProposal"])
    assert 1 == len(ids)
    assert 7 == uuid.UUID(ids.pop()).version
    assert "" == envelope.event_id


async def test_event_id_of_the_caller_is_kept(server: FakeServer, client: GavelClient) -> None:
    """An event_id that the caller chose is sent as it is, in every item of a batch too."""
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
        refused(
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


async def test_full_queue_is_tried_again(server: FakeServer, client: GavelClient) -> None:
    """RESOURCE_EXHAUSTED with advice is tried again, even for a call that is not repeatable: nothing was taken in."""
    server.script("ActivateRuleSet", refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_after_ms=1))
    await client.activate_rule_set("refunds", 2)
    assert 2 == len(server.requests["ActivateRuleSet"])


async def test_a_verdict_is_tried_again_under_one_id(server: FakeServer, client: GavelClient) -> None:
    """What a person said is sent again with its event_id, so that however often it is heard it is said once."""
    server.script("ResolveReview", refused(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE", retry_after_ms=1))
    await client.resolve_review("decision-1", REVIEW_VERDICT_APPROVE, reviewer="ann", reason="seen")
    first, second = server.requests["ResolveReview"]
    assert first == second
    assert first.event_id


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("ActivateRuleSet", refused(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE")),
        ("SubmitProposal", refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "COMPILE_LIMIT_EXCEEDED")),
        ("SubmitProposal", refused(grpc.StatusCode.DEADLINE_EXCEEDED)),
        ("SubmitProposal", refused(grpc.StatusCode.INTERNAL, "INTERNAL")),
        ("SubmitProposal", refused(grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")),
    ],
)
async def test_not_tried_again(name: str, error: Exception, server: FakeServer, client: GavelClient) -> None:
    """What may have had its effect unheard, and what no waiting heals, is not tried again."""
    server.script(name, error)
    arguments, keywords = ARGUMENTS[name]
    with pytest.raises(GavelError):
        await getattr(client, snake_case(name))(*arguments, **keywords)
    assert 1 == len(server.requests[name])


async def test_tries_are_bounded(server: FakeServer, client: GavelClient) -> None:
    """A server that stays away is tried a bounded number of times, and its last error is raised."""
    server.answers["GetStatus"] = lambda _: refused(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE", retry_after_ms=1)
    with pytest.raises(GavelError) as raised:
        await client.get_status()
    assert "LOG_UNAVAILABLE" == raised.value.reason
    assert 5 == len(server.requests["GetStatus"])


async def test_advice_beyond_the_deadline(server: FakeServer, client: GavelClient) -> None:
    """A call does not wait for a try that would come after its deadline; the error says what the server advised."""
    server.script("GetStatus", refused(grpc.StatusCode.UNAVAILABLE, "CLOCK_SKEW", retry_after_ms=60_000))
    with pytest.raises(GavelError) as raised:
        await client.get_status(timeout_ms=5_000)
    assert ("CLOCK_SKEW", 60_000) == (raised.value.reason, raised.value.retry_after_ms)


async def test_deadline(server: FakeServer, client: GavelClient) -> None:
    """A server that does not answer costs no more than the deadline."""
    server.answers["GetStatus"] = lambda _: asyncio.sleep(60)
    with pytest.raises(GavelError) as raised:
        await client.get_status(timeout_ms=50)
    assert grpc.StatusCode.DEADLINE_EXCEEDED is raised.value.code


@pytest.mark.parametrize(("timeout_ms", "code"), [(50, grpc.StatusCode.DEADLINE_EXCEEDED), (60_000, grpc.StatusCode.CANCELLED)])
async def test_cancelled_at_the_deadline(server: FakeServer, client: GavelClient, timeout_ms: int, code: grpc.StatusCode) -> None:
    """A call or stream that is cancelled when its time is over has outlived its deadline; one with time left was cancelled."""
    server.answers["GetStatus"] = server.answers["ActivateRuleSet"] = lambda _: refused(grpc.StatusCode.CANCELLED)
    server.answers["SubscribeEvents"] = lambda _: [refused(grpc.StatusCode.CANCELLED)]
    for call in (
        client.get_status(timeout_ms=timeout_ms),
        client.activate_rule_set("refunds", 2, timeout_ms=timeout_ms),
        anext(client.subscribe_events(timeout_ms=timeout_ms)),
    ):
        with pytest.raises(GavelError) as raised:
            await call
        assert code is raised.value.code


async def test_nobody_listens(backoff: Backoff) -> None:
    """Without a server the error is UNAVAILABLE and says where it looked."""
    async with GavelClient("127.0.0.1:1", backoff=backoff) as client:
        with pytest.raises(GavelError) as raised:
            await client.get_status()
    assert grpc.StatusCode.UNAVAILABLE is raised.value.code
    assert "127.0.0.1:1" in raised.value.message


async def test_get_event_needs_one_key(client: GavelClient) -> None:
    """An event is asked for by exactly one of its names."""
    for keywords in ({}, {"event_id": "a", "sequence_number": 1}):
        with pytest.raises(ValueError, match="either event_id or sequence_number"):
            await client.get_event(**keywords)  # type: ignore[arg-type]


async def test_server_stream(server: FakeServer, client: GavelClient, bus: str) -> None:
    """A subscription yields what the server streams, and its error in the end."""
    sent = [
        SubscribeEventsResponse(envelope=Envelope(sequence_number=3)),
        SubscribeEventsResponse(checkpoint=Checkpoint(sequence_number=9)),
    ]
    server.script("SubscribeEvents", [*sent, refused(grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")])
    stream = client.subscribe_events(from_sequence_number=3, subject_prefix="order/")
    assert sent == [await anext(stream), await anext(stream)]
    with pytest.raises(GavelError) as raised:
        await anext(stream)
    assert "SHUTTING_DOWN" == raised.value.reason
    (request,) = server.requests["SubscribeEvents"]
    assert (bus, 3, "order/") == (request.bus, request.from_sequence_number, request.subject_prefix)


async def test_other_streams(server: FakeServer, client: GavelClient) -> None:
    """Simulation and replay are streams of their own RPCs."""
    assert [] == [item async for item in client.simulate_rule_set("text", to_sequence_number=5)]
    assert [] == [item async for item in client.verify_replay(from_sequence_number=2)]
    assert ("text", 5) == (server.requests["SimulateRuleSet"][0].document, server.requests["SimulateRuleSet"][0].to_sequence_number)
    assert 2 == server.requests["VerifyReplay"][0].from_sequence_number


async def test_stream_proposals(server: FakeServer, client: GavelClient, bus: str) -> None:
    """Proposals are streamed with their request_ids, on the client's bus, each with an event_id; answers come back."""
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
    """Whoever stops iterating ends the call at the server too."""
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
    """A channel that the caller made is used and not closed."""
    async with grpc.aio.insecure_channel(server.target) as channel:
        async with GavelClient(channel) as client:
            await client.get_status()
        async with GavelClient(channel) as client:
            await client.get_status()
    assert 2 == len(server.requests["GetStatus"])


def test_import_opens_nothing() -> None:
    """Importing the package and making clients starts no thread and opens no connection."""
    program = (
        "import socket, threading\n"
        "def refuse(*_, **__): raise AssertionError('a socket was opened')\n"
        "socket.socket.connect = refuse\n"
        "import gavel_client, gavel_client.executor, gavel_client.fdr\n"
        "gavel_client.GavelClient(); gavel_client.SyncGavelClient()\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_descriptions_do_not_send() -> None:
    """A call's description is data: its request, its deadline and whether it may be repeated."""
    call = calls.activate_rule_set("refunds", 2, timeout_ms=1_234)
    assert ("refunds", 1_234, False) == (call.request.policy_id, call.timeout_ms, call.repeatable)  # type: ignore[attr-defined]
