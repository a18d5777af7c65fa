"""A front's life: how it starts, dies, comes back and ends, and where it listens."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from gavel_server.front import keeper as keeper_module
from gavel_server.front import programs as programs_module
from gavel_server.transport import bind, make_server

from tests.fronts import FRONTS
from tests.integration.front.world import CALL_SECONDS_MAX, HOT, UNARY, World, ended, of_process


async def test_its_command_line_tells_what_it_is(front: World) -> None:
    """`ps` shows what the process is, where callers reach it, and where the server is."""
    arguments = of_process(front.process_id, "cmdline").split("\0")
    assert ("gavel-front" if front.program == "native" else "gavel_server.front.process") in {Path(argument).name for argument in arguments}
    assert ["127.0.0.1:0", front.inner] == arguments[-3:-1]


async def test_a_front_that_is_killed_comes_back_where_it_was(front: World) -> None:
    """A front that dies is started again on its port, as often as it dies; calls under way hear UNAVAILABLE, and later ones work."""
    call: Any = front.channels[1].unary_unary(HOT)
    for _ in range(2):
        process_id = front.process_id
        waiting = asyncio.create_task(ended(call(b"cut off")))
        *_, reply = await front.asked.get()
        os.kill(process_id, signal.SIGKILL)
        assert grpc.StatusCode.UNAVAILABLE == await waiting
        reply(b"nobody hears it")
        await front.back()
        again = asyncio.create_task(ended(call(b"again", wait_for_ready=True, timeout=CALL_SECONDS_MAX)))
        _, request, reply = await front.asked.get()
        reply(request)
        assert b"again" == await again
        assert process_id != front.process_id


async def test_a_front_that_hangs_is_replaced(front: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A front that gives no sign of life is killed, another one answers on its address, and the log says why."""
    process = front.process
    monkeypatch.setattr(keeper_module, "PING_SECONDS", 0.2)
    os.kill(process.pid, signal.SIGSTOP)
    await front.back()
    assert -signal.SIGKILL == process.returncode
    assert "front.hangs" in capfd.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_are_for_the_server(front: World, number: signal.Signals) -> None:
    """A signal to the whole group of processes does not cut off the calls that the server is about to answer."""
    asking = asyncio.create_task(front.call(front.channels[1], HOT, b"x"))
    *_, reply = await front.asked.get()
    os.kill(front.process_id, number)
    await front.both(UNARY, b"echo still here")
    reply(b"answer")
    assert [b"answer"] == (await asking)[0]


async def test_stopping_lets_calls_end(front: World) -> None:
    """A front that is told to stop hands out the answers to the calls under way, and has ended when `stop` returns."""
    asking = asyncio.create_task(front.call(front.channels[1], HOT, b"x"))
    *_, reply = await front.asked.get()
    stopping = asyncio.create_task(front.keeper.stop())
    await asyncio.sleep(0.2)
    reply(b"answer")
    assert [b"answer"] == (await asking)[0]
    await stopping
    assert front.process.returncode is not None


async def test_a_front_that_was_never_let_to_serve(world: World) -> None:
    """Where the server cannot start after all, its front ends by itself, and the port is free again."""
    address = await world.keeper.start()
    process = world.process
    await world.keeper.stop()
    assert 0 == process.returncode
    host, _, port = address.rpartition(":")
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, int(port)))


async def test_an_address_that_cannot_be_had(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    """An address in use, or not of this machine, is the same error as without a front, and leaves no process."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for listen in (f"127.0.0.1:{taken.getsockname()[1]}", "192.0.2.1:9090"):
            with pytest.raises(OSError, match="cannot listen") as expected:
                bind(make_server(), listen)
            keeper = world.keeper_on(listen)
            with pytest.raises(OSError, match="cannot listen") as refused:
                await keeper.start()
            assert str(expected.value) == str(refused.value)
            await keeper.stop()
    capfd.readouterr()  # gRPC itself says something about it


async def test_a_port_that_somebody_takes_meanwhile(front: World, capfd: pytest.CaptureFixture[str]) -> None:
    """A front whose port is taken when it is to be started again is started as soon as the port is free."""
    host, _, port = front.address.rpartition(":")
    await front.call(front.channels[1], UNARY, b"echo x")
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        os.kill(front.process_id, signal.SIGKILL)
        while True:
            with suppress(OSError):
                thief.bind((host, int(port)))
                thief.listen()
                break
            await asyncio.sleep(0)
        first = front.process_id
        while front.process_id == first or front.process.poll() is None:  # noqa: ASYNC110  # a child's end sets no event
            await asyncio.sleep(0.05)
    await front.back()
    capfd.readouterr()  # gRPC itself says something about it


async def test_localhost(world: World) -> None:
    """A name that stands for several addresses is listened on at one port, and stays a name."""
    world.keeper = world.keeper_on("localhost:0")
    await world.start()
    name, _, port = world.address.rpartition(":")
    assert "localhost" == name
    for host in {place[4][0] for place in socket.getaddrinfo("localhost", int(port), type=socket.SOCK_STREAM)}:
        with suppress(OSError), socket.socket(socket.AF_INET6 if ":" in str(host) else socket.AF_INET) as probe:
            probe.bind((str(host), 0))  # this machine has the address
            async with grpc.aio.insecure_channel(f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}") as channel:
                assert [b"x"] == (await world.call(channel, UNARY, b"echo x"))[0]


async def test_a_unix_socket_of_somebody_else(world: World) -> None:
    """A unix socket on which somebody listens is refused as without a front, and he keeps it."""
    with pytest.raises(OSError, match="cannot listen") as expected:
        bind(make_server(), world.inner)
    keeper = world.keeper_on(world.inner)
    with pytest.raises(OSError, match="cannot listen") as refused:
        await keeper.start()
    assert str(expected.value) == str(refused.value)
    await keeper.stop()
    async with grpc.aio.insecure_channel(world.inner) as channel:
        assert [b"x"] == (await world.call(channel, UNARY, b"echo x"))[0]


@pytest.mark.parametrize("world", [front for front in FRONTS if front == "native"], indirect=True)
async def test_a_native_front_of_another_version(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that was built for another protocol says so, and ends, whatever else it is given."""
    monkeypatch.setattr(programs_module, "PROTOCOL", 4711)
    for listen in ("127.0.0.1:0", "no address"):
        keeper = world.keeper_on(listen)
        with pytest.raises(OSError, match="another version of gavel; run make front"):
            await keeper.start()
        await keeper.stop()


async def test_a_unix_socket(world: World) -> None:
    """A front listens on a unix socket as well, again after it was killed."""
    world.keeper = world.keeper_on(f"unix:{world.directory}/outer.sock")
    await world.start()
    assert f"unix:{world.directory}/outer.sock" == world.address
    await world.both(UNARY, b"echo x")
    os.kill(world.process_id, signal.SIGKILL)
    await world.back()
