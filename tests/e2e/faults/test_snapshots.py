"""Snapshots under real kills: a server that is killed at any moment starts from a whole snapshot, with the state that the log gives."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from gavel_client import GavelError

from tests.e2e.runs import run_gavel
from tests.e2e.world import Server, open_bus, poll, proposal, publish_status, run_servers, wait_for_same_head

KILLS = 3
EVERY = 20
# A child may end before it is caught.
CATCHES_MAX = 20
CATCH_SECONDS = 5.0


@pytest.mark.long
async def test_kills_leave_whole_snapshots(redis_url: str, bus: str, tmp_path: Path) -> None:
    """After kills under load, some of them during the writing of a snapshot, each start reads a snapshot, and the state is that of a server
    that reads the whole log. Nothing half is left, and the log is proved. A replay warns of a damaged snapshot on standard error.
    """
    server = Server(tmp_path / "first", redis_url=redis_url, options=["--no-front", "--snapshot-every", str(EVERY)])
    plain = Server(tmp_path / "second", redis_url=redis_url, options=["--no-front", "--snapshot-every", "0"])
    directory = server.data / "snapshots" / bus
    randomness = random.Random(bus)
    with run_servers(server, plain):
        async with plain.client(bus) as client:
            await open_bus(client)
            for round_number in range(KILLS):
                before = {path.name for path in directory.glob("*.snapshot")}
                async with server.client(bus, tries_max=1) as killed:
                    working = asyncio.create_task(_work(killed, f"parcel/{round_number}"))

                    async def grown(before: set[str] = before) -> bool | None:
                        return {path.name for path in directory.glob("*.snapshot")} != before or None

                    await poll(grown)
                    await asyncio.sleep(randomness.random() / 10)
                    server.kill()
                    await asyncio.wait([working])
                log_bytes = len(server.log())
                server.start()
                async with server.client(bus) as again:
                    statuses = await wait_for_same_head([client, again])
                assert statuses[0].projection_digest == statuses[1].projection_digest
                assert not statuses[0].HasField("newest_snapshot")
                assert statuses[1].newest_snapshot.sequence_number > 0
                assert f"snapshot.read                  bus={bus}" in server.log()[log_bytes:]
            async with server.client(bus) as last:
                head = (await last.get_status()).head_sequence_number
        assert 0 == server.terminate()
    assert "snapshot.refused" not in server.log()
    assert [] == list(directory.glob("*.new"))
    # A clean stop writes a snapshot unless fewer than EVERY events are new.
    assert head - max(int(path.stem) for path in directory.glob("*.snapshot")) < EVERY
    replayed = run_gavel(["replay", "--redis", redis_url, "--bus", bus, "--snapshots", server.data], {})
    assert 0 == replayed.returncode, replayed
    count = len(list(directory.iterdir()))
    assert replayed.stdout.endswith(f"recomputed equal, {count} snapshot{'s' if count > 1 else ''} confirmed\n"), replayed
    _damage(min(directory.glob("*.snapshot")))
    warned = run_gavel(["replay", "--redis", redis_url, "--bus", bus, "--snapshots", server.data, "--json"], {})
    verdict = json.loads(warned.stdout)["verdict"]
    assert (True, str(count - 1)) == (verdict["proved"], verdict["snapshots"])
    assert "snapshot.refused" in warned.stderr


def _damage(snapshot: Path) -> None:
    """Cut the end of a snapshot off."""
    os.truncate(snapshot, snapshot.stat().st_size - 1)


async def test_a_stop_while_a_snapshot_is_written(redis_url: str, bus: str, tmp_path: Path) -> None:
    """A clean stop leaves a snapshot after the last event, also if it gives up another one that a child is writing."""
    server = Server(tmp_path / "server", redis_url=redis_url, options=["--no-front", "--snapshot-every", str(EVERY)])
    directory = server.data / "snapshots" / bus
    with run_servers(server):
        async with server.client(bus) as client:
            await open_bus(client)
            stopped: int | None = None
            for round_number in range(CATCHES_MAX):
                catching = asyncio.create_task(asyncio.to_thread(_stop_child, server.running.pid, time.monotonic() + CATCH_SECONDS))
                await publish_status(client, [f"parcel/{round_number}-{part}" for part in range(EVERY)])
                if (stopped := await catching) is not None:
                    break
            assert stopped is not None
            head = (await client.get_status()).head_sequence_number
        assert 0 == server.terminate()
    assert head == max(int(path.stem) for path in directory.glob("*.snapshot"))


def _stop_child(server: int, deadline: float) -> int | None:
    """Stop the child of a server that writes a snapshot; return its process id, or None if none was seen in time."""
    children = Path(f"/proc/{server}/task/{server}/children")
    before = set(children.read_text().split())
    while time.monotonic() < deadline:
        for child in set(children.read_text().split()) - before:
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGSTOP)
                if Path(f"/proc/{child}/stat").read_text().rpartition(") ")[2].startswith("T"):
                    return int(child)
    return None


async def _work(client: object, subject: str) -> None:
    """Publish and propose until the server is gone."""
    for number in range(100_000):
        try:
            facts = await publish_status(client, [f"{subject}-{number}-{part}" for part in range(5)])  # type: ignore[arg-type]
            for fact in facts.values():
                await client.submit_proposal(proposal(fact))  # type: ignore[attr-defined]
        except GavelError:
            return
