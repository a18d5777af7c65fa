"""The composition root: which parts a server is made of, in which order they start and stop.

Nothing is opened at import. Stopping is the reverse of starting: no new commands, what is queued is committed and answered,
streams end, then the log's store goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

import grpc
import structlog
import uvloop
from gavel.v1 import (
    event_service_pb2_grpc,
    execution_service_pb2_grpc,
    projection_service_pb2_grpc,
    replay_service_pb2_grpc,
    rule_set_service_pb2_grpc,
    tool_service_pb2_grpc,
)
from gavel_client.client import GavelClient
from gavel_client.fdr import FactDerivationReactor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from gavel_server import metrics, telemetry
from gavel_server.build import build
from gavel_server.bus.checkpoint import Checkpoint, CheckpointError
from gavel_server.bus.sequencer import Sequencer
from gavel_server.bus.watching import Watch
from gavel_server.buses import BUS_DEFAULT, Buses
from gavel_server.clock import GuardedClock
from gavel_server.collector import collect_less
from gavel_server.compiler import Compiler
from gavel_server.config import Settings, is_local
from gavel_server.embedded import EmbeddedRedis
from gavel_server.errors import ServiceError
from gavel_server.front.keeper import FrontKeeper
from gavel_server.front.programs import chosen
from gavel_server.log.redis import RedisLog, RedisTails
from gavel_server.services.arbitration import Arbitration
from gavel_server.services.boundary import Guard, Plain
from gavel_server.services.event import EventServicer
from gavel_server.services.execution import ExecutionServicer
from gavel_server.services.projection import ProjectionServicer
from gavel_server.services.replay import Replays, ReplayServicer
from gavel_server.services.rule_set import RuleSetServicer
from gavel_server.services.tool import ToolServicer
from gavel_server.sockets import private_socket
from gavel_server.surface import NAMES, SERVICES
from gavel_server.transport import STOP_GRACE_SECONDS, UNIX, bind, make_server

# gRPC cuts off what reaches a server that stops, with CANCELLED. So callers whose last answer has just gone out are still told
# that it is shutting down; the pause that they are advised (RETRY_AFTER_MS_DEFAULT) is longer than this, and then it is gone.
FAREWELL_SECONDS: Final = 0.15
REDIS_RESTART_PAUSE_SECONDS: Final = 1.0

_LOG: Final = structlog.get_logger("gavel.server")


class ServeError(Exception):
    """The server cannot start; the message says why and what to do."""


def run(settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. `ready` hears the address once the server answers. Raises ServeError, LogError."""
    uvloop.run(serve(settings, ready=ready))


async def serve(settings: Settings, *, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, on the running loop."""
    telemetry.configure(level=settings.log_level, as_json=settings.log_json)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    starting = asyncio.current_task()

    def end() -> None:
        nonlocal starting
        stop.set()
        if starting is not None:
            # A log takes its time to be read, and nobody has been let in yet: there is nothing to drain.
            starting.cancel()
            starting = None

    def started(address: str) -> None:
        nonlocal starting
        starting = None
        ready(address)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    try:
        async with _store(settings) as redis_url, _tails(redis_url) as tails:
            await _serve_on(settings, redis_url, tails, stop, started)
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        _LOG.info("server.stopped", note="before it was ready")


@contextlib.asynccontextmanager
async def _store(settings: Settings) -> AsyncIterator[str]:
    """Give the URL of the Redis to use; the embedded one is started, kept running and stopped here."""
    if settings.redis is not None:
        yield settings.redis
        return
    async with EmbeddedRedis(settings.data) as redis:
        keeper = asyncio.create_task(_keep_running(redis))
        try:
            yield redis.url
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)


async def _keep_running(redis: EmbeddedRedis) -> None:
    """Start the embedded Redis again if it dies: its append-only file has every acknowledged event."""
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        returncode = await redis.wait()
        # A disk without room is the likeliest reason, and Redis cannot write it into its own log then.
        free_bytes = shutil.disk_usage(redis.data_directory).free
        _LOG.error("redis.died", returncode=returncode, log=str(redis.log_path), disk_free_bytes=free_bytes)
        if loop.time() - began < REDIS_RESTART_PAUSE_SECONDS:
            await asyncio.sleep(REDIS_RESTART_PAUSE_SECONDS)
        try:
            await redis.ensure_running()
        except Exception:  # noqa: BLE001  # keep trying; writes are refused meanwhile, with the reason
            _LOG.exception("redis.restart_failed")
            await asyncio.sleep(REDIS_RESTART_PAUSE_SECONDS)


@contextlib.asynccontextmanager
async def _tails(redis_url: str) -> AsyncIterator[RedisTails]:
    tails = RedisTails(redis_url)
    try:
        yield tails
    finally:
        await tails.close()


async def _serve_on(settings: Settings, redis_url: str, tails: RedisTails, stop: asyncio.Event, ready: Callable[[str], None]) -> None:
    clock = GuardedClock()
    checkpoint = _checkpoint(settings)
    reactors = _Reactors(redis_url) if settings.fdr else None
    watch = Watch(tails)

    async def open_bus(name: str) -> Sequencer:
        sequencer = await open_sequencer(settings, redis_url, name, clock, checkpoint, watch)
        if reactors is not None:
            sequencer.replica.on_execution = reactors.start(name)
        return sequencer

    buses = Buses(open_bus)
    server = make_server()
    arbitration, states = _register(server, buses)
    _serve_metrics(settings)
    async with _listening(settings, server, arbitration) as listening:
        if reactors is not None:
            reactors.target = listening.inner
        await _open_default(buses)
        await server.start()
        for name in states.names:
            await states.servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        if listening.front is not None:
            listening.front.serve()
        collect_less()
        _say_ready(settings, listening)
        ready(listening.address)
        await stop.wait()
        _LOG.info("server.stopping")
        await states.servicer.enter_graceful_shutdown()
        if reactors is not None:
            await reactors.stop()
        await buses.stop()
        arbitration.close_streams()
        await asyncio.sleep(FAREWELL_SECONDS)
    await server.stop(STOP_GRACE_SECONDS)
    for sequencer in buses.all():
        await sequencer.log.close()
    _LOG.info("server.stopped")


class _Listening(NamedTuple):
    """Where callers reach the server, where its own parts do, and the front between the two if there is one."""

    address: str
    inner: str
    front: FrontKeeper | None


@contextlib.asynccontextmanager
async def _listening(settings: Settings, server: grpc.aio.Server, arbitration: Arbitration) -> AsyncIterator[_Listening]:
    """Bind the addresses; at the end no more callers are let in. Raises ServeError."""
    try:
        program = chosen(settings.front)
    except OSError as error:
        raise ServeError(str(error)) from error
    if program is None:
        address = _bound(server, settings.listen)
        yield _Listening(address, address, None)
        return
    # Whoever reaches the socket speaks to the server itself.
    with private_socket(lambda path: _bound(server, UNIX + path)) as own:
        inner = UNIX + own.path
        front = FrontKeeper(program, arbitration.methods, settings.listen, inner, own.descriptors)
        try:
            try:
                address = await front.start()
            except OSError as error:
                raise ServeError(str(error)) from error
            yield _Listening(address, inner, front)
        finally:
            await front.stop()


def _bound(server: grpc.aio.Server, listen: str) -> str:
    try:
        return bind(server, listen)
    except OSError as error:
        raise ServeError(str(error)) from error


def _say_ready(settings: Settings, listening: _Listening) -> None:
    front = "none" if listening.front is None else listening.front.program
    _LOG.info("server.ready", address=listening.address, embedded_redis=settings.redis is None, front=front, build=build())
    who = "only this machine can reach the address" if is_local(settings.listen) else "whoever reaches the address may claim to be anybody"
    _LOG.warning("authentication.none", note=f"producers are taken from requests; {who}")


async def open_sequencer(
    settings: Settings,
    redis_url: str,
    bus: str,
    clock: GuardedClock,
    checkpoint: Checkpoint | None = None,
    watch: Watch | None = None,
) -> Sequencer:
    """Connect to a bus's log and begin to serve it. Raises ServeError, ServiceError, LogError."""
    log = await RedisLog.connect(
        redis_url,
        bus,
        idempotency_window_ms=settings.idempotency_window_ms,
        acknowledge_replicas=settings.ack_replicas,
    )
    sequencer = Sequencer(
        log,
        clock,
        cross_check=settings.cross_check_of_new_bus,
        idempotency_window_ms=settings.idempotency_window_ms,
        checkpoint=checkpoint,
        watch=watch,
    )
    try:
        await _check_durability(log, settings)
        await log.ensure_groups()
        await sequencer.start()
    except BaseException:
        await log.close()
        raise
    # What the bus was opened with stands in its first event; the setting only opens new ones.
    log.idempotency_window_ms = sequencer.replica.state.idempotency_window_ms
    return sequencer


class _Health(NamedTuple):
    """The servicer that says who serves, and the names of those it is asked about; "" is the server as a whole."""

    servicer: health.aio.HealthServicer
    names: list[str]


def _register(server: grpc.aio.Server, buses: Buses) -> tuple[Arbitration, _Health]:
    guard = Guard(server)
    compiler = Compiler()
    replays = Replays()
    arbitration = Arbitration(buses, compiler)
    arbitration.register(server)
    event_service_pb2_grpc.add_EventServiceServicer_to_server(EventServicer(buses), guard)
    execution_service_pb2_grpc.add_ExecutionServiceServicer_to_server(ExecutionServicer(buses), guard)
    rule_set_service_pb2_grpc.add_RuleSetServiceServicer_to_server(RuleSetServicer(buses, compiler, replays), guard)
    projection_service_pb2_grpc.add_ProjectionServiceServicer_to_server(ProjectionServicer(buses), guard)
    replay_service_pb2_grpc.add_ReplayServiceServicer_to_server(ReplayServicer(buses, replays), guard)
    tool_service_pb2_grpc.add_ToolServiceServicer_to_server(ToolServicer(), guard)
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, Plain(server))
    reflected = reflection.aio.ReflectionServicer(NAMES)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, Plain(server))  # type: ignore[no-untyped-call]
    return arbitration, _Health(servicer, ["", *(service.full_name for service in SERVICES)])


def _serve_metrics(settings: Settings) -> None:
    if settings.metrics is None:
        return
    try:
        metrics.serve(settings.metrics)
    except OSError as error:
        raise ServeError(f"cannot serve metrics on {settings.metrics}: {error.strerror}") from error


async def _open_default(buses: Buses) -> None:
    try:
        await buses.get(BUS_DEFAULT)
    except ServiceError as error:
        raise ServeError(f"bus {BUS_DEFAULT} cannot be opened: {error.message}") from error
    except asyncio.CancelledError:
        # The start is given up: its log is read no further while the store goes.
        await buses.stop()
        raise


def _checkpoint(settings: Settings) -> Checkpoint:
    path = settings.checkpoint or settings.data / "checkpoint.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return Checkpoint(path)
    except OSError as error:
        raise ServeError(f"cannot use {path} as the checkpoint of acknowledged events: {error.strerror}") from error
    except CheckpointError as error:
        raise ServeError(str(error)) from error


async def _check_durability(log: RedisLog, settings: Settings) -> None:
    reasons = await log.durability()
    if reasons and not settings.accept_volatile:
        raise ServeError(
            f"this Redis may lose acknowledged events: {'; '.join(reasons)}. Configure it otherwise, or accept it with --accept-volatile"
        )
    for reason in reasons:
        _LOG.warning("log.volatile", bus=log.bus, reason=reason)


class _Reactors:
    """The fact derivation reactors that run inside the server, one per bus, as clients of it."""

    def __init__(self, redis_url: str) -> None:
        self._redis_url = redis_url
        self.target = ""
        self._running: list[tuple[FactDerivationReactor, asyncio.Task[None], GavelClient]] = []

    def start(self, bus: str) -> Callable[[], None]:
        """Derive the facts of a bus from now on; return what to call whenever an execution has been recorded."""
        news = asyncio.Event()
        client = GavelClient(self.target, bus=bus)
        reactor = FactDerivationReactor(client, self._redis_url, news=news)
        self._running.append((reactor, asyncio.create_task(self._run(reactor, bus)), client))
        return news.set

    async def _run(self, reactor: FactDerivationReactor, bus: str) -> None:
        try:
            await reactor.run()
        except Exception:  # noqa: BLE001  # nobody awaits the reactor: what it cannot heal must be said
            _LOG.exception("reactor.stopped", bus=bus, consequence="no facts are derived and no conflict key is freed until a restart")

    async def stop(self) -> None:
        """Let those under way end."""
        for reactor, _, _ in self._running:
            reactor.stop()
        await asyncio.gather(*(task for _, task, _ in self._running), return_exceptions=True)
        for _, _, client in self._running:
            await client.close()
