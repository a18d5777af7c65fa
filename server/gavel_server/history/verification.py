"""Proves the events of a log: each is checked (`Integrity`), then recomputed (`Recomputation`), and snapshots are compared on the way.

Replay calls it for every event, so it is compiled (docs/performance.md#what-is-compiled).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Final

from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Engine
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.arbitration.contest import EarlyJudgement
from gavel_rules.replay import DivergedError, DriftReport, Integrity, Recomputation

from gavel_server.compile.precompiler import Precompiler
from gavel_server.fairness.callers import INTERNAL
from gavel_server.fairness.turns import call_slice
from gavel_server.history.replay_times import ReplayTimes
from gavel_server.history.snapshot_comparison import SnapshotComparison
from gavel_server.history.snapshot_files import SnapshotFiles
from gavel_server.log import Record


class Verification:
    """The proof of one log, event by event. `before` and `feed` are callbacks for `replay.pages`.

    After an event that is unlawful or recomputed differently, the rest of the log is still checked, because damage anywhere is the graver
    verdict. An unlawful event takes precedence over one that is recomputed differently.
    """

    def __init__(self, bus: str, engine: Engine.ValueType, compare_from: int, snapshots: SnapshotFiles | None, times: ReplayTimes) -> None:
        self._integrity: Final = Integrity(bus)
        self.recomputation, self._prepare = replay_part(bus, engine=engine, compare_from=compare_from)
        self.comparison: Final = SnapshotComparison(snapshots)
        self.report: Final = DriftReport()
        self._report_from: Final = compare_from
        self._times: Final = times
        self._checked = Envelope()
        self._fed = 0
        self._divergence: DivergedError | None = None
        self._is_lawful = True

    def before(self, record: Record) -> Awaitable[None] | None:
        """Check an event. Raises DamagedError or VersionNotImplementedError."""
        try:
            self._checked = self._integrity.feed(record.sequence_number, record.envelope, record.chain_hash)
        except DivergedError as error:
            if self._is_lawful:
                self._divergence, self._is_lawful = error, False
        if self._divergence is not None:
            return None
        return self._compare(record.envelope) if self.comparison.is_due(self._fed) else self._prepare(record.envelope)

    def feed(self, record: Record) -> None:
        """Recompute an event that is checked."""
        if self._divergence is not None:
            return
        started = perf_counter()
        try:
            event = self.recomputation.feed(record.sequence_number, record.envelope, self._checked)
        except DivergedError as error:
            self._divergence = error
            return
        self._times.recomputing_seconds += perf_counter() - started
        self._fed = record.sequence_number
        if self._fed >= self._report_from:
            self.report.note(event, self.recomputation.state)

    async def finish(self, last: int, *, at_head: bool) -> None:
        """Raise the DivergedError of the first unlawful event, or of the first event or snapshot that differs."""
        if self._divergence is None:
            self.recomputation.finish(at_head=at_head)
            if self.comparison.is_due(last):
                await self.comparison.compare(last, self.recomputation.state)
        else:
            raise self._divergence

    async def _compare(self, envelope: bytes) -> None:
        """Compare the state with a snapshot before the next event is recomputed."""
        try:
            await self.comparison.compare(self._fed, self.recomputation.state)
        except DivergedError as error:
            self._divergence = error
            return
        preparation = self._prepare(envelope)
        if preparation is not None:
            await preparation


def replay_part(
    bus: str, *, engine: Engine.ValueType = decision_pb2.ENGINE_UNSPECIFIED, compare_from: int = 0
) -> tuple[Recomputation, Callable[[bytes], Awaitable[None] | None]]:
    """Return a recomputation that compares from a sequence number on (0: the start), and the `before` of `pages` for it."""
    precompiler = Precompiler(documents=True)
    recomputation = Recomputation(
        bus, engine=engine or decision_pb2.ENGINE_RETE, compare_from=max(compare_from, 1), compile_document=precompiler.compile_document
    )

    def before(envelope: bytes) -> Awaitable[None] | None:
        early_judgement = recomputation.early_judgement(envelope)
        if early_judgement is not None:  # the event is a decision of a contest
            return _judge(early_judgement)
        return precompiler.before(recomputation.state, envelope)

    return recomputation, before


async def _judge(early_judgement: EarlyJudgement) -> None:
    """Judge the candidates of a contest in slices."""
    time_slice = call_slice(1, INTERNAL)
    while early_judgement.step():
        await time_slice.spend(1)
