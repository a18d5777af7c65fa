"""The process of a server: its store, its log lines, and the signals that stop it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final

import structlog
import uvloop
from gavel_client.supervision import Supervisor

from gavel_server.bootstrap.server import Server
from gavel_server.config import Settings
from gavel_server.log.redis.embedded import EmbeddedRedis
from gavel_server.log.redis.supervision import restart_forever
from gavel_server.log.stores import LogStore, open_store
from gavel_server.process import logging
from gavel_server.process.allocator import return_large_blocks
from gavel_server.process.background import new_supervisor
from gavel_server.process.signals import stop_signals
from gavel_server.rpc.wakeups import read_all_wakeups

_LOG: Final = structlog.get_logger("gavel.server")


def run(settings: Settings, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP. `on_ready` is called with the address once the server answers. Raises ServeError, LogError."""
    return_large_blocks()
    uvloop.run(_run(settings, on_ready))


async def _run(settings: Settings, on_ready: Callable[[str], None]) -> None:
    read_all_wakeups()
    await serve(settings, on_ready=on_ready)


async def serve(settings: Settings, *, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP, on the running loop."""
    log_lines = logging.Logging(level=settings.log_level, as_json=settings.log_json)
    log_lines.start()
    try:
        await _serve_until_signal(settings, on_ready)
    finally:
        log_lines.close()


async def _serve_until_signal(settings: Settings, on_ready: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    starting = asyncio.current_task()

    def end() -> None:
        nonlocal starting
        stop.set()
        if starting is not None:
            # The server may be reading a long log. It has no callers yet, so there is nothing to drain.
            starting.cancel()
            starting = None

    def started(address: str) -> None:
        nonlocal starting
        starting = None
        on_ready(address)

    for number in stop_signals():
        loop.add_signal_handler(number, end)
    if settings.identity.is_watched and signal.SIGHUP in stop_signals():
        # The files are read once the store has loaded, which takes minutes if the log is long. Until then there is nothing to load again.
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
    try:
        supervisor = new_supervisor()
        async with _store_url(settings, supervisor) as url, _store(url, settings) as store:
            await Server(settings, url, store, supervisor).serve(stop, started)
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        _LOG.info("server.stopped", note="before it was ready")


@contextlib.asynccontextmanager
async def _store_url(settings: Settings, supervisor: Supervisor) -> AsyncIterator[str]:
    """Yield the URL of the store of logs; start, supervise and stop the embedded Redis."""
    if settings.store is not None:
        yield settings.store
        return
    async with EmbeddedRedis(settings.data, memory_bytes_max=settings.redis_memory_bytes_max) as redis:
        restarts = supervisor.start("embedded Redis", partial(restart_forever, redis), problem=redis.problem)
        try:
            yield redis.url
        finally:
            restarts.cancel()
            await asyncio.gather(restarts, return_exceptions=True)


@contextlib.asynccontextmanager
async def _store(url: str, settings: Settings) -> AsyncIterator[LogStore]:
    store = open_store(url, accept_volatile=settings.accept_volatile)
    try:
        yield store
    finally:
        await store.close()
