"""The commands of the decider, its answers, and the references that the shell reads from the log for a command.

The decider completes the envelopes of commands; nothing else in a command changes. A `Fault` means that the command cannot be carried
out. A refusal by policy is a decision, not a fault.

`SubmitProposal`, `EventAnswer` and `CommandOutcome` exist for every decision and are plain classes: docs/performance.md#plain-classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gavel.v1.common_pb2 import Producer, VersionBinding
from gavel.v1.decision_pb2 import Decision
from gavel.v1.diagnostic_pb2 import AccessRefused
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.error_pb2 import ErrorReason
from gavel.v1.fact_pb2 import CounterFilled, CrossCheck, DataLossAccepted

from gavel_rules.events.arbiter_versions import ARBITER_VERSION
from gavel_rules.events.citation import CitedEvent
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.events.recorded_event import RecordedEvent
from gavel_rules.identity.grants import CompiledGrants
from gavel_rules.language.rule_set import CompiledRuleSet
from gavel_rules.state.counters import UncountedEvent


@dataclass(slots=True)
class OpenBus:
    """Open a bus with its first event. Its arbiter version is the latest, except in a replay of an older log."""

    event_id: str
    cross_check: CrossCheck
    idempotency_window_ms: int
    arbiter_version: int = ARBITER_VERSION


@dataclass(slots=True)
class ChangeCrossCheck:
    """Change which decisions both engines evaluate."""

    event_id: str
    cross_check: CrossCheck


@dataclass(slots=True)
class AcceptClock:
    """Accept that the last event is ahead of the server's clock, `clock_ms`."""

    event_id: str
    clock_ms: int
    accepted_by: str
    reason: str


@dataclass(slots=True)
class AcceptLoss:
    """Accept that the log lacks acknowledged events. `accepted` has both heads, the operator and the reason."""

    event_id: str
    accepted: DataLossAccepted


@dataclass(slots=True)
class UpgradeBus:
    """Change the arbiter version of the bus from one to a later one."""

    event_id: str
    from_version: int
    to_version: int
    upgraded_by: str
    reason: str


class SubmitProposal:
    """Decide a proposal. It is validated and complete: event_id, trace_id, event_name and producer are set."""

    def __init__(self, proposal: ProposalView) -> None:
        self.proposal: Final = proposal
        self.envelope: Final = proposal.envelope


@dataclass(slots=True)
class PublishEvent:
    """Record a fact, observation, tool call, tool result or diagnostic. `envelope` as for SubmitProposal."""

    envelope: Envelope


@dataclass(slots=True)
class BeginExecution:
    """Start an attempt at an approved decision, if it may start. `request_id` becomes the event_id of its start.

    `version_binding` has the versions that the executor runs, if it names any.
    """

    decision_id: str
    producer: Producer
    lease_ms: int
    traceparent: str = ""
    request_id: str = ""
    version_binding: VersionBinding | None = None


@dataclass(slots=True)
class RenewExecution:
    """Extend the lease of a running attempt to `lease_ms` from now. `request_id` becomes the event_id of the renewal."""

    decision_id: str
    execution_id: str
    producer: Producer
    lease_ms: int
    traceparent: str = ""
    request_id: str = ""


@dataclass(slots=True)
class ReportExecution:
    """Record the report of an attempt. `envelope` is validated; its subject and trace_id may be empty."""

    envelope: Envelope


@dataclass(slots=True)
class ResolveReview:
    """Record a person's verdict on an open review. `envelope` has an event_id and the fact `review_resolved` alone."""

    envelope: Envelope


@dataclass(slots=True)
class RevokeDecision:
    """Revoke an approval that has not started. `envelope` has an event_id and the fact `revocation_requested` alone."""

    envelope: Envelope


@dataclass(slots=True)
class DeployRuleSet:
    """Deploy a rule set version."""

    event_id: str
    rule_set: CompiledRuleSet
    document: str
    reason: str = ""
    traceparent: str = ""


@dataclass(slots=True)
class ActivateRuleSet:
    """Activate a deployed version, or shadow it. `expected_active_version`: None accepts any, 0 requires that none is active."""

    event_id: str
    policy_id: str
    version: int
    expected_active_version: int | None
    shadow: bool = False
    reason: str = ""
    traceparent: str = ""


@dataclass(slots=True)
class OpenCounters:
    """Open those counters of a deployed version that no rule set in force has. The server sends it before an activation."""

    event_id: str
    policy_id: str
    version: int


@dataclass(slots=True)
class FillCounter:
    """Fill a counter with events from before it was opened."""

    event_id: str
    filled: CounterFilled


@dataclass(slots=True)
class DeactivateRuleSet:
    """Deactivate a rule set, or end its shadow."""

    event_id: str
    policy_id: str
    expected_active_version: int | None
    shadow: bool = False
    reason: str = ""
    traceparent: str = ""


@dataclass(slots=True)
class DeployGrants:
    """Put grants in force. `expected_version`: None accepts any, 0 requires that none are in force."""

    event_id: str
    grants: CompiledGrants
    document: str
    reason: str
    expected_version: int | None = None
    traceparent: str = ""


@dataclass(slots=True)
class ChangeTools:
    """Change the registry of tools. `envelope` has an event_id and one of the facts about tools alone, which is validated."""

    envelope: Envelope


@dataclass(slots=True)
class RecordRefusals:
    """Record calls that were refused for lack of credentials or rights."""

    event_id: str
    refused: AccessRefused


@dataclass(slots=True)
class Tick:
    """Fire the timers that are due, until they have made `limit` events. A contest closes as a whole.

    `unjudged` holds the event_ids of candidates that are left to a person without evaluation: a replay passes those that could not be
    judged when their contest closed. `judgements` are those of the first contest, if they were made ahead (`contest.EarlyJudgement`).
    """

    limit: int
    unjudged: frozenset[str] = frozenset()
    judgements: Mapping[tuple[int, str], Decision] = field(default_factory=dict)


Command = (
    OpenBus
    | ChangeCrossCheck
    | AcceptClock
    | AcceptLoss
    | UpgradeBus
    | SubmitProposal
    | PublishEvent
    | BeginExecution
    | RenewExecution
    | ReportExecution
    | ResolveReview
    | RevokeDecision
    | DeployRuleSet
    | ActivateRuleSet
    | OpenCounters
    | FillCounter
    | DeactivateRuleSet
    | DeployGrants
    | ChangeTools
    | RecordRefusals
    | Tick
)

# docs/performance.md#isinstance-tuples
_WITH_ENVELOPE: Final = (SubmitProposal, PublishEvent, ReportExecution, ResolveReview, RevokeDecision, ChangeTools)


def command_envelope(command: Command) -> Envelope | None:
    """Return the envelope that a producer sent with a command, or None."""
    return command.envelope if isinstance(command, _WITH_ENVELOPE) else None


def decision_id_of(command: Command) -> str:
    """Return the decision_id that a command names, or ""."""
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
    """The events that the shell looks up in the log for a command.

    `cited_events` holds the events that the proposal cites, or the reviewed proposal, by sequence number. `decision` is the DECISION that
    the command names, if the log has it. `end_reason` is the reason why that decision ended without an execution: EXPIRED, REVOKED,
    STALE_FACT or FACT_SUPERSEDED. Of a live decision it is the reason why it would end so, because it may end before the command is
    handled.
    """

    cited_events: Mapping[int, CitedEvent] = field(default_factory=dict)
    decision: Envelope | None = None
    end_reason: str = ""


NO_REFERENCES = References()


class Fault(NamedTuple):
    """The reason why a command cannot be carried out. `violations` are (field, description)."""

    reason: ErrorReason.ValueType
    message: str
    violations: tuple[tuple[str, str], ...] = ()
    retry_after_ms: int = 0  # 0: the default of the reason


class ContestEntry(NamedTuple):
    """The proposal is recorded and waits for its contest; the decision comes when the contest closes."""

    envelope: Envelope


class EventAnswer:
    """The recorded event that answers the command: the decision, else the producer's event."""

    def __init__(self, envelope: Envelope) -> None:
        self.envelope: Final = envelope


class LeasedAttempt(NamedTuple):
    """The STARTED event of an attempt, and the event of the approved decision."""

    envelope: Envelope
    decision: Envelope


class AttemptRefusal(NamedTuple):
    """The reason why an attempt may not start."""

    reason_code: str
    message: str
    retry_after_ms: int = 0


class RuleSetPosition(NamedTuple):
    """A rule set version, with the sequence number of its deployment, activation or deactivation."""

    policy_id: str
    version: int
    digest: str
    sequence_number: int


class UnfilledCounters(NamedTuple):
    """The rule set cannot be activated yet: the counters with these digests lack the events from before they were opened."""

    digests: tuple[str, ...]


class GrantsPosition(NamedTuple):
    """Grants, with the sequence number of their deployment."""

    name: str
    version: int
    digest: str
    sequence_number: int


class ToolsPosition(NamedTuple):
    """The registry of tools has this content already; the sequence number is that of the event that recorded it."""

    sequence_number: int


class NoAnswer(NamedTuple):
    """The answer to a command that nobody waits for."""


Answer = (
    EventAnswer
    | ContestEntry
    | LeasedAttempt
    | AttemptRefusal
    | RuleSetPosition
    | UnfilledCounters
    | GrantsPosition
    | ToolsPosition
    | NoAnswer
    | Fault
)


class Failure(NamedTuple):
    """A proposal whose evaluation failed by a bug or a broken engine. It is left to a person; operators should be told."""

    proposal_id: str
    error: Any  # an Exception, which mypyc cannot name in a NamedTuple


class CommandOutcome:
    """The outcome of a command: the events to append, in order, the answer once they are in the log, and what operators should be told:
    failed evaluations, and events that counters could not count.
    """

    def __init__(
        self,
        events: list[RecordedEvent],
        answer: Answer,
        failures: Sequence[Failure] = (),
        uncounted_events: Sequence[UncountedEvent] = (),
    ) -> None:
        self.events: Final = events
        self.answer: Final = answer
        self.failures: Final = failures
        self.uncounted_events: Final = uncounted_events

    @property
    def envelopes(self) -> list[Envelope]:
        """The envelopes of the events."""
        return [event.envelope for event in self.events]
