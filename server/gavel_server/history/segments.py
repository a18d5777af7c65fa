"""The work of the processes of a parallel replay: each checks and recomputes segments of a log.

A segment begins with the state of one snapshot and must end with the state of the next one. If every segment does, the whole log is
proved, by induction over the segments. A failure here has no explanation: `parallel` then proves the log in one piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NamedTuple, TypeVar

from gavel.v1.decision_pb2 import Engine
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.replay import (
    DamagedError,
    DivergedError,
    DriftReport,
    FillProof,
    Integrity,
    IntegrityPart,
    IntegrityStart,
    Recomputation,
    RecordedFill,
    VersionNotImplementedError,
    decode,
)
from gavel_rules.state.records import DeployedRuleSet
from gavel_rules.state.state import State
from google.protobuf.message import Message

from gavel_server.history.read_ahead import read_ahead
from gavel_server.history.snapshot_files import SnapshotFiles
from gavel_server.history.snapshot_pages import is_paged
from gavel_server.history.snapshot_parts import SnapshotError, state_digest, state_parts
from gavel_server.log import EventLog, LogError, LogUnavailableError
from gavel_server.log.stores import connect_log
from gavel_server.process.garbage_collection import collect_less

Result = TypeVar("Result")

# How far each piece of work has come, shared with the parent process.
_reached: Any = None


class Source(NamedTuple):
    """A log in a store."""

    url: str
    bus: str


class Segment(NamedTuple):
    """The events after `begin` up to `end`. Snapshots are in the data directory `data`; 0 is the start of the log.

    The digests are those of the states at the begin and the end, b"" if there is no snapshot; `at_head`: the log ends there.
    """

    data: str
    begin: int
    end: int
    begin_digest: bytes
    end_digest: bytes
    at_head: bool


class Fill(NamedTuple):
    """Counters that were opened at a sequence number, and the recorded events that fill them, as far as a segment has these."""

    opened_at: int
    rule_set: DeployedRuleSet
    digests: frozenset[str]
    events: list[bytes]


class SegmentResult(NamedTuple):
    """The result of a segment: what was recomputed equal, its notes of versions and counters, and the state at the head of the log.

    `seconds` is what the work took in all, and `recomputing_seconds` what recomputing alone took.
    """

    integrity: IntegrityPart
    events: int
    decisions: int
    derived_facts: int
    drifts: tuple[dict[tuple[Any, ...], Any], ...]
    state: list[bytes]
    data_losses: list[bytes]
    fills: list[Fill]
    seconds: float
    recomputing_seconds: float


def share(reached: Any) -> None:
    """Take the shared array of a process pool."""
    global _reached  # the initializer of the processes
    _reached = reached
    collect_less()


class Unproved(NamedTuple):
    """Why a segment could not be proved on its own."""

    problem: str


def prove_segment(source: Source, place: int, segment: Segment, engine: Engine.ValueType) -> SegmentResult | Unproved:
    """Check and recompute a segment."""
    return _run(source, partial(_prove_segment, place, segment, engine))


def prove_fills(source: Source, place: int, fills: Sequence[Fill]) -> Literal[True] | Unproved:
    """Compare the recorded past of counters with the log."""
    return _run(source, partial(_prove_fills, place, fills))


def _run(source: Source, work: Callable[[EventLog], Awaitable[Result | Unproved]]) -> Result | Unproved:
    async def run() -> Result | Unproved:
        log = await connect_log(source.url, source.bus)
        try:
            return await work(log)
        finally:
            await log.close()

    try:
        return asyncio.run(run())
    except (DamagedError, DivergedError, VersionNotImplementedError, SnapshotError, LogError) as error:
        return Unproved(str(error))


async def _integrity(begin: int, log: EventLog) -> Integrity:
    """Return the check of the events after `begin`."""
    if not begin:
        return Integrity(log.bus)
    records = await log.read_many([1, begin])
    if len(records) < len({1, begin}):
        raise LogUnavailableError(f"event {1 if 1 not in records else begin} is not in the log; replay across the archive with --archive")
    opened = decode(1, records[1].envelope).fact.bus_opened
    before = records[begin]
    recorded_at_ms = milliseconds(decode(begin, before.envelope).recorded_at)
    return Integrity(log.bus, IntegrityStart(begin, before.chain_hash, recorded_at_ms, opened.idempotency_window_ms))


async def _prove_segment(place: int, segment: Segment, engine: Engine.ValueType, log: EventLog) -> SegmentResult | Unproved:
    began, recomputing_seconds = perf_counter(), 0.0
    integrity = await _integrity(segment.begin, log)
    state = SnapshotFiles(Path(segment.data), log.bus).read(segment.begin) if segment.begin else None
    if state is not None and state_digest(state) != segment.begin_digest:
        return Unproved(f"the snapshot of event {segment.begin} has changed since its digest was computed")
    recomputation = Recomputation(log.bus, engine=engine, state=state)
    report = DriftReport()
    number = segment.begin
    async with aclosing(read_ahead(log, segment.begin + 1, segment.end)) as pages_read:
        async for records in pages_read:
            if records[0].sequence_number != number + 1:
                break
            for record in records:
                checked = integrity.feed(record.sequence_number, record.envelope, record.chain_hash)
                missing = recomputation.missing_citations(record.envelope) if segment.begin else []
                if missing:
                    await _cite(log, recomputation, missing)
                started = perf_counter()
                event = recomputation.feed(record.sequence_number, record.envelope, checked)
                recomputing_seconds += perf_counter() - started
                report.note(event, recomputation.state)
            number = records[-1].sequence_number
            _reached[place] = number - segment.begin
    if number < segment.end:
        return Unproved(f"event {number + 1} is missing")
    recomputation.finish(at_head=segment.at_head)
    if segment.end_digest and state_digest(recomputation.state) != segment.end_digest:
        return Unproved(f"the snapshot of event {segment.end} holds another state than the log gives after event {segment.begin}")
    parts = _without_evidence(recomputation.state) if segment.at_head else []
    losses = _serialize(recomputation.data_losses)
    fills = [Fill(one.opened_at, one.rule_set, one.digests, _serialize(one.events)) for one in recomputation.fills]
    counts = recomputation.events, recomputation.decisions, recomputation.derived_facts
    seconds = perf_counter() - began
    return SegmentResult(integrity.part, *counts, report.content, parts, losses, fills, seconds, recomputing_seconds)


async def _prove_fills(place: int, fills: Sequence[Fill], log: EventLog) -> Literal[True] | Unproved:
    recorded = [RecordedFill(fill.opened_at, fill.rule_set, fill.digests) for fill in fills]
    # The segment that opens counters lists them together, and each that follows those that are not filled yet.
    for event in [Envelope.FromString(content) for fill in fills for content in fill.events]:
        next(one for one in recorded if one.awaits(event.fact.counter_filled)).events.append(event)
    proof = FillProof(log.bus, recorded)
    number = 0
    async with aclosing(read_ahead(log, 1, proof.last)) as pages_read:
        async for records in pages_read:
            for record in records:
                proof.feed(record.sequence_number, record.envelope)
            number = records[-1].sequence_number
            _reached[place] = number
    if number < proof.last:
        return Unproved(f"event {number + 1} is missing")
    for _ in proof.compare():
        pass
    return True


def _serialize(messages: Iterable[Message]) -> list[bytes]:
    return [message.SerializeToString() for message in messages]


def _without_evidence(state: State) -> list[bytes]:
    """Return the parts of a snapshot of a state but its evidence, which is nearly all of it and which no drift depends on."""
    return [part for part in state_parts(state) if not is_paged(part)]


async def _cite(log: EventLog, recomputation: Recomputation, numbers: Sequence[int]) -> None:
    """Read the events from before the segment that the next event cites."""
    for record in (await log.read_many(numbers)).values():
        recomputation.cite(decode(record.sequence_number, record.envelope))
