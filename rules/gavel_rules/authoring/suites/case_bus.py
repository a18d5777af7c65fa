"""A bus for the cases of a suite: the real core, driven one command at a time as a server with one rule set drives it.

A case happens in this order: the facts and the earlier proposals at their ages, the latter with their executions; earlier rejections;
earlier proposals without an age; the proposal, and then its execution, if the case has one: begun, reported, its facts derived and
published. Between two of these, every timer fires when it is due: contests close, approvals expire, leases lapse. No part of the core is
replaced. The bus is opened once; after each case the state is rolled back, as the sequencer rolls back a batch.

The same case on the same rule set always gives the same result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

from gavel_rules import preflight
from gavel_rules.administration import unfilled_counters
from gavel_rules.authoring.suites.models import EarlierCase, ExecutionCase, FactCase
from gavel_rules.authoring.suites.suite import SuiteCase
from gavel_rules.authorization import attestation_of, principal_of
from gavel_rules.commands import (
    ActivateRuleSet,
    Answer,
    BeginExecution,
    Command,
    CommandOutcome,
    DeployRuleSet,
    EventAnswer,
    Fault,
    FillCounter,
    LeasedAttempt,
    OpenBus,
    OpenCounters,
    PublishEvent,
    References,
    ReportExecution,
    SubmitProposal,
    Tick,
)
from gavel_rules.counter_backlog import CounterBacklog
from gavel_rules.decider import handle
from gavel_rules.derivation import STATUS_RULE_ID, derive, failed_rules
from gavel_rules.errors import GavelRulesError
from gavel_rules.events.citation import CitedEvent, cited_event
from gavel_rules.events.ids import execution_id_of
from gavel_rules.events.kinds import EVENT_NAME_DEFAULT, EXECUTION_NAME, PRODUCER_TYPE_NAMES
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.identity.principal import ANONYMOUS, Principal
from gavel_rules.language.engines.case import Case
from gavel_rules.language.report_expressions import STATUS_PREFIX
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet
from gavel_rules.limits import IDEMPOTENCY_WINDOW_MS_DEFAULT, LEASE_MS_DEFAULT
from gavel_rules.state.records import OpenContest
from gavel_rules.state.state import State
from gavel_rules.values import python_to_value

_TRACE: Final = "case"
_FACTS_TRACE: Final = "facts"
_EVIDENCE_HASH: Final = "sha256:" + "0" * 64
_EXECUTOR: Final = Producer(type=common_pb2.PRODUCER_TYPE_EXECUTOR, id="executor")
_AGENT: Final = Producer(type=common_pb2.PRODUCER_TYPE_AGENT, id="agent")
_PRODUCER_TYPES: Final = {name: number for number, name in PRODUCER_TYPE_NAMES.items()}
_ALL_TIMERS: Final = Tick(1 << 31)
_NEXT_TIMER: Final = Tick(1)
# What `preflight.read_cases` returns, and the outcome of every rule.
_Explanation = tuple[tuple[tuple[CompiledAction, Case], ...], tuple[RuleExplanation, ...]]
_NO_EXPLANATION: Final[_Explanation] = ((), ())


class CaseBusError(GavelRulesError):
    """The core rejects a command of a case or of its rule set, or an earlier proposal is not decided in time; the message says which."""


class CaseEvidence(NamedTuple):
    """A fact of a case, completed from its declaration."""

    name: str
    key: str
    subject: str
    source: str
    tier: int
    part: FactCase


class Consequences(NamedTuple):
    """The consequences of the report of an execution."""

    report: Envelope  # as recorded
    facts: tuple[Envelope, ...]  # derived by the rule set
    failed: tuple[tuple[str, str], ...]  # its derivations that gave no fact: id, and `DerivationRule.problem`
    decision: Decision | None  # the compensation, or the request for a review; None if nothing more was decided

    @property
    def compensation(self) -> Decision | None:
        """The compensation, None if there is none."""
        return self.decision if self.decision is not None and self.decision.compensates_decision_id else None

    @property
    def review(self) -> str:
        """The reason code of the requested review, "" if none is requested."""
        return self.decision.reason_code if self.decision is not None and self.compensation is None else ""


class EarlierRun(NamedTuple):
    """The result of running an earlier proposal."""

    action: str
    decision: Decision | None  # None if its contest does not close before the case's own proposal is decided
    consequences: Consequences | None  # None if it has no execution or was not approved


class CaseRun(NamedTuple):
    """The result of running a case."""

    proposal: Envelope
    decision: Decision
    explanations: tuple[RuleExplanation, ...]  # of every rule, by falling priority; () unless requested
    cases: tuple[tuple[CompiledAction, Case], ...]  # what the rules read, for each governing rule set; () unless requested
    consequences: Consequences | None  # None if the case has no execution or the proposal was not approved
    earlier: tuple[EarlierRun, ...]


class CaseBus:
    """A bus on which a rule set is in force, and other ones too. Raises CaseBusError if the core rejects one of them."""

    def __init__(self, rule_set: CompiledRuleSet, others: Sequence[CompiledRuleSet] = ()) -> None:
        rule_sets = (rule_set, *others)
        declared = {fact.key for one in rule_sets for action in one.actions.values() for fact in action.facts}
        # The keys of facts that counters count and that no action reads.
        self._only_counted = {key for one in rule_sets for counter in one.counters.values() for key in counter.fact_keys} - declared
        self._state = State("test")
        self._ids = 0
        # Of the case that runs: the results of its earlier proposals, and those that wait for the close of a contest, by event_id.
        self._earlier_runs: dict[int, EarlierRun] = {}
        self._waiting: dict[str, tuple[int, EarlierCase]] = {}
        cross_check = CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_ALWAYS)
        self._execute(OpenBus(self._new_id(), cross_check, IDEMPOTENCY_WINDOW_MS_DEFAULT), 0)
        for one in (rule_set, *others):
            self._execute(DeployRuleSet(self._new_id(), one, one.document), 0)
            if unfilled_counters(self._state, self._state.rule_sets[one.policy_id, one.version]):
                self._open_counters(one)
            self._execute(ActivateRuleSet(self._new_id(), one.policy_id, one.version, None), 0)
        self._state.commit()

    def run(self, case: SuiteCase, facts: Sequence[CaseEvidence], action: CompiledAction, *, explain: bool) -> CaseRun:
        """Run a case and roll it back. With `explain`, the result has the outcome of every rule, and what the rules read.

        Raises CaseBusError.
        """
        mark = self._state.mark()
        ids = self._ids
        try:
            return self._run(case, facts, action, explain)
        finally:
            self._state.undo(mark)
            self._ids = ids
            self._earlier_runs = {}
            self._waiting = {}

    def _run(self, case: SuiteCase, facts: Sequence[CaseEvidence], action: CompiledAction, explain: bool) -> CaseRun:
        part = case.part
        now_ms = case.now_ms
        binding = VersionBinding(**part.version_binding.model_dump())
        recorded: dict[str, Envelope] = {}
        # By falling age; of equal ages, facts come before proposals.
        moments: list[tuple[int, CaseEvidence | int]] = [(evidence.part.age_ms, evidence) for evidence in facts]
        moments.extend((earlier.age_ms, index) for index, earlier in enumerate(part.earlier) if earlier.age_ms)
        for age_ms, event in sorted(moments, key=lambda moment: -moment[0]):
            self._advance(now_ms - age_ms)
            if isinstance(event, CaseEvidence):
                recorded[event.name] = self._record(event, now_ms - age_ms)
            else:
                self._run_earlier(case, event, facts, action, recorded)
        self._advance(now_ms)
        own = EarlierCase(
            action=action.action_type, subject=part.subject, producer=part.producer, params=part.params, proposal=part.proposal
        )
        for _ in range(part.trace.consecutive_rejections):
            self._submit(self._proposal(own, [], _TRACE, binding), [], now_ms)
        for index, earlier in enumerate(part.earlier):
            if not earlier.age_ms:
                self._run_earlier(case, index, facts, action, recorded)
        citations = _citations(part.cites, facts, recorded)
        proposal = self._proposal(own, citations, _TRACE, binding)
        self._advance(now_ms)
        decision, (cases, explanations) = self._decide(proposal, citations, now_ms, explain)
        self._check_waiting()
        return CaseRun(
            proposal,
            decision.decision,
            explanations,
            cases,
            self._consequences(decision, part.execution, milliseconds(decision.recorded_at)),
            tuple(self._earlier_runs[index] for index in range(len(part.earlier))),
        )

    def _advance(self, at_ms: int) -> None:
        """Let time pass: fire every timer when it is due, and carry out earlier proposals that are approved when their contests close."""
        while (due_ms := self._state.next_timer_ms()) is not None and due_ms <= at_ms:
            for event in self._handle(_ALL_TIMERS, due_ms).envelopes:
                waiting = self._waiting.pop(event.decision.proposal_id, None)
                if waiting is not None:
                    self._note_earlier(*waiting, event, due_ms)

    def _run_earlier(
        self, case: SuiteCase, index: int, facts: Sequence[CaseEvidence], action: CompiledAction, recorded: Mapping[str, Envelope]
    ) -> None:
        """Submit an earlier proposal at its age and carry out its approval, if it has an execution. In a contest, it waits for the close.

        A fact that is younger than the proposal is recorded at the time of the proposal as well, unless it is there to be counted alone.
        """
        part = case.part.earlier[index]
        action_type = part.action or action.action_type
        at_ms = case.now_ms - part.age_ms
        number = index + 1
        evidence = dict(recorded)
        for one in facts:
            if one.name not in evidence and one.key not in self._only_counted:
                evidence[one.name] = self._record(one, at_ms, number)
        citations = _citations(case.part.cites, facts, evidence)
        binding = VersionBinding(**case.part.version_binding.model_dump())
        full = part.model_copy(update={"action": action_type})
        proposal = self._proposal(full, citations, f"earlier-{number}", binding)
        answer = self._submit(proposal, citations, at_ms)
        if isinstance(answer, EventAnswer):
            self._note_earlier(index, full, answer.envelope, at_ms)
        else:
            self._earlier_runs[index] = EarlierRun(action_type, None, None)
            self._waiting[proposal.event_id] = (index, full)

    def _note_earlier(self, index: int, part: EarlierCase, decision: Envelope, at_ms: int) -> None:
        """Note the decision on an earlier proposal, and carry it out."""
        consequences = self._consequences(decision, part.execution, at_ms)
        self._earlier_runs[index] = EarlierRun(part.action or "", decision.decision, consequences)

    def _note_decided_last(self, decision: Envelope) -> None:
        """Note a decision on an earlier proposal just before the case's own contest closes: there is no time left to carry it out."""
        index, part = self._waiting.get(decision.decision.proposal_id, (0, None))
        if part is not None and part.execution is None:
            del self._waiting[decision.decision.proposal_id]
            self._earlier_runs[index] = EarlierRun(part.action or "", decision.decision, None)

    def _check_waiting(self) -> None:
        """Raise CaseBusError for an earlier proposal with an execution or expectation that has not been decided."""
        for index, part in self._waiting.values():
            for key in ("execution", "expect"):
                if key in part.model_fields_set:
                    raise CaseBusError(
                        f"the contest of earlier.{index} closes too late: with the one of the case's own proposal, or after it is decided; "
                        f"give it an age_ms of at least the contest_window_ms of {part.action}, or remove its {key}"
                    )

    # Executions

    def _consequences(self, decision: Envelope, part: ExecutionCase | None, at_ms: int) -> Consequences | None:
        """Carry out an approval without any time passing. Attempts before the one of the case fail.

        Return None if there is no execution or no approval.
        """
        if part is None or decision.decision.outcome != decision_pb2.OUTCOME_APPROVED:
            return None
        for _ in range(1, part.attempt):
            self._attempt(decision, ExecutionCase(status="FAILED"), at_ms)
        return self._attempt(decision, part, at_ms)

    def _attempt(self, decision: Envelope, part: ExecutionCase, at_ms: int) -> Consequences:
        """Begin, report and derive as an executor and the fact derivation reactor do."""
        report, follow_up = self._report(decision, part, at_ms)
        rule_set = self._state.rule_set_of(decision.decision)
        derived = derive(report, decision, rule_set)
        for fact in derived:
            self._execute(PublishEvent(fact), at_ms)
        of_rule_set = tuple(envelope for envelope in derived if envelope.fact.derivation_rule_id != STATUS_RULE_ID)
        failed = tuple((rule.id, problem) for rule, problem in failed_rules(report, decision, rule_set))
        recorded = Envelope()
        recorded.CopyFrom(report)  # rolling the case back takes from the report what the core has filled in
        return Consequences(recorded, of_rule_set, failed, follow_up)

    def _report(self, decision: Envelope, part: ExecutionCase, at_ms: int) -> tuple[Envelope, Decision | None]:
        """Begin an attempt and report how it ended; return the report and the decision that it caused, if any."""
        attempt = self._execute(BeginExecution(decision.event_id, _EXECUTOR, LEASE_MS_DEFAULT), at_ms)
        if not isinstance(attempt, LeasedAttempt):
            raise CaseBusError(f"the approval cannot be carried out: {attempt}")
        execution = Execution(
            decision_id=decision.event_id,
            execution_id=attempt.envelope.execution.execution_id,
            status=ExecutionStatus.Value(STATUS_PREFIX + part.status),
            reason_code=part.reason_code,
            completed_steps=part.completed_steps,
        )
        if part.result:
            execution.result.CopyFrom(python_to_value(part.result).struct_value)
        if part.error.code or part.error.message:
            execution.error.CopyFrom(ExecutionError(code=part.error.code, message=part.error.message))
        report = Envelope(event_id=self._new_id(), event_name=EXECUTION_NAME[execution.status], producer=_EXECUTOR, execution=execution)
        events = self._handle(ReportExecution(report), at_ms).envelopes
        follow_ups = (event.decision for event in events if event.HasField("decision") and event.causation_id == report.event_id)
        return report, next(follow_ups, None)

    # Evidence

    def _record(self, evidence: CaseEvidence, at_ms: int, number: int = 0) -> Envelope:
        """Record evidence as its source or the agent does, and return its event. `number` tells several records of it apart."""
        part = evidence.part
        if evidence.tier == common_pb2.TRUST_TIER_1_SYSTEM_FACT or part.retracted:
            fact = Fact(key=evidence.key, max_age_ms=part.max_age_ms, observed_from=fact_pb2.OBSERVED_FROM_API)
            fact.value.CopyFrom(python_to_value(None if part.retracted else part.value))
            api = Producer(type=common_pb2.PRODUCER_TYPE_API, id=evidence.source)
            return self._publish(Envelope(subject=evidence.subject, trace_id=_FACTS_TRACE, producer=api, fact=fact), at_ms)
        observation = Observation(source_tool=evidence.source, confidence=1.0)
        observation.extracted_fields[evidence.key].CopyFrom(python_to_value(part.value))
        if evidence.tier == common_pb2.TRUST_TIER_2_TOOL_OBSERVATION:
            execution_id = execution_id_of(evidence.name, number + 1)
            call = ToolCall(tool_name=evidence.source, execution_id=execution_id)
            self._publish(Envelope(subject=evidence.subject, trace_id=_TRACE, producer=_AGENT, tool_call=call), at_ms)
            result = ToolResult(tool_name=evidence.source, execution_id=execution_id, content_hash=_EVIDENCE_HASH)
            result_event = self._publish(Envelope(subject=evidence.subject, trace_id=_TRACE, producer=_AGENT, tool_result=result), at_ms)
            observation.evidence_ref = result_event.event_id
            observation.evidence_hash = _EVIDENCE_HASH
        return self._publish(Envelope(subject=evidence.subject, trace_id=_TRACE, producer=_AGENT, observation=observation), at_ms)

    def _publish(self, envelope: Envelope, at_ms: int) -> Envelope:
        answer = self._execute(PublishEvent(self._complete(envelope)), at_ms)
        assert isinstance(answer, EventAnswer)  # noqa: S101  # for the type checker: publishing answers with the event
        return answer.envelope

    # Proposals

    def _proposal(self, part: EarlierCase, citations: list[Envelope], trace_id: str, binding: VersionBinding) -> Envelope:
        details = part.proposal
        proposal = Proposal(
            action_type=part.action or "",
            risk=details.risk,
            cost=details.cost,
            confidence=details.confidence,
            priority=details.priority,
            expected_outcome=details.expected_outcome,
            max_fact_age_ms=details.max_fact_age_ms,
            required_facts=details.required_facts,
            based_on_events=[EventReference(event_id=event.event_id, sequence_number=event.sequence_number) for event in citations],
        )
        proposal.params.CopyFrom(python_to_value(part.params).struct_value)
        producer = part.producer
        agent = Producer(type=_PRODUCER_TYPES[producer.type], id=producer.id, version=producer.version)
        envelope = self._complete(Envelope(subject=part.subject, trace_id=trace_id, producer=agent, proposal=proposal))
        if producer.groups:
            envelope.attestation.CopyFrom(attestation_of(Principal(producer.id, "token", groups=tuple(producer.groups))))
        if binding.ListFields():
            envelope.version_binding.CopyFrom(binding)
        return envelope

    def _decide(self, proposal: Envelope, citations: list[Envelope], now_ms: int, explain: bool) -> tuple[Envelope, _Explanation]:
        """Submit a proposal and return its decision; if it competes, let its contest close first.

        With `explain`, return also what the rules read for this decision, and the outcome of every rule.
        """
        explanation = self._explain(proposal, now_ms) if explain else _NO_EXPLANATION
        answer = self._submit(proposal, citations, now_ms)
        if isinstance(answer, EventAnswer):
            return answer.envelope, explanation
        closes_at_ms = milliseconds(proposal.proposal.contest.closes_at)
        self._advance(closes_at_ms - 1)
        while proposal.event_id not in self._candidates_of_next(closes_at_ms):
            for event in self._handle(_NEXT_TIMER, closes_at_ms).envelopes:
                self._note_decided_last(event)
        explanation = self._explain(proposal, closes_at_ms) if explain else _NO_EXPLANATION
        events = self._handle(_NEXT_TIMER, closes_at_ms).envelopes
        return next(event for event in events if event.decision.proposal_id == proposal.event_id), explanation

    def _candidates_of_next(self, now_ms: int) -> tuple[str, ...]:
        """Return the candidates of the contest whose timer fires next; () for a timer of another kind."""
        due = self._state.next_due(now_ms)
        return due.candidates if isinstance(due, OpenContest) else ()

    def _explain(self, proposal: Envelope, now_ms: int) -> _Explanation:
        governing = self._state.active_actions.get(proposal.proposal.action_type, ())
        cases = tuple(preflight.read_cases(self._state, ProposalView(proposal), now_ms, governing))
        return cases, tuple(one for action, read in cases for one in action.explain(read))

    def _submit(self, proposal: Envelope, citations: list[Envelope], now_ms: int) -> Answer:
        cited_events: dict[int, CitedEvent] = {event.sequence_number: cited_event(event) for event in citations}
        command = SubmitProposal(ProposalView(proposal))
        return self._execute(command, now_ms, References(cited_events=cited_events), principal_of(proposal))

    # Commands

    def _open_counters(self, rule_set: CompiledRuleSet) -> None:
        """Open the counters that no rule set before it shares, on a bus where nothing has happened that they could count."""
        opened = self._execute(OpenCounters(self._new_id(), rule_set.policy_id, rule_set.version), 0)
        assert isinstance(opened, EventAnswer)  # noqa: S101  # for the type checker: there are some to open
        digests = opened.envelope.fact.counters_opened.digests
        counters = [counter for counter in rule_set.counters.values() if counter.digest in digests]
        backlog = CounterBacklog(self._state.bus, counters, opened.envelope.sequence_number)
        for filled in backlog.fills(0):
            self._execute(FillCounter(self._new_id(), filled), 0)

    def _execute(self, command: Command, at_ms: int, references: References | None = None, principal: Principal = ANONYMOUS) -> Answer:
        return self._handle(command, at_ms, references, principal).answer

    def _handle(
        self, command: Command, at_ms: int, references: References | None = None, principal: Principal = ANONYMOUS
    ) -> CommandOutcome:
        handled = handle(self._state, command, references or References(), at_ms, principal=principal)
        if isinstance(handled.answer, Fault):
            raise CaseBusError(handled.answer.message)
        return handled

    def _complete(self, envelope: Envelope) -> Envelope:
        """Set the id and the name of an event, as admission does."""
        envelope.event_id = self._new_id()
        envelope.event_name = EVENT_NAME_DEFAULT[str(envelope.WhichOneof("payload"))]
        return envelope

    def _new_id(self) -> str:
        self._ids += 1
        return f"00000000-0000-4000-8000-{self._ids:012x}"


def _citations(cites: Sequence[str] | None, facts: Sequence[CaseEvidence], recorded: Mapping[str, Envelope]) -> list[Envelope]:
    """Return the evidence that a proposal cites, in the order of the case, as its author would cite it."""
    return [recorded[evidence.name] for evidence in facts if evidence.name in recorded and (cites is None or evidence.name in cites)]
