"""Derivation rules of a rule set: the facts that follow from reports of executions (constitution §4.7.3, §7.2).

A rule is an expression over a report and its decision. Its value is a string, a finite number or a boolean. If it fails, or gives
anything else, there is no fact. Another expression may name the fact's subject.

A rule may read facts and counters too. Their values are in the log with the two events: those of the decision's facts in the decision
(`Decision.fact_values`), the numbers of counters in the report (`Execution.counters`). A derived fact is no better than what it rests on:
it has the tier of the least trusted evidence and the age of the oldest, and is fresh no longer than any of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from gavel.v1 import common_pb2
from gavel.v1.common_pb2 import TrustTier
from gavel.v1.decision_pb2 import Decision, FactValue
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution, ExecutionStatus

from gavel_rules.events.timestamps import milliseconds
from gavel_rules.language.cel.checker import CheckedExpression, Environment, ScopedExpression
from gavel_rules.language.cel.counter_reads import CounterRead
from gavel_rules.language.counters.counter import OBSERVATIONS, CompiledCounter
from gavel_rules.language.document.models import DerivationPart
from gavel_rules.language.document.params_schema import ParamsSchema
from gavel_rules.language.fact_declaration import FactDeclaration, case_value
from gavel_rules.language.report_expressions import NO_EVIDENCE, STATUS_PREFIX, DecisionEvidence, NoValueError, ReportExpression
from gavel_rules.language.subject_templates import is_recordable_subject
from gavel_rules.values import problems, value_to_python

_FACTS: Final = "facts."
# Counters of these count observations of any tier.

# The part of a derivation that has no value.
VALUE: Final = "value"
SUBJECT: Final = "subject"


class DerivedValue(NamedTuple):
    """What a derivation rule gives for a report."""

    subject: str
    value: str | float | bool
    trust_tier: TrustTier.ValueType  # of the least trusted evidence that it rests on
    aged_from_ms: int  # from when the age of the oldest such evidence counts, at most the time of the report
    max_age_ms: int  # how long after that the evidence is fresh; 0: it sets no limit


class CounterKey(NamedTuple):
    """A counter that a rule reads after a report, with its key."""

    counter: CompiledCounter
    key: str
    variable: str


class DerivationRule:
    """One derivation rule, compiled."""

    def __init__(
        self,
        part: DerivationPart,
        environment: Environment,
        value: CheckedExpression,
        subject: CheckedExpression | None,
        schema: ParamsSchema,
        facts: Mapping[str, FactDeclaration],
        counters: Mapping[str, CompiledCounter],
    ) -> None:
        """`facts` are those of the action, `counters` those of the document, by name."""
        self.id = part.id
        self.version = part.version
        self.action_type = part.on.action
        self.status = ExecutionStatus.Value(STATUS_PREFIX + part.on.status)
        self.key = part.key
        self.value_expression = ScopedExpression(environment, value)
        self.subject_expression = ScopedExpression(environment, subject) if subject is not None else None
        self._value = ReportExpression(self.value_expression, schema)
        self._subject = ReportExpression(self.subject_expression, schema) if self.subject_expression is not None else None
        names = self.value_expression.names()
        if self.subject_expression is not None:
            names |= self.subject_expression.names()
        self.counter_reads: tuple[CounterRead, ...] = tuple(read for read in environment.counter_reads.all() if read.variable in names)
        self._counters = [counters[read.counter] for read in self.counter_reads]
        keys = {read.key: _key_expression(environment, read.key) for read in self.counter_reads if read.key}
        names = names.union(*(key.names() for key in keys.values()))
        # By text: most reads of a rule have the same key. A counter without groups has none.
        self._keys = {text: ReportExpression(key, schema) for text, key in keys.items()}
        self.facts: Mapping[str, FactDeclaration] = {name: facts[name] for name in _fact_names(names)}
        # Whether the rule reads more than the report and its decision, or names the subject.
        self.needs_evidence = bool(self.counter_reads or self.facts or subject is not None)
        counts_observations = any(counter.source == OBSERVATIONS for counter in self._counters)
        self._counters_tier = common_pb2.TRUST_TIER_3_AGENT_INFERENCE if counts_observations else common_pb2.TRUST_TIER_1_SYSTEM_FACT

    def applies(self, execution: Execution, decision: Decision) -> bool:
        """Return whether the rule derives a fact from the reports of this status of the decision's action."""
        return self.status == execution.status and self.action_type == decision.action_type

    def counter_keys(self, execution: Envelope, decision: Envelope) -> list[CounterKey]:
        """Return the counters that the rule reads for a report, with their keys. A read whose key has no value is left out."""
        if not self.counter_reads:
            return []
        evidence = DecisionEvidence(self._read_facts(decision.decision), {})
        keys = {"": ""}
        for text, expression in self._keys.items():
            try:
                key = expression.scalar(execution, decision, evidence)
            except NoValueError:
                continue
            if isinstance(key, str):
                keys[text] = key
        reads = zip(self.counter_reads, self._counters, strict=True)
        return [CounterKey(counter, keys[read.key], read.variable) for read, counter in reads if read.key in keys]

    def derive(self, execution: Envelope, decision: Envelope) -> DerivedValue | None:
        """Return what the rule gives for a report and its decision; None where there is no fact."""
        derived = self._derive(execution, decision)
        return derived if isinstance(derived, DerivedValue) else None

    def problem(self, execution: Envelope, decision: Envelope) -> str:
        """Return why the rule gives no fact for a report: VALUE or SUBJECT has no value that a fact may have; "" if it gives one."""
        derived = self._derive(execution, decision)
        return derived if isinstance(derived, str) else ""

    def _derive(self, execution: Envelope, decision: Envelope) -> DerivedValue | str:
        evidence = self._evidence(execution, decision) if self.needs_evidence else NO_EVIDENCE
        try:
            value = self._value.scalar(execution, decision, evidence)
        except NoValueError:
            return VALUE
        if problems(value, ""):
            return VALUE
        subject: object = decision.subject
        if self._subject is not None:
            try:
                subject = self._subject.scalar(execution, decision, evidence)
            except NoValueError:
                return SUBJECT
            if not isinstance(subject, str) or (subject != decision.subject and not is_recordable_subject(subject)):
                return SUBJECT
        return self._rate(str(subject), value, milliseconds(execution.recorded_at), decision.decision)

    def _evidence(self, execution: Envelope, decision: Envelope) -> DecisionEvidence:
        numbers = {(reading.counter, reading.key): reading.value for reading in execution.execution.counters}
        history = {
            read.variable: numbers[read.counter.name, read.key]
            for read in self.counter_keys(execution, decision)
            if (read.counter.name, read.key) in numbers
        }
        return DecisionEvidence(self._read_facts(decision.decision), history)

    def _read_facts(self, decision: Decision) -> dict[str, object]:
        """Return the facts that the rule reads, by name, typed as their declarations say."""
        return {fact.name: case_value(value_to_python(fact.value), self.facts[fact.name]) for fact in self._fact_values(decision)}

    def _fact_values(self, decision: Decision) -> list[FactValue]:
        return [fact for fact in decision.fact_values if fact.name in self.facts] if self.facts else []

    def _rate(self, subject: str, value: str | float | bool, reported_at_ms: int, decision: Decision) -> DerivedValue:
        """Return a value with the tier and age of the evidence that it rests on."""
        tier = self._counters_tier
        aged_from_ms = reported_at_ms
        limits_ms: list[int] = []
        for fact in self._fact_values(decision):
            tier = max(tier, fact.trust_tier)
            if not fact.HasField("aged_from"):
                continue
            aged_ms = milliseconds(fact.aged_from)
            aged_from_ms = min(aged_from_ms, aged_ms)
            if fact.max_age_ms:
                limits_ms.append(aged_ms + fact.max_age_ms)
        return DerivedValue(subject, value, tier, aged_from_ms, min(limits_ms) - aged_from_ms if limits_ms else 0)


def _key_expression(environment: Environment, key: str) -> ScopedExpression:
    """Return the key of a counter's read, given as its text, as an expression."""
    return ScopedExpression(environment, CheckedExpression(key, key, environment.tree(key), key, "STRING", 0, 0))


def _fact_names(names: set[str]) -> list[str]:
    return sorted({name.split(".")[1] for name in names if name.startswith(_FACTS)})
