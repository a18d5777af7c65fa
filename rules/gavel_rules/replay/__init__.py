"""Proof that a log's decisions follow from the log (constitution §8).

Passes that are fed one record at a time, so that the caller decides how to read. `Integrity` checks the chain and the order of the log.
`Recomputation` runs the decider again and compares every event. If counters were filled, `FillProof` counts their past again.
"""

from gavel_rules.replay.counter_fills import FillProof, RecordedFill
from gavel_rules.replay.differences import field_differences
from gavel_rules.replay.drift_report import DriftReport
from gavel_rules.replay.errors import DamagedError, DivergedError, VersionNotImplementedError
from gavel_rules.replay.integrity import Integrity, IntegrityPart, IntegrityStart, are_joined, decode
from gavel_rules.replay.recomputation import Recomputation

__all__ = [
    "DamagedError",
    "DivergedError",
    "DriftReport",
    "FillProof",
    "Integrity",
    "IntegrityPart",
    "IntegrityStart",
    "Recomputation",
    "RecordedFill",
    "VersionNotImplementedError",
    "are_joined",
    "decode",
    "field_differences",
]
