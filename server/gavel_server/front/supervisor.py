"""Starts the native front, restarts it when it dies or hangs, and ends it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
from gavel_client.supervision import Supervisor
from prometheus_client import Counter

from gavel_server.front.authentication import FrontAuthentication
from gavel_server.front.backend import Backend
from gavel_server.front.programs import command
from gavel_server.process.background import new_supervisor
from gavel_server.process.children import child_environment
from gavel_server.rpc.callback_methods import Method
from gavel_server.rpc.transport import STOP_GRACE_SECONDS

if TYPE_CHECKING:
    from gavel_server.identity.tls import TlsMaterial

RESTARTS: Final = Counter("gavel_front_restarts", "How often the process that speaks gRPC had to be started again.")
RESTART_PAUSE_SECONDS: Final = 0.5
START_SECONDS_MAX: Final = 60.0
WATCH_SECONDS: Final = 0.1
# A front that sends no frame during SILENT_PINGS_MAX pings in a row hangs. Pings are counted, not seconds: if the whole machine stood
# still, the server did too, and it reads the front's answer before it misses the next one.
PING_SECONDS: Final = 1.0
SILENT_PINGS_MAX: Final = 10
# The front ends by itself after the grace that it gives to calls under way.
END_SECONDS_MAX: Final = STOP_GRACE_SECONDS + 2.0

_LOG: Final = structlog.get_logger("gavel.front")


class FrontSupervisor:
    """Supervises the front of a server. Call `start`, `serve`, `stop`, in this order."""

    def __init__(
        self,
        program: Path,
        methods: Mapping[str, Method],
        listen: str,
        inner: str,
        descriptors: tuple[int, ...] = (),
        supervisor: Supervisor | None = None,
        authentication: FrontAuthentication | None = None,
    ) -> None:
        """`methods` answer the hot path; `listen` is the address for callers, `inner` the server's private address.

        The front inherits `descriptors`, which it needs to reach `inner`; closing them stays with the owner. `supervisor` runs the
        task that watches the front; default: one of its own. `authentication` is of callers; default: none is required.
        """
        self._authentication = authentication or FrontAuthentication()
        self._supervisor = supervisor or new_supervisor()
        self._program = program
        self._methods = methods
        self._listen = listen
        self._inner = inner
        self._descriptors = descriptors
        self._process: subprocess.Popen[bytes] | None = None
        self._backend: Backend | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Start the front and return the address that it has bound. It does not answer calls yet. Raises OSError."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            # A session of its own: Ctrl-C at a terminal reaches the server, which ends its front after draining.
            self._process = subprocess.Popen(  # noqa: ASYNC220, S603 - forks in this thread on purpose; no shell, our own arguments
                command(self._program, theirs.fileno(), self._listen, self._inner),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *self._descriptors),
                start_new_session=True,
                env=child_environment(),
            )
            self._backend = Backend(self._methods, self._authentication)
            await self._backend.connect(ours.dup())
        try:
            # A free port (port 0) that was bound once is bound again after a restart.
            self._listen = await asyncio.wait_for(self._backend.address(), START_SECONDS_MAX)
        except TimeoutError as error:
            self._process.kill()
            raise OSError(
                f"the native front did not listen within {START_SECONDS_MAX:.0f} s; start the server again, or with --front none"
            ) from error
        return self._listen

    def serve(self) -> None:
        """Let the front answer calls, and restart it whenever it dies or hangs."""
        if self._backend is not None:
            self._backend.serve()
        if self._watch is None:
            self._watch = self._supervisor.start("front", self._restart_forever, problem=self._problem)

    def use_tls(self, material: TlsMaterial) -> None:
        """Encrypt new connections with other certificates, now and after a restart."""
        self._authentication.tls = material
        if self._backend is not None:
            self._backend.use_tls(material)

    async def stop(self) -> None:
        """Let the calls under way end, then the front."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._backend is not None:
            self._backend.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wait(), END_SECONDS_MAX)
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Let a new front replace the process, since the server's private socket is a new one."""
        if self._process is not None:
            self._process.kill()

    async def _wait(self) -> int | None:
        """Return the process's exit status once it has ended."""
        while self._process is not None and self._process.poll() is None:  # noqa: ASYNC110 - nothing sets an event when a child ends
            await asyncio.sleep(WATCH_SECONDS)
        return self._process.returncode if self._process is not None else None

    async def _wait_or_kill(self) -> int | None:
        """Return the process's exit status once it has ended; kill it if it hangs."""
        silent_pings = 0
        while True:
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self._wait(), PING_SECONDS)
            if self._process is None or self._backend is None or self._backend.ping():
                silent_pings = 0
                continue
            silent_pings += 1
            if silent_pings == SILENT_PINGS_MAX:
                _LOG.error("front.hangs", address=self._listen, silent_pings=silent_pings, consequence="it is killed and started again")
                self._process.kill()

    def _problem(self) -> str:
        """The problem of the front, or ""."""
        return "" if self._process is not None and self._process.poll() is None else f"the front at {self._listen} does not run"

    async def _restart_forever(self) -> None:
        while True:
            _LOG.error("front.died", returncode=await self._wait_or_kill(), address=self._listen)
            RESTARTS.inc()
            restarted = False
            while not restarted:
                restarted = await self._restart()
                await asyncio.sleep(RESTART_PAUSE_SECONDS)

    async def _restart(self) -> bool:
        """Start the front again. Return False if it does not start; nothing of it is left then."""
        try:
            await self.start()
            self.serve()
            return True
        except OSError as error:
            _LOG.error("front.restart_failed", address=self._listen, problem=str(error))
        except Exception:  # noqa: BLE001  # keep trying: the log is whole, and nothing else can let callers in
            _LOG.exception("front.restart_failed", address=self._listen)
        if self._process is not None:
            self._process.kill()
            await self._wait()
        return False
