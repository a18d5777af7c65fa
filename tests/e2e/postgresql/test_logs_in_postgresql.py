"""Servers whose logs are in a PostgreSQL: the whole path of decisions, and every command that opens a log by its URL."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from gavel.v1 import decision_pb2

from tests.e2e.couriers import run_executor, wait_until_idle
from tests.e2e.ledger import Ledger
from tests.e2e.load import Load
from tests.e2e.runs import run_gavel
from tests.e2e.world import (
    Server,
    approve,
    open_bus,
    prove,
    publish_status,
    replay,
    run_servers,
    wait_for_events,
    wait_for_same_head,
)
from tests.support.postgresql.cluster import Cluster

PARCELS = [f"parcel/{number}" for number in range(20)]


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_decisions_are_carried_out_and_proved(postgresql_server: Cluster, bus: str, tmp_path: Path) -> None:
    """A decision made by one server is carried out by an executor of another one, its facts are derived, and the log is proved."""
    url = postgresql_server.url
    first, second = (Server(tmp_path / name, redis_url=url, options=["--no-front"]) for name in ("first", "second"))
    with run_servers(first, second):
        async with first.client(bus) as one, second.client(bus) as other:
            await open_bus(one)
            approval = await approve(one, "parcel/1")
            assert decision_pb2.OUTCOME_APPROVED == approval.decision.outcome
            with run_executor("succeeds", second, "", bus, "courier-1", tmp_path / "executor.log"):
                (fact,) = await wait_for_events(other, lambda event: event.fact.decision_id == approval.event_id)
                await wait_until_idle(other)
            assert "SUCCESS" == fact.fact.value.string_value
            load = Load(random.Random(1), await publish_status(one, PARCELS))
            load.start((one, other))
            await load.wait_for_answers(30)
            await load.stop()
            assert [] == load.failures
            statuses = await wait_for_same_head((one, other))
            assert statuses[0].projection_digest == statuses[1].projection_digest
            assert statuses[0].durable
            await prove(other)
        ledger = await Ledger.read(url, bus)
        load.check(ledger)
        verdict = replay(postgresql_server.url_of("gavel_reader"), bus)
        assert (0, "") == (verdict.returncode, verdict.stderr)
    assert "[error" not in first.log() + second.log()
    restarted = Server(tmp_path / "first", redis_url=url)
    with run_servers(restarted):
        async with restarted.client(bus) as client:
            assert ledger.head == ((await client.get_status()).head_sequence_number, (await client.get_status()).head_chain_hash)


@pytest.mark.long
async def test_commands_that_open_a_log(postgresql_server: Cluster, bus: str, tmp_path: Path) -> None:
    """A log is archived, trimmed, backed up and restored to another database, where it has the same events and is proved."""
    url = postgresql_server.url
    server = Server(tmp_path / "server", redis_url=url, options=["--no-front"])
    with run_servers(server):
        async with server.client(bus) as client:
            await open_bus(client)
            load = Load(random.Random(2), await publish_status(client, PARCELS))
            load.start((client,))
            await load.wait_for_answers(2500)
            await load.stop()
    ledger = await Ledger.read(url, bus)
    environment = {"GAVEL_LOG": url, "PATH": "/usr/bin"}
    archive = tmp_path / "archive"
    commands: list[list[str | Path]] = [
        ["archive", "--to", archive, "--trim"],
        ["backup", "--to", archive],
        ["replay", "--archive", archive],
    ]
    for arguments in commands:
        done = run_gavel([*arguments, "--bus", bus], environment)
        assert 0 == done.returncode, done.stderr
    assert (bus, True) in postgresql_server.execute("SELECT bus, first_sequence_number > 1 FROM gavel.heads")
    database = f"restored_{bus.replace('-', '_')}"
    await asyncio.to_thread(postgresql_server.install, database)
    target = postgresql_server.url_of("gavel_server", database)
    done = run_gavel(["restore", "--from", archive, "--log", target, "--bus", bus, "--prove"], environment)
    assert 0 == done.returncode, done.stderr
    assert ledger.events == (await Ledger.read(target, bus)).events
