"""The errors of a replay."""

from __future__ import annotations

from gavel.v1.replay_service_pb2 import Divergence

from gavel_rules.errors import GavelRulesError
from gavel_rules.events.arbiter_versions import implemented_versions


class DamagedError(GavelRulesError):
    """The log is not intact: chain, gap or undecodable entry."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence.message)
        self.divergence = divergence


class DivergedError(GavelRulesError):
    """The log holds an event that does not follow from the log."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence.message)
        self.divergence = divergence


class VersionNotImplementedError(GavelRulesError):
    """The log needs semantics that this build does not have."""

    def __init__(self, sequence_number: int, arbiter_version: int) -> None:
        super().__init__(f"event {sequence_number} sets arbiter_version {arbiter_version}; this build implements {implemented_versions()}")
        self.sequence_number = sequence_number
        self.arbiter_version = arbiter_version
