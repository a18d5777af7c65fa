"""Logs that come back without acknowledged events: every server finds out, also one that never had them, and none of them writes.

A log loses events when an older copy of its files is restored, when its last bytes are cut off, and when its files are gone. A failover to
a standby that lags leaves an older copy too.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from gavel_client import GavelClient, GavelError, fact_envelope

from tests.campaigns.faults.worlds import World, new_server
from tests.e2e.world import DEPOT, Server, open_bus, poll, publish_status, replay, wait_until_writable

SUBJECTS: Final = [f"parcel/{number}" for number in range(30)]
LOST: Final = "has lost acknowledged events"

# Takes events from the files of a log, which is stopped; the second path is an older copy of them.
Loss = Callable[[Path, Path], None]


def restore_older_copy(files: Path, copy: Path) -> None:
    """Replace the files by the copy."""
    shutil.rmtree(files)
    shutil.copytree(copy, files)
    _hand_over(files, copy)


def cut_append_only_file(files: Path, copy: Path) -> None:
    """Cut the newest append-only file of Redis in the middle of what was added since the copy."""
    newest = max(files.rglob("*.aof"), key=lambda path: path.stat().st_size)
    before = (copy / newest.relative_to(files)).stat().st_size
    with newest.open("r+b") as file:
        file.truncate((before + newest.stat().st_size) // 2)


def remove_files(files: Path, _: Path) -> None:
    """Remove everything that Redis wrote."""
    shutil.rmtree(files)
    files.mkdir()


LOSSES: Final[dict[str, tuple[Loss, ...]]] = {
    "redis": (restore_older_copy, cut_append_only_file, remove_files),
    "postgresql": (restore_older_copy,),
    "cluster": (),  # its failovers are those of `kinds.kill_log`
}


async def lose(world: World, loss: Loss, directory: Path) -> None:
    """Let the log of a new bus lose events; check all servers; accept the loss. Raises AssertionError."""
    assert world.files is not None
    bus = f"losses-{loss.__name__.replace('_', '-')}"
    copy = directory / f"{bus}.copy"
    async with world.servers[0].client(bus) as client:
        await open_bus(client)
        await publish_status(client, SUBJECTS)
        await world.kill_log()
        await asyncio.to_thread(_copy, world.files, copy)
        await world.restore_log()
        await wait_until_writable(client)
        for subject in SUBJECTS:
            await publish_status(client, [subject])
    await wait_until_current(world.servers, bus)
    await world.kill_log()
    await asyncio.to_thread(loss, world.files, copy)
    await world.restore_log()
    for server in world.servers:
        await refuses(server, bus)
    await asyncio.to_thread(world.servers[0].kill)
    await asyncio.to_thread(world.servers[0].start)
    await refuses(world.servers[0], bus)
    if loss is remove_files:
        return  # there is no bus any more: a new server would open another one, with another incarnation
    newcomer = new_server(world, directory / f"{bus}.server")
    try:
        await asyncio.to_thread(newcomer.start)
        await refuses(newcomer, bus)
        await accept(world.servers, bus)
        async with newcomer.client(bus) as client:
            await wait_until_writable(client)
            await publish_status(client, SUBJECTS)
        result = await asyncio.to_thread(replay, await world.url_of(bus), bus)
        assert 0 == result.returncode, result.stdout + result.stderr
    finally:
        newcomer.kill()


async def wait_until_current(servers: list[Server], bus: str) -> None:
    """Return once all servers have acknowledged the head of a bus."""

    async def is_current() -> bool | None:
        heads = set()
        for server in servers:
            async with server.client(bus) as client:
                heads.add((await client.get_status()).head_sequence_number)
        return len(heads) == 1 or None

    await poll(is_current)


async def refuses(server: Server, bus: str) -> None:
    """Assert that a server reports the loss and takes no write."""

    async def is_regressed() -> bool | None:
        async with server.client(bus, tries_max=1) as client:
            try:
                status = await client.get_status()
            except GavelError as error:
                # A restarted server knows the bus by its checkpoint, although the log has no events any more.
                return True if error.reason == "LOG_REGRESSED" else None
            return LOST in status.unwritable_reason or None

    await poll(is_regressed, lambda: f"{server.data} does not report a loss:\n{server.log()[-2000:]}")
    async with server.client(bus, tries_max=1) as client:
        with pytest.raises(GavelError) as refusal:
            await client.publish_event(fact_envelope(SUBJECTS[0], DEPOT, key="parcel.status", value="ready"))
        assert "LOG_REGRESSED" == refusal.value.reason, refusal.value


async def accept(servers: list[Server], bus: str) -> None:
    """Accept the loss at every server that has acknowledged lost events."""
    for server in servers:
        async with server.client(bus) as client:
            await poll(partial(_is_accepted, client))
            await wait_until_writable(client)


async def _is_accepted(client: GavelClient) -> bool | None:
    """Accept the loss at one server; None if the log ends elsewhere than it said, because the loss was accepted at another one."""
    reason = (await client.get_status()).unwritable_reason
    if LOST in reason:
        try:
            await client.accept_loss(head_sequence_number=int(reason.partition("--at ")[2]), accepted_by="ada", reason="a campaign")
        except GavelError as error:
            if error.reason != "WRONG_STATE":
                raise
            return None
    return True


def _copy(files: Path, copy: Path) -> None:
    shutil.copytree(files, copy)
    _hand_over(copy, files)


def _hand_over(files: Path, example: Path) -> None:
    """Give files to the owner of other files."""
    owner = example.stat()
    for path in (files, *files.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)
    files.chmod(owner.st_mode)
