"""The embedded Redis: a child process with durable settings, on a Unix socket, one server per data directory.

A Redis that a killed server left behind is ended before a new one starts (`data_directory`); with `appendfsync always` it loses no
acknowledged event. On Linux the kernel also ends the child with its parent (`embedded_launcher`).

The child has a session of its own: Ctrl-C at a terminal reaches the server, which drains and then stops its Redis. This module
never deletes data and never opens a port.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO, Final, Self
from urllib.parse import quote

from gavel_server.log.protocol import LogUnavailableError
from gavel_server.log.redis import embedded_launcher
from gavel_server.log.redis.connection import ConnectionPool
from gavel_server.log.redis.data_directory import lock_directory, lock_redis, note_url
from gavel_server.log.redis.errors import EmbeddedRedisError
from gavel_server.log.redis.program import program_for, settings
from gavel_server.log.redis.replies import reason
from gavel_server.process.children import child_environment
from gavel_server.process.polling import POLL_SECONDS, wait_until
from gavel_server.process.private_files import open_private
from gavel_server.process.sockets import SOCKET_PATH_BYTES_MAX, socket_directory

# Without an answer. Loading a large log may take longer, but then Redis answers LOADING.
START_TIMEOUT_MS: Final = 300_000
STOP_TIMEOUT_MS: Final = 30_000
PING_TIMEOUT_MS: Final = 1_000
WATCH_SECONDS: Final = 0.1
LOG_TAIL_LINES: Final = 15
LOG_TAIL_BYTES: Final = 8192


class EmbeddedRedis:
    """A Redis in `data_directory`, as a child of this process. It ends with the thread that starts it.

    `memory_bytes_max` limits its data; 0: no limit.

    `async with EmbeddedRedis(directory) as redis: await RedisLog.connect(redis.url, bus)`
    """

    def __init__(
        self,
        data_directory: str | Path,
        start_timeout_ms: int = START_TIMEOUT_MS,
        stop_timeout_ms: int = STOP_TIMEOUT_MS,
        *,
        memory_bytes_max: int = 0,
    ) -> None:
        self.data_directory = Path(data_directory).absolute()
        self._start_timeout_ms = start_timeout_ms
        self._stop_timeout_ms = stop_timeout_ms
        self._memory_bytes_max = memory_bytes_max
        self._socket = self.data_directory / "redis.sock"
        self._socket_directory = contextlib.ExitStack()
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._restarting = asyncio.Lock()

    @property
    def url(self) -> str:
        """The URL for RedisLog.connect; the same after a restart."""
        return "unix://" + quote(str(self._socket))

    @property
    def log_path(self) -> Path:
        """The log file of Redis."""
        return self.data_directory / "redis.log"

    @property
    def process_id(self) -> int | None:
        """The process id of the latest child; None before `start`."""
        return self._process.pid if self._process else None

    @property
    def returncode(self) -> int | None:
        """The exit status of the latest child (negative: the signal); None while it runs or before `start`."""
        return self._process.poll() if self._process else None

    def problem(self) -> str:
        """The problem of the child as a sentence; "" if the child runs."""
        returncode = self.returncode
        return "" if returncode is None else f"Redis ended with {returncode} and is started again; see {self.log_path}"

    async def start(self) -> None:
        """Lock the data directory, start Redis, and wait until it has loaded its data.

        Raises DataDirectoryInUseError, EmbeddedRedisError.
        """
        if self._lock is not None:
            raise EmbeddedRedisError(f"the Redis in {self.data_directory} was started already")
        self._lock = lock_directory(self.data_directory)
        try:
            if len(os.fsencode(self._socket)) > SOCKET_PATH_BYTES_MAX:
                self._socket = self._socket_directory.enter_context(socket_directory()) / "redis.sock"
            note_url(self._lock, self.url)
            await self._launch()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop Redis (SIGTERM, on which it flushes; SIGKILL after the timeout) and unlock the data directory."""
        if self._process is not None:
            await self._end(self._process)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self._socket_directory.close()
        self._socket = self.data_directory / "redis.sock"

    async def wait(self) -> int:
        """Wait until Redis has ended; return its exit status."""
        if self._process is None:
            raise EmbeddedRedisError("the embedded Redis was not started")
        while (returncode := self._process.poll()) is None:  # noqa: ASYNC110 - nothing sets an event when a child ends
            await asyncio.sleep(WATCH_SECONDS)
        return returncode

    async def ensure_running(self) -> bool:
        """Restart Redis if it has ended; return whether it had. Raises EmbeddedRedisError if it does not start."""
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

    async def _launch(self) -> None:
        """Start a child that holds `redis.lock`, and wait until it is ready."""
        program = program_for(self.data_directory)
        redis_lock = await lock_redis(self.data_directory, self._stop_timeout_ms)
        try:
            with self._open_log() as log:
                log_start = log.tell()
                launcher = [sys.executable, "-I", "-S", embedded_launcher.__file__, str(os.getpid())]
                self._process = subprocess.Popen(  # noqa: ASYNC220, S603 - forks in this thread on purpose; no shell, our own arguments
                    [*launcher, program.path, *settings(self.data_directory, self._socket, self._memory_bytes_max)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.data_directory,
                    env=child_environment(),
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
            return open(self.log_path, "ab", opener=open_private)
        except OSError as error:
            raise EmbeddedRedisError(f"cannot write the log of Redis, {self.log_path}: {error.strerror}") from error

    async def _until_ready(self, process: subprocess.Popen[bytes], log_path: Path, log_start: int) -> None:
        connections = ConnectionPool(self.url, PING_TIMEOUT_MS, 1)
        deadline = asyncio.get_running_loop().time() + self._start_timeout_ms / 1000
        try:
            while (answer := await _ping(connections)) != "PONG":
                if process.poll() is not None:
                    raise EmbeddedRedisError(_failure(f"Redis ended with {process.returncode} while starting", log_path, log_start))
                if answer.startswith("LOADING"):
                    deadline = asyncio.get_running_loop().time() + self._start_timeout_ms / 1000
                if asyncio.get_running_loop().time() > deadline:
                    raise EmbeddedRedisError(
                        _failure(f"Redis is not ready after {self._start_timeout_ms} ms ({answer})", log_path, log_start)
                    )
                await asyncio.sleep(POLL_SECONDS)
        finally:
            await connections.close()

    async def _end(self, process: subprocess.Popen[bytes]) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            process.send_signal(number)
            if await wait_until(lambda: process.poll() is not None, self._stop_timeout_ms):
                return


def _failure(problem: str, log_path: Path, log_start: int) -> str:
    """Return `problem` with the last lines that this run wrote to the log of Redis."""
    with log_path.open("rb") as log:
        log.seek(max(log_start, log_path.stat().st_size - LOG_TAIL_BYTES))
        lines = log.read().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    return f"{problem}; the end of {log_path}:\n" + "\n".join(f"  {line}" for line in lines)


async def _ping(connections: ConnectionPool) -> str:
    """Return "PONG", or why there is none: no connection yet, or "LOADING …" until the data is in memory."""
    try:
        (reply,) = await connections.read(("PING",))
    except LogUnavailableError as error:
        return str(error)
    return reason(reply) if isinstance(reply, Exception) else reply.decode()
