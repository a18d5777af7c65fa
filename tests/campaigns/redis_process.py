"""A Redis that a campaign starts, kills and mistreats. Its port and files stay the same."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis.asyncio

from tests.e2e.world import poll
from tests.support.ports import free_port
from tests.support.redis.programs import redis_programs


class RedisProcess:
    """One Redis on a port of this machine, with the durability that a server asks for."""

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        """`environment` has variables besides those of this process."""
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.directory = directory
        self._environment = {**os.environ, **(environment or {})}
        programs = [*redis_programs().values()]
        # A faulty machine replaces malloc of the C library, and Debian's Redis takes free from another one. The packaged Redis, the last,
        # does not.
        self._program = programs[-1] if environment else programs[0]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process_id(self) -> int:
        """The id of its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Start it, and return once it answers."""
        self._launch()
        await poll(self._answers)

    def kill(self) -> None:
        """Kill it, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        os.kill(self._process.pid, number)

    def connection(self) -> Any:
        """Return a connection to it, an async context manager."""
        return redis.asyncio.Redis.from_url(self.url, protocol=2, single_connection_client=True)

    def _launch(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        durability = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
        arguments = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory), *durability)
        with (self.directory / "redis.log").open("ab") as log:
            self._process = subprocess.Popen([self._program, *arguments], stdout=log, stderr=log, env=self._environment)

    async def _answers(self) -> bool | None:
        try:
            async with self.connection() as connection:
                return bool(await connection.ping()) or None
        except redis.RedisError:
            return None
