"""The envelopes that the steps of a scenario send. Their ids are derived from names, so all layers use the same ids."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Final

from gavel.v1 import fact_pb2
from gavel.v1.common_pb2 import EventReference, Producer, ProducerType, VersionBinding
from gavel.v1.diagnostic_pb2 import AgentDiagnostic, LlmInvocation
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution, ExecutionStatus
from gavel.v1.fact_pb2 import Fact
from gavel.v1.observation_pb2 import Observation
from gavel.v1.proposal_pb2 import Proposal
from gavel.v1.tool_pb2 import ToolCall, ToolContract, ToolResult
from gavel_rules.events.timestamps import timestamp
from gavel_rules.values import python_to_value
from google.protobuf.json_format import ParseDict

from tests.scenarios import steps
from tests.scenarios.comparison import NamedLog
from tests.scenarios.reader import Scenario, ScenarioError
from tests.support.driver import START_MS
from tests.support.hashes import sha256_of

NAMESPACE: Final = uuid.UUID("6f1b2c9e-7a44-4a53-9f43-0d6d5c1f7a10")


class StepEnvelopes:
    """Makes the envelopes of a scenario's steps. Steps cite events of `log` by their names."""

    def __init__(self, scenario: Scenario, log: NamedLog) -> None:
        self._scenario = scenario
        self._log = log

    def event_id(self, name: str) -> str:
        """Return the id of the event with a name."""
        return str(uuid.uuid5(NAMESPACE, f"{self._scenario.id}/{name}"))

    def statement(self, step: steps.FactStep | steps.ObserveStep) -> Envelope:
        """Return the fact or observation of a step."""
        if isinstance(step, steps.FactStep):
            fact = Fact(key=step.key, value=python_to_value(step.value), max_age_ms=step.max_age)
            envelope = Envelope(
                event_id=self.event_id(step.fact), event_name=step.event_name, subject=step.subject, trace_id=step.trace, fact=fact
            )
            envelope.producer.CopyFrom(producer(step.channel.upper(), step.by))
            if step.channel == "system":
                fact.observed_from = fact_pb2.OBSERVED_FROM_HUMAN_INPUT
                envelope.fact.CopyFrom(fact)
            if step.occurred_at is not None:
                envelope.occurred_at.CopyFrom(timestamp(START_MS + step.occurred_at))
            return envelope
        observation = Observation(source_tool=step.calls, confidence=0.9, evidence_ref=str(uuid.uuid5(NAMESPACE, "no evidence")))
        if step.evidence is not None:
            evidence = self._log.event(step.evidence)
            observation.evidence_ref = evidence.event_id
            observation.evidence_hash = evidence.tool_result.content_hash
        for key, value in step.reads.items():
            observation.extracted_fields[key].CopyFrom(python_to_value(value))
        if step.observed_at is not None:
            observation.observed_at.CopyFrom(timestamp(START_MS + step.observed_at))
        return Envelope(
            event_id=self.event_id(step.observe),
            subject=step.subject,
            trace_id=step.trace,
            producer=producer("AGENT", step.by),
            observation=observation,
        )

    def tool_events(self, step: steps.ToolStep) -> Iterator[tuple[str, Envelope]]:
        """Yield the name and the envelope of a tool's call and of its result, if the step has them."""
        execution = step.tool if step.execution is None else step.execution
        execution_id = f"exec_{uuid.uuid5(NAMESPACE, execution).hex[:12]}" if execution else ""
        call = ToolCall(tool_name=step.calls, execution_id=execution_id)
        result = ToolResult(
            tool_name=step.result_of or step.calls, execution_id=execution_id, is_error=bool(step.error_code), error_code=step.error_code
        )
        if not step.error_code:
            result.content_hash = sha256_of(step.answer or step.tool)
        shared = Envelope(
            subject=step.subject, trace_id=step.trace, producer=producer("AGENT", step.by), version_binding=binding(step.versions)
        )
        for part, name, event in (("call", f"{step.tool}.call", call), ("result", step.tool, result)):
            if part in step.parts:
                envelope = copy(shared)
                envelope.event_id = self.event_id(name)
                getattr(envelope, f"tool_{part}").CopyFrom(event)
                yield name, envelope

    def invocation(self, step: steps.InvokeStep) -> Envelope:
        """Return the diagnostic about a call of a model."""
        invocation = LlmInvocation(
            requested_model=step.asks,
            llm_model=step.answered_by,
            llm_provider=step.provider,
            prompt_hash=sha256_of(step.prompt),
            output_hash=sha256_of(step.output),
        )
        return Envelope(
            event_id=self.event_id(step.invoke),
            subject=step.subject,
            trace_id=step.trace,
            producer=producer("AGENT", step.by),
            agent_diagnostic=AgentDiagnostic(kind="LlmInvocationCommitted", llm_invocation=invocation),
        )

    def proposal(self, step: steps.ProposalStep, name: str) -> Envelope:
        """Return the proposal of a step, with the id of `name`."""
        proposal = Proposal(
            action_type=step.action or self._only_action(),
            required_facts=step.required_facts,
            max_fact_age_ms=step.max_age,
            cost=step.cost,
            risk=step.risk,
            priority=step.priority,
            confidence=step.confidence,
        )
        proposal.params.CopyFrom(python_to_value(step.params).struct_value)
        for event in map(self._log.event, step.cites):
            proposal.based_on_events.append(EventReference(event_id=event.event_id, sequence_number=event.sequence_number))
        if step.cites_nothing_known:
            proposal.based_on_events.append(EventReference(event_id=self.event_id("nobody"), sequence_number=9_999))
        if step.as_of is not None:
            proposal.projection_version = self._log.event(step.as_of).sequence_number
        return Envelope(
            event_id=self.event_id(name),
            subject=step.subject,
            trace_id=step.trace,
            causation_id=self._log.event(step.cause).event_id if step.cause is not None else "",
            producer=producer("AGENT", step.by),
            version_binding=binding(step.versions),
            proposal=proposal,
        )

    def _only_action(self) -> str:
        actions = {name for rule_set in self._scenario.rule_sets for name in rule_set.compiled.actions}
        if len(actions) != 1:
            raise ScenarioError(f"{self._scenario.id}: say which action is proposed: {', '.join(sorted(actions)) or 'none is known'}")
        return actions.pop()

    def report(self, step: steps.ReportStep) -> Envelope:
        """Return the report of an attempt."""
        attempt = self._log.event(step.of).execution
        execution = Execution(
            decision_id=attempt.decision_id,
            execution_id=attempt.execution_id,
            status=ExecutionStatus.Value(f"EXECUTION_STATUS_{step.status}"),
        )
        if step.result:
            execution.result.CopyFrom(python_to_value(step.result).struct_value)
        return Envelope(event_id=self.event_id(step.report), producer=executor(step.by), execution=execution)


def copy(envelope: Envelope) -> Envelope:
    """Return a copy, as the wire would make it."""
    return Envelope.FromString(envelope.SerializeToString())


def binding(versions: Mapping[str, str]) -> VersionBinding | None:
    """Return the versions of a step, or None if it has none."""
    return VersionBinding(**versions) if versions else None


def contract(step: steps.ContractStep) -> ToolContract:
    """Return the contract that a step registers."""
    schema = {"type": "object", "properties": {name: {} for name in step.requires}, "required": step.requires}
    return ParseDict({"name": step.describes, "version": step.version, "argument_schema": schema}, ToolContract())


def producer(kind: str, name: str) -> Producer:
    """Return a producer of a kind, e.g. "AGENT"."""
    return Producer(type=ProducerType.Value(f"PRODUCER_TYPE_{kind}"), id=name, version="1")


def executor(name: str) -> Producer:
    """Return the executor with a name."""
    return producer("EXECUTOR", name)
