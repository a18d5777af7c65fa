"""Replay of a log that an earlier build recorded (tests/data/README.md): this build decides alike."""

from __future__ import annotations

import pytest
from gavel_rules.events.hash_chain import chain, genesis_hash
from gavel_rules.events.kinds import ARBITER_VERSION
from gavel_rules.replay import DamagedError, DivergedError
from gavel_server.log import Record

from tests.support.driver import BUS, replay_log
from tests.support.paths import ROOT
from tests.support.record_log import read_logs

LOGS = read_logs(ROOT / f"tests/data/log_arbiter_version_{ARBITER_VERSION}.jsonl.gz")


def test_the_recorded_log_is_large_enough() -> None:
    """The file holds the story and the scenarios: more than a hundred buses and a thousand events."""
    assert len(LOGS) > 100
    assert sum(map(len, LOGS.values())) > 1_000


@pytest.mark.parametrize("bus", LOGS)
def test_every_decision_recomputes(bus: str) -> None:
    """The hash chain is valid, and every decision and derived fact is recomputed equal."""
    recomputation = replay_log(bus, LOGS[bus])
    assert len(LOGS[bus]) == recomputation.events


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
