"""Supervision of the embedded Redis: it is restarted whenever it dies."""

from __future__ import annotations

import asyncio
import shutil
from typing import Final

import structlog

from gavel_server.log.redis.embedded import EmbeddedRedis

RESTART_PAUSE_SECONDS: Final = 1.0

_LOG: Final = structlog.get_logger("gavel.server")


async def restart_forever(redis: EmbeddedRedis) -> None:
    """Restart Redis when it dies, until cancelled. Its append-only file has every acknowledged event."""
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        returncode = await redis.wait()
        # A full disk is the likeliest reason, and then Redis cannot log it.
        free_bytes = shutil.disk_usage(redis.data_directory).free
        _LOG.error("redis.died", returncode=returncode, log=str(redis.log_path), disk_free_bytes=free_bytes)
        if loop.time() - began < RESTART_PAUSE_SECONDS:
            await asyncio.sleep(RESTART_PAUSE_SECONDS)
        try:
            await redis.ensure_running()
        except Exception:  # noqa: BLE001  # try again; meanwhile writes are refused with the reason
            _LOG.exception("redis.restart_failed")
            await asyncio.sleep(RESTART_PAUSE_SECONDS)
