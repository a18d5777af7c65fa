"""A bus for one case: the real core, driven one command at a time, as a server with one rule set would drive it.

What a case says happens in its order: the rejections before it, the facts at their ages, the earlier proposals and what became
of them, the proposal, and where the case says so its execution: begun, reported, its facts derived and published. Nothing stands
in for a part of the core. What comes before the cases is done once: after each of them the state is taken back to there, as the
sequencer takes back a batch.

Pure: the same case on the same rule set always comes to the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gavel.v1 import common_pb2, decision_pb2, fact_pb2
from gavel.v1.arbitration_service_pb2 import RuleExplanation
from gavel.v1.common_pb2 import EventReference, Producer, VersionBinding
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution, ExecutionError, ExecutionStatus
from gavel.v1.fact_pb2 import CrossCheck, Fact
from gavel.v1.observation_pb2 import Observation
from gavel.v1.proposal_pb2 import Proposal
from gavel.v1.tool_pb2 import ToolCall, ToolResult

from gavel_rules import arbitration
from gavel_rules.authoring.suite import SuiteCase
from gavel_rules.authoring.suite_parts import EarlierCase, ExecutionCase, FactCase
from gavel_rules.commands import (
    ActivateRuleSet,
    Answer,
    BeginExecution,
    Command,
    DeployRuleSet,
    Fault,
    Handled,
    OpenBus,
    PublishEvent,
    Recorded,
    References,
    ReportExecution,
    Started,
    SubmitProposal,
    Tick,
)
from gavel_rules.decider import handle
from gavel_rules.derivation import STATUS_RULE_ID, derive, failures
from gavel_rules.errors import GavelRulesError
from gavel_rules.events import EVENT_NAME_DEFAULT, EXECUTION_NAME, execution_id_of, milliseconds
from gavel_rules.evidence import Cited, cited
from gavel_rules.language.report_expressions import STATUS_PREFIX
from gavel_rules.language.ruleset import CompiledAction, CompiledRuleSet
from gavel_rules.limits import IDEMPOTENCY_WINDOW_MS_DEFAULT, LEASE_MS_DEFAULT
from gavel_rules.projection import State
from gavel_rules.values import python_to_value

_TRACE: Final = "case"
_FACTS_TRACE: Final = "facts"
_EVIDENCE_HASH: Final = "sha256:" + "0" * 64
_EXECUTOR: Final = Producer(type=common_pb2.PRODUCER_TYPE_EXECUTOR, id="executor")


class RefusedError(GavelRulesError):
    """The core does not take what a suite or its rule set would have it record; the message is the core's."""


class Evidence(NamedTuple):
    """A fact of a case with everything that its author left to the declaration."""

    name: str
    key: str
    subject: str
    source: str
    tier: int
    part: FactCase


class CarriedOut(NamedTuple):
    """What followed from the report of an execution."""

    report: Envelope
    facts: tuple[Fact, ...]  # that the rule set derives
    failed: tuple[str, ...]  # ids of its derivations that gave no fact
    decision: Decision | None  # the compensation, or the call for a person; None: nothing more was decided

    @property
    def compensation(self) -> Decision | None:
        """The compensation, None if there is none."""
        return self.decision if self.decision is not None and self.decision.compensates_decision_id else None

    @property
    def review(self) -> str:
        """Why a person is called, "" if nobody is."""
        return self.decision.reason_code if self.decision is not None and self.compensation is None else ""


class Played(NamedTuple):
    """What a case came to."""

    proposal: Envelope
    decision: Decision
    explanations: tuple[RuleExplanation, ...]  # of every rule, by falling priority; none unless asked for
    carried_out: CarriedOut | None  # None: the case says nothing of it, or there was nothing to carry out
    not_approved: tuple[tuple[int, Decision], ...]  # earlier proposals, by their place, that should have been carried out


class CaseBus:
    """A bus on which one rule set is in force. RefusedError: the core does not take the rule set."""

    def __init__(self, rule_set: CompiledRuleSet) -> None:
        self._state = State("test")
        self._ids = 0
        always = CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_ALWAYS)
        self._run(OpenBus(self._new_id(), always, IDEMPOTENCY_WINDOW_MS_DEFAULT), 0)
        self._run(DeployRuleSet(self._new_id(), rule_set, rule_set.document), 0)
        self._run(ActivateRuleSet(self._new_id(), rule_set.policy_id, rule_set.version, None), 0)
        self._state.commit()

    def play(self, case: SuiteCase, facts: Sequence[Evidence], action: CompiledAction, *, explained: bool) -> Played:
        """Return what a case comes to, with `explained` also how every rule came out. Nothing of it stays."""
        mark = self._state.mark()
        ids = self._ids
        try:
            return self._play(case, facts, action, explained)
        finally:
            self._state.undo(mark)
            self._ids = ids

    def _play(self, case: SuiteCase, facts: Sequence[Evidence], action: CompiledAction, explained: bool) -> Played:
        part = case.part
        now_ms = case.now_ms
        recorded: dict[str, Envelope] = {}
        for evidence in sorted(facts, key=lambda evidence: -evidence.part.age_ms):
            recorded[evidence.name] = self._record(evidence, now_ms - evidence.part.age_ms)
        # In the order of the case, as its author would cite them.
        basis = [recorded[evidence.name] for evidence in facts if part.cites is None or evidence.name in part.cites]
        own = EarlierCase(
            action=action.action_type, subject=part.subject, producer=part.producer, params=part.params, proposal=part.proposal
        )
        binding = VersionBinding(**part.version_binding.model_dump())
        for _ in range(part.trace.consecutive_rejections):
            self._propose(self._proposal(own, [], _TRACE, binding), [], now_ms)
        not_approved = []
        for index, earlier in enumerate(part.earlier):
            before = earlier.model_copy(update={"action": earlier.action or action.action_type})
            answer = self._propose(self._proposal(before, basis, f"earlier-{index + 1}", binding), basis, now_ms)
            if earlier.execution is not None and isinstance(answer, Recorded):
                if answer.envelope.decision.outcome == decision_pb2.OUTCOME_APPROVED:
                    self._carry_out(answer.envelope, earlier.execution, now_ms)
                else:
                    not_approved.append((index, answer.envelope.decision))
        proposal = self._proposal(own, basis, _TRACE, binding)
        self._run(Tick(1 << 31), now_ms)
        explanations = tuple(arbitration.explain(self._state, proposal, now_ms)) if explained else ()
        decided = self._submit(proposal, basis, now_ms)
        carried_out = None
        if part.execution is not None and decided.decision.outcome == decision_pb2.OUTCOME_APPROVED:
            carried_out = self._carry_out(decided, part.execution, milliseconds(decided.recorded_at))
        return Played(proposal, decided.decision, explanations, carried_out, tuple(not_approved))

    def _carry_out(self, decision: Envelope, part: ExecutionCase, at_ms: int) -> CarriedOut:
        """Begin, report and derive as an executor and the fact derivation reactor would, all at one moment."""
        for _ in range(1, part.attempt):
            self._report(decision, ExecutionCase(status="FAILED"), at_ms)
        report, decided = self._report(decision, part, at_ms)
        rule_set = self._state.rule_set_of(decision.decision)
        derived = derive(report, decision, rule_set)
        for fact in derived:
            self._run(PublishEvent(fact), at_ms)
        own = tuple(envelope.fact for envelope in derived if envelope.fact.derivation_rule_id != STATUS_RULE_ID)
        return CarriedOut(report, own, tuple(rule.id for rule in failures(report, decision, rule_set)), decided)

    def _report(self, decision: Envelope, part: ExecutionCase, at_ms: int) -> tuple[Envelope, Decision | None]:
        """Begin an attempt and report how it ended; return the report and what was decided with it, if anything was."""
        started = self._run(BeginExecution(decision.event_id, _EXECUTOR, LEASE_MS_DEFAULT), at_ms)
        if not isinstance(started, Started):
            raise RefusedError(f"the approval cannot be carried out: {started}")
        execution = Execution(
            decision_id=decision.event_id,
            execution_id=started.envelope.execution.execution_id,
            status=ExecutionStatus.Value(STATUS_PREFIX + part.status),
            reason_code=part.reason_code,
            completed_steps=part.completed_steps,
        )
        if part.result:
            execution.result.CopyFrom(python_to_value(part.result).struct_value)
        if part.error.code or part.error.message:
            execution.error.CopyFrom(ExecutionError(code=part.error.code, message=part.error.message))
        report = Envelope(event_id=self._new_id(), event_name=EXECUTION_NAME[execution.status], producer=_EXECUTOR, execution=execution)
        events = self._handle(ReportExecution(report), at_ms).events
        decided = (event.decision for event in events if event.HasField("decision") and event.causation_id == report.event_id)
        return report, next(decided, None)

    def _record(self, evidence: Evidence, at_ms: int) -> Envelope:
        """Record a piece of evidence as its source or the agent would, and return its event."""
        part = evidence.part
        if evidence.tier == common_pb2.TRUST_TIER_1_SYSTEM_FACT or part.retracted:
            fact = Fact(key=evidence.key, max_age_ms=part.max_age_ms, observed_from=fact_pb2.OBSERVED_FROM_API)
            fact.value.CopyFrom(python_to_value(None if part.retracted else part.value))
            api = Producer(type=common_pb2.PRODUCER_TYPE_API, id=evidence.source)
            return self._publish(Envelope(subject=evidence.subject, trace_id=_FACTS_TRACE, producer=api, fact=fact), at_ms)
        observation = Observation(source_tool=evidence.source, confidence=1.0)
        observation.extracted_fields[evidence.key].CopyFrom(python_to_value(part.value))
        agent = Producer(type=common_pb2.PRODUCER_TYPE_AGENT, id="agent")
        if evidence.tier == common_pb2.TRUST_TIER_2_TOOL_OBSERVATION:
            execution_id = execution_id_of(evidence.name, 1)
            call = ToolCall(tool_name=evidence.source, execution_id=execution_id)
            self._publish(Envelope(subject=evidence.subject, trace_id=_TRACE, producer=agent, tool_call=call), at_ms)
            result = ToolResult(tool_name=evidence.source, execution_id=execution_id, content_hash=_EVIDENCE_HASH)
            found = self._publish(Envelope(subject=evidence.subject, trace_id=_TRACE, producer=agent, tool_result=result), at_ms)
            observation.evidence_ref = found.event_id
            observation.evidence_hash = _EVIDENCE_HASH
        return self._publish(Envelope(subject=evidence.subject, trace_id=_TRACE, producer=agent, observation=observation), at_ms)

    def _proposal(self, part: EarlierCase, basis: list[Envelope], trace_id: str, binding: VersionBinding) -> Envelope:
        said = part.proposal
        proposal = Proposal(
            action_type=part.action or "",
            risk=said.risk,
            cost=said.cost,
            confidence=said.confidence,
            priority=said.priority,
            expected_outcome=said.expected_outcome,
            max_fact_age_ms=said.max_fact_age_ms,
            required_facts=said.required_facts,
            based_on_events=[EventReference(event_id=event.event_id, sequence_number=event.sequence_number) for event in basis],
        )
        proposal.params.CopyFrom(python_to_value(part.params).struct_value)
        agent = Producer(type=common_pb2.PRODUCER_TYPE_AGENT, id=part.producer.id, version=part.producer.version)
        envelope = self._named(Envelope(subject=part.subject, trace_id=trace_id, producer=agent, proposal=proposal))
        if binding.ListFields():
            envelope.version_binding.CopyFrom(binding)
        return envelope

    def _publish(self, envelope: Envelope, at_ms: int) -> Envelope:
        answer = self._run(PublishEvent(self._named(envelope)), at_ms)
        assert isinstance(answer, Recorded)  # noqa: S101  # for the type checker: publishing answers with the event
        return answer.envelope

    def _submit(self, envelope: Envelope, basis: list[Envelope], now_ms: int) -> Envelope:
        """Propose and return the decision: where the proposal has to compete, that of the moment when its contest closes."""
        answer = self._propose(envelope, basis, now_ms)
        if isinstance(answer, Recorded):
            return answer.envelope
        closes_at_ms = milliseconds(envelope.proposal.contest.closes_at)
        made = self._handle(Tick(1 << 31), closes_at_ms).events
        return next(event for event in made if event.decision.proposal_id == envelope.event_id)

    def _propose(self, envelope: Envelope, basis: list[Envelope], now_ms: int) -> Answer:
        known: dict[int, Cited] = {event.sequence_number: cited(event) for event in basis}
        return self._run(SubmitProposal(envelope), now_ms, References(cited=known))

    def _run(self, command: Command, at_ms: int, references: References | None = None) -> Answer:
        return self._handle(command, at_ms, references).answer

    def _handle(self, command: Command, at_ms: int, references: References | None = None) -> Handled:
        handled = handle(self._state, command, references or References(), at_ms)
        if isinstance(handled.answer, Fault):
            raise RefusedError(handled.answer.message)
        return handled

    def _named(self, envelope: Envelope) -> Envelope:
        """Give an event what admission gives every event: an id and a name."""
        envelope.event_id = self._new_id()
        envelope.event_name = EVENT_NAME_DEFAULT[str(envelope.WhichOneof("payload"))]
        return envelope

    def _new_id(self) -> str:
        self._ids += 1
        return f"00000000-0000-4000-8000-{self._ids:012x}"
