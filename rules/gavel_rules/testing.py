"""The runner of rule tests: every case goes through the real core, and what comes out is compared with what must.

A case is a bus of its own. It is opened, the rule set is deployed and activated, the case's facts are recorded as events at
their ages, oldest first, and its proposal is decided by `handle`, with both engines asked. Nothing here decides, and nothing
stands in for a part of the core. What comes before the facts is the same for all cases of a suite and done once: after each
case the state is taken back to there, as the sequencer takes back a batch.

Pure: the same suite and rule set always give the same results.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final, NamedTuple

from gavel.v1 import common_pb2, fact_pb2
from gavel.v1.arbitration_service_pb2 import RuleExplanation
from gavel.v1.common_pb2 import EventReference, Producer, VersionBinding
from gavel.v1.decision_pb2 import Decision, FactRequirement, FactRequirementState, Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import CrossCheck, Fact
from gavel.v1.observation_pb2 import Observation
from gavel.v1.proposal_pb2 import Proposal
from gavel.v1.tool_pb2 import ToolCall, ToolResult

from gavel_rules import arbitration
from gavel_rules.commands import (
    ActivateRuleSet,
    Answer,
    Command,
    DeployRuleSet,
    Fault,
    OpenBus,
    PublishEvent,
    Recorded,
    References,
    SubmitProposal,
    Tick,
)
from gavel_rules.decider import handle
from gavel_rules.errors import CaseError, GavelRulesError
from gavel_rules.events import DEFAULT_EVENT_NAME, execution_id_of, milliseconds
from gavel_rules.evidence import Cited, cited
from gavel_rules.limits import IDEMPOTENCY_WINDOW_MS_DEFAULT
from gavel_rules.projection import State
from gavel_rules.ruleset import CompiledAction, CompiledRuleSet, FactDeclaration
from gavel_rules.schema import suggestion
from gavel_rules.suite import Suite, SuiteCase, mistaken
from gavel_rules.suite_parts import EarlierCase, ExpectCase, FactCase, HintCase
from gavel_rules.values import python_to_value

SOURCE_DEFAULT: Final = "test-source"
_TRACE: Final = "case"
_FACTS_TRACE: Final = "facts"
_EVIDENCE_HASH: Final = "sha256:" + "0" * 64
_STATE_PREFIX: Final = "FACT_REQUIREMENT_STATE_"
_OUTCOME_PREFIX: Final = "OUTCOME_"


class Difference(NamedTuple):
    """One thing that came out otherwise than expected, as people read it."""

    what: str  # e.g. "reason_code"
    expected: str
    found: str


class CaseResult(NamedTuple):
    """What a case came to. It passed if there are no differences."""

    case: SuiteCase
    line: int  # of the case in the suite
    column: int
    action: str
    proposal: Envelope
    decision: Decision
    differences: tuple[Difference, ...]
    explanations: tuple[RuleExplanation, ...]  # by falling priority; none if its params fit no schema, or nobody asked

    @property
    def passed(self) -> bool:
        """Whether everything came out as expected."""
        return not self.differences


class RefusedError(GavelRulesError):
    """The core does not take what a suite or its rule set would have it record; the message is the core's."""


def run_cases(suite: Suite, rule_set: CompiledRuleSet, *, explained: bool = True) -> Iterator[CaseResult]:
    """Yield what each case of a suite comes to, in their order, both engines asked.

    DocumentError: the suite does not fit the rule set, with every mistake. RefusedError: the rule set cannot be deployed. With
    `explained`, each result carries how every rule came out; without, running is faster.
    """
    planned = _planned(suite, rule_set)
    bench = _Bench(rule_set)
    for case, facts, action in planned:
        proposal, decision, explanations = bench.decide(case, facts, action, explained)
        line, column = suite.source.place(case.path)
        differences = tuple(_differences(case.part.expect, decision))
        yield CaseResult(case, line, column, action.action_type, proposal, decision, differences, explanations)


def check_suite(suite: Suite, rule_set: CompiledRuleSet) -> None:
    """Raise what `run_cases` would raise before its first case: the suite fits the rule set, which can be deployed."""
    _planned(suite, rule_set)
    _Bench(rule_set)


class _Evidence(NamedTuple):
    """A fact of a case with everything that its author left to the declaration."""

    name: str
    key: str
    subject: str
    source: str
    tier: int
    part: FactCase


_Planned = tuple[SuiteCase, tuple[_Evidence, ...], CompiledAction]


def _planned(suite: Suite, rule_set: CompiledRuleSet) -> list[_Planned]:
    """Return the cases with what the rule set makes of them; DocumentError with everything that it does not know."""
    mistakes: list[tuple[tuple[str | int, ...], str, str, str]] = []
    planned: list[_Planned] = []
    for case in suite.cases:
        part = case.part
        if part.action is None and len(rule_set.actions) > 1:
            mistakes.append((case.path, "missing-key", "the key action is missing", f"say which: {', '.join(rule_set.actions)}"))
            continue
        named = part.action if part.action is not None else next(iter(rule_set.actions))
        action = rule_set.actions.get(named)
        if action is None:
            mistakes.append(
                (
                    case.origin(("action",)),
                    "undeclared-action",
                    f"the rule set does not govern {named}",
                    suggestion(named, sorted(rule_set.actions)),
                )
            )
            continue
        facts = []
        for name, fact in part.facts.items():
            try:
                evidence = _evidence(case, name, fact, action, rule_set)
            except LookupError:
                hint = suggestion(name, [declared.name for declared in action.facts]) or "give it a key"
                mistakes.append((case.origin(("facts", name)), "unknown-name", f"{named} declares no fact {name}", hint))
                continue
            if evidence is not None:
                facts.append(evidence)
        planned.append((_with_own_params(case, action, rule_set), tuple(facts), action))
    if mistakes:
        raise mistaken(suite.source, mistakes)
    return planned


def _with_own_params(case: SuiteCase, action: CompiledAction, rule_set: CompiledRuleSet) -> SuiteCase:
    """Return the case without the default params that only other actions declare, here and in its earlier proposals."""
    part = case.part
    declared = {action_type: other.params_schema.get("properties", {}) for action_type, other in rule_set.actions.items()}
    everywhere = {name for names in declared.values() for name in names}

    def own(params: dict[str, object], action_type: str, said: Container[str]) -> dict[str, object]:
        foreign = everywhere.difference(declared.get(action_type, everywhere))
        return {name: value for name, value in params.items() if name not in foreign or name in said}

    earlier = []
    for index, one in enumerate(part.earlier):
        said = {name for name in one.params if ("earlier", index, "params", name) in case.origins}
        earlier.append(one.model_copy(update={"params": own(one.params, one.action or action.action_type, said)}))
    said = {name for name in part.params if case.says(("params", name))}
    return case._replace(part=part.model_copy(update={"params": own(part.params, action.action_type, said), "earlier": earlier}))


def _evidence(case: SuiteCase, name: str, fact: FactCase, action: CompiledAction, rule_set: CompiledRuleSet) -> _Evidence | None:
    """Return a fact with what its declaration adds; None for a default that only other actions declare. LookupError: nobody does."""
    declared = _declaration(name, fact, action)
    if declared is None and fact.key is None:
        if not case.says(("facts", name)) and any(_declaration(name, fact, other) for other in rule_set.actions.values()):
            return None
        raise LookupError(name)
    return _Evidence(
        name=name,
        key=fact.key or (declared.key if declared else ""),
        subject=fact.subject or _subject(case, declared, action),
        source=fact.source or (min(declared.sources) if declared and declared.sources else SOURCE_DEFAULT),
        tier=fact.tier or (declared.min_trust if declared else 1),
        part=fact,
    )


def _declaration(name: str, fact: FactCase, action: CompiledAction) -> FactDeclaration | None:
    """Return the declaration that a fact of a case stands for: that of its name, else the first of its key."""
    of_name = (declared for declared in action.facts if declared.name == name)
    of_key = (declared for declared in action.facts if declared.key == fact.key)
    return next(of_name, None) or next(of_key, None)


def _subject(case: SuiteCase, declared: FactDeclaration | None, action: CompiledAction) -> str:
    """Return whom the declaration asks about, by the case's facts as they stand; where that names nobody, the case's subject."""
    part = case.part
    if declared is None or not declared.subject or action.violations(part.params):
        return part.subject
    facts = {name: fact.value for name, fact in part.facts.items() if not fact.retracted}
    try:
        named = action.subject_templates[declared.subject].subject(action.typed_params(part.params), facts, part.subject)
    except CaseError:
        named = None  # a fact of another type than declared, which is what the case is about
    return named or part.subject


class _Bench:
    """A bus on which one rule set is in force: the real core, one command at a time."""

    def __init__(self, rule_set: CompiledRuleSet) -> None:
        self._state = State("test")
        self._ids = 0
        always = CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_ALWAYS)
        self._run(OpenBus(self._new_id(), always, IDEMPOTENCY_WINDOW_MS_DEFAULT), 0)
        self._run(DeployRuleSet(self._new_id(), rule_set, rule_set.document), 0)
        self._run(ActivateRuleSet(self._new_id(), rule_set.policy_id, rule_set.version, None), 0)
        self._state.commit()

    def decide(
        self, case: SuiteCase, facts: tuple[_Evidence, ...], action: CompiledAction, explained: bool
    ) -> tuple[Envelope, Decision, tuple[RuleExplanation, ...]]:
        """Return a case's proposal, its decision and how every rule came out; nothing of it stays."""
        mark = self._state.mark()
        ids = self._ids
        try:
            return self._decide(case, facts, action, explained)
        finally:
            self._state.undo(mark)
            self._ids = ids

    def _decide(
        self, case: SuiteCase, facts: tuple[_Evidence, ...], action: CompiledAction, explained: bool
    ) -> tuple[Envelope, Decision, tuple[RuleExplanation, ...]]:
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
        for index, earlier in enumerate(part.earlier):
            before = earlier.model_copy(update={"action": earlier.action or action.action_type})
            self._propose(self._proposal(before, basis, f"earlier-{index + 1}", binding), basis, now_ms)
        proposal = self._proposal(own, basis, _TRACE, binding)
        self._run(Tick(1 << 31), now_ms)
        explanations = tuple(arbitration.explain(self._state, proposal, now_ms)) if explained else ()
        return proposal, self._submit(proposal, basis, now_ms), explanations

    def _record(self, evidence: _Evidence, at_ms: int) -> Envelope:
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

    def _submit(self, envelope: Envelope, basis: list[Envelope], now_ms: int) -> Decision:
        """Propose and return the decision: where the proposal has to compete, that of the moment when its contest closes."""
        answer = self._propose(envelope, basis, now_ms)
        if isinstance(answer, Recorded):
            return answer.envelope.decision
        closes_at_ms = milliseconds(envelope.proposal.contest.closes_at)
        made = handle(self._state, Tick(1 << 31), now_ms=closes_at_ms).events
        return next(event.decision for event in made if event.decision.proposal_id == envelope.event_id)

    def _propose(self, envelope: Envelope, basis: list[Envelope], now_ms: int) -> Answer:
        known: dict[int, Cited] = {event.sequence_number: cited(event) for event in basis}
        return self._run(SubmitProposal(envelope), now_ms, References(cited=known))

    def _run(self, command: Command, at_ms: int, references: References | None = None) -> Answer:
        answer = handle(self._state, command, references or References(), at_ms).answer
        if isinstance(answer, Fault):
            raise RefusedError(answer.message)
        return answer

    def _named(self, envelope: Envelope) -> Envelope:
        """Give an event what admission gives every event: an id and a name."""
        envelope.event_id = self._new_id()
        envelope.event_name = DEFAULT_EVENT_NAME[str(envelope.WhichOneof("payload"))]
        return envelope

    def _new_id(self) -> str:
        self._ids += 1
        return f"00000000-0000-4000-8000-{self._ids:012x}"


def _differences(expect: ExpectCase, decision: Decision) -> Iterator[Difference]:
    outcome = Outcome.Name(decision.outcome).removeprefix(_OUTCOME_PREFIX)
    if outcome != expect.outcome:
        yield Difference("outcome", expect.outcome, outcome)
    for what, wanted, found in (
        ("reason_code", expect.reason_code, decision.reason_code),
        ("rule_id", expect.rule_id, decision.rule_id),
        ("conflict_key", expect.conflict_key, decision.conflict_key),
    ):
        if wanted is not None and wanted != found:
            yield Difference(what, _text(wanted), _text(found))
    if expect.terminal is not None and expect.terminal != decision.terminal:
        yield Difference("terminal", str(expect.terminal).lower(), str(decision.terminal).lower())
    for what, names, given in (
        ("matched", expect.matched, [match.rule_id for match in decision.rule_matches]),
        ("warnings", expect.warnings, [warning.code for warning in decision.warnings]),
    ):
        if names is not None and sorted(names) != sorted(given):
            yield Difference(what, _listed(names), _listed(given))
    rows = list(decision.retry_hint.fact_requirements)
    if expect.hint is not None and not _hinted(expect.hint, rows):
        yield Difference("hint", _listed(map(_wanted_row, expect.hint)), _listed(map(_found_row, rows)))


def _hinted(wanted: list[HintCase], rows: list[FactRequirement]) -> bool:
    """Whether expected and found rows can be paired, none being left over."""
    if len(wanted) != len(rows):
        return False
    if not wanted:
        return True
    first, *others = wanted
    return any(_fits(first, row) and _hinted(others, rows[:index] + rows[index + 1 :]) for index, row in enumerate(rows))


def _fits(wanted: HintCase, row: FactRequirement) -> bool:
    return (
        wanted.key == row.key
        and wanted.state in (None, _state(row))
        and wanted.subject in (None, row.subject)
        and (wanted.sources is None or sorted(wanted.sources) == sorted(row.sources))
    )


def _state(row: FactRequirement) -> str:
    return FactRequirementState.Name(row.state).removeprefix(_STATE_PREFIX)


def _wanted_row(row: HintCase) -> str:
    parts = [row.key, row.state or "", f"of {row.subject}" if row.subject else ""]
    return " ".join(filter(None, [*parts, f"from {'/'.join(sorted(row.sources))}" if row.sources is not None else ""]))


def _found_row(row: FactRequirement) -> str:
    return " ".join([row.key, _state(row), f"of {row.subject}", f"from {'/'.join(row.sources) or 'any'}"])


def _text(value: str) -> str:
    return value or '""'


def _listed(items: Iterator[str] | list[str]) -> str:
    return f"[{', '.join(items)}]"
