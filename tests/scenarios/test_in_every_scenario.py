"""What must hold of any refusal, tried on every refusal of every scenario (seeds 002 §5.6, §6.3, §6.4).

Each is played up to that refusal once more, and then an agent goes on in one of two ways: it fetches exactly what the hint
says, or it learns nothing and keeps asking.
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
from gavel_rules import reasons
from gavel_rules.commands import Recorded, SubmitProposal
from gavel_rules.events import fact_keys
from gavel_rules.stages import STAGES, RefusalClass, refusal_class
from gavel_rules.values import python_to_value

from tests.scenarios.layers import CoreLayer
from tests.scenarios.playing import played
from tests.scenarios.reading import Scenario, all_scenarios
from tests.scenarios.steps import ProposeStep
from tests.unit.core.driver import AGENT

# A value of each declared type, for whoever fetches a fact.
VALUES: dict[str, object] = {"string": "text", "number": 0.5, "integer": 1, "boolean": True}
ATTEMPTS = 12
LIMIT_DEFAULT = 3
NOT_BY_RULES = {code for stage in STAGES if stage.number in (1, 2, 3, 4, 5, 14) for code in stage.reason_codes}
CLOSED = {reasons.UNDER_REVIEW, reasons.NO_FEASIBLE_PROPOSAL}


class Agent:
    """An agent that has just been refused, on the core as it stands then."""

    def __init__(self, scenario: Scenario, layer: CoreLayer, decision: Envelope) -> None:
        self.core = layer.core
        self.decision = decision.decision
        self.proposal = self.core.by_id[decision.decision.proposal_id]
        declared = [fact for rule_set in scenario.rule_sets for action in rule_set.compiled.actions.values() for fact in action.facts]
        self._types = {fact.key: fact.value_type for fact in declared}
        self.of_others = {fact.key for fact in declared if fact.subject}

    def fetch(self, row: FactRequirement) -> list[Envelope]:
        """Get what a row of the hint asks for: where a newer version is there, that; else one as the row says."""
        if row.state == decision_pb2.FACT_REQUIREMENT_STATE_SUPERSEDED:
            return [event for event in self.core.events if event.subject == row.subject and row.key in fact_keys(event)]
        return [self._new(row)]

    def _new(self, row: FactRequirement) -> Envelope:
        """Publish what a row asks for, from a source that counts, of the tier that is wanted."""
        value = python_to_value(VALUES[str(self._types.get(row.key, "string"))])
        source = row.sources[0] if row.sources else "some-source"
        if row.required_trust_tier == common_pb2.TRUST_TIER_1_SYSTEM_FACT:
            producer = Producer(type=common_pb2.PRODUCER_TYPE_API, id=source)
            return self.core.publish(Envelope(subject=row.subject, producer=producer, fact=Fact(key=row.key, value=value)))
        shared = {"subject": row.subject, "trace_id": self.proposal.trace_id, "producer": AGENT}
        execution_id = f"exec_{len(self.core.events):012x}"
        self.core.publish(Envelope(tool_call=ToolCall(tool_name=source, execution_id=execution_id), **shared))  # type: ignore[arg-type]
        answer = ToolResult(tool_name=source, execution_id=execution_id, content_hash=f"sha256:{execution_id}")
        result = self.core.publish(Envelope(tool_result=answer, **shared))  # type: ignore[arg-type]
        seen = Observation(source_tool=source, evidence_ref=result.event_id, evidence_hash=answer.content_hash, confidence=0.9)
        seen.extracted_fields[row.key].CopyFrom(value)
        return self.core.publish(Envelope(observation=seen, **shared))  # type: ignore[arg-type]

    def again(self, found: list[Envelope]) -> Decision | None:
        """Propose the same from what was found and what still stands of what was cited before."""
        replaced = {(event.subject, key) for event in found for key in fact_keys(event)}
        kept = [
            event
            for event in (self.core.by_id.get(cited.event_id) for cited in self.proposal.proposal.based_on_events)
            if event is not None and fact_keys(event) and not any((event.subject, key) in replaced for key in fact_keys(event))
        ]
        envelope = Envelope.FromString(self.proposal.SerializeToString())
        for field in ("event_id", "sequence_number", "recorded_at", "occurred_at"):
            envelope.ClearField(field)
        envelope.causation_id = self.decision.decision_id
        envelope.proposal.ClearField("based_on_events")
        envelope.proposal.ClearField("projection_version")
        for event in (*kept, *found):
            envelope.proposal.based_on_events.append(EventReference(event_id=event.event_id, sequence_number=event.sequence_number))
        return self.submit(envelope)

    def repeat(self) -> Decision | None:
        """Propose the same without having learnt anything."""
        envelope = Envelope.FromString(self.proposal.SerializeToString())
        for field in ("event_id", "sequence_number", "recorded_at", "occurred_at"):
            envelope.ClearField(field)
        return self.submit(envelope)

    def limit(self) -> int:
        """Return how many rejections of this action a trace can have before a person is called, all classes together."""
        governing = self.core.state.governing.get(self.proposal.proposal.action_type, ())
        limits = ((action.rejection_limit or LIMIT_DEFAULT) + sum(action.rejection_limits.values()) for action in governing)
        return max(limits, default=LIMIT_DEFAULT)

    def submit(self, envelope: Envelope) -> Decision | None:
        """Submit a proposal and return its decision; None while it competes."""
        answer = self.core.run(SubmitProposal(self.core.admitted(envelope)))
        return answer.envelope.decision if isinstance(answer, Recorded) else None


async def refusals(scenario: Scenario) -> list[Agent]:
    """Return, for every proposal of a scenario that is rejected, the agent that has just heard of it."""
    found = []
    for index, step in enumerate(scenario.steps):
        if not isinstance(step, ProposeStep) or step.waits or step.expect.error:
            continue
        layer = CoreLayer(scenario.id)
        player = await played(scenario, layer, index + 1)
        decision = player.known.event(f"{step.propose}.decision")
        if decision.decision.outcome == decision_pb2.OUTCOME_REJECTED:
            found.append(Agent(scenario, layer, decision))
    return found


SCENARIOS = [pytest.param(scenario, id=scenario.id) for scenario in all_scenarios() if not scenario.engines_disagree]


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_the_hint_suffices(scenario: Scenario) -> None:
    """An agent that fetches exactly what the hint says is approved, refused by a rule or by who holds the key; never for evidence again.

    Whose fact it is may follow from another one: what could not be named before that was known may be asked for once more.
    """
    for agent in await refusals(scenario):
        asked: set[tuple[str, str]] = set()
        found: list[Envelope] = []
        decision: Decision | None = agent.decision
        while decision is not None and _lacks_evidence(decision) and decision.retry_hint.retryable:
            rows = decision.retry_hint.fact_requirements
            if not rows:
                break  # it cites what cannot be cited, and lacks nothing
            assert asked.isdisjoint((row.subject, row.key) for row in rows), decision
            assert not asked or {row.key for row in rows} <= agent.of_others, decision
            asked.update((row.subject, row.key) for row in rows)
            for row in rows:
                found += agent.fetch(row)
            decision = agent.again(found)
        if asked and decision is not None:
            assert decision.reason_code not in CLOSED, decision
            assert not _said(decision) & NOT_BY_RULES, decision


def _lacks_evidence(decision: Decision) -> bool:
    return any(refusal_class(code) == RefusalClass.EVIDENCE for code in _said(decision))


def _said(decision: Decision) -> set[str]:
    """Return why it was refused: the last refusal before a person is called stands in the warnings, and it may be hopeless besides."""
    if decision.reason_code != reasons.REJECTION_LIMIT:
        return {decision.reason_code} - {""}
    return {warning.code for warning in decision.warnings} - {reasons.NO_FEASIBLE_PROPOSAL}


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_a_trace_that_learns_nothing_ends_by_itself(scenario: Scenario) -> None:
    """An agent that keeps asking is given a person at the limit; from then on its trace is closed, at two events per proposal."""
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
