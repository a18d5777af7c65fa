"""The work of the processes of a parallel replay: each checks a range of a log, or recomputes a segment of it.

A segment begins with the state of one snapshot and must end with the state of the next one. If every segment does, the whole log is
proved, by induction over the segments. A failure here has no explanation: `parallel` then proves the log in one piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
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
from gavel_rules.state.snapshot.encoding import encode_position, encode_tables, state_sha256
from gavel_rules.state.state import State
from google.protobuf.message import Message

from gavel_server.history.read_ahead import read_ahead
from gavel_server.history.snapshot_files import SnapshotFiles
from gavel_server.history.snapshot_pages import is_paged
from gavel_server.history.snapshot_parts import SnapshotError
from gavel_server.log import EventLog, LogError, Record
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

    `digest` is that of the state at the end, if there is a snapshot; `at_head`: the log ends there.
    """

    data: str
    begin: int
    end: int
    digest: bytes
    at_head: bool


class Fill(NamedTuple):
    """Counters that were opened at a sequence number, and the recorded events that fill them, as far as a segment has these."""

    opened_at: int
    rule_set: DeployedRuleSet
    digests: frozenset[str]
    events: list[bytes]


class SegmentResult(NamedTuple):
    """The result of a segment: what was recomputed equal, its notes of versions and counters, and the state at the head of the log."""

    events: int
    decisions: int
    derived_facts: int
    drifts: tuple[dict[tuple[Any, ...], Any], ...]
    state: list[bytes]
    data_losses: list[bytes]
    fills: list[Fill]


def share(reached: Any) -> None:
    """Take the shared array of a process pool."""
    global _reached  # the initializer of the processes
    _reached = reached
    collect_less()


class Unproved(NamedTuple):
    """Why a range or segment could not be proved on its own."""

    problem: str


def check_range(source: Source, place: int, first: int, last: int) -> IntegrityPart | Unproved:
    """Check the integrity of a range."""
    return _run(source, partial(_check, place, first, last))


def recompute(source: Source, place: int, segment: Segment, engine: Engine.ValueType) -> SegmentResult | Unproved:
    """Recompute a segment."""
    return _run(source, partial(_recompute, place, segment, engine))


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


async def _check(place: int, first: int, last: int, log: EventLog) -> IntegrityPart:
    start = None
    if first > 1:
        records = await log.read_many([1, first - 1])
        opened = decode(1, records[1].envelope).fact.bus_opened
        before = records[first - 1]
        recorded_at_ms = milliseconds(decode(first - 1, before.envelope).recorded_at)
        start = IntegrityStart(first - 1, before.chain_hash, recorded_at_ms, opened.idempotency_window_ms)
    integrity = Integrity(log.bus, start)
    await _read(log, place, first, last, lambda record: integrity.feed(record.sequence_number, record.envelope, record.chain_hash))
    return integrity.part


async def _recompute(place: int, segment: Segment, engine: Engine.ValueType, log: EventLog) -> SegmentResult | Unproved:
    state = SnapshotFiles(Path(segment.data), log.bus).read(segment.begin) if segment.begin else None
    recomputation = Recomputation(log.bus, engine=engine, state=state)
    report = DriftReport()
    number = segment.begin
    async with aclosing(read_ahead(log, segment.begin + 1, segment.end)) as pages_read:
        async for records in pages_read:
            if records[0].sequence_number != number + 1:
                break
            for record in records:
                missing = recomputation.missing_citations(record.envelope) if segment.begin else []
                if missing:
                    await _cite(log, recomputation, missing)
                report.note(recomputation.feed(record.sequence_number, record.envelope), recomputation.state)
            number = records[-1].sequence_number
            _reached[place] = number - segment.begin
    if number < segment.end:
        return Unproved(f"event {number + 1} is missing")
    recomputation.finish(at_head=segment.at_head)
    is_equal = not segment.digest or (recomputation.state.head == segment.end and state_sha256(recomputation.state.store) == segment.digest)
    if not is_equal:
        return Unproved(f"the snapshot of event {segment.end} holds another state than the log gives after event {segment.begin}")
    state_parts = _without_evidence(recomputation.state) if segment.at_head else []
    losses = _serialize(recomputation.data_losses)
    fills = [Fill(one.opened_at, one.rule_set, one.digests, _serialize(one.events)) for one in recomputation.fills]
    counts = recomputation.events, recomputation.decisions, recomputation.derived_facts
    return SegmentResult(*counts, report.content, state_parts, losses, fills)


async def _prove_fills(place: int, fills: Sequence[Fill], log: EventLog) -> Literal[True]:
    recorded = [RecordedFill(fill.opened_at, fill.rule_set, fill.digests) for fill in fills]
    # The segment that opens counters lists them together, and each that follows those that are not filled yet.
    for event in [Envelope.FromString(content) for fill in fills for content in fill.events]:
        next(one for one in recorded if one.awaits(event.fact.counter_filled)).events.append(event)
    proof = FillProof(log.bus, recorded)
    await _read(log, place, 1, proof.last, lambda record: proof.feed(record.sequence_number, record.envelope))
    for _ in proof.compare():
        pass
    return True


def _serialize(messages: Iterable[Message]) -> list[bytes]:
    return [message.SerializeToString() for message in messages]


def _without_evidence(state: State) -> list[bytes]:
    """Return the parts of a snapshot of a state but its evidence, which is nearly all of it and which no drift depends on."""
    parts = (encode_position(state.store, b"", ""), *encode_tables(state.store))
    return [part for part in parts if not is_paged(part)]


async def _cite(log: EventLog, recomputation: Recomputation, numbers: Sequence[int]) -> None:
    """Read the events from before the segment that the next event cites."""
    for record in (await log.read_many(numbers)).values():
        recomputation.cite(decode(record.sequence_number, record.envelope))


async def _read(log: EventLog, place: int, first: int, last: int, feed: Callable[[Record], object]) -> None:
    number = first - 1
    async with aclosing(read_ahead(log, first, last)) as pages_read:
        async for records in pages_read:
            for record in records:
                feed(record)
            number = records[-1].sequence_number
            _reached[place] = number - first + 1
    if number < last:
        raise LogError(f"event {number + 1} is missing")
