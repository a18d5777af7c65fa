"""What can be asked of the decider, what it answers, and what the shell reads from the log for it beforehand.

Commands are imperative and frozen by convention; their envelopes are the decider's to complete. An answer that is a
`Fault` means that the command could not be carried out; a refusal by policy is a decision, not a fault.

What is made for every decision, `SubmitProposal`, `Recorded` and `Handled`, is a plain class: compiled, others cost more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.error_pb2 import ErrorReason
from gavel.v1.fact_pb2 import CrossCheck
from mypy_extensions import mypyc_attr

from gavel_rules.evidence import Cited
from gavel_rules.language.ruleset import CompiledRuleSet
from gavel_rules.made import Made
from gavel_rules.proposed import Proposed


@dataclass(slots=True)
class OpenBus:
    """Begin a bus: its first event."""

    event_id: str
    cross_check: CrossCheck
    idempotency_window_ms: int


@dataclass(slots=True)
class ChangeCrossCheck:
    """Change on which decisions both engines are asked."""

    event_id: str
    cross_check: CrossCheck


@mypyc_attr(acyclic=True)
class SubmitProposal:
    """Decide a proposal. `envelope` is validated and has its event_id, trace_id, name and producer."""

    def __init__(self, envelope: Envelope) -> None:
        self.envelope: Final = envelope
        self._asked: Proposed | None = None

    @property
    def asked(self) -> Proposed:
        """The proposal as arbitration reads it. Read once: by admission, or else when it is first asked for."""
        if self._asked is None:
            self._asked = Proposed(self.envelope)
        return self._asked

    @asked.setter
    def asked(self, asked: Proposed) -> None:
        self._asked = asked


@dataclass(slots=True)
class PublishEvent:
    """Record a fact, observation, tool call, tool result or diagnostic. `envelope` as for SubmitProposal."""

    envelope: Envelope


@dataclass(slots=True)
class BeginExecution:
    """Start an attempt at an approved decision, or say why not."""

    decision_id: str
    producer: Producer
    lease_ms: int


@dataclass(slots=True)
class RenewExecution:
    """Keep a running attempt's lease, counted from now."""

    decision_id: str
    execution_id: str
    producer: Producer
    lease_ms: int


@dataclass(slots=True)
class ReportExecution:
    """Record how an attempt ended. `envelope` is validated; subject and trace may be empty."""

    envelope: Envelope


@dataclass(slots=True)
class ResolveReview:
    """Record a person's verdict on an open review. `envelope` holds the FACT `review_resolved` and its event_id, no more."""

    envelope: Envelope


@dataclass(slots=True)
class RevokeDecision:
    """End an approval that nobody has started. `envelope` holds the FACT `revocation_requested` and its event_id, no more."""

    envelope: Envelope


@dataclass(slots=True)
class DeployRuleSet:
    """Record a rule set version."""

    event_id: str
    rule_set: CompiledRuleSet
    document: str


@dataclass(slots=True)
class ActivateRuleSet:
    """Put a deployed version in force, or let it watch. `expected_active_version` None: whatever is in force; 0: nothing is."""

    event_id: str
    policy_id: str
    version: int
    expected_active_version: int | None
    shadow: bool = False


@dataclass(slots=True)
class DeactivateRuleSet:
    """Take a rule set out of force, or end its shadow."""

    event_id: str
    policy_id: str
    expected_active_version: int | None
    shadow: bool = False


@dataclass(slots=True)
class Tick:
    """Let time pass: emit timers that are due until they have made `limit` events. A contest closes whole.

    `unjudged` are candidates of a contest, by event_id, that are left to a person unasked: a replay knows of those that could not
    be judged when it closed.
    """

    limit: int
    unjudged: frozenset[str] = frozenset()


Command = (
    OpenBus
    | ChangeCrossCheck
    | SubmitProposal
    | PublishEvent
    | BeginExecution
    | RenewExecution
    | ReportExecution
    | ResolveReview
    | RevokeDecision
    | DeployRuleSet
    | ActivateRuleSet
    | DeactivateRuleSet
    | Tick
)

# A tuple: a union would be made anew at every look.
_WITH_ENVELOPE: Final = (SubmitProposal, PublishEvent, ReportExecution, ResolveReview, RevokeDecision)


def command_envelope(command: Command) -> Envelope | None:
    """Return the envelope that a producer sent with a command, if it sent one."""
    return command.envelope if isinstance(command, _WITH_ENVELOPE) else None


def decision_id_of(command: Command) -> str:
    """Return the decision that a command is about, or ""."""
    match command:
        case BeginExecution() | RenewExecution():
            return command.decision_id
        case ReportExecution():
            return command.envelope.execution.decision_id
        case ResolveReview():
            return command.envelope.fact.review_resolved.decision_id
        case RevokeDecision():
            return command.envelope.fact.revocation_requested.decision_id
    return ""


@dataclass(slots=True, frozen=True)
class References:
    """What the shell found in the log for a command.

    `cited`: the events a proposal cites, by sequence number; of a review, its proposal. `decision`: the DECISION event that a
    command names, if the log has one; `ending`: EXPIRED or REVOKED where it ended so, or, if it is alive and nobody has started
    it, EXPIRED.
    """

    cited: Mapping[int, Cited] = field(default_factory=dict)
    decision: Envelope | None = None
    ending: str = ""


NO_REFERENCES = References()


class Fault(NamedTuple):
    """Why a command cannot be carried out. `violations` are (field, description)."""

    reason: ErrorReason.ValueType
    message: str
    violations: tuple[tuple[str, str], ...] = ()
    retry_after_ms: int = 0  # 0: as usual for the reason


class Waiting(NamedTuple):
    """The proposal is recorded and competes; its decision comes when its contest closes."""

    envelope: Envelope


@mypyc_attr(acyclic=True)
class Recorded:
    """The event that answers the command: a decision, or the event as recorded."""

    def __init__(self, envelope: Envelope) -> None:
        self.envelope: Final = envelope


class Started(NamedTuple):
    """An attempt was leased. `decision` is the approved decision's event."""

    envelope: Envelope
    decision: Envelope


class NotStarted(NamedTuple):
    """An attempt may not start; a value, not an error."""

    reason_code: str
    message: str
    retry_after_ms: int = 0


class RuleSetAt(NamedTuple):
    """A rule set version and where the log has its deployment, activation or deactivation."""

    policy_id: str
    version: int
    digest: str
    sequence_number: int


class Nothing(NamedTuple):
    """There was nothing to answer."""


Answer = Recorded | Waiting | Started | NotStarted | RuleSetAt | Nothing | Fault


class Failure(NamedTuple):
    """A proposal that could not be judged, and why: a bug, or an engine that broke. A person was called; operators should hear of it."""

    proposal_id: str
    error: Any  # an Exception; mypyc cannot compile that name here


class Handled:
    """What a command came to: the events to append, in order, the answer once they are, and what went wrong on the way."""

    def __init__(self, made: list[Made], answer: Answer, failures: Sequence[Failure] = ()) -> None:
        self.made: Final = made
        self.answer: Final = answer
        self.failures: Final = failures

    @property
    def events(self) -> list[Envelope]:
        """The events to append, in order."""
        return [made.envelope for made in self.made]
