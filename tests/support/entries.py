"""Entries and records for tests of the log, correctly numbered and chained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gavel.v1.envelope_pb2 import Envelope
from gavel_server.log import Entry, Head, Record, chain, genesis_hash
from gavel_server.log.entries import Work

DAY_MS = 24 * 60 * 60 * 1000
NOW_MS = 20_000 * DAY_MS + 1234
# The limit of a call that must succeed: beside other tests, a sync of the disk may take seconds.
PATIENT_MS = 60_000


def entries_after(
    head: Head, count: int, name: str = "event", decision_sequence_number: int = 0, works: Sequence[Work] = ("",)
) -> list[Entry]:
    """Return `count` chained entries that follow `head`, with event_ids made of `name` and their numbers, for `works` in turn."""
    entries = []
    number, chain_hash = head
    for index in range(count):
        number += 1
        envelope = b"\x00\xff envelope of " + f"{name}-{number}".encode()
        chain_hash = chain(chain_hash, envelope)
        entries.append(Entry(number, envelope, chain_hash, f"{name}-{number}", works[index % len(works)], decision_sequence_number))
    return entries


def head_of(entries: list[Entry]) -> Head:
    """Return the head after `entries`."""
    return Head(entries[-1].sequence_number, entries[-1].chain_hash)


def records_of(entries: list[Entry]) -> list[Record]:
    """Return the records of `entries`."""
    return [Record(entry.sequence_number, entry.envelope, entry.chain_hash) for entry in entries]


def rechain(bus: str, envelopes: Iterable[Envelope]) -> list[Record]:
    """Return events as records with a valid hash chain, as a forger would make them."""
    records = []
    chain_hash = genesis_hash(bus)
    for number, envelope in enumerate(envelopes, 1):
        stored = envelope.SerializeToString(deterministic=True)
        chain_hash = chain(chain_hash, stored)
        records.append(Record(number, stored, chain_hash))
    return records
