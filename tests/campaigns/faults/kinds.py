"""The faults: each begins under load, lasts a while, and ends. Afterwards every process runs again."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import redis.asyncio

from tests.campaigns.faults.worlds import World
from tests.e2e.world import Server
from tests.support.redis.tcp_proxy import Link

HOUR_MS: Final = 3_600_000
# A step of all clocks that servers follow at once (docs/operating.md#clocks).
SMALL_STEP_MS: Final = 3_000
SYNC_DELAY_MS: Final = 300
# What a process under memory pressure may still take.
MEMORY_BYTES: Final = 4 << 20
_NOTHING_LEFT: Final = "1mb"

# Lets a world suffer for about so many seconds.
Fault = Callable[[World, random.Random, float], Awaitable[None]]


async def kill_server(world: World, randomness: random.Random, seconds: float) -> None:
    """Kill one server and start it again."""
    server = randomness.choice(world.servers)
    await asyncio.to_thread(server.kill)
    await asyncio.sleep(seconds / 4)
    await asyncio.to_thread(server.start)


async def kill_child(world: World, randomness: random.Random, seconds: float) -> None:
    """Kill one child of a server: its front, its index worker, its compiler, or the writer of a snapshot."""
    server = randomness.choice(world.servers)
    children = _children(server.running.pid)
    if children:
        with suppress(ProcessLookupError):
            os.kill(randomness.choice(children), signal.SIGKILL)
    await asyncio.sleep(seconds / 2)


async def kill_log(world: World, _: random.Random, seconds: float) -> None:
    """Kill the log's process and let it come back, or let its replica take over."""
    await world.kill_log()
    await asyncio.sleep(seconds / 2)
    await world.restore_log()


async def kill_all(world: World, randomness: random.Random, _: float) -> None:
    """Kill the log and all servers in any order, and start all again."""
    kills: list[Callable[[], Awaitable[Any]]] = [world.kill_log]
    kills += [lambda server=server: asyncio.to_thread(server.kill) for server in world.servers]  # type: ignore[misc]
    randomness.shuffle(kills)
    for kill in kills:
        await kill()
    await world.restore_log()
    await asyncio.gather(*(asyncio.to_thread(server.start) for server in world.servers))


async def stop_server(world: World, randomness: random.Random, seconds: float) -> None:
    """Stop a server (SIGSTOP) and continue it."""
    server = randomness.choice(world.servers)
    server.running.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        server.running.send_signal(signal.SIGCONT)


async def stop_log(world: World, _: random.Random, seconds: float) -> None:
    """Stop the log's processes (SIGSTOP) and continue them. In a cluster a replica may take over meanwhile."""
    world.signal_log(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        world.signal_log(signal.SIGCONT)
    await world.restore_log()


async def cut_link(world: World, _: random.Random, seconds: float) -> None:
    """Close all connections to the log, and every new one."""
    await _change_link(world, Link.CUT, seconds)


async def silence_link(world: World, _: random.Random, seconds: float) -> None:
    """Drop everything that is sent to the log and by it."""
    await _change_link(world, Link.SILENT, seconds)


async def delay_link(world: World, _: random.Random, seconds: float) -> None:
    """Forward everything that is sent to the log and by it after a pause."""
    await _change_link(world, Link.DELAY, seconds)


async def slow_log_disk(world: World, _: random.Random, seconds: float) -> None:
    """Let the log's disk take long for each sync."""
    assert world.log_machine is not None
    with world.log_machine.slow_disk(SYNC_DELAY_MS):
        await asyncio.sleep(seconds)


async def fill_log_disk(world: World, _: random.Random, seconds: float) -> None:
    """Let the log's disk be full, which ends the log's process, and free it again."""
    assert world.log_machine is not None
    with world.log_machine.full_disk():
        await asyncio.sleep(seconds)
    await world.kill_log()
    await world.restore_log()


async def fill_server_disk(world: World, randomness: random.Random, seconds: float) -> None:
    """Let a server's disk be full and slow: its checkpoint, snapshots, index and messages cannot be written."""
    with randomness.choice(world.machines).full_disk():
        await asyncio.sleep(seconds)


async def step_server_clock(world: World, randomness: random.Random, seconds: float) -> None:
    """Set the wall clock of a server forward or back by an hour, and right again."""
    with randomness.choice(world.machines).clock_ahead(randomness.choice((-HOUR_MS, HOUR_MS))):
        await asyncio.sleep(seconds)


async def step_log_clock(world: World, randomness: random.Random, seconds: float) -> None:
    """Set the wall clock of the log forward or back by an hour, and right again."""
    assert world.log_machine is not None
    with world.log_machine.clock_ahead(randomness.choice((-HOUR_MS, HOUR_MS))):
        await asyncio.sleep(seconds)


async def step_all_clocks(world: World, randomness: random.Random, seconds: float) -> None:
    """Set all wall clocks forward or back by a little, and right again."""
    assert world.log_machine is not None
    step_ms = randomness.choice((-SMALL_STEP_MS, SMALL_STEP_MS))
    first, second = world.machines
    with world.log_machine.clock_ahead(step_ms), first.clock_ahead(step_ms), second.clock_ahead(step_ms):
        await asyncio.sleep(seconds)


async def exhaust_server_memory(world: World, randomness: random.Random, seconds: float) -> None:
    """Leave a server almost no memory. It may end; then it is started again."""
    server = randomness.choice(world.servers)
    with _scarce_memory(server.running.pid):
        await asyncio.sleep(seconds)
    await _ensure_running(server)


async def exhaust_log_memory(world: World, _: random.Random, seconds: float) -> None:
    """Leave the log no memory: Redis by its maxmemory, PostgreSQL by an allocator that refuses."""
    urls = [await world.url_of(bus) for bus in world.buses("any")]
    if urls[0].startswith("redis"):
        async with _full_memory(urls):
            await asyncio.sleep(seconds)
    else:
        assert world.log_machine is not None
        with world.log_machine.no_memory():
            await asyncio.sleep(seconds)
        await world.restore_log()


FAULTS: Final[tuple[Fault, ...]] = (
    kill_server,
    kill_log,
    stop_server,
    kill_child,
    stop_log,
    kill_all,
    cut_link,
    slow_log_disk,
    silence_link,
    step_server_clock,
    delay_link,
    fill_log_disk,
    step_log_clock,
    exhaust_log_memory,
    fill_server_disk,
    exhaust_server_memory,
    step_all_clocks,
)
# kill -9 of what may die alone or together.
KILLS: Final[tuple[Fault, ...]] = (kill_server, kill_log, kill_child, kill_all)
_NEEDS_LOG_MACHINE: Final = (slow_log_disk, fill_log_disk, step_log_clock, step_all_clocks)
_NEEDS_PROXY: Final = (cut_link, silence_link, delay_link)


def faults_of(world: World, faults: Iterable[Fault]) -> list[Fault]:
    """Return those of the faults that can be injected in a world."""
    return [
        fault
        for fault in faults
        if not (fault in _NEEDS_LOG_MACHINE and world.log_machine is None) and not (fault in _NEEDS_PROXY and world.proxy is None)
    ]


def _children(process_id: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()]


async def _change_link(world: World, link: Link, seconds: float) -> None:
    assert world.proxy is not None
    world.proxy.set_link(link)
    try:
        await asyncio.sleep(seconds)
    finally:
        world.proxy.set_link(Link.PASS)


async def _ensure_running(server: Server) -> None:
    if server.running.poll() is not None:
        await asyncio.to_thread(server.kill)  # closes what it left
        await asyncio.to_thread(server.start)


@asynccontextmanager
async def _full_memory(urls: Iterable[str]) -> AsyncIterator[None]:
    for url in urls:
        await _configure(url, "maxmemory", _NOTHING_LEFT)
    try:
        yield
    finally:
        for url in urls:
            await _configure(url, "maxmemory", "0")


async def _configure(url: str, setting: str, value: str) -> None:
    async with redis.asyncio.Redis.from_url(url, protocol=2) as connection:
        await connection.config_set(setting, value)


@contextmanager
def _scarce_memory(process_id: int) -> Iterator[None]:
    """Limit the address space of a process to little more than it has."""
    pages = int(Path(f"/proc/{process_id}/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + MEMORY_BYTES
    resource.prlimit(process_id, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(process_id, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
