"""The result of a proposal loop and the history of its rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gavel.v1.envelope_pb2 import Envelope

from gavel_client.agents.providers import FactNeed
from gavel_client.decisions import explain, to_dict
from gavel_client.rpc.errors import GavelClientError


class StopReason(Enum):
    """The reason why a loop ended."""

    APPROVED = "approved"
    """The last proposal was approved."""
    TERMINAL = "terminal"
    """No proposal of this trace for this action and subject can succeed in the present state."""
    REVIEW = "review"
    """A person has to decide."""
    NOT_RETRYABLE = "not retryable"
    """The refusal is not retryable."""
    NEEDS_REVISION = "needs revision"
    """Only a revised proposal could succeed, and `revise` is missing or gave up."""
    NO_PROVIDER = "no provider"
    """No provider suits a row of the hint. The loop called no provider and made no further proposal."""
    PROVIDER_FAILED = "provider failed"
    """A provider failed; see the round's failures."""
    NO_PROGRESS = "no progress"
    """The next proposal would be the same again."""
    BUDGET = "budget"
    """The loop made the maximum number of proposals."""
    DEADLINE = "deadline"
    """The time is over, or the pause that the hint requires would exceed it."""


@dataclass(frozen=True)
class ProviderFailure:
    """A failure of a provider: the need and the error."""

    need: FactNeed
    code: str
    message: str


@dataclass
class Round:
    """One proposal, its decision, and the actions after a rejection."""

    proposal: Envelope
    """The proposal as sent."""
    decision: Envelope | None = None
    """The recorded decision; after a review, the one that followed from the verdict. None if the deadline came first."""
    published: list[Envelope] = field(default_factory=list)
    """Events that the loop or its providers recorded after the rejection: tool calls, results, observations, facts."""
    failures: list[ProviderFailure] = field(default_factory=list)
    """Failures of providers."""
    paused_ms: float = 0.0
    """Total of the loop's pauses in this round, in milliseconds."""

    def to_dict(self) -> dict[str, Any]:
        """Return the round as JSON values."""
        return {
            "proposal": to_dict(self.proposal),
            "decision": None if self.decision is None else to_dict(self.decision),
            "published": [to_dict(event) for event in self.published],
            "failures": [
                {"subject": one.need.subject, "keys": list(one.need.keys), "code": one.code, "message": one.message}
                for one in self.failures
            ],
            "paused_ms": self.paused_ms,
        }


@dataclass(frozen=True)
class LoopResult:
    """The result of a loop and its history."""

    reason: StopReason
    detail: str
    """The reason in a sentence, for people."""
    rounds: Sequence[Round]

    @property
    def approved(self) -> bool:
        """Whether the action was approved."""
        return self.reason is StopReason.APPROVED

    @property
    def decision(self) -> Envelope | None:
        """The last decision, or None."""
        return next((one.decision for one in reversed(self.rounds) if one.decision is not None), None)

    def explain(self) -> str:
        """Return why the loop ended and what its last decision says, for people or for a language model."""
        decision = self.decision
        end = f"The loop ended: {self.detail}."
        return end if decision is None else f"{explain(decision)}\n{end}"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values (see `gavel_client.to_dict`), e.g. for the state of a graph."""
        return {"reason": self.reason.name, "detail": self.detail, "rounds": [one.to_dict() for one in self.rounds]}


class LoopStoppedError(GavelClientError):
    """Ends a run of the loop from any depth. This package catches it; callers never see it."""

    def __init__(self, reason: StopReason, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(detail)
