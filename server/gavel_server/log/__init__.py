"""The log of events: its protocol and three implementations, `memory`, `redis` and `postgresql`, which pass one contract suite."""

from gavel_rules.events.hash_chain import chain, genesis_hash

from gavel_server.log.entries import Entry, Head, Record
from gavel_server.log.protocol import (
    ArchiveUnavailableError,
    EventIdTakenError,
    EventLog,
    HeadMovedError,
    IdEntry,
    LogCorruptError,
    LogError,
    LogUnavailableError,
    LossReportedError,
    NotReplicatedError,
    OutcomeUnknownError,
    UntimelyError,
    empty_head,
)

__all__ = [
    "ArchiveUnavailableError",
    "Entry",
    "EventIdTakenError",
    "EventLog",
    "Head",
    "HeadMovedError",
    "IdEntry",
    "LogCorruptError",
    "LogError",
    "LogUnavailableError",
    "LossReportedError",
    "NotReplicatedError",
    "OutcomeUnknownError",
    "Record",
    "UntimelyError",
    "chain",
    "empty_head",
    "genesis_hash",
]
