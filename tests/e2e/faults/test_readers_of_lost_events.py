"""Readers that remember how far they have come, on a log that has lost what they have read: exports and triggers."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, Producer
from gavel_client import Firing, GavelError, PositionFile, Trigger, TriggerSubscription

from tests.e2e.faults.test_restarts import accept_loss, return_to_the_copy, write, write_beyond_a_copy
from tests.e2e.runs import forker, run_gavel
from tests.e2e.world import Server, poll, run_servers

AGENT = Producer(type=PRODUCER_TYPE_AGENT, id="agent")
# Only a hanging program takes longer.
WAIT_SECONDS_MAX = 60


class Readers:
    """An export that is run from time to time, one that follows, and an agent with triggers; each with a position on disk."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.woken: list[int] = []

    def options(self, name: str) -> list[str]:
        """Return the command of an export."""
        return [
            "export",
            "--server",
            self.server.address,
            "--to",
            str(self.directory / name),
            "--cursor",
            str(self.directory / f"{name}.cursor"),
        ]

    def export(self) -> subprocess.CompletedProcess[str]:
        """Run the export that ends at the head."""
        return run_gavel(self.options("log"), dict(os.environ))

    @contextmanager
    def follow(self) -> Iterator[subprocess.Popen[str]]:
        """Run the export that follows."""
        command: Sequence[str | Path] = [*forker().command(), *self.options("followed"), "--follow", "--interval", "0.1"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as export:
            try:
                yield export
            finally:
                export.kill()

    def lines(self, name: str) -> int:
        """Return how many events an export has."""
        path = self.directory / name
        return path.read_bytes().count(b"\n") if path.exists() else 0

    async def wake_until(self, last: int) -> None:
        """Run the agent until it has been woken by event `last`."""
        async with self.server.client() as client:

            async def wake(firing: Firing) -> None:
                self.woken.extend(event.sequence_number for event in firing.events)
                if self.woken[-1] >= last:
                    subscription.stop()

            position = PositionFile(self.directory / "position")
            subscription = TriggerSubscription(
                client, [Trigger("parcels", subjects=("parcel/*",))], wake, producer=AGENT, position=position
            )
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                await subscription.run()


@pytest.mark.long
async def test_what_was_read_and_is_lost(tmp_path: Path) -> None:
    """No reader takes the events after an accepted loss for those that it has read: each ends and says which event is lost.

    As long as the loss is not accepted, an export to the head says so, and one that follows waits.
    """
    server = Server(tmp_path / "data", listen=f"unix:{tmp_path}/gavel.sock")
    readers = Readers(server, tmp_path)

    async def followed() -> bool | None:
        return readers.lines("followed") == head or None

    with run_servers(server):
        await write_beyond_a_copy(server, tmp_path)
        async with server.client() as client:
            head = (await client.get_status()).head_sequence_number
        assert 0 == (await asyncio.to_thread(readers.export)).returncode
        await readers.wake_until(head)
        async with server.client() as client:  # the agent has written its diagnostics
            head = (await client.get_status()).head_sequence_number
        assert 0 == (await asyncio.to_thread(readers.export)).returncode
        woken = list(readers.woken)
        with readers.follow() as follower:
            await poll(followed)
            await return_to_the_copy(server, tmp_path)
            await asyncio.to_thread(server.start)

            unaccepted = await asyncio.to_thread(readers.export)
            assert (1, True) == (unaccepted.returncode, "has lost acknowledged events" in unaccepted.stderr), unaccepted
            async with server.client(tries_max=1) as client:
                assert follower.poll() is None
                await accept_loss(client)
                await write(client, 20)
                assert head < (await client.get_status()).head_sequence_number
            lost = f"has lost event {head} ("
            assert 1 == await asyncio.to_thread(follower.wait, WAIT_SECONDS_MAX)
            assert follower.stderr is not None
            problem = follower.stderr.read()
            assert lost in problem, problem
            assert "to another file and cursor" in problem, problem
        accepted = await asyncio.to_thread(readers.export)
        assert (1, True) == (accepted.returncode, lost in accepted.stderr), accepted
        with pytest.raises(GavelError, match=f"has lost event {head}") as replaced:
            await readers.wake_until(head)
        assert (grpc.StatusCode.FAILED_PRECONDITION, "HISTORY_REPLACED") == (replaced.value.code, replaced.value.reason)
        assert (head, head, woken) == (readers.lines("log"), readers.lines("followed"), readers.woken)
