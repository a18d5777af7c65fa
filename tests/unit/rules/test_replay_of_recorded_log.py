"""Replay of logs that earlier builds recorded (tests/data/README.md): this build decides alike, and writes alike on such a bus."""

from __future__ import annotations

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import EventAnswer, UpgradeBus
from gavel_rules.events.hash_chain import chain, genesis_hash
from gavel_rules.replay import DamagedError, DivergedError
from gavel_server.log import Record

from tests.support.driver import BUS, WEEK_MS, Core, replay_log
from tests.support.histories.record_log import read_logs
from tests.support.histories.shared_trace import play_shared_traces
from tests.support.paths import ROOT

DATA = ROOT / "tests/data"
LOGS = read_logs(DATA / "log_arbiter_version_2.jsonl.gz")
((SHARED_BUS, SHARED_LOG),) = read_logs(DATA / "shared_traces_arbiter_version_2.jsonl.gz").items()


def test_the_recorded_log_is_large_enough() -> None:
    """The file holds the story and the scenarios: more than a hundred buses and a thousand events."""
    assert len(LOGS) > 100
    assert sum(map(len, LOGS.values())) > 1_000


@pytest.mark.parametrize("bus", LOGS)
def test_every_decision_recomputes(bus: str) -> None:
    """The hash chain is valid, and every decision and derived fact is recomputed equal."""
    recomputation = replay_log(bus, LOGS[bus])
    assert len(LOGS[bus]) == recomputation.events


@pytest.mark.parametrize("bus", LOGS)
def test_every_bus_is_upgraded(bus: str) -> None:
    """Whatever is open on a recorded bus of version 2, it becomes one of version 3, takes events, fires its timers, and is proved."""
    core = Core(bus=bus, records=LOGS[bus])
    assert isinstance(core.run(UpgradeBus(core.new_id(), 2, 3, "ada", "remedies")), EventAnswer)
    core.fact("parcel.status", "ready", subject="parcel/last", source="depot")
    core.tick(WEEK_MS)
    assert 3 == core.prove().state.arbiter_version


def test_shared_traces_recompute() -> None:
    """By version 2 the refusals of a guest count against the owner of a trace, so the owner's second rejection requests a human review."""
    recomputation = replay_log(SHARED_BUS, SHARED_LOG)
    assert (len(SHARED_LOG), 2) == (recomputation.events, recomputation.state.arbiter_version)
    first, guests, second = (event.decision for event in decisions_of(SHARED_LOG)[:3])
    assert [1, 2, 3] == [decision.consecutive_rejections for decision in (first, guests, second)]
    assert ["TOO_MUCH", "TOO_MUCH", "REJECTION_LIMIT"] == [decision.reason_code for decision in (first, guests, second)]


def test_a_bus_of_version_2_is_written_alike() -> None:
    """On a bus of version 2, the same commands make the same bytes as by the build that recorded them."""
    core = Core(bus=SHARED_BUS, arbiter_version=2)
    play_shared_traces(core)
    assert SHARED_LOG == core.records


def decisions_of(records: list[Record]) -> list[Envelope]:
    """Return the DECISION events among records."""
    return [event for event in (Envelope.FromString(record.envelope) for record in records) if event.HasField("decision")]


def test_one_changed_byte_breaks_the_chain() -> None:
    """A log with one changed byte is damaged at that event."""
    for record in LOGS[BUS]:
        changed = bytearray(record.envelope)
        changed[len(changed) // 2] ^= 1
        with pytest.raises(DamagedError, match=f"breaks at event {record.sequence_number}:"):
            replay_log(BUS, [*LOGS[BUS][: record.sequence_number - 1], Record(record.sequence_number, bytes(changed), record.chain_hash)])


def test_a_changed_reason_code_diverges() -> None:
    """A re-chained log with a changed reason code diverges at that decision."""
    index = next(index for index, record in enumerate(LOGS[BUS]) if b"ORDER_CANCELLED" in record.envelope and index > 10)
    envelopes = [record.envelope for record in LOGS[BUS]]
    envelopes[index] = envelopes[index].replace(b"ORDER_CANCELLED", b"ORDER_CANCELLEX")
    with pytest.raises(DivergedError) as failure:
        replay_log(BUS, _chain(envelopes))
    assert index + 1 == failure.value.divergence.sequence_number


def _chain(envelopes: list[bytes]) -> list[Record]:
    """Return records with a valid hash chain."""
    records = []
    chain_hash = genesis_hash(BUS)
    for number, envelope in enumerate(envelopes, 1):
        chain_hash = chain(chain_hash, envelope)
        records.append(Record(number, envelope, chain_hash))
    return records
