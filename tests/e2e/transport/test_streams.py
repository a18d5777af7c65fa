"""StreamProposals on real servers, with and without a front: each proposal is answered when it is decided."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from gavel.v1 import decision_pb2
from gavel.v1.arbitration_service_pb2 import StreamProposalsRequest, StreamProposalsResponse
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient, GavelError, SyncGavelClient, new_event_id
from gavel_server.rpc.streaming import STREAM_REQUESTS_MAX

from tests.e2e.ledger import Ledger
from tests.e2e.world import Server, open_bus, poll, proposal, prove, publish_status, rule_set, run_servers, wait_for_events
from tests.support.fronts import TRANSPORTS

APPROVED = decision_pb2.OUTCOME_APPROVED
METHOD = "/gavel.v1.ArbitrationService/StreamProposals"

Clients = tuple[GavelClient, GavelClient]
Named = tuple[str, Envelope]


async def stream_proposals(client: GavelClient, proposals: Sequence[Named], bus: str = "") -> dict[str, StreamProposalsResponse]:
    """Send proposals in one stream; return the answers by request_id, in order of arrival."""
    answers: dict[str, StreamProposalsResponse] = {}
    async for answer in client.stream_proposals(_each(proposals), bus=bus):
        assert answer.request_id not in answers
        answers[answer.request_id] = answer
    return answers


async def _each(proposals: Sequence[Named]) -> AsyncIterator[Named]:
    for one in proposals:
        yield one


@pytest.mark.parametrize("which", [0, 1], ids=["front", "no-front"])
async def test_every_proposal_is_answered_under_its_request_id(clients: Clients, redis_url: str, bus: str, which: int) -> None:
    """A stream is decided like single calls; an invalid request gets an error as its own answer only."""
    client = clients[which]
    facts = list((await publish_status(client, [f"parcel/{number}" for number in range(300)])).values())
    good = [(f"good-{number}", proposal(fact)) for number, fact in enumerate(facts)]
    heavy = ("heavy", proposal(facts[0], weight=99.0))
    unnamed, repeated = proposal(facts[0]), proposal(facts[1])
    unnamed.subject = "nobody"
    repeated.event_id, repeated.proposal.risk = good[1][1].event_id, 0.5
    wrong = [("nameless", unnamed), ("x" * 129, proposal(facts[0]))]
    answers = await stream_proposals(client, [*good[:100], *wrong, *good[100:], heavy])
    answers.update(await stream_proposals(client, [("known", repeated)]))
    repetition = await stream_proposals(client, good[:3])
    assert len(good) + 4 == len(answers)
    assert {APPROVED} == {answers[name].decision.decision.outcome for name, _ in good}
    assert "CONFLICTING_DECISION" == answers["heavy"].decision.decision.reason_code
    errors = {name[:8]: GavelError.from_status(answers[name].error).reason for name in ("nameless", "x" * 129, "known")}
    assert {"nameless": "INVALID_REQUEST", "x" * 8: "INVALID_REQUEST", "known": "EVENT_ID_REUSED"} == errors
    assert [answers[name].decision for name, _ in good[:3]] == [repetition[name].decision for name, _ in good[:3]]
    other = await stream_proposals(client, good[:1], bus="No Bus")
    assert "INVALID_REQUEST" == GavelError.from_status(other[good[0][0]].error).reason
    ledger = await Ledger.read(redis_url, bus)
    stored = {event.event_id: event for event in ledger.events}
    assert all(answers[name].decision == stored[answers[name].decision.event_id] for name, _ in good)


def proposes_about(subject: str) -> Callable[[Envelope], bool]:
    """Whether an event is a proposal about a subject."""
    return lambda event: event.subject == subject and event.HasField("proposal")


@pytest.mark.long
@pytest.mark.parametrize("which", [0, 1], ids=["front", "no-front"])
async def test_answers_overtake_each_other(new_bus_clients: Clients, which: int) -> None:
    """A proposal that waits for its contest does not delay later answers."""
    client = new_bus_clients[which]
    await open_bus(client, rule_set(contest_window_ms=1_000))
    for number in itertools.count(1):
        fact = (await publish_status(client, [f"parcel/{number}"]))[f"parcel/{number}"]
        proposals = [proposal(fact, priority=1), proposal(fact, priority=2), proposal(fact, weight=99.0)]
        answers = await stream_proposals(client, list(zip(("waits", "better", "refused"), proposals, strict=True)))
        first, *others = await wait_for_events(client, proposes_about(fact.subject), count=len(proposals))
        closed_at = first.proposal.contest.closes_at.ToNanoseconds()
        if all(entry.recorded_at.ToNanoseconds() < closed_at for entry in others):
            break  # a busy machine may be too slow for that
    assert ["refused", "better", "waits"] == list(answers)
    assert ["NO_RULE_MATCHED", "", "OUTRANKED"] == [answer.decision.decision.reason_code for answer in answers.values()]
    await prove(client)


@pytest.mark.long
async def test_proposals_in_progress_are_limited(new_bus_clients: Clients, redis_url: str, bus: str) -> None:
    """A stream has a limited number of proposals under way; more are read as answers leave."""
    client = new_bus_clients[0]
    await open_bus(client, rule_set(contest_window_ms=3_000))
    count = STREAM_REQUESTS_MAX + 50
    facts = list((await publish_status(client, [f"parcel/{number}" for number in range(count)])).values())
    answers = await stream_proposals(client, [(str(number), proposal(fact)) for number, fact in enumerate(facts)])
    assert [APPROVED] * count == [answer.decision.decision.outcome for answer in answers.values()]
    under_way = [0]
    for event in (await Ledger.read(redis_url, bus)).events:
        under_way.append(under_way[-1] + event.HasField("proposal") - event.HasField("decision"))
    # The limit, unless a contest has closed before, as on a slow machine.
    assert 0 < max(under_way) <= STREAM_REQUESTS_MAX


async def test_blocking_client_streams(pair: tuple[Server, Server], clients: Clients, bus: str) -> None:
    """SyncGavelClient has the same call."""
    facts = await publish_status(clients[0], ["parcel/1", "parcel/2"])

    def stream() -> list[StreamProposalsResponse]:
        with SyncGavelClient(pair[0].address, bus=bus) as client:
            return list(client.stream_proposals((subject, proposal(fact)) for subject, fact in facts.items()))

    answers = await asyncio.to_thread(stream)
    assert {("parcel/1", APPROVED), ("parcel/2", APPROVED)} == {(one.request_id, one.decision.decision.outcome) for one in answers}


@pytest.mark.parametrize("which", [0, 1], ids=["front", "no-front"])
async def test_undecodable_request_ends_the_stream(pair: tuple[Server, Server], clients: Clients, bus: str, which: int) -> None:
    """Bytes that are not a request end the stream, after the answers to everything sent before."""
    fact = (await publish_status(clients[0], ["parcel/1"]))["parcel/1"]
    envelope = proposal(fact)
    envelope.event_id = new_event_id()
    first = StreamProposalsRequest(request_id="first", bus=bus, envelope=envelope).SerializeToString()
    async with grpc.aio.insecure_channel(pair[which].address) as channel:
        call: Any = channel.stream_stream(METHOD)
        stream = call(iter((first, b"\xff\xff")))
        answer = StreamProposalsResponse.FromString(await stream.read())
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await stream.read()
    assert grpc.StatusCode.INVALID_ARGUMENT == ended.value.code()
    assert ("first", APPROVED) == (answer.request_id, answer.decision.decision.outcome)


@pytest.mark.parametrize("front", TRANSPORTS)
async def test_a_server_that_stops_ends_its_streams(tmp_path: Path, front: str) -> None:
    """A server that stops ends idle and waiting streams with UNAVAILABLE, after the answers that are ready."""
    server = Server(tmp_path / "gavel", options=["--front", front])
    with run_servers(server):
        async with server.client() as client:
            await open_bus(client, rule_set(contest_window_ms=600_000))
            fact = (await publish_status(client, ["parcel/1"]))["parcel/1"]
            open_end = asyncio.Event()

            async def proposals(*named: Named) -> AsyncIterator[Named]:
                for one in named:
                    yield one
                await open_end.wait()

            answers: list[StreamProposalsResponse] = []

            async def ended(*named: Named) -> GavelError | None:
                try:
                    async for answer in client.stream_proposals(proposals(*named)):
                        answers.append(answer)  # noqa: PERF401  # what came before the error counts
                except GavelError as error:
                    return error
                return None

            rejection = ("refused", proposal(fact, weight=99.0))
            streams = [asyncio.create_task(ended()), asyncio.create_task(ended(("waits", proposal(fact)), rejection))]

            async def under_way() -> bool | None:
                return bool(answers and (await client.get_projection("parcel/1")).projection.pending_proposals) or None

            await poll(under_way)
            assert 0 == await asyncio.to_thread(server.terminate)
            errors = [await stream for stream in streams]
    assert ["refused"] == [answer.request_id for answer in answers]
    assert [(grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")] * 2 == [(error.code, error.reason) for error in errors if error is not None]


@pytest.mark.parametrize("which", [0, 1], ids=["front", "no-front"])
async def test_proposals_of_a_cancelled_stream_are_decided(clients: Clients, redis_url: str, bus: str, which: int) -> None:
    """The proposals of a cancelled stream are decided, and a retry by event_id gets the decision."""
    client = clients[which]
    facts = list((await publish_status(client, [f"parcel/{number}" for number in range(50)])).values())
    named = [(str(number), proposal(fact)) for number, fact in enumerate(facts)]
    async for _ in client.stream_proposals(_each(named)):
        break
    answers = await stream_proposals(client, named)
    assert {APPROVED} == {answer.decision.decision.outcome for answer in answers.values()}
    assert 50 == len((await Ledger.read(redis_url, bus)).first_decisions)
