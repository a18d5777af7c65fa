"""A replay on several processes: the segments of the log between snapshots are checked and recomputed side by side.

If counters were filled, one process then counts their past again. A parallel replay only proves. If anything cannot be proved in this way,
the reason is logged, and `verify` replays the log in one piece, which tells what is wrong and where: a divergence, damage, or a snapshot
that does not fit.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import aclosing
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import structlog
from gavel.internal.v1.state_snapshot_pb2 import StateSnapshot
from gavel.v1 import replay_service_pb2
from gavel.v1.decision_pb2 import ENGINE_RETE, Engine
from gavel.v1.fact_pb2 import DataLossAccepted
from gavel.v1.replay_service_pb2 import ReplayVerdict, VerifyReplayResponse
from gavel.v1.rule_set_service_pb2 import ReplayProgress
from gavel_rules.replay import DriftReport, are_joined
from gavel_rules.replay.recomputation import DATA_LOSSES_MAX
from gavel_rules.state.snapshot.decoding import StateDecoder

from gavel_server.history.replay import proved_message, verify
from gavel_server.history.replay_times import ReplayTimes
from gavel_server.history.segments import Segment, SegmentResult, Source, Unproved, prove_fills, prove_segment, share
from gavel_server.history.snapshot_comparison import SnapshotComparison
from gavel_server.history.snapshot_files import SnapshotFiles
from gavel_server.log import EventLog

_PROGRESS_SECONDS: Final = 0.5

_LOG: Final = structlog.get_logger(__name__)


async def verify_in_parallel(
    log: EventLog, url: str, data: Path, processes: int, engine: Engine.ValueType = ENGINE_RETE, times: ReplayTimes | None = None
) -> AsyncGenerator[VerifyReplayResponse, None]:
    """Prove a whole log in the store at `url` on several processes, with the snapshots in a data directory.

    Yields progress and last the verdict, as `verify` does. `times` is told the sum of what the processes took.
    """
    times = ReplayTimes() if times is None else times
    times.began = perf_counter()
    source = Source(url, log.bus)
    files = SnapshotFiles(data, log.bus)
    last = (await log.head()).sequence_number
    segments = await _segments(log, files, data, last)
    yield _progress_of(0, last)
    context = multiprocessing.get_context("spawn")
    reached = context.Array("q", max(len(segments), 1), lock=False)
    with ProcessPoolExecutor(processes, context, share, (reached,)) as pool:
        loop = asyncio.get_running_loop()
        # The longest first, so that no process is left with it at the end.
        order = sorted(range(len(segments)), key=lambda place: segments[place].begin - segments[place].end)
        tasks = [loop.run_in_executor(pool, prove_segment, source, place, segments[place], engine) for place in order]
        async for number in _progress(tasks, reached):
            yield _progress_of(number, last)
        counts = [task.result() for _, task in sorted(zip(order, tasks, strict=True), key=lambda pair: pair[0])]
        proved = [count for count in counts if isinstance(count, SegmentResult)]
        problems = [count.problem for count in counts if isinstance(count, Unproved)]
        if not problems and not are_joined(count.integrity for count in proved):
            problems.append("two segments of the log are not intact together")
        fills = [fill for count in proved for fill in count.fills]
        if not problems and any(fill.events for fill in fills):
            for place in range(len(reached)):
                reached[place] = 0
            proof = loop.run_in_executor(pool, prove_fills, source, 0, fills)
            past = max(fill.opened_at - 1 for fill in fills if fill.events)
            async for number in _progress([proof], reached):
                yield _progress_of(number, past)
            fills_proved = proof.result()
            if isinstance(fills_proved, Unproved):
                problems.append(fills_proved.problem)
    if problems:
        _LOG.warning("replay.in_one_piece", bus=log.bus, problem=problems[0])
        async with aclosing(verify(log, engine=engine, to_sequence_number=last, snapshots=files, times=times)) as responses:
            async for response in responses:
                yield response
        return
    times.seconds += sum(count.seconds for count in proved)
    times.recomputing_seconds += sum(count.recomputing_seconds for count in proved)
    yield VerifyReplayResponse(verdict=_verdict(log.bus, proved, sum(1 for segment in segments if segment.end_digest)))


async def _segments(log: EventLog, files: SnapshotFiles, data: Path, last: int) -> list[Segment]:
    """Return the segments between the snapshots that the log confirms, in order."""
    comparison = SnapshotComparison(files)
    await comparison.load(log, last)
    digests = comparison.digests
    ends = sorted({*digests, last})
    return [
        Segment(str(data), begin, end, digests.get(begin, b""), digests.get(end, b""), at_head=end == last)
        for begin, end in zip([0, *ends], ends, strict=False)
    ]


async def _progress(tasks: Sequence[asyncio.Future[Any]], reached: Any) -> AsyncGenerator[int, None]:
    """Yield the number of events that all tasks have done, until they have ended."""
    pending: set[asyncio.Future[Any]] = {*tasks}
    while pending:
        _, pending = await asyncio.wait(pending, timeout=_PROGRESS_SECONDS)
        yield sum(reached)


def _progress_of(number: int, last: int) -> VerifyReplayResponse:
    return VerifyReplayResponse(progress=ReplayProgress(sequence_number=number, to_sequence_number=last))


def _verdict(bus: str, counts: Sequence[SegmentResult], snapshots: int) -> ReplayVerdict:
    report, decoder = DriftReport(), StateDecoder(bus)
    for count in counts:
        report.merge(count.drifts)
        for part in count.state:
            decoder.add(StateSnapshot.FromString(part))
    events, decisions = sum(count.events for count in counts), sum(count.decisions for count in counts)
    return ReplayVerdict(
        proved=True,
        status=replay_service_pb2.REPLAY_STATUS_PROVED,
        events=events,
        decisions=decisions,
        derived_facts=sum(count.derived_facts for count in counts),
        snapshots=snapshots,
        drifts=report.drifts(decoder.finish()),
        data_losses=[DataLossAccepted.FromString(loss) for count in counts for loss in count.data_losses][:DATA_LOSSES_MAX],
        message=proved_message(events, decisions, snapshots),
    )
