"""Restarts: a server rebuilds the same state from the same log, and does not write to a log that has lost events."""

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
from gavel_client import GavelClient, GavelError, execution_envelope, fact_envelope
from google.protobuf.message import Message

from tests.e2e.ledger import Ledger
from tests.e2e.runs import run_gavel
from tests.e2e.world import (
    COURIER,
    DEPOT,
    PATIENT_MS,
    POLICY,
    Server,
    approve,
    open_bus,
    poll,
    proposal,
    prove,
    publish_status,
    rule_set,
    run_servers,
    wait_for_events,
)
from tests.support.ports import free_port

BUS = "default"
PROPOSALS = 10_000
BATCH = 250
# Redis's append-only log: a file up to 6.2, a directory from 7.0 on.
APPEND_ONLY = ("appendonly.aof", "appendonlydir")


@pytest.fixture
def server(tmp_path: Path) -> Server:
    """A server with an embedded Redis, not started."""
    return Server(tmp_path / "gavel")


async def test_calls_outlast_a_restart(tmp_path: Path) -> None:
    """Calls to the only server succeed although it restarts meanwhile: the client tries them until their deadline."""
    server = Server(tmp_path / "gavel", listen=f"127.0.0.1:{free_port()}")
    facts = [fact_envelope(f"parcel/{number}", DEPOT, key="parcel.status", value="ready") for number in range(20)]
    with run_servers(server):
        async with GavelClient(server.address) as client:
            await client.publish_event(facts[0])
            assert 0 == await asyncio.to_thread(server.terminate)
            calls = [asyncio.create_task(client.publish_event(fact, timeout_ms=PATIENT_MS)) for fact in facts]
            # Without a server a call with few tries fails; these are still tried.
            async with server.client() as hasty:
                with pytest.raises(GavelError):
                    await hasty.publish_event(facts[0])
            assert not any(call.done() for call in calls)
            await asyncio.to_thread(server.start)
            published = [response.envelope for response in await asyncio.gather(*calls)]
        assert [fact.event_id for fact in facts] == [envelope.event_id for envelope in published]


@pytest.fixture
def rehashing(tmp_path: Path) -> Server:
    """The same, but each start has another hash seed, which reveals state that depends on it."""
    return Server(tmp_path / "gavel", installed=True)


async def restart(server: Server) -> None:
    """Stop a server with SIGTERM and start it again."""
    assert 0 == await asyncio.to_thread(server.terminate), server.log()
    await asyncio.to_thread(server.start)


@pytest.mark.long
async def test_ten_thousand_proposals_and_a_restart(rehashing: Server) -> None:
    """After 10,000 proposals in batches, a restart changes neither head nor chain hash nor projection, and the log replays."""
    server = rehashing
    randomness = random.Random(5)
    outcomes: Counter[int] = Counter()
    with run_servers(server):
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
    """Start an attempt and report `status`."""
    response = await client.begin_execution(approval.event_id, producer=COURIER)
    execution = Execution(decision_id=approval.event_id, execution_id=response.started.execution_id, status=status)
    await client.report_execution(execution_envelope("", COURIER, execution))


async def snapshot(client: GavelClient) -> list[Message]:
    """Return everything that a server shows of its bus."""
    status = await client.get_status(include_projection_digest=True, timeout_ms=PATIENT_MS)
    status.ClearField("consumers")  # they come and go with the processes
    projections = [await client.get_projection(f"parcel/{name}") for name in ("approved", "started", "failed", "partial", "done")]
    return [status, await client.list_pending_decisions(), await client.list_pending_reviews(), await client.list_rule_sets(), *projections]


@pytest.mark.parametrize("gently", [True, False], ids=["sigterm", "sigkill"])
@pytest.mark.long
async def test_restart_changes_nothing(rehashing: Server, gently: bool) -> None:
    """A restart changes nothing that a bus shows: approvals, attempts, retries, reviews, completed work."""
    server = rehashing
    with run_servers(server):
        async with server.client() as client:
            await open_bus(client)
            await approve(client, "parcel/approved")
            approval = await approve(client, "parcel/started")
            await client.begin_execution(approval.event_id, producer=COURIER, lease_ms=600_000)
            await report(client, await approve(client, "parcel/failed"), execution_pb2.EXECUTION_STATUS_FAILED)
            await report(client, await approve(client, "parcel/partial"), execution_pb2.EXECUTION_STATUS_PARTIAL)
            done = await approve(client, "parcel/done")
            await report(client, done, execution_pb2.EXECUTION_STATUS_SUCCESS)
            # Three attempts have ended, with a derived fact each.
            await wait_for_events(client, lambda event: bool(event.fact.derivation_rule_id), count=3)
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
    """Replace Redis's files in `target` by a copy."""
    target.mkdir(exist_ok=True)
    for name in APPEND_ONLY:
        if (origin / name).is_dir():
            shutil.rmtree(target / name, ignore_errors=True)
            shutil.copytree(origin / name, target / name)
        elif (origin / name).exists():
            shutil.copy(origin / name, target / name)


async def write(client: GavelClient, count: int) -> None:
    """Write `count` events."""
    await publish_status(client, [f"parcel/{number}" for number in range(count)])


async def refuses_to_write(server: Server, client: GavelClient) -> None:
    """Assert that writes are refused with the reason, that reads succeed, and that the log does not change."""
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
        with pytest.raises(GavelError) as refusal:
            await write
        assert (grpc.StatusCode.UNAVAILABLE, "LOG_REGRESSED") == (refusal.value.code, refusal.value.reason), refusal.value
    (result,) = (await client.batch_submit_proposals([proposal(fact)])).results
    assert "LOG_REGRESSED" == GavelError.from_status(result.error).reason
    status = await client.get_status()
    assert not status.writable
    assert "has lost acknowledged events" in status.unwritable_reason
    assert list(before.events) == list((await client.list_events(page_size=1000)).envelopes)
    assert (await client.get_projection(fact.subject)).projection.facts
    assert (await client.preflight(proposal(fact))).decision.action_type == proposal(fact).proposal.action_type
    await prove(client)
    assert before == await Ledger.read(server.redis_url, BUS)


async def write_beyond_a_copy(server: Server, tmp_path: Path) -> None:
    """Open the bus, copy its log, and write more events."""
    async with server.client() as client:
        await open_bus(client)
        await approve(client, "parcel/approved")
        await write(client, 1)
    assert 0 == await asyncio.to_thread(server.terminate)
    copy_log(server.data, tmp_path / "older")
    await asyncio.to_thread(server.start)
    async with server.client() as client:
        await write(client, 5)


async def return_to_the_copy(server: Server, tmp_path: Path) -> None:
    """Stop `server`, and replace its log by the copy, without the events after it."""
    assert 0 == await asyncio.to_thread(server.terminate)
    copy_log(tmp_path / "older", server.data)


async def lose_events(server: Server, tmp_path: Path) -> None:
    """Stop `server` and replace its log by a copy without the last events."""
    await write_beyond_a_copy(server, tmp_path)
    await return_to_the_copy(server, tmp_path)


@pytest.mark.long
async def test_a_log_that_lost_events_is_not_written_to(server: Server, tmp_path: Path) -> None:
    """A server whose log lacks acknowledged events serves reads and refuses writes, after every restart too."""
    with run_servers(server):
        await lose_events(server, tmp_path)
        for _ in range(2):
            await asyncio.to_thread(server.start)
            async with server.client(tries_max=1) as client:
                await refuses_to_write(server, client)
            assert 0 == await asyncio.to_thread(server.terminate)


async def accept_loss(client: GavelClient) -> None:
    """Assert that a loss is accepted at the end of the log alone, once; then the log takes writes, replays, and names the loss."""
    head = (await client.get_status()).head_sequence_number
    events = list((await client.list_events(page_size=1000)).envelopes)
    assert len(events) <= head  # a running server may still show the events that are lost
    with pytest.raises(GavelError) as refusal:
        await client.accept_loss(head_sequence_number=len(events) + 1, accepted_by="ada", reason="the disk is gone")
    assert (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE") == (refusal.value.code, refusal.value.reason), refusal.value
    accepted = (await client.accept_loss(head_sequence_number=len(events), accepted_by="ada", reason="the disk is gone")).envelope
    loss = accepted.fact.data_loss_accepted
    assert len(events) + 1 == accepted.sequence_number
    assert (len(events), events[-1].chain_hash) == (loss.head_sequence_number, loss.head_chain_hash)
    assert loss.acknowledged_sequence_number > loss.head_sequence_number
    with pytest.raises(GavelError, match="nothing is lost"):
        await client.accept_loss(head_sequence_number=len(events) + 1, accepted_by="ada", reason="again")
    await write(client, 3)
    assert [loss] == list((await prove(client)).data_losses)


@pytest.mark.long
async def test_an_operator_accepts_a_loss(server: Server, tmp_path: Path) -> None:
    """An accepted loss is in the log; the bus goes on from there, and restarts know that nothing more is lost."""
    with run_servers(server):
        await lose_events(server, tmp_path)
        await asyncio.to_thread(server.start)
        async with server.client(tries_max=1) as client:
            await accept_loss(client)
        assert 0 == await asyncio.to_thread(server.terminate)
        await asyncio.to_thread(server.start)
        async with server.client(tries_max=1) as client:
            await write(client, 1)
        printed = run_gavel(["replay", "--data", str(server.data)], dict(os.environ)).stdout
        assert "ada said ACCEPT the loss of event" in printed, printed


async def says_that_all_events_are_lost(client: GavelClient, last: int) -> None:
    """Assert that reads and writes are refused because the log has lost acknowledged events, which end with `last`."""
    calls: list[Awaitable[object]] = [
        client.get_status(),
        client.list_events(),
        client.get_event(sequence_number=1),
        client.get_projection("parcel/1"),
        client.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")),
        client.deactivate_rule_set(POLICY),
        client.accept_loss(head_sequence_number=0, accepted_by="ada", reason="the disk is gone"),
    ]
    for call in calls:
        with pytest.raises(GavelError, match=rf"has lost acknowledged events: event {last}\b.*the log is empty") as refusal:
            await call
        assert (grpc.StatusCode.UNAVAILABLE, "LOG_REGRESSED") == (refusal.value.code, refusal.value.reason), refusal.value


async def test_an_emptied_log_is_lost_and_not_unknown(server: Server) -> None:
    """A server that knew its buses says, restarted with a Redis that came back empty, that their events are lost. It opens others."""
    buses = ("default", "second")
    last = {}
    with run_servers(server):
        for bus in buses:
            async with server.client(bus) as client:
                await open_bus(client)
                last[bus] = (await client.get_status()).head_sequence_number
        for _ in range(2):
            assert 0 == await asyncio.to_thread(server.terminate)
            for name in APPEND_ONLY:
                shutil.rmtree(server.data / name, ignore_errors=True)
                (server.data / name).unlink(missing_ok=True)
            await asyncio.to_thread(server.start)
            for bus in buses:
                async with server.client(bus, tries_max=1) as client:
                    await says_that_all_events_are_lost(client, last[bus])
        async with server.client("third") as client:
            await open_bus(client)
            assert ["third"] == [one.name for one in (await client.list_buses()).buses]


@pytest.mark.long
async def test_a_log_with_another_history_is_not_written_to(server: Server, tmp_path: Path) -> None:
    """A log that lost events and grew past the checkpoint is detected by its hash; removing the checkpoint accepts it."""
    with run_servers(server):
        await lose_events(server, tmp_path)
        checkpoint = server.data / "checkpoint.json"
        checkpoint.rename(tmp_path / "checkpoint.json")
        await asyncio.to_thread(server.start)
        async with server.client(tries_max=1) as client:
            await write(client, 10)
        assert 0 == await asyncio.to_thread(server.terminate)
        (tmp_path / "checkpoint.json").rename(checkpoint)
        await asyncio.to_thread(server.start)
        async with server.client(tries_max=1) as client:
            await refuses_to_write(server, client)


async def test_a_log_that_loses_events_under_a_running_server(server: Server, tmp_path: Path) -> None:
    """When Redis comes back with an older log, a running server notices and stops writing."""
    with run_servers(server):
        async with server.client(tries_max=1) as client:
            await open_bus(client)
            await approve(client, "parcel/approved")
            await write(client, 1)
            # Redis writes each append to disk before it answers, so the file is complete at any time.
            copy_log(server.data, tmp_path / "older")
            await write(client, 5)
            server.running.send_signal(signal.SIGSTOP)
            os.kill(server.redis_process_id(), signal.SIGKILL)
            copy_log(tmp_path / "older", server.data)
            server.running.send_signal(signal.SIGCONT)

            async def read_warning() -> bool | None:
                try:
                    return "has lost acknowledged events" in (await client.get_status()).unwritable_reason or None
                except GavelError:
                    return None

            await poll(read_warning)
            await refuses_to_write(server, client)
            await accept_loss(client)
        assert 0 == await asyncio.to_thread(server.terminate), server.log()
