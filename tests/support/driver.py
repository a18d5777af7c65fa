"""A bus driven by hand: the real core, one command at a time, at times that the test chooses.

`Core` stands in for the sequencer: it admits envelopes, looks up references, calls `handle` and records the log. Event ids are
counted, so the log of a test is the same on every run. `prove` replays the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from gavel.v1 import common_pb2, decision_pb2, execution_pb2, fact_pb2
from gavel.v1.arbitration_service_pb2 import ResolveReviewRequest, RevokeDecisionRequest
from gavel.v1.common_pb2 import EventReference, Producer, ProducerType, VersionBinding
from gavel.v1.decision_pb2 import Decision, Engine
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution, ExecutionStatus
from gavel.v1.fact_pb2 import CrossCheck, Fact, ReviewVerdict
from gavel.v1.observation_pb2 import Observation
from gavel.v1.proposal_pb2 import Proposal
from gavel.v1.tool_pb2 import ToolCall, ToolResult
from gavel_rules.arbitration.first_decision import first_decision_id
from gavel_rules.commands import (
    ActivateRuleSet,
    Answer,
    AttemptRefusal,
    BeginExecution,
    Command,
    ContestEntry,
    DeactivateRuleSet,
    DeployRuleSet,
    EventAnswer,
    Fault,
    FillCounter,
    LeasedAttempt,
    OpenBus,
    OpenCounters,
    PublishEvent,
    References,
    RenewExecution,
    ReportExecution,
    ResolveReview,
    RevokeDecision,
    RuleSetPosition,
    SubmitProposal,
    Tick,
    UnfilledCounters,
)
from gavel_rules.counter_backlog import CounterBacklog
from gavel_rules.decider import handle
from gavel_rules.derivation import derive
from gavel_rules.events.arbiter_versions import ARBITER_VERSION
from gavel_rules.events.citation import CitedEvent, cited_event
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.events.recorded_event import RecordedEvent
from gavel_rules.events.timestamps import milliseconds, timestamp
from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_rules.language.rule_set import CompiledRuleSet, compile_rule_set
from gavel_rules.replay import Integrity, Recomputation
from gavel_rules.state.state import State
from gavel_rules.values import python_to_value
from gavel_server.intake.admission import admit
from gavel_server.intake.human_commands import resolution, revocation
from gavel_server.log import Record, chain, genesis_hash

from tests.support.citations import references_for, references_to
from tests.support.hashes import sha256_of

START_MS = 1_700_000_000_000
WEEK_MS = 7 * 24 * 60 * 60 * 1000
BUS = "default"
ACTION = "refund.create"
SUBJECT = "order/1"
SOURCE = "orders-db"
EXECUTOR = Producer(type=common_pb2.PRODUCER_TYPE_EXECUTOR, id="executor-1", version="1.0")
# The event_id that observations without evidence refer to.
NO_EVIDENCE = "00000000-0000-4000-8000-ffffffffffff"
OTHER_EXECUTOR = Producer(type=common_pb2.PRODUCER_TYPE_EXECUTOR, id="executor-2", version="1.0")
AGENT = Producer(type=common_pb2.PRODUCER_TYPE_AGENT, id="agent-1", version="1.0")
ALL_PAYLOADS = frozenset({"fact", "proposal", "observation", "tool_call", "tool_result", "agent_diagnostic", "execution"})

PARAMS: dict[str, Any] = {
    "type": "object",
    "required": ["amount"],
    "additionalProperties": False,
    "properties": {"amount": {"type": "number", "exclusiveMinimum": 0}, "note": {"type": "string"}},
}
FACTS: dict[str, Any] = {
    "status": {"key": "order.status", "type": "string", "min_trust": 1, "max_age_ms": 60_000, "sources": [SOURCE, "orders-copy"]},
    "score": {"key": "order.score", "type": "number", "min_trust": 2, "max_age_ms": 30_000, "optional": True},
}
RULES: list[dict[str, Any]] = [
    {"id": "cancelled", "when": 'facts.status == "cancelled"', "effect": "reject", "reason_code": "ORDER_CANCELLED"},
    {"id": "suspicious", "when": "has(facts.score) && facts.score > 0.9", "effect": "review", "reason_code": "FRAUD_SUSPECTED"},
    {"id": "delivered", "when": 'facts.status == "delivered"', "effect": "approve"},
]
RETRY = {"max_attempts": 2, "human_takeover_after_ms": 5_000}


def event_id(number: int) -> str:
    """Return a producer's event_id: a UUIDv4 that shows its number."""
    return f"00000000-0000-4000-8000-{number:012x}"


def document(
    facts: Mapping[str, Any] = FACTS,
    rules: Sequence[Mapping[str, Any]] = RULES,
    *,
    rule_set: str = "refunds",
    version: int = 1,
    action_type: str = ACTION,
    more_actions: Mapping[str, Any] | None = None,
    gavel: str = "v1",
    **action: Any,
) -> str:
    """Return a rule set as JSON. Rules get `action_type` and a priority by their order, unless they have their own."""
    part = {"params": PARAMS, "facts": dict(facts), "decision_ttl_ms": 10_000, "rejection_limit": 1_000, "retry": RETRY, **action}
    ranked = [{"action": action_type, "priority": 1_000 - index, **rule} for index, rule in enumerate(rules)]
    actions = {action_type: part, **(more_actions or {})}
    return json.dumps({"gavel": gavel, "rule_set": rule_set, "version": version, "actions": actions, "rules": ranked})


# The least recent are dropped: tests of memory deploy hundreds.
@lru_cache(32)
def compile_cached(text: str) -> CompiledRuleSet:
    """Return a document, compiled once as long as it is in use."""
    return compile_rule_set(text)


class Core:
    """A bus with its state, its log and its clock (`now_ms`)."""

    def __init__(
        self,
        text: str | None = None,
        *,
        bus: str = BUS,
        mode: fact_pb2.CrossCheckMode.ValueType = fact_pb2.CROSS_CHECK_MODE_ALWAYS,
        arbiter_version: int = ARBITER_VERSION,
        records: Sequence[Record] = (),
    ) -> None:
        """Open a bus; with `text`, deploy and activate that rule set. With `records`, go on after this log instead, at its last time."""
        self.bus = bus
        self.state = State(bus)
        self.now_ms = START_MS
        self.principal = ANONYMOUS  # the caller of commands
        self.records: list[Record] = []
        self.events: list[Envelope] = []
        self.commands: list[tuple[Command, int]] = []  # as sent, with their times
        self.by_id: dict[str, Envelope] = {}
        self.chain_hash = genesis_hash(bus)
        self._ids = 0
        self._cited_events: dict[int, CitedEvent] = {}
        if records:
            self._resume(records)
            return
        self.run(OpenBus(self.new_id(), CrossCheck(mode=mode, sample_every=3), WEEK_MS, arbiter_version))
        if text is not None:
            self.activate(text)

    # Commands

    def new_id(self) -> str:
        """Return an event_id that is new to this bus."""
        self._ids += 1
        return event_id(self._ids)

    def run(self, command: Command, engine: Engine.ValueType = decision_pb2.ENGINE_RETE, principal: Principal | None = None) -> Answer:
        """Handle a command now, record its events, and return its answer. `principal` is the caller, by default `self.principal`."""
        self.commands.append((copy_command(command), self.now_ms))
        result = handle(self.state, command, self.references(command), self.now_ms, engine, principal or self.principal)
        self.state.commit()
        for event in result.events:
            self._record(event)
        return result.answer

    def references(self, command: Command) -> References:
        """Return the references for a command."""
        return references_for(command, self.state, self._cited_events, self.by_id)

    def pass_time(self, duration_ms: int) -> None:
        """Advance the clock. Timers fire at the next command, or by `tick`."""
        self.now_ms += duration_ms

    def tick(self, duration_ms: int = 0) -> list[Envelope]:
        """Advance the clock, fire the timers that are due, and return their events."""
        self.now_ms += duration_ms
        before = len(self.events)
        self.run(Tick(1_000))
        return self.events[before:]

    def fault(self, command: Command) -> Fault:
        """Handle a command that must fail and leave nothing in the log, and return the fault."""
        before = len(self.events)
        answer = self.run(command)
        assert isinstance(answer, Fault), answer
        assert len(self.events) == before
        return answer

    def admit(self, envelope: Envelope) -> Envelope:
        """Return the envelope after admission, with a counted event_id if it has none."""
        if not envelope.event_id:
            envelope.event_id = self.new_id()
        admit(envelope, self.bus, ALL_PAYLOADS)
        return envelope

    # Rule sets

    def activate(self, text: str) -> RuleSetPosition:
        """Deploy and activate a rule set."""
        rule_set = self.deploy(text)
        answer = self.run(ActivateRuleSet(self.new_id(), rule_set.policy_id, rule_set.version, None))
        if isinstance(answer, UnfilledCounters):
            self.fill_counters(self.open_counters(rule_set))
            answer = self.run(ActivateRuleSet(self.new_id(), rule_set.policy_id, rule_set.version, None))
        assert isinstance(answer, RuleSetPosition), answer
        return answer

    def deploy(self, text: str) -> CompiledRuleSet:
        """Deploy a rule set."""
        rule_set = compile_cached(text)
        self.run(DeployRuleSet(self.new_id(), rule_set, text))
        return rule_set

    def fill_counters(self, backlog: CounterBacklog) -> None:
        """Give counters that are open their past, as the server does."""
        for filled in backlog.fills(self.now_ms):
            assert isinstance(self.run(FillCounter(self.new_id(), filled)), EventAnswer)

    def open_counters(self, rule_set: CompiledRuleSet) -> CounterBacklog:
        """Open the counters of a deployed rule set that lack their past, and return that past."""
        opened = self.run(OpenCounters(self.new_id(), rule_set.policy_id, rule_set.version))
        assert isinstance(opened, EventAnswer), opened
        digests = opened.envelope.fact.counters_opened.digests
        counters = [counter for counter in rule_set.counters.values() if counter.digest in digests]
        backlog = CounterBacklog(self.bus, counters, opened.envelope.sequence_number)
        for event in self.events:
            backlog.feed(event)
        return backlog

    def deactivate(self, policy_id: str) -> None:
        """Deactivate a rule set."""
        assert isinstance(self.run(DeactivateRuleSet(self.new_id(), policy_id, None)), RuleSetPosition)

    # Events

    def publish(self, envelope: Envelope) -> Envelope:
        """Publish an event that must be accepted."""
        answer = self.run(PublishEvent(self.admit(envelope)))
        assert isinstance(answer, EventAnswer), answer
        return answer.envelope

    def fact(self, key: str, value: object, **changes: Any) -> Envelope:
        """Publish a fact; see `fact_envelope`."""
        return self.publish(fact_envelope(key, value, **changes))

    def tool_result(self, trace_id: str = "trace-1", **changes: Any) -> Envelope:
        """Publish a tool call and its result, and return the result. `changes` go into the result; producer and tool are those of both."""
        execution_id = changes.pop("execution_id", f"exec_{len(self.events):012x}")
        producer = changes.pop("producer", AGENT)
        call = ToolCall(tool_name=changes.get("tool_name", "fraud-tool"), execution_id=execution_id)
        self.publish(Envelope(subject=SUBJECT, trace_id=trace_id, producer=producer, tool_call=call))
        result = ToolResult(**{"tool_name": "fraud-tool", "execution_id": execution_id, "content_hash": sha256_of("1"), **changes})
        return self.publish(Envelope(subject=SUBJECT, trace_id=trace_id, producer=producer, tool_result=result))

    def observe(self, key: str, value: object, **changes: Any) -> Envelope:
        """Publish an observation; see `observation_envelope`."""
        return self.publish(observation_envelope(key, value, **changes))

    def proposal(self, based_on: Iterable[Envelope] = (), **changes: Any) -> SubmitProposal:
        """Return the command of a proposal; see `proposal_envelope`."""
        return SubmitProposal(ProposalView(self.admit(proposal_envelope(based_on, **changes))))

    def propose(self, based_on: Iterable[Envelope] = (), **changes: Any) -> Envelope:
        """Submit a proposal and return its DECISION event."""
        answer = self.run(self.proposal(based_on, **changes))
        assert isinstance(answer, EventAnswer), answer
        return answer.envelope

    def enter(self, based_on: Iterable[Envelope] = (), **changes: Any) -> Envelope:
        """Submit a proposal that enters a contest, and return its PROPOSAL event."""
        answer = self.run(self.proposal(based_on, **changes))
        assert isinstance(answer, ContestEntry), answer
        return answer.envelope

    def first_decision(self, proposal: Envelope) -> Decision:
        """Return the first decision on a proposal, which must be in the log."""
        return self.by_id[first_decision_id(proposal)].decision

    def decide(self, based_on: Iterable[Envelope] = (), **changes: Any) -> Decision:
        """Submit a proposal and return its decision."""
        return self.propose(based_on, **changes).decision

    def approve(self, subject: str = SUBJECT, **changes: Any) -> Envelope:
        """Publish the fact that the default rule set needs, propose, and return the approval."""
        decision = self.propose([self.fact("order.status", "delivered", subject=subject)], subject=subject, **changes)
        assert decision_pb2.OUTCOME_APPROVED == decision.decision.outcome, decision.decision
        return decision

    # Executions

    def begin(self, decision: Envelope, producer: Producer = EXECUTOR, lease_ms: int = 1_000) -> Answer:
        """Begin an attempt and return the answer."""
        return self.run(BeginExecution(decision.event_id, producer, lease_ms))

    def start(self, decision: Envelope, producer: Producer = EXECUTOR, lease_ms: int = 1_000) -> Envelope:
        """Begin an attempt, which must start, and return its STARTED event."""
        answer = self.begin(decision, producer, lease_ms)
        assert isinstance(answer, LeasedAttempt), answer
        return answer.envelope

    def refuse_start(self, decision: Envelope, producer: Producer = EXECUTOR) -> AttemptRefusal:
        """Begin an attempt, which must be refused, and return the refusal."""
        answer = self.begin(decision, producer)
        assert isinstance(answer, AttemptRefusal), answer
        return answer

    def renewal(self, started: Envelope, lease_ms: int = 1_000, producer: Producer = EXECUTOR) -> RenewExecution:
        """Return the command that renews an attempt's lease."""
        return RenewExecution(started.execution.decision_id, started.execution.execution_id, producer, lease_ms)

    def report_command(
        self, started: Envelope, status: ExecutionStatus.ValueType, producer: Producer = EXECUTOR, **changes: Any
    ) -> ReportExecution:
        """Return the command that reports an attempt. `changes` go into the execution."""
        execution = Execution(
            decision_id=started.execution.decision_id, execution_id=started.execution.execution_id, status=status, **changes
        )
        return ReportExecution(self.admit(Envelope(producer=producer, execution=execution)))

    def report(self, started: Envelope, status: ExecutionStatus.ValueType, producer: Producer = EXECUTOR, **changes: Any) -> Envelope:
        """Report an attempt, which must be accepted, and return the recorded event."""
        answer = self.run(self.report_command(started, status, producer, **changes))
        assert isinstance(answer, EventAnswer), answer
        return answer.envelope

    def derived_facts(self, report: Envelope) -> list[Envelope]:
        """Return the facts that the reactor derives from a report."""
        decision = self.by_id[report.execution.decision_id]
        return [
            Envelope.FromString(fact.SerializeToString()) for fact in derive(report, decision, self.state.rule_set_of(decision.decision))
        ]

    def derive(self, report: Envelope) -> list[Envelope]:
        """Derive a report's facts and publish them."""
        return [self.publish(fact) for fact in self.derived_facts(report)]

    # People

    def resolution(self, review: Envelope, verdict: ReviewVerdict.ValueType, **changes: str) -> ResolveReview:
        """Return the command of a person's verdict. `changes` go into the request."""
        fields = {"decision_id": review.event_id, "reviewer": "ada", "reason": "seen", "event_id": self.new_id(), **changes}
        return resolution(ResolveReviewRequest(verdict=verdict, **fields))

    def resolve(self, review: Envelope, verdict: ReviewVerdict.ValueType) -> Envelope:
        """Resolve an open review, and return the DECISION that follows."""
        answer = self.run(self.resolution(review, verdict))
        assert isinstance(answer, EventAnswer), answer
        return answer.envelope

    def revocation(self, decision: Envelope, **changes: str) -> RevokeDecision:
        """Return the command that revokes an approval. `changes` go into the request."""
        fields = {"decision_id": decision.event_id, "revoked_by": "ada", "reason": "mistake", "event_id": self.new_id(), **changes}
        return revocation(RevokeDecisionRequest(**fields))

    def revoke(self, decision: Envelope) -> Envelope:
        """Revoke an approval, and return the DECISION."""
        answer = self.run(self.revocation(decision))
        assert isinstance(answer, EventAnswer), answer
        return answer.envelope

    # The log

    def events_named(self, event_name: str) -> list[Envelope]:
        """Return all events with this name."""
        return [event for event in self.events if event.event_name == event_name]

    def prove(self) -> Recomputation:
        """Replay the log, which must succeed and give the same state, and return the replay."""
        recomputation = replay_log(self.bus, self.records)
        assert self.state.digest() == recomputation.state.digest()
        assert len(self.records) == recomputation.events
        return recomputation

    def _resume(self, records: Sequence[Record]) -> None:
        self.state = replay_log(self.bus, records).state
        for record in records:
            self._append(record)
        self.now_ms = milliseconds(self.events[-1].recorded_at)
        self._ids = 1_000_000  # recorded events have lower ones

    def _record(self, event: RecordedEvent) -> None:
        content = event.envelope.SerializeToString(deterministic=True)
        event.pack(content)
        self._append(Record(event.sequence_number, content, chain(self.chain_hash, content)))

    def _append(self, record: Record) -> None:
        self.records.append(record)
        self.chain_hash = record.chain_hash
        event = Envelope.FromString(record.envelope)
        self.events.append(event)
        self.by_id[event.event_id] = event
        cited = cited_event(event)
        if cited.keys:
            self._cited_events[record.sequence_number] = cited


def copy_command(command: Command) -> Command:
    """Return a command with its own copy of the envelope, which the decider completes."""
    if isinstance(command, SubmitProposal):
        return SubmitProposal(ProposalView(Envelope.FromString(command.envelope.SerializeToString())))
    if isinstance(command, PublishEvent | ReportExecution | ResolveReview | RevokeDecision):
        return type(command)(Envelope.FromString(command.envelope.SerializeToString()))
    return command


def fact_envelope(
    key: str,
    value: object,
    *,
    subject: str = SUBJECT,
    source: str = SOURCE,
    occurred_at_ms: int | None = None,
    max_age_ms: int = 0,
    trace_id: str = "facts",
    producer_type: ProducerType.ValueType = common_pb2.PRODUCER_TYPE_API,
) -> Envelope:
    """Return a fact as its source sends it."""
    return Envelope(
        subject=subject,
        trace_id=trace_id,
        occurred_at=timestamp(occurred_at_ms) if occurred_at_ms is not None else None,
        producer=Producer(type=producer_type, id=source),
        fact=Fact(key=key, value=python_to_value(value), max_age_ms=max_age_ms),
    )


def observation_envelope(
    key: str,
    value: object,
    *,
    evidence: Envelope | None = None,
    subject: str = SUBJECT,
    trace_id: str = "trace-1",
    tool: str = "fraud-tool",
    evidence_hash: str | None = None,
    observed_at_ms: int | None = None,
) -> Envelope:
    """Return an observation as an agent sends it. `evidence` is the TOOL_RESULT event that it refers to; None: one of no trace."""
    observation = Observation(
        source_tool=tool,
        evidence_ref=evidence.event_id if evidence is not None else NO_EVIDENCE,
        evidence_hash=evidence.tool_result.content_hash if evidence is not None else "",
        observed_at=timestamp(observed_at_ms) if observed_at_ms is not None else None,
        confidence=0.9,
    )
    observation.extracted_fields[key].CopyFrom(python_to_value(value))
    if evidence_hash is not None:
        observation.evidence_hash = evidence_hash
    return Envelope(subject=subject, trace_id=trace_id, producer=AGENT, observation=observation)


def proposal_envelope(
    based_on: Iterable[Envelope] = (),
    *,
    subject: str = SUBJECT,
    trace_id: str = "trace-1",
    action_type: str = ACTION,
    amount: float = 50,
    params: Mapping[str, object] | None = None,
    references: Sequence[EventReference] = (),
    causation_id: str = "",
    event_id: str = "",
    producer: Producer = AGENT,
    version_binding: VersionBinding | None = None,
    **changes: Any,
) -> Envelope:
    """Return a proposal as an agent sends it. `changes` go into the payload."""
    based = [*references_to(based_on), *references]
    proposal = Proposal(
        **{"action_type": action_type, "max_fact_age_ms": 3_600_000, "confidence": 0.9, "based_on_events": based, **changes}
    )
    proposal.params.CopyFrom(python_to_value({"amount": amount} if params is None else dict(params)).struct_value)
    return Envelope(
        event_id=event_id,
        subject=subject,
        trace_id=trace_id,
        causation_id=causation_id,
        producer=producer,
        version_binding=version_binding,
        proposal=proposal,
    )


def replay_log(
    bus: str, records: Sequence[Record], *, compare_from: int = 1, engine: Engine.ValueType = decision_pb2.ENGINE_RETE
) -> Recomputation:
    """Run both passes of a replay over records. Raises the errors of either pass."""
    integrity = Integrity(bus)
    for record in records:
        integrity.feed(record.sequence_number, record.envelope, record.chain_hash)
    # Compiling is a pure function of the text, and most of the time of a short replay.
    recomputation = Recomputation(bus, engine=engine, compare_from=compare_from, compile_document=compile_cached)
    for record in records:
        recomputation.feed(record.sequence_number, record.envelope)
    recomputation.finish(at_head=True)
    return recomputation


SUCCESS = execution_pb2.EXECUTION_STATUS_SUCCESS
FAILED = execution_pb2.EXECUTION_STATUS_FAILED
PARTIAL = execution_pb2.EXECUTION_STATUS_PARTIAL
TIMEOUT = execution_pb2.EXECUTION_STATUS_TIMEOUT
ABORTED = execution_pb2.EXECUTION_STATUS_ABORTED
STARTED = execution_pb2.EXECUTION_STATUS_STARTED
