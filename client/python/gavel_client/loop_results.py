"""How an agent's loop ended, and everything that happened in it (see `proposal_loop`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from gavel.v1.envelope_pb2 import Envelope

from gavel_client.errors import GavelClientError
from gavel_client.providers import FactNeed


class StopReason(Enum):
    """Why a loop ended."""

    APPROVED = "approved"
    """The last proposal was approved."""
    TERMINAL = "terminal"
    """No proposal of this trace for this action and subject can succeed as things stand."""
    REVIEW = "review"
    """A person has to decide."""
    NOT_RETRYABLE = "not retryable"
    """The refusal says that another try cannot help."""
    NEEDS_REVISION = "needs revision"
    """Only another proposal could succeed, and there is no `revise`, or it gave up."""
    NO_PROVIDER = "no provider"
    """Nobody can get some of what the hint names; nobody was asked, and nothing was proposed in vain."""
    PROVIDER_FAILED = "provider failed"
    """Some of what the hint names was not got; see the round's failures."""
    NO_PROGRESS = "no progress"
    """The next proposal would have been the same again."""
    BUDGET = "budget"
    """As many proposals were made as were allowed."""
    DEADLINE = "deadline"
    """The time is up, or the next pause would be longer than what is left."""


@dataclass(frozen=True)
class ProviderFailure:
    """A provider that did not answer: what it was asked for, and why not."""

    need: FactNeed
    code: str
    message: str


@dataclass
class Round:
    """One proposal, its decision, and what was done about a rejection."""

    proposal: Envelope
    """As it was sent."""
    decision: Envelope | None = None
    """As recorded; None if the deadline came first. Submitting the same envelope again gets the answer."""
    published: list[Envelope] = field(default_factory=list)
    """What the loop recorded or was given because of the rejection: tool calls, results, observations, facts."""
    failures: list[ProviderFailure] = field(default_factory=list)
    """Providers that failed."""
    paused_ms: float = 0.0
    """How long the loop waited before it went on."""


@dataclass(frozen=True)
class LoopResult:
    """How a loop ended, and its whole history."""

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
        """The last decision, if there is one."""
        return next((one.decision for one in reversed(self.rounds) if one.decision is not None), None)


class LoopStoppedError(GavelClientError):
    """Ends a run from wherever it is; never leaves this package."""

    def __init__(self, reason: StopReason, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(detail)
