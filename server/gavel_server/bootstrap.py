"""The composition root: creates the parts of a server, and starts and stops them in order.

Nothing is opened at import. A server stops in the reverse order of its start: it takes no new commands, commits and answers what is
queued, ends the streams, and closes the log's store last.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

import structlog
import uvloop
from gavel_client.supervision import Supervisor
from grpc_health.v1 import health_pb2

from gavel_server.archive.archived_log import ArchivedLog
from gavel_server.archive.archives import Archives, open_archive
from gavel_server.bus.batch.observation import BatchObserver
from gavel_server.bus.checkpoint import Checkpoint, CheckpointError
from gavel_server.bus.registry import BUS_DEFAULT, BusRegistry
from gavel_server.bus.sequencer import Sequencer
from gavel_server.bus.snapshot_writer import write_forever
from gavel_server.bus.snapshots import BusSnapshots
from gavel_server.bus.watcher import BusWatcher
from gavel_server.config import Settings, is_local
from gavel_server.errors import GavelServerError, ServiceError
from gavel_server.fairness.quotas import Quotas
from gavel_server.front.programs import select_program
from gavel_server.history.snapshot_files import SnapshotFiles
from gavel_server.identity.identity import Identity, IdentityError
from gavel_server.index.event_index import BusHead, EventIndex
from gavel_server.listening import EndpointSecurity, Listening, listen
from gavel_server.log import EventLog, LogError
from gavel_server.log.protocol import LogUnreachableError, LogVolatileError, volatility_message
from gavel_server.log.redis.embedded import EmbeddedRedis
from gavel_server.log.redis.log import RedisLog
from gavel_server.log.redis.logs import RedisLogs
from gavel_server.log.redis.supervision import restart_forever
from gavel_server.process import logging, metrics
from gavel_server.process.allocator import return_free_pages_forever, return_large_blocks
from gavel_server.process.background import new_supervisor, report_forever
from gavel_server.process.build import build
from gavel_server.process.clock import GuardedClock
from gavel_server.process.descriptors import raise_limit
from gavel_server.process.garbage_collection import collect_less
from gavel_server.process.signals import stop_signals
from gavel_server.process.telemetry.export import Export, start_export
from gavel_server.process.telemetry.settings import TelemetryError, read_exports
from gavel_server.reactors import Reactors
from gavel_server.rpc.callback_methods import Method
from gavel_server.rpc.identity.access import AccessControl
from gavel_server.rpc.identity.closed_grants import ClosedGrants
from gavel_server.rpc.interceptor import HandlerRegistry, Interceptor
from gavel_server.rpc.listener import Listener
from gavel_server.rpc.reflection import Reflection
from gavel_server.rpc.service_descriptors import HEALTH, NAMES, REFLECTIONS, SERVICES
from gavel_server.rpc.telemetry.call_observer import CallObserver
from gavel_server.rpc.transport import STOP_GRACE_SECONDS
from gavel_server.rpc.wakeups import read_all_wakeups
from gavel_server.services.health import HealthServicer, check_health_access
from gavel_server.services.registration import register_services
from gavel_server.work.trimming import trim_forever

# A stopping gRPC server answers new calls CANCELLED. During this pause, callers that have just got their last answer still get
# SHUTTING_DOWN. It is shorter than the retry delay that they get with it (RETRY_AFTER_MS_DEFAULT): when they retry, the server is gone.
FAREWELL_SECONDS: Final = 0.15

# The pause of a starting server between two looks for its Redis.
START_RETRY_SECONDS: Final = 0.5
# The name under which grpc.health.v1 reports on the background tasks. The other names tell whether calls are answered.
BACKGROUND_HEALTH: Final = "gavel.background"

_LOG: Final = structlog.get_logger("gavel.server")


class ServeError(GavelServerError):
    """The server cannot start; the message says why and what to do."""


def run(settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP. `ready` is called with the address once the server answers. Raises ServeError, LogError."""
    return_large_blocks()
    uvloop.run(_run(settings, ready))


async def _run(settings: Settings, ready: Callable[[str], None]) -> None:
    read_all_wakeups()
    await serve(settings, ready=ready)


async def serve(settings: Settings, *, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP, on the running loop."""
    log_lines = logging.Logging(level=settings.log_level, as_json=settings.log_json)
    log_lines.start()
    try:
        await _serve_until_signal(settings, ready)
    finally:
        log_lines.close()


async def _serve_until_signal(settings: Settings, ready: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    starting = asyncio.current_task()

    def end() -> None:
        nonlocal starting
        stop.set()
        if starting is not None:
            # The server may be reading a long log. It has no callers yet, so there is nothing to drain.
            starting.cancel()
            starting = None

    def started(address: str) -> None:
        nonlocal starting
        starting = None
        ready(address)

    for number in stop_signals():
        loop.add_signal_handler(number, end)
    try:
        supervisor = new_supervisor()
        async with _store(settings, supervisor) as redis_url, _redis_logs(redis_url, settings) as redis_logs:
            await _serve_on(settings, redis_url, redis_logs, supervisor, stop, started)
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        _LOG.info("server.stopped", note="before it was ready")


@contextlib.asynccontextmanager
async def _store(settings: Settings, supervisor: Supervisor) -> AsyncIterator[str]:
    """Yield the URL of the Redis to use; start, supervise and stop the embedded one."""
    if settings.redis is not None:
        yield settings.redis
        return
    async with EmbeddedRedis(settings.data, memory_bytes_max=settings.redis_memory_bytes_max) as redis:
        restarts = supervisor.start("embedded Redis", partial(restart_forever, redis), problem=redis.problem)
        try:
            yield redis.url
        finally:
            restarts.cancel()
            await asyncio.gather(restarts, return_exceptions=True)


@contextlib.asynccontextmanager
async def _redis_logs(redis_url: str, settings: Settings) -> AsyncIterator[RedisLogs]:
    redis_logs = RedisLogs(redis_url, accept_volatile=settings.accept_volatile)
    try:
        yield redis_logs
    finally:
        await redis_logs.close()


async def _serve_on(
    settings: Settings,
    redis_url: str,
    redis_logs: RedisLogs,
    supervisor: Supervisor,
    stop: asyncio.Event,
    ready: Callable[[str], None],
) -> None:
    descriptors_max = raise_limit()
    telemetry = _start_telemetry(settings)
    clock = GuardedClock()
    checkpoint = _checkpoint(settings)
    reactors = Reactors(redis_url, supervisor) if settings.fdr else None
    watch = BusWatcher(redis_logs, supervisor, accept_volatile=settings.accept_volatile)

    async def open_bus(name: str) -> Sequencer:
        return await open_sequencer(
            settings, redis_logs, name, clock, checkpoint, watch, opens=name == BUS_DEFAULT, is_observed=telemetry.observer is not None
        )

    async def opened(sequencer: Sequencer) -> None:
        await complete_opening(sequencer)
        if reactors is not None:
            sequencer.replica.on_execution = reactors.start(sequencer.bus)

    async def closed(sequencer: Sequencer) -> None:
        if reactors is not None:
            await reactors.stop_bus(sequencer.bus)

    archives = Archives(settings.archive, settings.archive_after_days, redis_logs) if settings.archive else None
    buses = BusRegistry(open_bus, redis_logs.exists, opened=opened, closed=closed, names=redis_logs.names, creates=settings.create_buses)
    security = _security(settings)
    behind_front = security.program is not None
    listener = Listener(behind_front=behind_front)
    interceptor = Interceptor(
        behind_front=behind_front,
        quotas=Quotas(settings.quotas),
        observer=telemetry.observer,
        authentication=security.of_calls(),
    )
    security.on_refused = interceptor.note_unauthenticated
    envelope = redis_logs.envelope if archives is None else archives.envelope
    access = AccessControl(buses, settings.admins, closed_grants=ClosedGrants(redis_logs.grants_number, envelope))
    index = EventIndex(settings.data, redis_url, settings.index_from, settings.archive)
    methods = register_services(listener, interceptor, buses, supervisor, access, settings.data / "proofs", index)
    states = _register_libraries(listener, interceptor, buses, access, is_required=security.identity.authenticator is not None)
    async with _listening(settings, listener, security, methods, supervisor) as listening:
        if reactors is not None:
            reactors.target, reactors.secret = listening.inner, security.secret
        await _open_default(buses, redis_logs)
        await listener.start()
        for name in states.names:
            await states.servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        background = [
            supervisor.start("health reports", partial(report_forever, supervisor, states.set_background)),
            supervisor.start("gRPC listener", listener.watch_forever, problem=lambda: listener.problem),
            supervisor.start("idle buses", buses.close_idle_forever),
            supervisor.start("work queues", partial(trim_forever, buses.all)),
            supervisor.start("event index", partial(index.follow_forever, partial(_heads, buses)), problem=lambda: index.problem),
            supervisor.start("snapshots", partial(write_forever, buses.all)),
            supervisor.start("refused calls", access.refusals.record_forever),
            *([supervisor.start("archive", partial(archives.run_forever, clock.now_ms))] if archives is not None else []),
            supervisor.start("free memory", return_free_pages_forever),
        ]
        if security.identity.is_watched:
            background.append(
                supervisor.start("identity files", security.identity.watch_forever, problem=lambda: security.identity.problem)
            )
            _reload_on_hangup(security.identity)
        if listening.front is not None:
            listening.front.serve()
        collect_less()
        _log_ready(settings, listening, descriptors_max)
        ready(listening.address)
        await stop.wait()
        _LOG.info("server.stopping")
        for task in background:
            task.cancel()
        await states.servicer.enter_graceful_shutdown()
        if reactors is not None:
            await reactors.stop()
        await access.refusals.stop()
        await buses.stop()
        interceptor.close_streams()
        await asyncio.sleep(FAREWELL_SECONDS)
    await listener.stop(STOP_GRACE_SECONDS)
    for sequencer in buses.all():
        await sequencer.log.close()
    await telemetry.export.stop()
    _LOG.info("server.stopped")


def _heads(buses: BusRegistry) -> list[BusHead]:
    return [BusHead(sequencer.bus, sequencer.head.sequence_number) for sequencer in buses.all()]


def _security(settings: Settings) -> EndpointSecurity:
    try:
        return EndpointSecurity(Identity(settings.identity), select_program(settings.front))
    except (OSError, IdentityError) as error:
        raise ServeError(str(error)) from error


@contextlib.asynccontextmanager
async def _listening(
    settings: Settings, listener: Listener, security: EndpointSecurity, methods: Mapping[str, Method], supervisor: Supervisor
) -> AsyncIterator[Listening]:
    """Bind the addresses; on exit, stop the front. Raises ServeError."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            listening = await stack.enter_async_context(listen(settings, listener, security, methods, supervisor))
        except OSError as error:
            raise ServeError(str(error)) from error
        yield listening


def _reload_on_hangup(identity: Identity) -> None:
    """Let SIGHUP load certificates, keys and tokens again, where it would stop the server."""
    if signal.SIGHUP in stop_signals():
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, identity.reload)


def _log_ready(settings: Settings, listening: Listening, descriptors_max: int) -> None:
    front = "none" if listening.front is None else "native"
    _LOG.info(
        "server.ready",
        address=listening.address,
        embedded_redis=settings.redis is None,
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


async def open_sequencer(
    settings: Settings,
    redis_logs: RedisLogs,
    bus: str,
    clock: GuardedClock,
    checkpoint: Checkpoint | None = None,
    watch: BusWatcher | None = None,
    *,
    opens: bool = True,
    is_observed: bool = False,
) -> Sequencer:
    """Start the sequencer of a bus on its log. Raises ServeError, ServiceError, LogError.

    `opens`: open the bus if it is new. `is_observed`: measure and trace its batches.
    """
    live = await redis_logs.open(bus, idempotency_window_ms=settings.idempotency_window_ms, acknowledgement=settings.acknowledgement)
    log: EventLog = live
    if settings.archive:
        log = ArchivedLog(live, await open_archive(settings.archive, bus))
    sequencer = Sequencer(
        log,
        clock,
        cross_check=settings.cross_check_of_new_bus,
        idempotency_window_ms=settings.idempotency_window_ms,
        checkpoint=checkpoint,
        watch=watch,
        observer=BatchObserver(bus) if is_observed else None,
        requires_attestation=settings.authentication == "required",
        snapshots=BusSnapshots(SnapshotFiles(settings.data, bus), settings.snapshot_every),
    )
    try:
        await _check_durability(live, settings)
        await sequencer.start(opens=opens)
    except BaseException:
        await log.close()
        raise
    return sequencer


async def complete_opening(sequencer: Sequencer) -> None:
    """Complete the opening of a bus once it has its first event: set the log's idempotency window, and create the consumer groups.

    Reads need no group, and executors create a missing one themselves, so a failure is only logged.
    """
    log = sequencer.log
    if isinstance(log, ArchivedLog):
        log = log.live
    if isinstance(log, RedisLog):
        # The window is recorded in the bus's first event; the setting only applies to new buses.
        log.idempotency_window_ms = sequencer.replica.state.idempotency_window_ms
    try:
        await log.ensure_groups()
    except LogError as error:
        _LOG.warning("log.groups_missing", bus=log.bus, problem=str(error))


class _Health(NamedTuple):
    """The health servicer and the names that it reports on; "" is the whole server."""

    servicer: HealthServicer
    names: list[str]

    async def set_background(self, is_well: bool) -> None:
        """Report whether all background tasks do their work, under the name BACKGROUND_HEALTH."""
        status = health_pb2.HealthCheckResponse.SERVING if is_well else health_pb2.HealthCheckResponse.NOT_SERVING
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


class _Telemetry(NamedTuple):
    """What is exported, and the observer of calls; None: nobody reads what it would measure."""

    export: Export
    observer: CallObserver | None


def _start_telemetry(settings: Settings) -> _Telemetry:
    """Serve metrics, and export traces and metrics, as settings and OTEL_* variables ask for. Raises ServeError."""
    try:
        exports = read_exports(os.environ)
        if exports.prometheus and not (settings.allow_unauthenticated_network or settings.container or is_local(exports.prometheus)):
            raise TelemetryError(
                f"OTEL_EXPORTER_PROMETHEUS_HOST and _PORT are {exports.prometheus}, which other machines may reach: any caller could read "
                "the metrics. Serve them on localhost, or, if the network is protected by other means, give --allow-unauthenticated-network"
            )
        export = start_export(exports)
    except TelemetryError as error:
        raise ServeError(str(error)) from error
    listens = [address for address in (settings.metrics, exports.prometheus) if address]
    for address in listens:
        try:
            metrics.serve(address)
        except OSError as error:
            raise ServeError(f"cannot serve metrics on {address}: {error.strerror}") from error
    is_observed = bool(listens) or exports.needs_sdk
    return _Telemetry(export, CallObserver(export.tracing) if is_observed else None)


async def _open_default(buses: BusRegistry, redis_logs: RedisLogs) -> None:
    """Open the default bus, once Redis can be reached. Raises ServeError if the bus cannot be opened."""
    problem = ""
    try:
        while True:
            try:
                await redis_logs.ping()
                async with redis_logs.probing():
                    sequencer = await buses.open(BUS_DEFAULT)
                break
            except (LogError, ServiceError) as error:
                if not isinstance(error, LogUnreachableError) and not isinstance(error.__cause__, LogUnreachableError):
                    raise ServeError(f"bus {BUS_DEFAULT} cannot be opened: {error}") from error
                if str(error) != problem:
                    problem = str(error)
                    _LOG.warning("log.unavailable", problem=problem, note="the start goes on as soon as Redis answers")
            await asyncio.sleep(START_RETRY_SECONDS)
    except asyncio.CancelledError:
        # The start was cancelled: stop reading the log before the store closes.
        await buses.stop()
        raise
    block = sequencer.replica.write_block
    if sequencer.replica.lacks_attestation and block is not None:
        await buses.stop()
        raise ServeError(block.message)


def _checkpoint(settings: Settings) -> Checkpoint:
    path = settings.checkpoint or settings.data / "checkpoint.json"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Checkpoint(path)
    except OSError as error:
        raise ServeError(f"cannot use {path} as the checkpoint of acknowledged events: {error.strerror}") from error
    except CheckpointError as error:
        raise ServeError(str(error)) from error


async def _check_durability(log: RedisLog, settings: Settings) -> None:
    reasons = await log.durability()
    if reasons and not settings.accept_volatile:
        raise LogVolatileError(volatility_message(reasons))
    for reason in reasons:
        _LOG.warning("log.volatile", bus=log.bus, reason=reason)
