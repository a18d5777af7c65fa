"""What the state is made of: immutable records, so that undoing a change is putting the old record back.

What most decisions make is a plain object: compiled, tuples with names cost more.

They say what is and do nothing; `projection.State` alone puts others in their place.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gavel.v1 import common_pb2, execution_pb2
from gavel.v1.common_pb2 import ProducerType
from gavel.v1.decision_pb2 import PinnedFact
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import ObservedFrom
from mypy_extensions import mypyc_attr

from gavel_rules.language import library
from gavel_rules.language.ruleset import CompiledAction, CompiledRuleSet

# Phases of an approved decision; PendingPhase of the contract.
APPROVED: Final = 1
EXECUTING: Final = 2
AWAITING_FACTS: Final = 3
UNDER_REVIEW: Final = 4


@mypyc_attr(acyclic=True)
class Candidate:
    """The latest value that one source, at one tier, has stated for a key of a subject.

    `claimed_at_ms` orders values of one source, by its own clock. `stated_at_ms` orders those of several: the same, but never later
    than it was recorded, so that nobody speaks for longer because his clock is ahead. `aged_from_ms` is where the age counts
    from: for an observation never later than its evidence was recorded. `pin` is what decisions say of it (`pins`).
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
        """The event that said it."""
        return PinnedFact.FromString(self.pin).event_id

    @property
    def evidence_hash(self) -> str:
        """Of an observation: the hash of its evidence."""
        return PinnedFact.FromString(self.pin).evidence_hash

    def plain(self) -> list[object]:
        """Return everything in it, as JSON has it."""
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


@mypyc_attr(acyclic=True)
class Kept:
    """An event that the state keeps: the message, or the log's bytes of it, which take a quarter of the memory.

    Most decisions wait untouched, approvals until their work begins, so they wait as bytes (`pack`); the message of one that is worked on
    stays.
    """

    __slots__ = ("_content", "_message")

    def __init__(self, message: Envelope) -> None:
        self._message: Envelope | None = message
        self._content = b""

    def pack(self, content: bytes) -> None:
        """Keep the event as its serialized bytes until it is needed."""
        self._content = content
        self._message = None

    @property
    def message(self) -> Envelope:
        """The event, for whoever is about to work on it. It must not be changed."""
        message = self._message
        if message is None:
            message = self._message = self.read()
        return message

    @property
    def packed(self) -> bool:
        """Whether only the bytes are kept."""
        return self._message is None

    @property
    def content(self) -> bytes:
        """The event as the log has it."""
        return self._content or self.message.SerializeToString(deterministic=True)

    def read(self) -> Envelope:
        """Return the event, for whoever only looks at it: packed, it stays so."""
        return self._message if self._message is not None else Envelope.FromString(self._content)


def packed(message: Envelope) -> Kept:
    """Return an event that has been worked on and waits again."""
    kept = Kept(message)
    kept.pack(kept.content)
    return kept


class LiveDecision(NamedTuple):
    """An approved decision that has not come to its end, with its proposal and its execution so far."""

    decision_id: str
    sequence_number: int
    kept_decision: Kept
    kept_proposal: Kept
    conflict_key: str
    phase: int
    last_sequence_number: int
    timer_due_ms: int = 0  # 0: no timer
    attempt: int = 0
    starts: int = 0  # STARTED events so far, renewals included
    running: bool = False  # an attempt has started and not reported
    execution_id: str = ""
    executor_type: ProducerType.ValueType = common_pb2.PRODUCER_TYPE_UNSPECIFIED
    executor_id: str = ""
    executor_version: str = ""
    holders: tuple[tuple[int, str], ...] = ()  # (type, id) of who held each attempt, from the first
    unreported: tuple[int, ...] = ()  # attempts that began and have not reported, the running one included
    lease_until_ms: int = 0
    status: int = 0
    status_event_id: str = ""
    status_sequence_number: int = 0
    awaited_facts: tuple[tuple[str, Envelope], ...] = ()  # (event_id of a derived fact, its EXECUTION), not yet in the log
    review: str = ""  # decision_id of its open review
    granted: Envelope | None = None  # the DECISION by which a person allowed it one more attempt, the last one
    grants: tuple[str, ...] = ()  # decision_ids of all of these: each of them names this decision
    revoked: bool = False  # a person has ended it: its key is free, and at most derived facts are awaited
    compensation: str = ""  # decision_id of what makes it good, which holds its key

    @property
    def decision(self) -> Envelope:
        """The DECISION that approved it."""
        return self.kept_decision.message

    @property
    def proposal(self) -> Envelope:
        """The PROPOSAL that it approved."""
        return self.kept_proposal.message

    @property
    def basis(self) -> Envelope:
        """The DECISION whose evidence and retry policy count: the approval, or what a person granted since."""
        return self.granted or self.decision

    @property
    def compensates(self) -> str:
        """The decision whose half-done execution this one makes good, or ""."""
        return self.decision.decision.compensates_decision_id

    @property
    def carried_out(self) -> bool:
        """Whether the log has its success."""
        return self.status == execution_pb2.EXECUTION_STATUS_SUCCESS


# What is the same in all live decisions whose work has not begun.
_NOT_BEGUN: Final = tuple(LiveDecision._field_defaults.values())[1:]


def approved(decision_id: str, sequence_number: int, decision: Kept, proposal: Kept, conflict_key: str, timer_due_ms: int) -> LiveDecision:
    """Return an approval whose work has not begun."""
    # Without the class's own way of filling in two dozen defaults, which takes as long as all else that an approval does to the state.
    own = (decision_id, sequence_number, decision, proposal, conflict_key, APPROVED, sequence_number, timer_due_ms)
    return tuple.__new__(LiveDecision, own + _NOT_BEGUN)


class Departed(NamedTuple):
    """A decision as it ended, with attempts that had not reported: what they have done is still to be heard, for a while."""

    live: LiveDecision
    ended_at_ms: int


class OpenContest(NamedTuple):
    """Proposals of one action that compete for one conflict key until the contest closes. The proposals are among the open ones."""

    name: str  # the action and the key
    action_type: str
    conflict_key: str
    sequence_number: int  # of the proposal that opened it
    opened_at_ms: int
    closes_at_ms: int
    candidates: tuple[str, ...]  # event_ids of proposals, in the order of the log
    size_bytes: int  # of the proposals' payloads, as the log has them


class Review(NamedTuple):
    """Something that waits for a person."""

    decision_id: str
    sequence_number: int
    decision: Envelope
    approved_decision_id: str  # "": the review of a proposal
    proposal: Envelope


class ToolEvidence(NamedTuple):
    """What an observation may refer to: one TOOL_RESULT of its trace."""

    execution_id: str
    tool_name: str
    content_hash: str
    is_error: bool
    recorded_at_ms: int
    sequence_number: int


@mypyc_attr(acyclic=True)
class Rejections:
    """How many rejections in a row a trace has had, by class (`stages.RefusalClass`), and all of them."""

    def __init__(self, evidence: int, policy: int, conflict: int) -> None:
        self.evidence: Final = evidence
        self.policy: Final = policy
        self.conflict: Final = conflict
        self.total: Final = evidence + policy + conflict


NO_REJECTIONS: Final = Rejections(0, 0, 0)


@mypyc_attr(acyclic=True)
class Trace:
    """What is remembered of a trace while it is alive."""

    def __init__(self, rejections: Rejections, last_event_ms: int, review: str = "", refused: str = "") -> None:
        self.rejections: Final = rejections
        self.last_event_ms: Final = last_event_ms
        self.review: Final = review  # decision_id of its open review
        # `fingerprint` of the last proposal that it was refused, for the proposal's own sake: evidence or policy
        self.refused: Final = refused

    def at(self, last_event_ms: int) -> Trace:
        """Return the same trace after one more event."""
        return Trace(self.rejections, last_event_ms, self.review, self.refused)

    def plain(self) -> list[object]:
        """Return everything in it, as JSON has it."""
        rejections = self.rejections
        return [[rejections.evidence, rejections.policy, rejections.conflict], self.last_event_ms, self.review, self.refused]


@mypyc_attr(acyclic=True)
class Ended:
    """Why a trace may not propose an action on a subject any more: the decision that says so, read when it is asked for."""

    def __init__(self, decision: Kept, decision_id: str, sequence_number: int, by_person: bool) -> None:
        self.decision: Final = decision
        self.decision_id: Final = decision_id
        self.sequence_number: Final = sequence_number
        self.by_person: Final = by_person  # what a person has rejected is never lifted

    @property
    def rests_on(self) -> list[tuple[str, str]]:
        """(key, subject) of every fact that the rules had declared."""
        decision = self.decision.read().decision
        pinned = [(pin.key, pin.subject) for pin in decision.pinned_facts]
        return pinned + [(absent.key, absent.subject) for absent in decision.absent_facts]

    @property
    def digests(self) -> list[str]:
        """Of the rule sets that were consulted."""
        return [rule_set.digest for rule_set in self.decision.read().decision.active_rule_sets]

    def plain(self) -> list[object]:
        """Return everything in it, as JSON has it."""
        return [self.decision_id, self.sequence_number, self.rests_on, self.digests, self.by_person]


class DeployedRuleSet(NamedTuple):
    """A rule set version in the log, as text: most versions are never used again."""

    digest: str
    action_types: tuple[str, ...]
    document: str
    canonical_json: str
    sequence_number: int
    recorded_at_ms: int

    @property
    def rule_set(self) -> CompiledRuleSet:
        """The version compiled, which takes a while if it has not been used lately (`library`)."""
        return library.compiled(self.digest, self.canonical_json)


class ActiveRuleSet(NamedTuple):
    """Which version of a rule set governs, since when, and in place of which (0: none)."""

    version: int
    sequence_number: int
    previous_version: int
    rule_set: CompiledRuleSet


class ShadowRuleSet(NamedTuple):
    """Which version of a rule set watches, since when, in place of which shadow (0: none), and what it has seen since."""

    version: int
    sequence_number: int
    previous_version: int
    rule_set: CompiledRuleSet
    decisions: int = 0
    differences: int = 0


class Shadowing(NamedTuple):
    """What watches the proposals of an action: a shadow, and what would govern if it were in force."""

    policy_id: str
    version: int
    digest: str
    governing: tuple[CompiledAction, ...]
    disagrees: bool  # with a rule set in force about this action: then it could not govern, and has no say in it
