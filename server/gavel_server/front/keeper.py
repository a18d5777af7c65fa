"""Starts the front, starts it again when it dies or hangs, and ends it: the server's side of its life."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import Mapping
from typing import Final

import structlog
from prometheus_client import Counter

from gavel_server.front.backend import Backend
from gavel_server.front.programs import Front, command
from gavel_server.services.arbitration import Method
from gavel_server.transport import STOP_GRACE_SECONDS

RESTARTS: Final = Counter("gavel_front_restarts", "How often the process that speaks gRPC had to be started again.")
RESTART_PAUSE_SECONDS: Final = 0.5
START_SECONDS_MAX: Final = 60.0
WATCH_SECONDS: Final = 0.1
# A front that has given no sign of life at so many pings in a row hangs. They are counted, and not the seconds: where the whole
# machine stood still, the server did too, and the front's answer is read before the next one is missed.
PING_SECONDS: Final = 1.0
SILENT_PINGS_MAX: Final = 10
# It ends by itself after the grace that it gives to calls under way.
END_SECONDS_MAX: Final = STOP_GRACE_SECONDS + 2.0

_LOG: Final = structlog.get_logger("gavel.front")


class FrontKeeper:
    """The one front of a server. `start`, `serve`, `stop`."""

    def __init__(self, program: Front, methods: Mapping[str, Method], listen: str, inner: str, descriptors: tuple[int, ...] = ()) -> None:
        """`program` says which front; `methods` answer the hot path; `listen` is the address for callers, `inner` the server's own.

        `descriptors` are what the front must have to reach `inner`; they stay the caller's.
        """
        self.program: Final = program
        self._methods = methods
        self._listen = listen
        self._inner = inner
        self._descriptors = descriptors
        self._process: subprocess.Popen[bytes] | None = None
        self._backend: Backend | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Start the front and return the address that it has bound. It does not answer yet. Raises OSError."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            # A session of its own: Ctrl-C at a terminal reaches the server, which ends its front when it has drained.
            self._process = subprocess.Popen(  # noqa: ASYNC220, S603 - forks in this thread on purpose; no shell, our own arguments
                command(self.program, theirs.fileno(), self._listen, self._inner),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *self._descriptors),
                start_new_session=True,
            )
            self._backend = Backend(self._methods)
            await self._backend.connect(ours.dup())
        try:
            # Once taken, a free port stays the server's.
            self._listen = await asyncio.wait_for(self._backend.address(), START_SECONDS_MAX)
        except TimeoutError as error:
            self._process.kill()
            raise OSError(f"the process that speaks gRPC does not say within {START_SECONDS_MAX:.0f} s that it listens") from error
        return self._listen

    def serve(self) -> None:
        """Let it answer calls, and start it again whenever it dies or hangs."""
        if self._backend is not None:
            self._backend.serve()
        if self._watch is None:
            self._watch = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """Let the calls under way end, and it."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._backend is not None:
            self._backend.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended(), END_SECONDS_MAX)
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    async def _ended(self) -> int | None:
        """Return how it ended, once it has."""
        while self._process is not None and self._process.poll() is None:  # noqa: ASYNC110 - nothing sets an event when a child ends
            await asyncio.sleep(WATCH_SECONDS)
        return self._process.returncode if self._process is not None else None

    async def _ended_or_hung(self) -> int | None:
        """Return how it ended, once it has; one that gives no sign of life is killed."""
        silent_pings = 0
        while True:
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self._ended(), PING_SECONDS)
            if self._process is None or self._backend is None or self._backend.ping():
                silent_pings = 0
                continue
            silent_pings += 1
            if silent_pings == SILENT_PINGS_MAX:
                _LOG.error("front.hangs", address=self._listen, silent_pings=silent_pings, consequence="it is killed and started again")
                self._process.kill()

    async def _keep(self) -> None:
        while True:
            _LOG.error("front.died", returncode=await self._ended_or_hung(), address=self._listen)
            RESTARTS.inc()
            try:
                await self.start()
                self.serve()
            except OSError as error:
                _LOG.error("front.restart_failed", address=self._listen, problem=str(error))
            except Exception:  # noqa: BLE001  # keep trying: the log is whole, and nobody else can let callers in
                _LOG.exception("front.restart_failed", address=self._listen)
            await asyncio.sleep(RESTART_PAUSE_SECONDS)
