"""A Redis whose settings are changed at run time so that it may lose acknowledged events: writes are refused, as at the start."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient, GavelError, fact_envelope

from tests.e2e.world import DEPOT, Server, poll, run_servers, wait_until_writable
from tests.support.fronts import ANY_FRONT


def _fact() -> Envelope:
    return fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")


@asynccontextmanager
async def _admin(server: Server) -> AsyncIterator[Any]:
    async with redis.asyncio.Redis.from_url(server.redis_url, protocol=2) as admin:
        yield admin


async def _refusal(client: GavelClient) -> str | None:
    """Try to write; return the error's text, None if the event was accepted."""
    try:
        await client.publish_event(_fact(), timeout_ms=500)
    except GavelError as error:
        return error.message
    return None


@pytest.mark.parametrize(
    ("setting", "volatile", "durable"),
    [("appendfsync", "everysec", "always"), ("appendonly", "no", "yes"), ("maxmemory-policy", "allkeys-lru", "noeviction")],
)
async def test_changed_setting_refuses_writes(tmp_path: Path, setting: str, volatile: str, durable: str) -> None:
    """A setting that may lose events is noticed while the server runs: logged, shown, and writes are refused until it is changed back."""
    server = Server(tmp_path / "gavel", options=["--front", ANY_FRONT])
    with run_servers(server):
        async with server.client() as client, _admin(server) as admin:
            await client.publish_event(_fact())
            await admin.config_set(setting, volatile)

            async def refused() -> bool | None:
                message = await _refusal(client)
                return True if message and "may lose acknowledged events" in message else None

            await poll(refused)
            status = await client.get_status()
            assert (False, False) == (status.writable, status.durable)
            assert setting in status.unwritable_reason
            assert "log.volatile" in server.log()
            await admin.config_set(setting, durable)
            await wait_until_writable(client)
            await client.publish_event(_fact())


async def test_accepted_volatile_redis_stays_accepted(tmp_path: Path) -> None:
    """With --accept-volatile a changed setting is logged and shown, and writes go on."""
    server = Server(tmp_path / "gavel", options=["--front", ANY_FRONT, "--accept-volatile"])
    with run_servers(server):
        async with server.client() as client, _admin(server) as admin:
            await admin.config_set("appendfsync", "no")

            async def logged() -> bool | None:
                return True if "log.volatile" in server.log() else None

            await poll(logged)
            await client.publish_event(_fact())
            assert not (await client.get_status()).durable
