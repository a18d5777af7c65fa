"""Server and front as operators run them: either may be killed under load, and no answered decision is lost.

test_hostile_input and test_reflection run on both transports; tests/integration/front compares the transports message by message.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from gavel_client import GavelClient, GavelError

from tests.e2e.ledger import Ledger
from tests.e2e.load import Load
from tests.e2e.world import GAVEL, WAIT_SECONDS_MAX, Server, open_bus, poll, prove, publish_status, run_servers, wait_until_writable
from tests.support.fronts import FRONTS, TRANSPORTS
from tests.support.ports import free_port

BUS = "default"


def alive(process_id: int) -> bool:
    """Return whether a process exists."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


async def wait_for_end(process_id: int) -> None:
    """Return once a process has ended."""

    async def is_gone() -> bool | None:
        return not alive(process_id) or None

    await poll(is_gone, lambda: f"process {process_id} goes on")


@pytest.fixture(params=FRONTS)
def front(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The option that starts the front; the test is skipped if none is built."""
    return "--front", request.param


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, front: tuple[str, str]) -> Server:
    """A server with a front and an embedded Redis, not started; its temporary files are in a directory of the test."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return Server(tmp_path / "gavel", listen=f"127.0.0.1:{free_port()}", options=front)


async def prepared(client: GavelClient) -> Load:
    """Open the bus and return a load on some parcels."""
    await open_bus(client)
    return Load(random.Random(6), await publish_status(client, [f"parcel/{number}" for number in range(40)]))


async def is_consistent(server: Server, client: GavelClient, load: Load) -> None:
    """Assert that answered events are in the log and answered the same again, that the rest can be repeated, and that the log replays."""
    await wait_until_writable(client)
    await load.repeat(client, 20)
    assert {} == load.unanswered
    load.check(await Ledger.read(server.redis_url, BUS))
    await prove(client)


def deaths_of(log: str) -> int:
    """Return how many deaths of fronts a log names. A line stands for itself, or for the `count` of those that it sums up."""
    lines = [line for line in log.splitlines() if "front.died" in line]
    return sum(int(count[1]) if (count := re.search(r"count=(\d+)", line)) else 1 for line in lines)


@pytest.mark.long
async def test_killed_front_under_load(server: Server) -> None:
    """After `kill -9` the front is restarted on its address and the log says so.

    Answered decisions stand, and the others can be repeated by event_id.
    """
    with run_servers(server):
        async with server.client() as client:
            load = await prepared(client)
        for _ in range(3):
            async with server.client() as one, server.client() as other:
                load.start((one, other))
                await load.wait_for_answers(100)
                front = server.front_process_id()
                os.kill(front, signal.SIGKILL)
                await load.stop()
                await wait_for_end(front)
                await wait_until_writable(one)
        assert {grpc.StatusCode.UNAVAILABLE} >= {failure.code for failure in load.failures}, load.failures
        async with server.client() as client:
            await is_consistent(server, client, load)
        assert 0 == await asyncio.to_thread(server.terminate)
        assert 3 <= deaths_of(server.log())


@pytest.mark.long
async def test_killed_server_under_load(server: Server, tmp_path: Path) -> None:
    """After `kill -9` of the server its front ends by itself, the address is free, and no answered decision is lost.

    Nothing is left in the temporary directory.
    """
    with run_servers(server):
        async with server.client() as one, server.client() as other:
            load = await prepared(one)
            for _ in range(2):
                load.start((one, other))
                await load.wait_for_answers(100)
                front = server.front_process_id()
                server.kill()
                await load.stop()
                await wait_for_end(front)
                assert [] == os.listdir(tmp_path / "tmp")
                await asyncio.to_thread(server.start)
                await wait_until_writable(one)
            await is_consistent(server, one, load)
        assert {grpc.StatusCode.UNAVAILABLE} >= {failure.code for failure in load.failures}, load.failures
        assert 0 == await asyncio.to_thread(server.terminate)
        assert [] == os.listdir(tmp_path / "tmp")


async def test_sigterm_to_server_and_front_drains_both(server: Server, tmp_path: Path) -> None:
    """SIGTERM to server and front under load ends each call with a decision or UNAVAILABLE, and leaves no process and no file."""
    with run_servers(server):
        async with server.client() as one, server.client() as other:
            load = await prepared(one)
            load.start((one, other))
            await load.wait_for_answers(100)
            front, redis = server.front_process_id(), server.redis_process_id()
            os.kill(front, signal.SIGTERM)
            assert 0 == await asyncio.to_thread(server.terminate), server.log()
            await load.wait()
        assert {grpc.StatusCode.UNAVAILABLE} >= {failure.code for failure in load.failures}, load.failures
        assert [False, False] == [alive(front), alive(redis)]
        assert [] == os.listdir(tmp_path / "tmp")
        await asyncio.to_thread(server.start)
        async with server.client() as client:
            await is_consistent(server, client, load)


@pytest.mark.long
async def test_hanging_front_under_load(server: Server) -> None:
    """A front that hangs is replaced while the server goes on; answered decisions stand, and the others can be repeated."""
    with run_servers(server):
        async with server.client() as client:
            load = await prepared(client)
            load.start((client,))
            await load.wait_for_answers(100)
            front = server.front_process_id()
            os.kill(front, signal.SIGSTOP)
            await wait_for_end(front)
            await load.stop()
            await is_consistent(server, client, load)
        assert 1 == server.log().count("front.hangs")


@pytest.mark.long
async def test_stop_with_a_hanging_front(server: Server) -> None:
    """A front that hangs is killed when the server stops, and the server ends with status 0."""
    with run_servers(server):
        front = server.front_process_id()
        os.kill(front, signal.SIGSTOP)
        assert 0 == await asyncio.to_thread(server.terminate), server.log()
        assert not alive(front)


async def test_restarts_are_counted(tmp_path: Path, redis_url: str, front: tuple[str, str]) -> None:
    """The number of restarts is a metric, which the server itself serves at `/metrics`."""
    port = free_port()
    server = Server(tmp_path / "gavel", redis_url=redis_url, options=[*front, "--metrics", f"127.0.0.1:{port}"])

    def restarts() -> float:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_SECONDS_MAX) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith("gavel_front_restarts_total "))

    with run_servers(server):
        assert 0 == await asyncio.to_thread(restarts)
        os.kill(server.front_process_id(), signal.SIGKILL)

        async def count_restarts() -> bool | None:
            return await asyncio.to_thread(restarts) == 1 or None

        await poll(count_restarts)
        async with server.client() as client:
            await wait_until_writable(client)


def refusal(data: Path, redis_url: str, *arguments: str) -> str:
    """Return the last line that `gavel serve` writes when it does not start."""
    command = [GAVEL, "serve", "--data", str(data), "--redis", redis_url, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX, check=False)
    assert (1, "") == (done.returncode, done.stdout), done.stderr
    return done.stderr.splitlines()[-1]


def test_an_address_in_use(tmp_path: Path, redis_url: str) -> None:
    """An address that cannot be bound is the same error on both transports."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        messages = {refusal(tmp_path, redis_url, "--listen", address, "--front", front) for front in TRANSPORTS}
    assert {
        f"gavel: cannot listen on {address}: another server may be running there, or this machine does not have the address"
    } == messages


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        (["--front", "python"], 2, "(--front, GAVEL_FRONT, or front in the file): Input should be 'auto', 'native' or 'none'"),
        (["--front", "native", "--no-front"], 2, "gavel: --no-front and --front native contradict each other; give one of them"),
    ],
)
def test_invalid_fronts(tmp_path: Path, options: list[str], status: int, sentence: str) -> None:
    """An unknown front, or contradicting options, are refused before anything starts."""
    command = [GAVEL, "serve", "--data", str(tmp_path / "data"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX, check=False)
    assert (status, "") == (done.returncode, done.stdout), done.stderr
    assert sentence in done.stderr
    assert not (tmp_path / "data").exists()


async def test_log_names_the_transport(tmp_path: Path, redis_url: str, front: tuple[str, str]) -> None:
    """`server.ready` names the transport."""
    server = Server(tmp_path / "gavel", redis_url=redis_url, options=front)
    with run_servers(server):

        async def names_it() -> bool | None:
            return f"front={front[1]}" in server.log() or None

        await poll(names_it, server.log)


async def test_no_log_line_of_a_front_has_payloads(tmp_path: Path, redis_url: str, bus: str, front: tuple[str, str]) -> None:
    """Standard error holds nothing that callers sent through a front."""
    server = Server(tmp_path / "gavel", redis_url=redis_url, options=[*front, "--log-level", "debug"])
    with run_servers(server):
        async with server.client(bus) as client:
            await open_bus(client)
            await publish_status(client, ["parcel/hush-hush"])
            with pytest.raises(GavelError):
                await client.submit_proposal((await publish_status(client, ["parcel/hush-hush"]))["parcel/hush-hush"])
            with pytest.raises(GavelError):
                await client.get_event(event_id="hush-hush")
        async with grpc.aio.insecure_channel(server.address) as channel:
            for method in ("ArbitrationService/SubmitProposal", "EventService/PublishEvent", "No/Hush"):
                call: Any = channel.unary_unary(f"/gavel.v1.{method}")
                with pytest.raises(grpc.aio.AioRpcError):
                    await call(b"hush-hush")
        assert 0 == await asyncio.to_thread(server.terminate)
    assert "hush" not in server.log()
