"""Addresses that a server binds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from gavel_server.rpc import transport
from gavel_server.rpc.transport import bind, make_server

from tests.support.http2 import PREFACE

CLOSED_SECONDS_MAX = 60.0


@pytest.mark.parametrize("form", ["unix:{}", "unix://{}"])
async def test_unix_socket_in_use_is_refused(tmp_path: Path, form: str) -> None:
    """A path on which another server listens is refused, and stays that server's; one that a killed server left is taken."""
    listen = form.format(tmp_path / "gavel.sock")
    first = make_server()
    assert listen == bind(first, listen)
    await first.start()
    with pytest.raises(OSError, match=f"cannot listen on {listen}: another server may be running there"):
        bind(make_server(), listen)
    left_over = tmp_path / "left-over.sock"
    (tmp_path / "gavel.sock").rename(left_over)  # when it stops, the first removes its own path only
    await first.stop(None)
    second = make_server()
    assert f"unix:{left_over}" == bind(second, f"unix:{left_over}")
    await second.start()
    await second.stop(None)


@pytest.mark.parametrize("start", [b"", PREFACE[:10], PREFACE], ids=["nothing", "half a preface", "a preface"])
async def test_connections_that_never_begin(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection whose first HTTP/2 frames do not come in time is closed."""
    monkeypatch.setattr(transport, "REQUEST_SECONDS_MAX", 1)
    server = make_server()
    host, _, port = bind(server, "127.0.0.1:0").rpartition(":")
    await server.start()
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(start)
    async with asyncio.timeout(CLOSED_SECONDS_MAX):
        while await reader.read(1000):
            pass
    writer.close()
    await server.stop(None)
