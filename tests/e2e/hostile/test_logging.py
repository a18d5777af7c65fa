"""The log of a real server under refused calls, and while nobody reads it."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
from gavel_server.front.programs import FrontSetting

from tests.e2e.world import GAVEL, STOP_SECONDS_MAX, Server, poll, run_servers
from tests.support.fronts import TRANSPORTS
from tests.support.http2 import Http2Connection

METHODS = ("EventService/GetEvent", "EventService/PublishEvent", "ArbitrationService/SubmitProposal", "ProjectionService/GetProjection")
UNDECODABLE = b"\xff" * 300
CALL_SECONDS_MAX = 30.0


def refuse(channel: grpc.Channel, method: str) -> None:
    """Make a call that is refused."""
    call: Any = channel.unary_unary(f"/gavel.v1.{method}")
    with pytest.raises(grpc.RpcError) as failure:
        call(UNDECODABLE, timeout=CALL_SECONDS_MAX)
    assert grpc.StatusCode.INVALID_ARGUMENT == failure.value.code()


async def send_malformed_headers(address: str) -> None:
    """Make calls whose timeout cannot be read; return once they are refused."""
    connection = await Http2Connection.open_plain(address)
    calls = {connection.start_call(b"/grpc.health.v1.Health/Check", (b"grpc-timeout", b"x")) for _ in range(20)}

    async def refused() -> bool | None:
        return calls == connection.trailers.keys() or None

    await poll(refused)
    await connection.close()


@pytest.mark.long
@pytest.mark.parametrize("front", TRANSPORTS)
def test_server_whose_log_nobody_reads(tmp_path: Path, front: FrontSetting) -> None:
    """A server whose standard error is a full pipe answers, and ends on SIGTERM."""
    unread, descriptor = os.pipe()
    os.set_blocking(descriptor, False)
    while True:
        try:
            os.write(descriptor, b"x" * 4096)
        except BlockingIOError:
            break
    os.set_blocking(descriptor, True)
    command = [GAVEL, "serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path), "--front", front]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=descriptor, text=True) as process:
        os.close(descriptor)
        try:
            assert process.stdout is not None
            address = process.stdout.readline().removeprefix("gavel: ready on ").strip()
            with grpc.insecure_channel(address) as channel:
                for number in range(400):
                    refuse(channel, METHODS[number % len(METHODS)])
                asyncio.run(send_malformed_headers(address))
            process.terminate()
            assert 0 == process.wait(STOP_SECONDS_MAX)
        finally:
            process.kill()
            os.close(unread)


@pytest.mark.parametrize("front", TRANSPORTS)
@pytest.mark.long
def test_log_is_small_beside_refused_requests(tmp_path: Path, front: FrontSetting) -> None:
    """Under refused calls the log takes at most a tenth of the bytes that arrive, and its lines count every call."""
    server = Server(tmp_path, options=["--front", front, "--log-json"])
    with run_servers(server):
        before = len(server.log())
        with grpc.insecure_channel(server.address) as channel:
            for number in range(2_000):
                refuse(channel, METHODS[number % len(METHODS)])
        received_bytes = 2_000 * len(UNDECODABLE)
        assert 0 == server.terminate()
    lines = [json.loads(line) for line in server.log()[before:].splitlines()]
    refusals = [line for line in lines if line["event"] == "call.refused"]
    assert 2_000 == sum(line.get("count", 1) for line in refusals)
    assert sum(len(json.dumps(line)) + 1 for line in refusals) <= received_bytes / 10


def test_files_are_private(tmp_path: Path) -> None:
    """Every file in the data directory is this user's alone, also with an open umask."""
    data = tmp_path / "data"
    before = os.umask(0)
    try:
        server = Server(data, options=["--no-front"], installed=True)
        server.data.mkdir()
        with run_servers(server):
            assert 0 == server.terminate()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode for path in data.rglob("*") if path.is_file() and path.name != "server.log"}
    assert {"gavel.lock", "redis.lock", "redis.log", "checkpoint.json"} <= modes.keys()
    assert dict.fromkeys(modes, 384) == {name: stat.S_IMODE(mode) for name, mode in modes.items()}
