"""The server and its front as operators have them: either may be killed under load, and nothing that was answered is lost.

That calls fare alike with and without a front is tried by test_hostile_input and test_reflection, on both, and message by message
by tests/integration/front.
"""

from __future__ import annotations

import asyncio
import os
import random
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
from tests.e2e.world import GAVEL, WAIT_SECONDS_MAX, Server, open_bus, prove, publish_status, serving, until, writable
from tests.fronts import FRONTS
from tests.ports import free_port

BUS = "default"


def alive(process_id: int) -> bool:
    """Return whether there is such a process."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


async def gone(process_id: int) -> None:
    """Return once there is no such process."""

    async def is_gone() -> bool | None:
        return not alive(process_id) or None

    await until(is_gone, lambda: f"process {process_id} goes on")


@pytest.fixture(params=FRONTS)
def front(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The option for each front that is there."""
    return "--front", request.param


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, front: tuple[str, str]) -> Server:
    """A server with a front and an embedded Redis, not started; its temporary files are in a directory of the test's."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return Server(tmp_path / "gavel", listen=f"127.0.0.1:{free_port()}", options=front)


async def prepared(client: GavelClient) -> Load:
    """Open the bus and return a load on some parcels."""
    await open_bus(client)
    return Load(random.Random(6), await publish_status(client, [f"parcel/{number}" for number in range(40)]))


async def is_consistent(server: Server, client: GavelClient, load: Load) -> None:
    """Assert that everything heard is in the log and comes back the same, that the rest can be had, and that the log replays."""
    await writable(client)
    await load.repeat(client, 20)
    assert {} == load.unheard
    load.check(await Ledger.read(server.redis_url, BUS))
    await prove(client)


async def test_the_front_dies_under_load(server: Server) -> None:
    """After `kill -9` of the front it comes back on the same address; what was answered stands, and the rest can be had by its event_id."""
    with serving(server):
        async with server.client() as client:
            load = await prepared(client)
        for _ in range(3):
            async with server.client() as one, server.client() as other:
                load.start((one, other))
                await load.hears(100)
                front = server.front_process_id()
                os.kill(front, signal.SIGKILL)
                await load.stop()
                await gone(front)
                await writable(one)
        assert {grpc.StatusCode.UNAVAILABLE} >= {failure.code for failure in load.failures}, load.failures
        async with server.client() as client:
            await is_consistent(server, client, load)
        assert 3 == server.log().count("front.died")


async def test_the_server_dies_under_load(server: Server, tmp_path: Path) -> None:
    """After `kill -9` of the server its front ends by itself, the address is free for the next server, and nothing answered is lost.

    It leaves nothing in the temporary directory.
    """
    with serving(server):
        async with server.client() as one, server.client() as other:
            load = await prepared(one)
            for _ in range(2):
                load.start((one, other))
                await load.hears(100)
                front = server.front_process_id()
                server.kill()
                await load.stop()
                await gone(front)
                assert [] == os.listdir(tmp_path / "tmp")
                await asyncio.to_thread(server.start)
                await writable(one)
            await is_consistent(server, one, load)
        assert {grpc.StatusCode.UNAVAILABLE} >= {failure.code for failure in load.failures}, load.failures
        assert 0 == await asyncio.to_thread(server.terminate)
        assert [] == os.listdir(tmp_path / "tmp")


async def test_sigterm_to_all_drains_all(server: Server, tmp_path: Path) -> None:
    """Under load, SIGTERM to server and front ends every call with a decision or UNAVAILABLE, and leaves no process and no file."""
    with serving(server):
        async with server.client() as one, server.client() as other:
            load = await prepared(one)
            load.start((one, other))
            await load.hears(100)
            front, redis = server.front_process_id(), server.redis_process_id()
            os.kill(front, signal.SIGTERM)
            assert 0 == await asyncio.to_thread(server.terminate), server.log()
            await load.ended()
        assert {grpc.StatusCode.UNAVAILABLE} >= {failure.code for failure in load.failures}, load.failures
        assert [False, False] == [alive(front), alive(redis)]
        assert [] == os.listdir(tmp_path / "tmp")
        await asyncio.to_thread(server.start)
        async with server.client() as client:
            await is_consistent(server, client, load)


async def test_a_front_that_hangs_under_load(server: Server) -> None:
    """A front that stands still is found out and replaced while the server goes on; what was answered stands, the rest can be had."""
    with serving(server):
        async with server.client() as client:
            load = await prepared(client)
            load.start((client,))
            await load.hears(100)
            front = server.front_process_id()
            os.kill(front, signal.SIGSTOP)
            await gone(front)
            await load.stop()
            await is_consistent(server, client, load)
        assert 1 == server.log().count("front.hangs")


async def test_stopping_with_a_front_that_hangs(server: Server) -> None:
    """A front that stands still is killed when the server stops, which ends as it should."""
    with serving(server):
        front = server.front_process_id()
        os.kill(front, signal.SIGSTOP)
        assert 0 == await asyncio.to_thread(server.terminate), server.log()
        assert not alive(front)


async def test_restarts_are_counted(tmp_path: Path, redis_url: str, front: tuple[str, str]) -> None:
    """How often the front was started again is a metric, and `/metrics` is the server's own."""
    port = free_port()
    server = Server(tmp_path / "gavel", redis_url=redis_url, options=[*front, "--metrics", f"127.0.0.1:{port}"])

    def restarts() -> float:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_SECONDS_MAX) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith("gavel_front_restarts_total "))

    with serving(server):
        assert 0 == await asyncio.to_thread(restarts)
        os.kill(server.front_process_id(), signal.SIGKILL)

        async def counted() -> bool | None:
            return await asyncio.to_thread(restarts) == 1 or None

        await until(counted)
        async with server.client() as client:
            await writable(client)


def refused(data: Path, redis_url: str, *arguments: str) -> str:
    """Return what `gavel serve` says last when it does not start."""
    command = [GAVEL, "serve", "--data", str(data), "--redis", redis_url, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX, check=False)
    assert (1, "") == (done.returncode, done.stdout), done.stderr
    return done.stderr.splitlines()[-1]


def test_an_address_in_use(tmp_path: Path, redis_url: str) -> None:
    """An address that cannot be had is one and the same sentence with and without a front."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = {refused(tmp_path, redis_url, "--listen", address, "--front", front) for front in (*FRONTS, "none")}
    assert {f"gavel: cannot listen on {address}: is another server running there, or is it no address of this machine?"} == said


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        (["--front", "swift"], 2, "setting front (--front, GAVEL_FRONT, or front in the file): Input should be"),
        (["--front", "python", "--no-front"], 2, "gavel: --no-front and --front python contradict each other; give one of them"),
    ],
)
def test_fronts_that_are_none(tmp_path: Path, options: list[str], status: int, sentence: str) -> None:
    """A front that there is not, or to want one and none, is refused before anything starts."""
    command = [GAVEL, "serve", "--data", str(tmp_path / "data"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX, check=False)
    assert (status, "") == (done.returncode, done.stdout), done.stderr
    assert sentence in done.stderr
    assert not (tmp_path / "data").exists()


async def test_the_log_says_which_front_serves(tmp_path: Path, redis_url: str, front: tuple[str, str]) -> None:
    """`server.ready` names the front."""
    server = Server(tmp_path / "gavel", redis_url=redis_url, options=front)
    with serving(server):
        assert f"front={front[1]}" in server.log()


async def test_no_log_line_of_a_front_has_payloads(tmp_path: Path, redis_url: str, bus: str, front: tuple[str, str]) -> None:
    """Whatever callers send through a front, standard error has nothing of it."""
    server = Server(tmp_path / "gavel", redis_url=redis_url, options=[*front, "--log-level", "debug"])
    with serving(server):
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
