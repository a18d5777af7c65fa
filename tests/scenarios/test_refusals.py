"""Every refusal of every scenario: its hint suffices, and an agent that ignores it is stopped (constitution §5.6, §6.3, §6.4).

Each scenario is played up to the refusal. Then an agent either fetches exactly what the hint names, or repeats the proposal.
"""

from __future__ import annotations

import pytest
from gavel.v1 import common_pb2, decision_pb2
from gavel.v1.common_pb2 import EventReference, Producer
from gavel.v1.decision_pb2 import Decision, FactRequirement
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import Fact
from gavel.v1.observation_pb2 import Observation
from gavel.v1.tool_pb2 import ToolCall, ToolResult
from gavel_rules import reason_codes
from gavel_rules.commands import EventAnswer, SubmitProposal
from gavel_rules.events.kinds import fact_keys
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.reason_codes import REASON_CODES, RefusalClass, refusal_class
from gavel_rules.values import python_to_value

from tests.scenarios.layers import CoreLayer
from tests.scenarios.player import play_steps
from tests.scenarios.reader import Scenario, load_scenarios
from tests.scenarios.steps import ProposeStep
from tests.support.driver import AGENT
from tests.support.hashes import sha256_of

# A value of each declared type, for facts that an agent fetches.
VALUES: dict[str, object] = {"string": "text", "number": 0.5, "integer": 1, "boolean": True}
ATTEMPTS = 12
LIMIT_DEFAULT = 3
NOT_BY_RULES = {row.code for row in REASON_CODES if row.stage in (1, 2, 3, 4, 5, 14)}
CLOSED = {reason_codes.UNDER_REVIEW, reason_codes.NO_FEASIBLE_PROPOSAL}


class Agent:
    """An agent after a refusal, on the core in that state."""

    def __init__(self, scenario: Scenario, layer: CoreLayer, decision: Envelope) -> None:
        self.core = layer.core
        self.decision = decision.decision
        self.proposal = self.core.by_id[decision.decision.proposal_id]
        declared = [fact for rule_set in scenario.rule_sets for action in rule_set.compiled.actions.values() for fact in action.facts]
        self._types = {fact.key: fact.value_type for fact in declared}
        self.of_others = {fact.key for fact in declared if fact.subject}

    def fetch(self, row: FactRequirement) -> list[Envelope]:
        """Return the evidence that a row of the hint asks for: the newer version if there is one, or else a new event."""
        if row.state == decision_pb2.FACT_REQUIREMENT_STATE_SUPERSEDED:
            return [event for event in self.core.events if event.subject == row.subject and row.key in fact_keys(event)]
        return [self._new(row)]

    def _new(self, row: FactRequirement) -> Envelope:
        """Publish the evidence that a row asks for, from an accepted source and of the required tier."""
        value = python_to_value(VALUES[str(self._types.get(row.key, "string"))])
        source = row.sources[0] if row.sources else "some-source"
        if row.required_trust_tier == common_pb2.TRUST_TIER_1_SYSTEM_FACT:
            producer = Producer(type=common_pb2.PRODUCER_TYPE_API, id=source)
            return self.core.publish(Envelope(subject=row.subject, producer=producer, fact=Fact(key=row.key, value=value)))
        shared = {"subject": row.subject, "trace_id": self.proposal.trace_id, "producer": AGENT}
        execution_id = f"exec_{len(self.core.events):012x}"
        self.core.publish(Envelope(tool_call=ToolCall(tool_name=source, execution_id=execution_id), **shared))  # type: ignore[arg-type]
        answer = ToolResult(tool_name=source, execution_id=execution_id, content_hash=sha256_of(execution_id))
        result = self.core.publish(Envelope(tool_result=answer, **shared))  # type: ignore[arg-type]
        observation = Observation(source_tool=source, evidence_ref=result.event_id, evidence_hash=answer.content_hash, confidence=0.9)
        observation.extracted_fields[row.key].CopyFrom(value)
        return self.core.publish(Envelope(observation=observation, **shared))  # type: ignore[arg-type]

    def propose_again(self, evidence: list[Envelope]) -> Decision | None:
        """Propose the same, citing new evidence and whatever cited evidence it does not replace."""
        replaced = {(event.subject, key) for event in evidence for key in fact_keys(event)}
        remaining = [
            event
            for event in (self.core.by_id.get(citation.event_id) for citation in self.proposal.proposal.based_on_events)
            if event is not None and fact_keys(event) and not any((event.subject, key) in replaced for key in fact_keys(event))
        ]
        envelope = Envelope.FromString(self.proposal.SerializeToString())
        for field in ("event_id", "sequence_number", "recorded_at", "occurred_at"):
            envelope.ClearField(field)
        envelope.causation_id = self.decision.decision_id
        envelope.proposal.ClearField("based_on_events")
        envelope.proposal.ClearField("projection_version")
        for event in (*remaining, *evidence):
            envelope.proposal.based_on_events.append(EventReference(event_id=event.event_id, sequence_number=event.sequence_number))
        return self.submit(envelope)

    def repeat(self) -> Decision | None:
        """Propose the same again."""
        envelope = Envelope.FromString(self.proposal.SerializeToString())
        for field in ("event_id", "sequence_number", "recorded_at", "occurred_at"):
            envelope.ClearField(field)
        return self.submit(envelope)

    def limit(self) -> int:
        """Return how many rejections of this action a trace may have before a review is requested, over all classes."""
        governing = self.core.state.active_actions.get(self.proposal.proposal.action_type, ())
        limits = ((action.rejection_limit or LIMIT_DEFAULT) + sum(action.rejection_limits.values()) for action in governing)
        return max(limits, default=LIMIT_DEFAULT)

    def submit(self, envelope: Envelope) -> Decision | None:
        """Submit a proposal and return its decision; None while it competes."""
        answer = self.core.run(SubmitProposal(ProposalView(self.core.admit(envelope))))
        return answer.envelope.decision if isinstance(answer, EventAnswer) else None


async def refusals(scenario: Scenario) -> list[Agent]:
    """Return an agent for every rejected proposal of a scenario."""
    agents = []
    for index, step in enumerate(scenario.steps):
        if not isinstance(step, ProposeStep) or step.waits or step.expect.error:
            continue
        layer = CoreLayer(scenario.id)
        player = await play_steps(scenario, layer, index + 1)
        decision = player.log.event(f"{step.propose}.decision")
        if decision.decision.outcome == decision_pb2.OUTCOME_REJECTED:
            agents.append(Agent(scenario, layer, decision))
    return agents


SCENARIOS = [pytest.param(scenario, id=scenario.id) for scenario in load_scenarios() if not scenario.engines_disagree]


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_the_hint_suffices(scenario: Scenario) -> None:
    """An agent that fetches exactly what the hint names is approved, or refused by a rule or a conflict, but not for evidence again.

    The subject of a fact may follow from another fact. The hint names such a fact only once the other one is known.
    """
    for agent in await refusals(scenario):
        requested: set[tuple[str, str]] = set()
        evidence: list[Envelope] = []
        decision: Decision | None = agent.decision
        while decision is not None and _lacks_evidence(decision) and decision.retry_hint.retryable:
            rows = decision.retry_hint.fact_requirements
            if not rows:
                break  # it cites an event that cannot be cited, and lacks no evidence
            assert requested.isdisjoint((row.subject, row.key) for row in rows), decision
            assert not requested or {row.key for row in rows} <= agent.of_others, decision
            requested.update((row.subject, row.key) for row in rows)
            for row in rows:
                evidence += agent.fetch(row)
            decision = agent.propose_again(evidence)
        if requested and decision is not None:
            assert decision.reason_code not in CLOSED, decision
            assert not _reasons(decision) & NOT_BY_RULES, decision


def _lacks_evidence(decision: Decision) -> bool:
    return any(refusal_class(code) == RefusalClass.EVIDENCE for code in _reasons(decision))


def _reasons(decision: Decision) -> set[str]:
    """Return the reason codes of a refusal. If it reached the rejection limit, its own reason is among the warnings."""
    if decision.reason_code != reason_codes.REJECTION_LIMIT:
        return {decision.reason_code} - {""}
    return {warning.code for warning in decision.warnings} - {reason_codes.NO_FEASIBLE_PROPOSAL}


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_repeated_proposals_end_in_a_review(scenario: Scenario) -> None:
    """An agent that repeats its proposal gets a review at the limit; then its trace is closed, and each proposal costs two events."""
    for agent in await refusals(scenario):
        counted = agent.decision.consecutive_rejections
        decisions = []
        for _ in range(ATTEMPTS):
            before = len(agent.core.events)
            decision = agent.repeat()
            assert decision is not None
            decisions.append(decision)
            if decisions[-1].reason_code in CLOSED:
                assert before + 2 == len(agent.core.events)
        rejected = [decision.reason_code not in CLOSED for decision in decisions]
        assert sum(rejected) + counted <= agent.limit()
        assert rejected == sorted(rejected, reverse=True), "a closed trace stays closed"
        assert not rejected[-1]
