"""The front's process: start, death, restart and end, and the addresses that it listens on."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import suppress
from typing import Any

import grpc
import pytest
from gavel_server.front import programs as programs_module
from gavel_server.front import supervisor as supervisor_module
from gavel_server.rpc.transport import bind, make_server

from tests.integration.front.world import CALL_SECONDS_MAX, HOT, UNARY, World, of_process, result_of
from tests.support.fronts import FRONTS

pytestmark = pytest.mark.parametrize("world", FRONTS, indirect=True)


async def test_the_command_line(front: World) -> None:
    """`ps` shows the program, the address for callers and the server's private address."""
    arguments = of_process(front.process_id, "cmdline").split("\0")
    assert arguments[0].endswith("/gavel-front")
    assert ["127.0.0.1:0", front.inner] == arguments[-3:-1]


async def test_a_killed_front_restarts_on_its_address(front: World) -> None:
    """A front that is killed is restarted on its port each time; calls under way end with UNAVAILABLE, and later calls succeed."""
    call: Any = front.channels[1].unary_unary(HOT)
    for _ in range(2):
        process_id = front.process_id
        task = asyncio.create_task(result_of(call(b"cut off")))
        *_, reply = await front.requests.get()
        os.kill(process_id, signal.SIGKILL)
        assert grpc.StatusCode.UNAVAILABLE == await task
        reply(b"too late")
        await front.wait_until_restarted()
        retry = asyncio.create_task(result_of(call(b"again", wait_for_ready=True, timeout=CALL_SECONDS_MAX)))
        _, request, reply = await front.requests.get()
        reply(request)
        assert b"again" == await retry
        assert process_id != front.process_id


async def test_a_hanging_front_is_replaced(front: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A front that answers no ping is killed, a new one answers on its address, and the log says why."""
    process = front.process
    monkeypatch.setattr(supervisor_module, "PING_SECONDS", 0.2)
    os.kill(process.pid, signal.SIGSTOP)
    await front.wait_until_restarted()
    assert -signal.SIGKILL == process.returncode
    assert "front.hangs" in capfd.readouterr().out


async def test_a_death_is_logged_once(front: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """While the front cannot be started again, the log has its death once and each failed restart; later it restarts."""
    monkeypatch.setattr(supervisor_module, "RESTART_PAUSE_SECONDS", 0.05)
    with monkeypatch.context() as patch:
        patch.setattr(supervisor_module, "command", lambda *_: ["/nonexistent/gavel-front"])
        os.kill(front.process_id, signal.SIGKILL)
        output = ""
        while output.count("front.restart_failed") < 2:
            await asyncio.sleep(0.02)
            output += capfd.readouterr().out
    await front.wait_until_restarted()
    output += capfd.readouterr().out
    assert 1 == output.count("front.died")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_do_not_end_the_front(front: World, number: signal.Signals) -> None:
    """A signal to the front does not end it: calls in progress and new ones are answered."""
    calling = asyncio.create_task(front.call(front.channels[1], HOT, b"x"))
    *_, reply = await front.requests.get()
    os.kill(front.process_id, number)
    await front.call_both(UNARY, b"echo still here")
    reply(b"answer")
    assert [b"answer"] == (await calling)[0]


async def test_stop_waits_for_calls(front: World) -> None:
    """`stop` returns once the calls under way are answered and the front has ended."""
    calling = asyncio.create_task(front.call(front.channels[1], HOT, b"x"))
    *_, reply = await front.requests.get()
    stopping = asyncio.create_task(front.supervisor.stop())
    await asyncio.sleep(0.2)
    reply(b"answer")
    assert [b"answer"] == (await calling)[0]
    await stopping
    assert front.process.returncode is not None


async def test_front_of_a_failed_start_ends(world: World) -> None:
    """If the server cannot start after all, its front ends by itself and the port is free again."""
    address = await world.supervisor.start()
    process = world.process
    await world.supervisor.stop()
    assert 0 == process.returncode
    host, _, port = address.rpartition(":")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))


async def test_unavailable_address(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    """For an address that is in use or not of this machine, the error is the same as without a front, and no process is left."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        for listen in (f"127.0.0.1:{listener.getsockname()[1]}", "192.0.2.1:9090"):
            with pytest.raises(OSError, match="cannot listen") as expected:
                bind(make_server(), listen)
            supervisor = world.supervisor_on(listen)
            with pytest.raises(OSError, match="cannot listen") as error_info:
                await supervisor.start()
            assert str(expected.value) == str(error_info.value)
            await supervisor.stop()
    capfd.readouterr()  # gRPC itself logs a line about it


async def test_port_in_use_at_a_restart(front: World, capfd: pytest.CaptureFixture[str]) -> None:
    """If the port is taken before a restart, the front is restarted as soon as the port is free."""
    host, _, port = front.address.rpartition(":")
    await front.call(front.channels[1], UNARY, b"echo x")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        os.kill(front.process_id, signal.SIGKILL)
        while True:
            with suppress(OSError):
                listener.bind((host, int(port)))
                listener.listen()
                break
            await asyncio.sleep(0)
        first = front.process_id
        while front.process_id == first or front.process.poll() is None:  # noqa: ASYNC110  # a child's end sets no event
            await asyncio.sleep(0.05)
    await front.wait_until_restarted()
    capfd.readouterr()  # gRPC itself logs a line about it


async def test_localhost(world: World) -> None:
    """A name with several addresses is bound on all of them at one port, and is reported as a name."""
    world.supervisor = world.supervisor_on("localhost:0")
    await world.start()
    name, _, port = world.address.rpartition(":")
    assert "localhost" == name
    for host in {place[4][0] for place in socket.getaddrinfo("localhost", int(port), type=socket.SOCK_STREAM)}:
        with suppress(OSError), socket.socket(socket.AF_INET6 if ":" in str(host) else socket.AF_INET) as probe:
            probe.bind((str(host), 0))  # this machine has the address
            async with grpc.aio.insecure_channel(f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}") as channel:
                assert [b"x"] == (await world.call(channel, UNARY, b"echo x"))[0]


async def test_a_unix_socket_of_another_server(world: World) -> None:
    """A unix socket of another server is refused as without a front, and the other server keeps it."""
    with pytest.raises(OSError, match="cannot listen") as expected:
        bind(make_server(), world.inner)
    supervisor = world.supervisor_on(world.inner)
    with pytest.raises(OSError, match="cannot listen") as error_info:
        await supervisor.start()
    assert str(expected.value) == str(error_info.value)
    await supervisor.stop()
    async with grpc.aio.insecure_channel(world.inner) as channel:
        assert [b"x"] == (await world.call(channel, UNARY, b"echo x"))[0]


async def test_a_native_front_of_another_version(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that was built for another protocol exits with an error, whatever its other arguments are."""
    monkeypatch.setattr(programs_module, "PROTOCOL", 4711)
    for listen in ("127.0.0.1:0", "no address"):
        supervisor = world.supervisor_on(listen)
        with pytest.raises(OSError, match="another version of gavel; run make front"):
            await supervisor.start()
        await supervisor.stop()


async def test_a_unix_socket(world: World) -> None:
    """A front listens on a unix socket, and again after it was killed."""
    world.supervisor = world.supervisor_on(f"unix:{world.directory}/outer.sock")
    await world.start()
    assert f"unix:{world.directory}/outer.sock" == world.address
    await world.call_both(UNARY, b"echo x")
    os.kill(world.process_id, signal.SIGKILL)
    await world.wait_until_restarted()
