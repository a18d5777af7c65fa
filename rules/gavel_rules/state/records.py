"""The immutable records of the state's tables.

Undoing a change puts the old record back. Records hold values and answer questions about them; `transitions` alone replace them.
Records that most decisions create are plain classes: docs/performance.md#plain-classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from gavel.v1 import common_pb2, execution_pb2
from gavel.v1.common_pb2 import ProducerType
from gavel.v1.decision_pb2 import ReviewPolicy
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import ObservedFrom

from gavel_rules.codec.evidence_fragments import decode_pin
from gavel_rules.events.stored_event import StoredEvent
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.identity.grants import CompiledGrants
from gavel_rules.language import rule_set_cache
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet

# Phases of an approved decision: PendingPhase of the contract.
APPROVED: Final = 1
EXECUTING: Final = 2
AWAITING_FACTS: Final = 3
UNDER_REVIEW: Final = 4

Holder = tuple[int | str, ...]
"""Who began an attempt: type and id of the executor; if its caller was authenticated, also the caller's name, method and issuer."""


class ClockAcceptance(NamedTuple):
    """An operator's acceptance of a bus that was ahead: its time and the server's clock then."""

    recorded_at_ms: int
    clock_ms: int


class Candidate:
    """The latest value that one source, at one tier, has stated for a key of a subject.

    `claimed_at_ms` orders the values of one source, by its own clock. `stated_at_ms` orders those of several sources: it is never later
    than the recording, so that a clock that is ahead gains no precedence. Age counts from `aged_from_ms`: for an observation never
    later than the recording of its evidence. `pin` is encoded for decisions (`codec.evidence_fragments`).
    """

    def __init__(
        self,
        pin: bytes,
        sequence_number: int,
        category: int,
        trust_tier: int,
        source: str,
        value: object,
        claimed_at_ms: int,
        stated_at_ms: int,
        aged_from_ms: int,
        max_age_ms: int,
        evidence_ref: str,
        confidence: float,
        producer_type: ProducerType.ValueType,
        producer_id: str,
        producer_version: str,
        observed_from: ObservedFrom.ValueType,
        derivation_rule_id: str,
        derivation_rule_version: int,
    ) -> None:
        self.pin: Final = pin
        self.sequence_number: Final = sequence_number
        self.category: Final = category
        self.trust_tier: Final = trust_tier
        self.source: Final = source
        self.value: Final = value
        self.claimed_at_ms: Final = claimed_at_ms
        self.stated_at_ms: Final = stated_at_ms
        self.aged_from_ms: Final = aged_from_ms
        self.max_age_ms: Final = max_age_ms
        self.evidence_ref: Final = evidence_ref
        self.confidence: Final = confidence
        self.producer_type: Final[ProducerType.ValueType] = producer_type
        self.producer_id: Final = producer_id
        self.producer_version: Final = producer_version
        self.observed_from: Final[ObservedFrom.ValueType] = observed_from
        self.derivation_rule_id: Final = derivation_rule_id
        self.derivation_rule_version: Final = derivation_rule_version

    @property
    def event_id(self) -> str:
        """The event that stated the value."""
        return decode_pin(self.pin).event_id

    @property
    def evidence_hash(self) -> str:
        """The hash of an observation's evidence, or ""."""
        return decode_pin(self.pin).evidence_hash

    def plain(self) -> list[object]:
        """Return all fields as JSON values."""
        return [
            self.pin.hex(),
            self.sequence_number,
            self.category,
            self.trust_tier,
            self.source,
            self.value,
            self.claimed_at_ms,
            self.stated_at_ms,
            self.aged_from_ms,
            self.max_age_ms,
            self.evidence_ref,
            self.confidence,
            self.producer_type,
            self.producer_id,
            self.producer_version,
            self.observed_from,
            self.derivation_rule_id,
            self.derivation_rule_version,
        ]


class AwaitedFact(NamedTuple):
    """A derived fact that the log does not have yet."""

    event_id: str
    execution: Envelope
    """The EXECUTION that it is derived from."""
    envelope: Envelope | None
    """The fact as it must be published; None: a snapshot does not hold it, and `derive` gives it again."""


class LiveDecision:
    """An approved decision that has not ended, with its proposal and its execution so far."""

    def __init__(
        self,
        decision_id: str,
        sequence_number: int,
        stored_decision: StoredEvent,
        stored_proposal: StoredEvent,
        conflict_key: str,
        phase: int,
        last_sequence_number: int,
        timer_due_ms: int = 0,
        attempt: int = 0,
        starts: int = 0,
        is_running: bool = False,
        execution_id: str = "",
        executor_type: ProducerType.ValueType = common_pb2.PRODUCER_TYPE_UNSPECIFIED,
        executor_id: str = "",
        executor_version: str = "",
        holders: tuple[Holder, ...] = (),
        unreported_attempts: tuple[int, ...] = (),
        lease_until_ms: int = 0,
        status: int = 0,
        status_event_id: str = "",
        status_sequence_number: int = 0,
        awaited_facts: tuple[AwaitedFact, ...] = (),
        review: str = "",
        grant: Envelope | None = None,
        grant_ids: tuple[str, ...] = (),
        is_revoked: bool = False,
        compensation: str = "",
    ) -> None:
        self.decision_id: Final = decision_id
        self.sequence_number: Final = sequence_number
        self.stored_decision: Final = stored_decision
        self.stored_proposal: Final = stored_proposal
        self.conflict_key: Final = conflict_key
        self.phase: Final = phase
        self.last_sequence_number: Final = last_sequence_number
        self.timer_due_ms: Final = timer_due_ms  # 0: no timer
        self.attempt: Final = attempt
        self.starts: Final = starts  # STARTED events so far, renewals included
        self.is_running: Final = is_running  # an attempt has started and not reported
        self.execution_id: Final = execution_id
        self.executor_type: Final[ProducerType.ValueType] = executor_type
        self.executor_id: Final = executor_id
        self.executor_version: Final = executor_version
        self.holders: Final = holders  # of each attempt, from the first
        self.unreported_attempts: Final = unreported_attempts  # the running one included
        self.lease_until_ms: Final = lease_until_ms
        self.status: Final = status
        self.status_event_id: Final = status_event_id
        self.status_sequence_number: Final = status_sequence_number
        self.awaited_facts: Final = awaited_facts  # that the log does not have yet
        self.review: Final = review  # decision_id of the open review
        self.grant: Final = grant  # the last DECISION by which a person granted one more attempt
        self.grant_ids: Final = grant_ids  # decision_ids of all grants
        self.is_revoked: Final = is_revoked  # a person ended it: its key is free, and at most derived facts are awaited
        self.compensation: Final = compensation  # decision_id of its compensation, which holds its key

    def replace(self, **changes: Any) -> LiveDecision:
        """Return a copy with other values of some fields."""
        # Each field by itself, which takes a sixth of the time of a loop over their names.
        return LiveDecision(
            changes.get("decision_id", self.decision_id),
            changes.get("sequence_number", self.sequence_number),
            changes.get("stored_decision", self.stored_decision),
            changes.get("stored_proposal", self.stored_proposal),
            changes.get("conflict_key", self.conflict_key),
            changes.get("phase", self.phase),
            changes.get("last_sequence_number", self.last_sequence_number),
            changes.get("timer_due_ms", self.timer_due_ms),
            changes.get("attempt", self.attempt),
            changes.get("starts", self.starts),
            changes.get("is_running", self.is_running),
            changes.get("execution_id", self.execution_id),
            changes.get("executor_type", self.executor_type),
            changes.get("executor_id", self.executor_id),
            changes.get("executor_version", self.executor_version),
            changes.get("holders", self.holders),
            changes.get("unreported_attempts", self.unreported_attempts),
            changes.get("lease_until_ms", self.lease_until_ms),
            changes.get("status", self.status),
            changes.get("status_event_id", self.status_event_id),
            changes.get("status_sequence_number", self.status_sequence_number),
            changes.get("awaited_facts", self.awaited_facts),
            changes.get("review", self.review),
            changes.get("grant", self.grant),
            changes.get("grant_ids", self.grant_ids),
            changes.get("is_revoked", self.is_revoked),
            changes.get("compensation", self.compensation),
        )

    def values(self) -> tuple[Any, ...]:
        """Return the values of all fields in the order of the constructor."""
        return tuple([getattr(self, name) for name in _LIVE_DECISION_FIELDS])

    def plain(self) -> tuple[Any, ...]:
        """Return the values of all fields, without what follows from others: the envelopes of awaited facts."""
        values = list(self.values())
        values[_LIVE_DECISION_FIELDS.index("awaited_facts")] = tuple([fact[:2] for fact in self.awaited_facts])
        return tuple(values)

    @property
    def decision(self) -> Envelope:
        """The DECISION that approved it."""
        return self.stored_decision.message

    @property
    def proposal(self) -> Envelope:
        """The PROPOSAL that it approved."""
        return self.stored_proposal.message

    @property
    def basis(self) -> Envelope:
        """The DECISION whose evidence and retry policy count: the last grant, else the approval."""
        return self.grant or self.decision

    @property
    def compensates(self) -> str:
        """The decision whose half-done execution this one compensates, or ""."""
        return self.decision.decision.compensates_decision_id

    @property
    def is_carried_out(self) -> bool:
        """Whether its execution has succeeded."""
        return self.status == execution_pb2.EXECUTION_STATUS_SUCCESS


_LIVE_DECISION_FIELDS: Final = (
    "decision_id",
    "sequence_number",
    "stored_decision",
    "stored_proposal",
    "conflict_key",
    "phase",
    "last_sequence_number",
    "timer_due_ms",
    "attempt",
    "starts",
    "is_running",
    "execution_id",
    "executor_type",
    "executor_id",
    "executor_version",
    "holders",
    "unreported_attempts",
    "lease_until_ms",
    "status",
    "status_event_id",
    "status_sequence_number",
    "awaited_facts",
    "review",
    "grant",
    "grant_ids",
    "is_revoked",
    "compensation",
)


class EndedDecision(NamedTuple):
    """A decision as it ended, with attempts that had not reported: late reports of them are accepted for a while."""

    live: LiveDecision
    ended_at_ms: int


class OpenContest(NamedTuple):
    """Proposals of one action that compete for one conflict key. They are undecided until the contest closes."""

    name: str  # `action_key` of the conflict key
    action_type: str
    conflict_key: str
    sequence_number: int  # of the proposal that opened it
    opened_at_ms: int
    closes_at_ms: int
    candidates: tuple[str, ...]  # event_ids of proposals, in the order of the log
    size_bytes: int  # of the proposals' payloads in the log


class Review(NamedTuple):
    """A decision that waits for people."""

    decision_id: str
    sequence_number: int
    decision: Envelope
    approved_decision_id: str  # "": the review of a proposal
    proposal: Envelope
    votes: tuple[Envelope, ...] = ()  # the FACTs of votes to approve and of comments so far, oldest first
    is_escalated: bool = False

    @property
    def policy(self) -> ReviewPolicy:
        """Who has to resolve it. Without a policy: its quorum is 0."""
        return self.decision.decision.review_policy

    @property
    def escalation_due_ms(self) -> int:
        """When it is escalated unless it is resolved before; 0: never, or it has been."""
        after_ms = self.policy.escalate_after_ms
        return 0 if self.is_escalated or not after_ms else milliseconds(self.decision.recorded_at) + after_ms


class ToolCallRecord(NamedTuple):
    """A TOOL_CALL that results of its trace may answer."""

    sequence_number: int
    tool_name: str


class ToolEvidence(NamedTuple):
    """A TOOL_RESULT that observations of its trace may refer to."""

    execution_id: str
    tool_name: str
    content_hash: str
    is_error: bool
    recorded_at_ms: int
    sequence_number: int
    recorders: tuple[str, ...]  # the principal that recorded it, and its actors; none without authentication
    is_from_tool_runtime: bool


class OutlivingResult:
    """The readings of a TOOL_RESULT that has evidence although its trace has lapsed.

    Without candidates it is as good as forgotten: later readings of it contradict nothing.
    """

    def __init__(self, readings: Mapping[str, str], contradiction: str, candidate_count: int, sequence_number: int) -> None:
        self.readings: Final = readings  # by `reading_key`
        self.contradiction: Final = contradiction  # the `reading_key` of a value that was read differently, or ""
        self.candidate_count: Final = candidate_count  # candidates that were read in it
        self.sequence_number: Final = sequence_number  # of the last change; 0 if that was before the pages. No part of the state

    def plain(self) -> list[object]:
        """Return all fields but the last as JSON values."""
        return [dict(self.readings), self.contradiction, self.candidate_count]


class Rejections:
    """Consecutive rejections: by class (`reason_codes.RefusalClass`), and in total."""

    def __init__(self, evidence: int, policy: int, conflict: int) -> None:
        self.evidence: Final = evidence
        self.policy: Final = policy
        self.conflict: Final = conflict
        self.total: Final = evidence + policy + conflict


NO_REJECTIONS: Final = Rejections(0, 0, 0)


class Refusals:
    """The refusals that count against a producer in a trace: all since its last approval there, or since the end of its last review."""

    def __init__(self, rejections: Rejections, fingerprint: str, sequence_number: int) -> None:
        self.rejections: Final = rejections
        self.fingerprint: Final = fingerprint  # of the last proposal refused for its evidence or by policy
        self.sequence_number: Final = sequence_number  # of the last decision

    def plain(self) -> list[object]:
        """Return all fields as JSON values."""
        rejections = self.rejections
        return [[rejections.evidence, rejections.policy, rejections.conflict], self.fingerprint, self.sequence_number]


class ClosedAction:
    """The decision that closed an action on a subject for a trace."""

    def __init__(self, decision: StoredEvent, decision_id: str, sequence_number: int, by_person: bool) -> None:
        self.decision: Final = decision
        self.decision_id: Final = decision_id
        self.sequence_number: Final = sequence_number
        self.by_person: Final = by_person  # a person's rejection is never lifted

    @property
    def rests_on(self) -> list[tuple[str, str]]:
        """The (key, subject) of every fact that the rules declared."""
        decision = self.decision.read().decision
        pinned = [(pin.key, pin.subject) for pin in decision.pinned_facts]
        return pinned + [(absent.key, absent.subject) for absent in decision.absent_facts]

    @property
    def digests(self) -> list[str]:
        """The digests of the rule sets consulted."""
        return [rule_set.digest for rule_set in self.decision.read().decision.active_rule_sets]

    def plain(self) -> list[object]:
        """Return all fields as JSON values."""
        return [self.decision_id, self.sequence_number, self.rests_on, self.digests, self.by_person]


class DeployedRuleSet(NamedTuple):
    """A deployed rule set version, as text: most versions are never used again."""

    digest: str
    action_types: tuple[str, ...]
    document: str
    canonical_json: str
    sequence_number: int
    recorded_at_ms: int

    @property
    def rule_set(self) -> CompiledRuleSet:
        """The compiled version; compiling takes a while unless it is cached (`language.rule_set_cache`)."""
        return rule_set_cache.compile_cached(self.digest, self.canonical_json)


class DeployedGrants(NamedTuple):
    """A deployed version of the grants."""

    name: str
    version: int
    digest: str
    document: str
    canonical_json: str
    sequence_number: int
    recorded_at_ms: int
    principal: str  # the caller that deployed it
    method: str  # how it was authenticated


class GrantsInForce(NamedTuple):
    """The version of the grants in force, and whether it binds callers without credentials (`principal.binds_anonymous`)."""

    deployed: DeployedGrants
    grants: CompiledGrants
    binds_anonymous: bool


class ActiveRuleSet(NamedTuple):
    """The active version of a rule set. `previous_version` 0: none."""

    version: int
    sequence_number: int
    previous_version: int
    rule_set: CompiledRuleSet


class ShadowRuleSet(NamedTuple):
    """The shadow version of a rule set, with counts since its activation. `previous_version` 0: none."""

    version: int
    sequence_number: int
    previous_version: int
    rule_set: CompiledRuleSet
    decisions: int = 0
    differences: int = 0


class ActionShadow(NamedTuple):
    """A shadow of an action, with the actions that would govern if it were active."""

    policy_id: str
    version: int
    digest: str
    actions: tuple[CompiledAction, ...]
    disagrees: bool  # with an active rule set about this action: then it could not be active, and is not evaluated
