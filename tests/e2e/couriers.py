"""Executor processes with the handlers of `handlers/`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gavel_client import GavelClient

from tests.e2e import executor_process
from tests.e2e.runs import Run
from tests.e2e.world import STOP_SECONDS_MAX, Server, poll

HANDLERS = Path(__file__).with_name("handlers")
LEASE_MS = 1_500
MIN_IDLE_MS = 300
SCAN_INTERVAL_MS = 200


@contextmanager
def run_executor(
    handlers: str, server: Server, redis_url: str, bus: str, name: str, log: Path, *, lease_ms: int = LEASE_MS
) -> Iterator[Run]:
    """Run an executor with a module of handlers. If it still runs at the end, stop it; its exit status must be 0."""
    arguments = [HANDLERS / f"{handlers}.py", server.address, redis_url, bus, name, lease_ms, MIN_IDLE_MS, SCAN_INTERVAL_MS]
    with open(os.devnull, "rb") as nothing, log.open("ab") as errors:
        process = Run([*map(str, arguments)], os.environ, (nothing, errors, errors), executor_process.__name__)
    try:
        yield process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert 0 == process.wait(STOP_SECONDS_MAX), log.read_text()
    finally:
        process.kill()
        process.wait(STOP_SECONDS_MAX)


async def wait_until_idle(client: GavelClient) -> None:
    """Return once no decision is pending and the work queues are empty."""

    async def is_idle() -> bool | None:
        status = await client.get_status()
        entries = sum(consumer.lag + consumer.pending for consumer in status.consumers)
        decisions = (await client.list_pending_decisions()).decisions
        return True if not entries and not decisions else None

    await poll(is_idle)
