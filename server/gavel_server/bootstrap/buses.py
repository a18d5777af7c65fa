"""The buses of a server: their sequencers, and the default bus, which a server opens when it starts."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog
from gavel_client.supervision import Supervisor

from gavel_server.archive.archived_log import ArchivedLog
from gavel_server.archive.archives import join_archive
from gavel_server.bootstrap.errors import ServeError
from gavel_server.bus.batch.observation import BatchObserver
from gavel_server.bus.checkpoint import Checkpoint, CheckpointError
from gavel_server.bus.registry import BUS_DEFAULT, BusRegistry
from gavel_server.bus.sequencer import Sequencer
from gavel_server.bus.snapshots import BusSnapshots
from gavel_server.bus.watcher import BusWatcher
from gavel_server.config import Settings
from gavel_server.errors import ServiceError
from gavel_server.history.snapshot_files import SnapshotFiles
from gavel_server.log import Head, LogError
from gavel_server.log.protocol import LogUnreachableError, LogVolatileError, volatility_message
from gavel_server.log.stores import LogStore, StoredLog
from gavel_server.log.tail import TailBudget
from gavel_server.process.clock import GuardedClock
from gavel_server.process.private_files import make_directory
from gavel_server.reactors import Reactors

# The pause of a starting server between two looks for its store.
START_RETRY_SECONDS: Final = 0.5

_LOG: Final = structlog.get_logger("gavel.server")


class BusOpening:
    """Opens the buses of a server, and closes them: the functions that the registry of buses calls."""

    def __init__(
        self,
        settings: Settings,
        store: LogStore,
        supervisor: Supervisor,
        clock: GuardedClock,
        reactors: Reactors | None,
        *,
        is_observed: bool,
    ) -> None:
        """`reactors` derive facts in this process; None: another process does. Raises ServeError."""
        self._settings: Final = settings
        self._store: Final = store
        self._clock: Final = clock
        self._reactors: Final = reactors
        self._is_observed: Final = is_observed
        self._checkpoint: Final = open_checkpoint(settings)
        self._watch: Final = BusWatcher(store, supervisor, accept_volatile=settings.accept_volatile)
        self._tail_budget: Final = TailBudget()

    def acknowledged(self, bus: str) -> Head | None:
        """Return the last event of a bus that this server has acknowledged, or None."""
        return self._checkpoint.head_of(bus)

    async def open(self, name: str) -> Sequencer:
        """Start the sequencer of a bus. Of the new buses only the default one gets its first event now."""
        opens = name == BUS_DEFAULT
        return await open_sequencer(
            self._settings,
            self._store,
            name,
            self._clock,
            self._checkpoint,
            self._watch,
            opens=opens,
            is_observed=self._is_observed,
            tail_budget=self._tail_budget,
        )

    async def complete(self, sequencer: Sequencer) -> None:
        """Do what a bus needs beside its sequencer, once it has its first event."""
        await complete_opening(sequencer)
        if self._reactors is not None:
            sequencer.replica.on_execution = self._reactors.start(sequencer.bus, lambda: sequencer.has_live_decisions)

    async def close(self, sequencer: Sequencer) -> None:
        """Stop what `complete` started."""
        wake = sequencer.replica.on_execution
        if self._reactors is not None and wake is not None:
            await self._reactors.stop_one(wake)


async def open_sequencer(
    settings: Settings,
    store: LogStore,
    bus: str,
    clock: GuardedClock,
    checkpoint: Checkpoint | None = None,
    watch: BusWatcher | None = None,
    *,
    opens: bool = True,
    is_observed: bool = False,
    tail_budget: TailBudget | None = None,
) -> Sequencer:
    """Start the sequencer of a bus on its log. Raises ServeError, ServiceError, LogError.

    `opens`: open the bus if it is new. `is_observed`: measure and trace its batches. `tail_budget`: see LogTail.
    """
    live = await store.open(bus, idempotency_window_ms=settings.idempotency_window_ms, acknowledgement=settings.acknowledgement)
    log = await join_archive(live, settings.archive)
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
        tail_budget=tail_budget,
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
    if isinstance(log, StoredLog):
        # The window is recorded in the bus's first event; the setting only applies to new buses.
        log.idempotency_window_ms = sequencer.replica.state.idempotency_window_ms
    try:
        await log.ensure_groups()
    except LogError as error:
        _LOG.warning("log.groups_missing", bus=log.bus, problem=str(error))


async def open_default(buses: BusRegistry, store: LogStore) -> None:
    """Open the default bus, once the store can be reached. Raises ServeError if the bus cannot be opened."""
    problem = ""
    try:
        while True:
            try:
                await store.ping()
                async with store.probe_link():
                    sequencer = await buses.open(BUS_DEFAULT)
                break
            except (LogError, ServiceError) as error:
                if not isinstance(error, LogUnreachableError) and not isinstance(error.__cause__, LogUnreachableError):
                    raise ServeError(f"bus {BUS_DEFAULT} cannot be opened: {error}") from error
                if str(error) != problem:
                    problem = str(error)
                    _LOG.warning("log.unavailable", problem=problem, note="the start goes on as soon as the store answers")
            await asyncio.sleep(START_RETRY_SECONDS)
    except asyncio.CancelledError:
        # The start was cancelled: stop reading the log before the store closes.
        await buses.stop()
        raise
    block = sequencer.replica.write_block
    if sequencer.replica.lacks_attestation and block is not None:
        await buses.stop()
        raise ServeError(block.message)


def open_checkpoint(settings: Settings) -> Checkpoint:
    """Return the checkpoint of acknowledged events. Raises ServeError if its file cannot be used."""
    path = settings.checkpoint or settings.data / "checkpoint.json"
    try:
        make_directory(path.parent)
        return Checkpoint(path)
    except OSError as error:
        raise ServeError(f"cannot use {path} as the checkpoint of acknowledged events: {error.strerror}") from error
    except CheckpointError as error:
        raise ServeError(str(error)) from error


async def _check_durability(log: StoredLog, settings: Settings) -> None:
    reasons = await log.durability()
    if reasons and not settings.accept_volatile:
        raise LogVolatileError(volatility_message(reasons))
    for reason in reasons:
        _LOG.warning("log.volatile", bus=log.bus, reason=reason)
