"""The Redis keys of a bus: its log, the log's head, the work queues and the event_ids.

Server and clients import these names, so nobody else spells a key. The braces make the bus the hash tag of a Redis Cluster: all
keys of a bus share a slot. Names only; nothing here talks to Redis.
"""

from __future__ import annotations


def log_key(bus: str) -> str:
    """Return the key of the stream of events. Entry `<sequence_number>-0` has the fields e (envelope) and h (chain hash)."""
    return f"gavel:{{{bus}}}:log"


HEAD_KEYS = "gavel:{*}:head"


def head_key(bus: str) -> str:
    """Return the key of the hash with sequence_number, chain_hash, count (entries in the log), format_version and fence."""
    return f"gavel:{{{bus}}}:head"


def checkpoint_key(bus: str) -> str:
    """Return the key of the newest published checkpoint, a signed note (docs/proofs.md)."""
    return f"gavel:{{{bus}}}:checkpoint"


def work_key(bus: str, queue: str) -> str:
    """Return the key of a work queue, e.g. "decisions": a stream whose entries have the ids and fields of the log's."""
    return f"gavel:{{{bus}}}:work:{queue}"


def work_delayed_key(bus: str, queue: str, group: str) -> str:
    """Return the key of a group's rejected entries: a sorted set of "NUMBER:DELIVERIES" by the time at which each is due."""
    return f"{work_key(bus, queue)}:delayed:{group}"


def work_parked_key(bus: str, queue: str, group: str) -> str:
    """Return the key of a group's parked entries: a hash from the number to "DELIVERIES PARKED_AT_MS EVENT_ID REASON"."""
    return f"{work_key(bus, queue)}:parked:{group}"


def work_owners_key(bus: str, queue: str) -> str:
    """Return the key of the hash from each group of a queue to the caller that has created it."""
    return f"{work_key(bus, queue)}:owners"


def event_ids_key(bus: str, day: int) -> str:
    """Return the key of the hash of one day's event_ids; `day` counts from 1970-01-01.

    A value is the sequence number of the event. For a proposal, ":" and the sequence number of its first decision follow.
    """
    return f"gavel:{{{bus}}}:ids:{day}"
