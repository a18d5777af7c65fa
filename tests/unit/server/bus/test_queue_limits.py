"""The queue of a bus is limited in bytes and in number. In virtual time."""

from __future__ import annotations

import asyncio

import pytest
from gavel.v1.arbitration_service_pb2 import BatchSubmitProposalsResponse
from gavel_server.bus.request import Cancellation, CommittedAnswer, Request
from gavel_server.bus.sequencer import BATCH_COMMANDS_MAX, QUEUE_BYTES_MAX, QUEUE_COMMANDS_MAX
from gavel_server.errors import ServiceError
from gavel_server.fairness.fair_queue import QUANTUM, FairQueue
from gavel_server.log import LogUnavailableError
from gavel_server.services.batches.answers import BatchAnswers
from google.rpc import code_pb2

from tests.support.driver import proposal_envelope
from tests.support.simulation.servers import Servers, reason, record_event, with_servers

MEBIBYTE = 1024 * 1024


@with_servers
async def test_large_commands_fill_the_queue_sooner(servers: Servers) -> None:
    """A queue over its limit of bytes refuses commands with QUEUE_FULL until it has been worked off."""
    sequencer, log = await servers.start()
    log.pause_seconds = 0.01
    results: list[CommittedAnswer | ServiceError] = []
    for _ in range(2):
        room = QUEUE_BYTES_MAX // MEBIBYTE + 1
        for _ in range(room):
            sequencer.submit(servers.fact(), results.append, size_bytes=MEBIBYTE)
        with pytest.raises(ServiceError) as error_info:
            sequencer.submit(servers.fact(), results.append, size_bytes=MEBIBYTE)
        assert "QUEUE_FULL" == reason(error_info.value)
        await asyncio.sleep(10)
        assert [CommittedAnswer] * room == [type(result) for result in results]
        results.clear()


@with_servers
async def test_refused_commands_free_their_bytes(servers: Servers) -> None:
    """Commands that are decided again or refused do not stay counted in the queue's bytes."""
    sequencer, log = await servers.start()
    other, _ = await servers.start()
    results: list[CommittedAnswer | ServiceError] = []
    for number in range(20):
        sequencer.submit(servers.fact(), results.append, size_bytes=MEBIBYTE)
        if number % 5 == 0:
            log.errors_before = [LogUnavailableError("connection refused")]
        else:
            other.submit(servers.fact(), lambda _: None)
        await asyncio.sleep(1)
    assert 20 == len(results)
    assert 0 == sequencer._queue.size_bytes


@with_servers
async def test_queued_commands_of_callers_that_have_gone_are_dropped(servers: Servers) -> None:
    """A queued command whose caller goes before it is decided is neither decided nor answered, and frees its place in the queue."""
    sequencer, log = await servers.start()
    log.pause_seconds = 0.01
    first = asyncio.create_task(sequencer.execute(servers.fact()))
    await asyncio.sleep(0.001)  # its append is under way, so the others wait in the queue
    answers: list[CommittedAnswer | ServiceError] = []
    cancellations = [Cancellation() for _ in range(20)]
    for number, cancellation in enumerate(cancellations):
        sequencer.submit(servers.fact(number), answers.append, "", MEBIBYTE, cancellation)
    executing = [asyncio.create_task(sequencer.execute(servers.fact(number), size_bytes=MEBIBYTE)) for number in range(20, 24)]
    await asyncio.sleep(0)
    assert 24 == sequencer.queue_length
    for cancellation in cancellations[::2]:
        cancellation.cancel()
    for task in executing[:2]:
        task.cancel()
    await asyncio.sleep(1)
    assert first.done()
    assert [CommittedAnswer] * 10 == [type(answer) for answer in answers]
    assert [True, True, False, False] == [task.cancelled() for task in executing]
    assert 2 + 10 + 2 == len(await servers.events()) == sequencer.head.sequence_number
    assert (0, 0) == (sequencer.queue_length, sequencer._queue.size_bytes)


@with_servers
@pytest.mark.long
async def test_greedy_callers_leave_room_and_turns_to_others(servers: Servers) -> None:
    """However much one client sends over forty connections, another one is never refused, and is answered within a few batches."""
    sequencer, log = await servers.start()
    log.pause_seconds = 0.01
    greedy = [f"10.0.0.1:{port}" for port in range(40)]
    refused: list[str] = []

    def note(result: CommittedAnswer | ServiceError) -> None:
        if isinstance(result, ServiceError):
            refused.append(reason(result))

    def flood(caller: str) -> None:
        sequencer.submit_all([Request(servers.fact(), note, "", 0, caller=caller) for _ in range(500)])

    for caller in greedy:
        flood(caller)
    assert QUEUE_COMMANDS_MAX == sequencer.queue_length
    for caller in ("10.0.0.1:41", "10.0.0.2:1"):
        before = len(log.appended)
        executing = asyncio.create_task(sequencer.execute(servers.fact(), caller=caller))
        await asyncio.sleep(0)
        for greedy_caller in greedy:
            flood(greedy_caller)
        await executing
        assert len(log.appended) - before <= 2 + (len(greedy) * QUANTUM) // BATCH_COMMANDS_MAX + 1
    assert {"QUEUE_FULL"} == set(refused)
    assert len(refused) > 10_000


@with_servers
async def test_commands_of_a_caller_keep_their_order(servers: Servers) -> None:
    """Commands of each of several callers are decided in the order in which they came, also if another server moves the head."""
    sequencer, _ = await servers.start()
    other, _ = await servers.start()
    callers = [f"10.0.0.{host}:{port}" for host in range(3) for port in range(3)]
    answers: list[CommittedAnswer | ServiceError] = []
    for number in range(100):
        for caller in callers:
            sequencer.submit(servers.fact(f"{caller} {number:03}"), answers.append, "", number % 7 * 8192, caller=caller)
        if number % 20 == 0:
            other.submit(servers.fact("other"), lambda _: None)
            await asyncio.sleep(0.001)
    await asyncio.sleep(30)
    assert [CommittedAnswer] * len(answers) == [type(answer) for answer in answers]
    values = [event.fact.value.string_value for event in await servers.events() if event.fact.key == "order.status"]
    for caller in callers:
        assert [f"{caller} {number:03}" for number in range(100)] == [value for value in values if value.startswith(caller)]


@with_servers
async def test_proposals_of_a_batch_are_refused_one_by_one(servers: Servers) -> None:
    """Proposals of a batch for which the queue has no room are refused in their places; with the log unavailable all are refused."""
    sequencer, log = await servers.start_with_rules()
    fact = await record_event(sequencer, servers.fact())
    sequencer._queue._requests = FairQueue(2, QUEUE_BYTES_MAX)
    responses: list[bytes] = []

    def send() -> None:
        answers = BatchAnswers("Propose", 3, responses.append)
        envelopes = [proposal_envelope([fact], trace_id=f"t{number}") for number in range(3)]
        sequencer.submit_all(answers.admit(envelopes, sequencer.bus, None))

    send()
    await asyncio.sleep(1)
    log.errors_before = [LogUnavailableError("connection refused")]
    send()
    await asyncio.sleep(0.01)
    send()
    codes = [[result.error.code for result in BatchSubmitProposalsResponse.FromString(answer).results] for answer in responses]
    exhausted, unavailable = code_pb2.RESOURCE_EXHAUSTED, code_pb2.UNAVAILABLE
    assert [[code_pb2.OK, code_pb2.OK, exhausted], [unavailable, unavailable, exhausted], [unavailable] * 3] == codes
