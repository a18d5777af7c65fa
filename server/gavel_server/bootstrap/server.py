"""The parts of a server, started and stopped in order.

A server stops in the reverse order of its start: it takes no new commands, commits and answers the queued ones, ends the streams, and
closes its logs last.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

import structlog
from gavel_client.supervision import Supervisor
from grpc_health.v1 import health_pb2

from gavel_server.archive.archives import Archives
from gavel_server.bootstrap.buses import BusOpening, open_default
from gavel_server.bootstrap.errors import ServeError
from gavel_server.bootstrap.telemetry import start_telemetry
from gavel_server.bus.registry import BusRegistry
from gavel_server.bus.snapshot_writer import write_forever
from gavel_server.config import Settings, is_local
from gavel_server.endpoint import Endpoint, EndpointSecurity, listen
from gavel_server.fairness.quotas import Quotas
from gavel_server.fairness.turns import take_turn
from gavel_server.front.programs import select_program
from gavel_server.history.replay_process import ReplayProcesses
from gavel_server.identity.identity import Identity, IdentityError
from gavel_server.index.event_index import BusHead, EventIndex
from gavel_server.log.stores import LogStore, is_postgresql
from gavel_server.process.allocator import return_free_pages_forever
from gavel_server.process.background import report_forever
from gavel_server.process.build import build
from gavel_server.process.clock import GuardedClock
from gavel_server.process.descriptors import raise_limit
from gavel_server.process.garbage_collection import collect_less, collect_oldest_forever, collect_young_forever
from gavel_server.process.signals import stop_signals
from gavel_server.reactors import Reactors
from gavel_server.rpc.callback_methods import Method
from gavel_server.rpc.identity.access import AccessControl
from gavel_server.rpc.identity.closed_grants import ClosedGrants
from gavel_server.rpc.interceptor import HandlerRegistry, Interceptor
from gavel_server.rpc.listener import Listener
from gavel_server.rpc.reflection import Reflection
from gavel_server.rpc.service_descriptors import HEALTH, NAMES, REFLECTIONS, SERVICES
from gavel_server.rpc.transport import STOP_GRACE_SECONDS
from gavel_server.services.health import HealthServicer, check_health_access
from gavel_server.services.registration import register_services
from gavel_server.work.trimming import trim_forever

# A stopping gRPC server answers new calls CANCELLED. During this pause, callers that have just got their last answer still get
# SHUTTING_DOWN. It is shorter than the retry delay that they get with it (RETRY_AFTER_MS_DEFAULT): when they retry, the server is gone.
FAREWELL_SECONDS: Final = 0.15

# The name under which grpc.health.v1 reports on the background tasks. The other names tell whether calls are answered.
BACKGROUND_HEALTH: Final = "gavel.background"

_LOG: Final = structlog.get_logger("gavel.server")


class Server:
    """The parts of one server on a store of logs. The constructor creates them, and `serve` starts and stops them. Raises ServeError."""

    def __init__(self, settings: Settings, url: str, store: LogStore, supervisor: Supervisor) -> None:
        self._settings: Final = settings
        self._store: Final = store
        self._supervisor: Final = supervisor
        self._descriptors_max: Final = raise_limit()
        self._telemetry: Final = start_telemetry(settings)
        self._clock: Final = GuardedClock()
        # Without a Redis the reactors take their work from the server, like other consumers.
        self._reactors: Final = Reactors("" if is_postgresql(url) else url, supervisor) if settings.fdr else None
        is_observed = self._telemetry.observer is not None
        opening = BusOpening(settings, store, supervisor, self._clock, self._reactors, is_observed=is_observed)
        self._archives: Final = (
            Archives(settings.archive, settings.archive_after_days, store, settings.acknowledgement) if settings.archive else None
        )
        self._buses: Final = BusRegistry(
            opening.open,
            store.exists,
            opened=opening.complete,
            closed=opening.close,
            names=store.names,
            head_number=store.head_number,
            creates=settings.create_buses and settings.authentication == "none",
            acknowledged=opening.acknowledged,
        )
        self._security: Final = _security(settings)
        behind_front = self._security.program is not None
        self._listener: Final = Listener(behind_front=behind_front)
        self._interceptor: Final = Interceptor(
            behind_front=behind_front,
            quotas=Quotas(settings.quotas),
            observer=self._telemetry.observer,
            authentication=self._security.of_calls(),
        )
        self._security.on_refused = self._interceptor.note_unauthenticated
        envelope = store.envelope if self._archives is None else self._archives.envelope
        self._access: Final = AccessControl(self._buses, settings.admins, closed_grants=ClosedGrants(store.grants_number, envelope))
        self._index: Final = EventIndex(settings.data, url, settings.index_from, settings.archive)
        replays = ReplayProcesses(url, settings.archive)
        proofs = settings.data / "proofs"
        self._methods: Final = register_services(
            self._listener, self._interceptor, self._buses, supervisor, self._access, proofs, self._index, replays
        )
        is_required = self._security.identity.authenticator is not None
        self._health: Final = _register_libraries(self._listener, self._interceptor, self._buses, self._access, is_required=is_required)

    async def serve(self, stop: asyncio.Event, on_ready: Callable[[str], None]) -> None:
        """Serve until `stop` is set. `on_ready` is called with the address once the server answers. Raises ServeError."""
        if self._settings.identity.is_watched:
            _reload_on_hangup(self._security.identity)  # also while a long log is read
        async with _open_endpoint(self._settings, self._listener, self._security, self._methods, self._supervisor) as endpoint:
            collect_less()  # before the logs are read: most of what that creates stays
            await self._start(endpoint)
            background = self._start_background()
            if endpoint.front is not None:
                endpoint.front.serve()
            _log_ready(self._settings, endpoint, self._descriptors_max)
            on_ready(endpoint.address)
            await stop.wait()
            _LOG.info("server.stopping")
            for task in background:
                task.cancel()
            # The drain writes the last snapshots, which would miss that another one is being given up.
            await asyncio.wait(background, timeout=STOP_GRACE_SECONDS)
            await self._drain()
        await self._listener.stop(STOP_GRACE_SECONDS)
        for sequencer in self._buses.all():
            await sequencer.log.close()
        await self._telemetry.export.stop()
        _LOG.info("server.stopped")

    async def _start(self, endpoint: Endpoint) -> None:
        """Open the default bus, and begin to answer calls of this process and of the front."""
        if self._reactors is not None:
            self._reactors.target, self._reactors.secret = endpoint.inner, self._security.secret
        await open_default(self._buses, self._store)
        await self._listener.start()
        for name in self._health.names:
            await self._health.servicer.set(name, health_pb2.HealthCheckResponse.SERVING)

    def _start_background(self) -> list[asyncio.Task[None]]:
        start, index, listener, identity = self._supervisor.start, self._index, self._listener, self._security.identity
        background = [
            start("health reports", partial(report_forever, self._supervisor, self._health.set_background)),
            start("gRPC listener", listener.watch_forever, problem=lambda: listener.problem),
            start("idle buses", self._buses.close_idle_forever),
            start("work queues", partial(trim_forever, self._buses.all)),
            start("event index", partial(index.follow_forever, partial(_heads, self._buses)), problem=lambda: index.problem),
            start("snapshots", partial(write_forever, self._buses.all)),
            start("refused calls", self._access.refusals.record_forever),
            start("open calls", self._access.open_calls.end_refused_forever),
            start("free memory", return_free_pages_forever),
            start("young objects", collect_young_forever),
            start("old objects", partial(collect_oldest_forever, lambda: self._interceptor.quotas.calls)),
        ]
        if self._archives is not None:
            background.append(start("archive", partial(self._archives.run_forever, self._clock.now_ms)))
        if self._settings.identity.is_watched:
            background.append(start("identity files", identity.watch_forever, problem=lambda: identity.problem))
            background.append(start("keys of issuers", identity.refresh_keys_forever))
        return background

    async def _drain(self) -> None:
        """Take no new commands, commit and answer the queued ones, and end the streams."""
        await self._health.servicer.enter_graceful_shutdown()
        if self._reactors is not None:
            await self._reactors.stop()
        await self._access.refusals.stop()
        await self._buses.stop()
        self._interceptor.close_streams()
        await asyncio.sleep(FAREWELL_SECONDS)


def _heads(buses: BusRegistry) -> list[BusHead]:
    return [BusHead(sequencer.bus, sequencer.head.sequence_number) for sequencer in buses.all()]


def _security(settings: Settings) -> EndpointSecurity:
    try:
        return EndpointSecurity(Identity(settings.identity, take_turn), select_program(settings.front), settings.listen)
    except (OSError, IdentityError) as error:
        raise ServeError(str(error)) from error


@contextlib.asynccontextmanager
async def _open_endpoint(
    settings: Settings, listener: Listener, security: EndpointSecurity, methods: Mapping[str, Method], supervisor: Supervisor
) -> AsyncIterator[Endpoint]:
    """Bind the addresses; on exit, stop the front. Raises ServeError."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            endpoint = await stack.enter_async_context(listen(settings, listener, security, methods, supervisor))
        except OSError as error:
            raise ServeError(str(error)) from error
        yield endpoint


def _reload_on_hangup(identity: Identity) -> None:
    """Let SIGHUP load certificates, keys and tokens again, where it would stop the server."""
    if signal.SIGHUP in stop_signals():
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, identity.reload)


def _log_ready(settings: Settings, endpoint: Endpoint, descriptors_max: int) -> None:
    front = "none" if endpoint.front is None else "native"
    _LOG.info(
        "server.ready",
        address=endpoint.address,
        embedded_redis=settings.store is None,
        front=front,
        build=build(),
        descriptors_max=descriptors_max,
    )
    if settings.authentication == "required":
        return
    who = (
        "only this machine can reach the address"
        if is_local(settings.listen)
        else "any caller that reaches the address can act as any producer"
    )
    _LOG.warning("authentication.none", note=f"producers are taken from requests; {who}")


class _Health(NamedTuple):
    """The health servicer and the names that it reports on; "" is the whole server."""

    servicer: HealthServicer
    names: list[str]

    async def set_background(self, is_healthy: bool) -> None:
        """Report whether all background tasks do their work, under the name BACKGROUND_HEALTH."""
        status = health_pb2.HealthCheckResponse.SERVING if is_healthy else health_pb2.HealthCheckResponse.NOT_SERVING
        await self.servicer.set(BACKGROUND_HEALTH, status)


def _register_libraries(
    server: HandlerRegistry, interceptor: Interceptor, buses: BusRegistry, access: AccessControl, *, is_required: bool
) -> _Health:
    """Serve health and reflection. `is_required`: callers need credentials."""
    servicer = HealthServicer(buses)
    interceptor.register_library(server, HEALTH, servicer, partial(check_health_access, access=access, is_required=is_required))
    reflection = Reflection(NAMES)
    for service in REFLECTIONS:
        interceptor.register_library(server, service, reflection)
    return _Health(servicer, ["", *(service.full_name for service in SERVICES)])
