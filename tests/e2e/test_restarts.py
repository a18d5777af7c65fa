"""A server that comes back: with the same state from the same log, and without writing to a log that has lost something."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path

import grpc
import pytest
from gavel.v1 import decision_pb2, execution_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution, ExecutionStatus
from gavel_client import GavelClient, GavelError, execution_envelope
from google.protobuf.message import Message

from tests.e2e.ledger import Ledger
from tests.e2e.world import (
    COURIER,
    PATIENT_MS,
    POLICY,
    Server,
    approve,
    open_bus,
    proposal,
    prove,
    publish_status,
    rule_set,
    seen,
    serving,
    until,
)

BUS = "default"
PROPOSALS = 10_000
BATCH = 250
# What Redis keeps its append-only file as: up to version 6.2 a file, later a directory.
APPEND_ONLY = ("appendonly.aof", "appendonlydir")


@pytest.fixture
def server(tmp_path: Path) -> Server:
    """A server with its embedded Redis, not started."""
    return Server(tmp_path / "gavel")


@pytest.fixture
def rehashing(tmp_path: Path) -> Server:
    """The same; each start is the installed program's, with hashes of its own: what depended on them would not come out alike."""
    return Server(tmp_path / "gavel", installed=True)


async def restart(server: Server) -> None:
    """End a server by SIGTERM and start it again."""
    assert 0 == await asyncio.to_thread(server.terminate), server.log()
    await asyncio.to_thread(server.start)


async def test_ten_thousand_proposals_and_a_restart(rehashing: Server) -> None:
    """After 10,000 proposals in batches and a restart, head, chain hash and projection are what they were, and the log replays."""
    server = rehashing
    randomness = random.Random(5)
    outcomes: Counter[int] = Counter()
    with serving(server):
        async with server.client() as client:
            await open_bus(client)
            facts = list((await publish_status(client, [f"parcel/{number}" for number in range(2000)])).values())
            for _ in range(PROPOSALS // BATCH):
                batch = [proposal(randomness.choice(facts), randomness.choice((1.0, 20.0, 50.0))) for _ in range(BATCH)]
                results = (await client.batch_submit_proposals(batch)).results
                outcomes.update(result.decision.decision.outcome for result in results)
            before = await client.get_status(include_projection_digest=True, timeout_ms=PATIENT_MS)
        assert {decision_pb2.OUTCOME_APPROVED, decision_pb2.OUTCOME_REJECTED} == outcomes.keys()
        await restart(server)
        async with server.client() as client:
            after = await client.get_status(include_projection_digest=True, timeout_ms=PATIENT_MS)
            assert (before.head_sequence_number, before.head_chain_hash) == (after.head_sequence_number, after.head_chain_hash)
            assert before.projection_digest == after.projection_digest
            verdict = await prove(client)
        assert (before.head_sequence_number, PROPOSALS) == (verdict.events, verdict.decisions)


async def report(client: GavelClient, approval: Envelope, status: ExecutionStatus.ValueType) -> None:
    """Start an attempt and report that it ended with `status`."""
    begun = await client.begin_execution(approval.event_id, producer=COURIER)
    execution = Execution(decision_id=approval.event_id, execution_id=begun.started.execution_id, status=status)
    await client.report_execution(execution_envelope("", COURIER, execution))


async def snapshot(client: GavelClient) -> list[Message]:
    """Return everything that a server says of its bus."""
    status = await client.get_status(include_projection_digest=True, timeout_ms=PATIENT_MS)
    status.ClearField("consumers")  # they come and go with the processes
    projections = [await client.get_projection(f"parcel/{name}") for name in ("approved", "started", "failed", "partial", "done")]
    return [status, await client.list_pending_decisions(), await client.list_pending_reviews(), await client.list_rule_sets(), *projections]


@pytest.mark.parametrize("gently", [True, False], ids=["sigterm", "sigkill"])
async def test_a_restart_in_the_midst_of_everything_changes_nothing(rehashing: Server, gently: bool) -> None:
    """Approved, running, to be tried again, under review, done: whatever a bus holds, a restart shows the same."""
    server = rehashing
    with serving(server):
        async with server.client() as client:
            await open_bus(client)
            await approve(client, "parcel/approved")
            started = await approve(client, "parcel/started")
            await client.begin_execution(started.event_id, producer=COURIER, lease_ms=600_000)
            await report(client, await approve(client, "parcel/failed"), execution_pb2.EXECUTION_STATUS_FAILED)
            await report(client, await approve(client, "parcel/partial"), execution_pb2.EXECUTION_STATUS_PARTIAL)
            done = await approve(client, "parcel/done")
            await report(client, done, execution_pb2.EXECUTION_STATUS_SUCCESS)
            # Three of them have ended for the time being, and have a derived fact each.
            await seen(client, lambda event: bool(event.fact.derivation_rule_id), count=3)
            before = await snapshot(client)
        if not gently:
            server.kill()
            await asyncio.to_thread(server.start)
        else:
            await restart(server)
        async with server.client() as client:
            assert before == await snapshot(client)
            await prove(client)


def copy_log(origin: Path, target: Path) -> None:
    """Copy what Redis has written, in place of what `target` has."""
    target.mkdir(exist_ok=True)
    for name in APPEND_ONLY:
        if (origin / name).is_dir():
            shutil.rmtree(target / name, ignore_errors=True)
            shutil.copytree(origin / name, target / name)
        elif (origin / name).exists():
            shutil.copy(origin / name, target / name)


async def write(client: GavelClient, count: int) -> None:
    """Write so many events."""
    await publish_status(client, [f"parcel/{number}" for number in range(count)])


async def refuses_to_write(server: Server, client: GavelClient) -> None:
    """Assert that every write is refused, with the reason, that reads are answered, and that the log stays as it is."""
    before = await Ledger.read(server.redis_url, BUS)
    fact = next(event for event in before.of("fact") if event.fact.key == "parcel.status")
    (approval,) = [event for event in before.of("decision") if event.decision.outcome == decision_pb2.OUTCOME_APPROVED]
    writes: list[Awaitable[object]] = [
        client.submit_proposal(proposal(fact)),
        client.publish_event(Envelope(subject=fact.subject, producer=fact.producer, fact=fact.fact)),
        client.begin_execution(approval.event_id, producer=COURIER),
        client.deploy_rule_set(rule_set(version=2)),
        client.deactivate_rule_set(POLICY),
    ]
    for write in writes:
        with pytest.raises(GavelError) as refused:
            await write
        assert (grpc.StatusCode.UNAVAILABLE, "LOG_REGRESSED") == (refused.value.code, refused.value.reason), refused.value
    (result,) = (await client.batch_submit_proposals([proposal(fact)])).results
    assert "LOG_REGRESSED" == GavelError.from_status(result.error).reason
    status = await client.get_status()
    assert not status.writable
    assert "acknowledged events were lost" in status.unwritable_reason
    assert list(before.events) == list((await client.list_events(page_size=1000)).envelopes)
    assert (await client.get_projection(fact.subject)).projection.facts
    assert (await client.preflight(proposal(fact))).decision.action_type == proposal(fact).proposal.action_type
    await prove(client)
    assert before == await Ledger.read(server.redis_url, BUS)


async def wrote_and_lost(server: Server, tmp_path: Path) -> None:
    """Leave `server` ended, its log a copy from before its last events."""
    async with server.client() as client:
        await open_bus(client)
        await approve(client, "parcel/approved")
        await write(client, 1)
    assert 0 == await asyncio.to_thread(server.terminate)
    copy_log(server.data, tmp_path / "older")
    await asyncio.to_thread(server.start)
    async with server.client() as client:
        await write(client, 5)
    assert 0 == await asyncio.to_thread(server.terminate)
    copy_log(tmp_path / "older", server.data)


@pytest.mark.usefixtures("one_try")
async def test_a_log_that_lost_events_is_not_written_to(server: Server, tmp_path: Path) -> None:
    """A server whose log is older than what it acknowledged serves reads and refuses writes, and does so after every restart."""
    with serving(server):
        await wrote_and_lost(server, tmp_path)
        for _ in range(2):
            await asyncio.to_thread(server.start)
            async with server.client() as client:
                await refuses_to_write(server, client)
            assert 0 == await asyncio.to_thread(server.terminate)


@pytest.mark.usefixtures("one_try")
async def test_a_log_with_another_history_is_not_written_to(server: Server, tmp_path: Path) -> None:
    """A log that has grown again after a loss, beyond what was acknowledged, is known by its hash; removing the checkpoint accepts it."""
    with serving(server):
        await wrote_and_lost(server, tmp_path)
        checkpoint = server.data / "checkpoint.json"
        checkpoint.rename(tmp_path / "checkpoint.json")
        await asyncio.to_thread(server.start)
        async with server.client() as client:
            await write(client, 10)
        assert 0 == await asyncio.to_thread(server.terminate)
        (tmp_path / "checkpoint.json").rename(checkpoint)
        await asyncio.to_thread(server.start)
        async with server.client() as client:
            await refuses_to_write(server, client)


@pytest.mark.usefixtures("one_try")
async def test_a_log_that_loses_events_under_a_running_server(server: Server, tmp_path: Path) -> None:
    """When Redis comes back with an older log while the server runs, the server notices and writes no more."""
    with serving(server):
        async with server.client() as client:
            await open_bus(client)
            await approve(client, "parcel/approved")
            await write(client, 1)
            # With every append on disk before it is answered, the file is complete at any time.
            copy_log(server.data, tmp_path / "older")
            await write(client, 5)
            server.running.send_signal(signal.SIGSTOP)
            os.kill(server.redis_process_id(), signal.SIGKILL)
            copy_log(tmp_path / "older", server.data)
            server.running.send_signal(signal.SIGCONT)

            async def noticed() -> bool | None:
                try:
                    return "lost" in (await client.get_status()).unwritable_reason or None
                except GavelError:
                    return None

            await until(noticed)
            await refuses_to_write(server, client)
        assert 0 == await asyncio.to_thread(server.terminate), server.log()
