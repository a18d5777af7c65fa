"""StreamProposals on real servers, with a front and without: each proposal is answered by itself, when its decision is there."""

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
from gavel_server.streaming import STREAM_REQUESTS_MAX

from tests.e2e.ledger import Ledger
from tests.e2e.world import Server, open_bus, proposal, prove, publish_status, rule_set, seen, serving, until
from tests.fronts import FRONTS

APPROVED = decision_pb2.OUTCOME_APPROVED
METHOD = "/gavel.v1.ArbitrationService/StreamProposals"

Clients = tuple[GavelClient, GavelClient]
Named = tuple[str, Envelope]


async def streamed(client: GavelClient, proposals: Sequence[Named], bus: str = "") -> dict[str, StreamProposalsResponse]:
    """Send proposals in one stream; return the answers by request_id, in the order in which they came."""
    answers: dict[str, StreamProposalsResponse] = {}
    async for answer in client.stream_proposals(_each(proposals), bus=bus):
        assert answer.request_id not in answers
        answers[answer.request_id] = answer
    return answers


async def _each(proposals: Sequence[Named]) -> AsyncIterator[Named]:
    for one in proposals:
        yield one


@pytest.mark.parametrize("which", [0, 1], ids=["front", "no-front"])
async def test_every_proposal_is_answered_under_its_name(clients: Clients, redis_url: str, bus: str, which: int) -> None:
    """A stream is decided like so many single calls; what is wrong with one of its requests is that one's answer alone."""
    client = clients[which]
    facts = list((await publish_status(client, [f"parcel/{number}" for number in range(300)])).values())
    good = [(f"good-{number}", proposal(fact)) for number, fact in enumerate(facts)]
    heavy = ("heavy", proposal(facts[0], weight=99.0))
    nameless, known = proposal(facts[0]), proposal(facts[1])
    nameless.subject = "nobody"
    known.event_id, known.proposal.risk = good[1][1].event_id, 0.5
    wrong = [("nameless", nameless), ("x" * 129, proposal(facts[0]))]
    answers = await streamed(client, [*good[:100], *wrong, *good[100:], heavy])
    answers.update(await streamed(client, [("known", known)]))
    again = await streamed(client, good[:3])
    assert len(good) + 4 == len(answers)
    assert {APPROVED} == {answers[name].decision.decision.outcome for name, _ in good}
    assert "CONFLICTING_DECISION" == answers["heavy"].decision.decision.reason_code
    errors = {name[:8]: GavelError.from_status(answers[name].error).reason for name in ("nameless", "x" * 129, "known")}
    assert {"nameless": "INVALID_REQUEST", "x" * 8: "INVALID_REQUEST", "known": "EVENT_ID_REUSED"} == errors
    assert [answers[name].decision for name, _ in good[:3]] == [again[name].decision for name, _ in good[:3]]
    other = await streamed(client, good[:1], bus="No Bus")
    assert "INVALID_REQUEST" == GavelError.from_status(other[good[0][0]].error).reason
    ledger = await Ledger.read(redis_url, bus)
    stored = {event.event_id: event for event in ledger.events}
    assert all(answers[name].decision == stored[answers[name].decision.event_id] for name, _ in good)


def proposes_about(subject: str) -> Callable[[Envelope], bool]:
    """Return whether an event is a proposal about a subject."""
    return lambda event: event.subject == subject and event.HasField("proposal")


@pytest.mark.parametrize("which", [0, 1], ids=["front", "no-front"])
async def test_answers_overtake_each_other(unopened: Clients, which: int) -> None:
    """A proposal that waits for its contest holds up nobody behind it."""
    client = unopened[which]
    await open_bus(client, rule_set(contest_window_ms=1_000))
    for number in itertools.count(1):
        fact = (await publish_status(client, [f"parcel/{number}"]))[f"parcel/{number}"]
        sent = [proposal(fact, priority=1), proposal(fact, priority=2), proposal(fact, weight=99.0)]
        answers = await streamed(client, list(zip(("waits", "better", "refused"), sent, strict=True)))
        first, *others = await seen(client, proposes_about(fact.subject), count=len(sent))
        closed_at = first.proposal.contest.closes_at.ToNanoseconds()
        if all(entry.recorded_at.ToNanoseconds() < closed_at for entry in others):
            break  # a busy machine may be too slow for that
    assert ["refused", "better", "waits"] == list(answers)
    assert ["NO_RULE_MATCHED", "", "OUTRANKED"] == [answer.decision.decision.reason_code for answer in answers.values()]
    await prove(client)


async def test_a_stream_is_read_as_its_answers_go(unopened: Clients, redis_url: str, bus: str) -> None:
    """So many proposals of one stream are under way; what else is sent is read when the first have been answered."""
    client = unopened[0]
    await open_bus(client, rule_set(contest_window_ms=3_000))
    count = STREAM_REQUESTS_MAX + 50
    facts = list((await publish_status(client, [f"parcel/{number}" for number in range(count)])).values())
    answers = await streamed(client, [(str(number), proposal(fact)) for number, fact in enumerate(facts)])
    assert [APPROVED] * count == [answer.decision.decision.outcome for answer in answers.values()]
    under_way = [0]
    for event in (await Ledger.read(redis_url, bus)).events:
        under_way.append(under_way[-1] + event.HasField("proposal") - event.HasField("decision"))
    # All that may be, unless a contest closes before, as on a busy machine.
    assert 0 < max(under_way) <= STREAM_REQUESTS_MAX


async def test_the_blocking_client_streams_as_well(pair: tuple[Server, Server], clients: Clients, bus: str) -> None:
    """`SyncGavelClient` has the same call."""
    facts = await publish_status(clients[0], ["parcel/1", "parcel/2"])

    def stream() -> list[StreamProposalsResponse]:
        with SyncGavelClient(pair[0].address, bus=bus) as client:
            return list(client.stream_proposals((subject, proposal(fact)) for subject, fact in facts.items()))

    answers = await asyncio.to_thread(stream)
    assert {("parcel/1", APPROVED), ("parcel/2", APPROVED)} == {(one.request_id, one.decision.decision.outcome) for one in answers}


@pytest.mark.parametrize("which", [0, 1], ids=["front", "no-front"])
async def test_bytes_that_are_no_request_end_the_stream(pair: tuple[Server, Server], clients: Clients, bus: str, which: int) -> None:
    """Nobody could say which request an answer to them belongs to; what was sent before is answered first."""
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


@pytest.mark.parametrize("front", [*FRONTS, "none"])
async def test_a_server_that_stops_ends_its_streams(tmp_path: Path, front: str) -> None:
    """Streams end with UNAVAILABLE, those that wait for a contest and those that are idle; what has an answer gets it."""
    server = Server(tmp_path / "gavel", options=["--front", front])
    with serving(server):
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

            refused = ("refused", proposal(fact, weight=99.0))
            streams = [asyncio.create_task(ended()), asyncio.create_task(ended(("waits", proposal(fact)), refused))]

            async def under_way() -> bool | None:
                return bool(answers and (await client.get_projection("parcel/1")).projection.pending_proposals) or None

            await until(under_way)
            assert 0 == await asyncio.to_thread(server.terminate)
            errors = [await stream for stream in streams]
    assert ["refused"] == [answer.request_id for answer in answers]
    assert [(grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")] * 2 == [(error.code, error.reason) for error in errors if error is not None]


@pytest.mark.parametrize("which", [0, 1], ids=["front", "no-front"])
async def test_whoever_leaves_a_stream_leaves_its_proposals_decided(clients: Clients, redis_url: str, bus: str, which: int) -> None:
    """A caller who cancels hears no more; what he had sent is decided, and a retry by event_id hears how."""
    client = clients[which]
    facts = list((await publish_status(client, [f"parcel/{number}" for number in range(50)])).values())
    named = [(str(number), proposal(fact)) for number, fact in enumerate(facts)]
    async for _ in client.stream_proposals(_each(named)):
        break
    answers = await streamed(client, named)
    assert {APPROVED} == {answer.decision.decision.outcome for answer in answers.values()}
    assert 50 == len((await Ledger.read(redis_url, bus)).first_decisions)
