"""Facts derived from executions: derive(EXECUTION, DECISION, its rule set) -> facts (constitution §4.7.3, §7.2).

A pure, versioned function without other inputs: the two events hold what rules read of facts and counters. One rule is built in; the
others come from the rule set that made the decision, even if another one is active now (`language.derivation_rules`). The fact derivation
reactor publishes the result. The server derives the facts when it records the report, and refuses a published fact that differs; a replay
does the same. A rule that fails gives no fact; the built-in rule always gives one.
"""

from __future__ import annotations

from collections.abc import Container
from functools import lru_cache
from typing import Final

from gavel.v1 import common_pb2, execution_pb2, fact_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import ExecutionStatus
from gavel.v1.fact_pb2 import Fact
from google.protobuf.struct_pb2 import Value

from gavel_rules.events.ids import derived_event_id
from gavel_rules.events.kinds import FACT, FACT_DERIVATION_REACTOR, SCHEMA_VERSION, execution_status_key
from gavel_rules.events.timestamps import milliseconds, set_timestamp
from gavel_rules.language.derivation_rules import DerivationRule, DerivedValue
from gavel_rules.language.report_expressions import STATUS_PREFIX
from gavel_rules.language.rule_set import CompiledRuleSet
from gavel_rules.values import python_to_value

STATUS_RULE_ID: Final = "gavel.execution-status"
STATUS_RULE_VERSION: Final = 1
# Rules whose constant fields are remembered.
RULES_CACHED_MAX: Final = 1024


def derive(execution: Envelope, decision: Envelope, rule_set: CompiledRuleSet | None) -> tuple[Envelope, ...]:
    """Return the facts that follow from a report of an execution, as envelopes ready to publish.

    `execution` and `decision` are recorded events, and the report is one of the decision's. `rule_set` has the decision's
    `rule_set_digest`; None if that is empty. STARTED derives nothing; every other status derives at least one fact, so that no execution
    leaves a gap (constitution §7.2).
    """
    report = execution.execution
    if report.status == execution_pb2.EXECUTION_STATUS_STARTED:
        return ()
    status = _fact(
        execution,
        decision,
        key=execution_status_key(decision.decision.action_type),
        value=Value(string_value=ExecutionStatus.Name(report.status).removeprefix(STATUS_PREFIX)),
        rule_id=STATUS_RULE_ID,
        rule_version=STATUS_RULE_VERSION,
    )
    if rule_set is None or not rule_set.derivations:
        return (status,)
    facts = [status]
    for rule in applicable_rules(execution, decision, rule_set):
        derived = rule.derive(execution, decision)
        if derived is not None:
            fact = _fact(
                execution, decision, key=rule.key, value=python_to_value(derived.value), rule_id=rule.id, rule_version=rule.version
            )
            _rate(fact, derived)
            facts.append(fact)
    return tuple(facts)


def failed_rules(
    execution: Envelope, decision: Envelope, rule_set: CompiledRuleSet | None, derived: Container[str] = ()
) -> list[tuple[DerivationRule, str]]:
    """Return the rules that apply to a report and give no fact, each with its problem (`DerivationRule.problem`).

    `derived` are the ids of rules that gave a fact; they are not evaluated again. Other arguments as for `derive`.
    """
    rules = [rule for rule in applicable_rules(execution, decision, rule_set) if rule.id not in derived]
    problems = [(rule, rule.problem(execution, decision)) for rule in rules]
    return [(rule, problem) for rule, problem in problems if problem]


def applicable_rules(execution: Envelope, decision: Envelope, rule_set: CompiledRuleSet | None) -> list[DerivationRule]:
    """Return the rules that apply to a report. Arguments as for `derive`."""
    if rule_set is None:
        return []
    return [rule for rule in rule_set.derivations if rule.applies(execution.execution, decision.decision)]


def is_derived(fact: Fact) -> bool:
    """Return whether a fact claims to be derived. A fact with any of these fields must have all of them right."""
    return bool(fact.decision_id or fact.execution_id or fact.derivation_rule_id or fact.derivation_rule_version)


def _rate(envelope: Envelope, derived: DerivedValue) -> None:
    """Give a fact its subject, and the tier and age of the evidence that it rests on."""
    envelope.subject = derived.subject
    fact = envelope.fact
    fact.max_age_ms = derived.max_age_ms
    if derived.trust_tier > common_pb2.TRUST_TIER_1_SYSTEM_FACT:
        fact.trust_tier = derived.trust_tier
    if derived.aged_from_ms < milliseconds(envelope.occurred_at):
        set_timestamp(fact.aged_from, derived.aged_from_ms)


def _fact(execution: Envelope, decision: Envelope, *, key: str, value: Value, rule_id: str, rule_version: int) -> Envelope:
    envelope = Envelope.FromString(_encode_constant_fields(key, rule_id, rule_version))
    execution_event_id = execution.event_id
    envelope.event_id = derived_event_id(execution_event_id, execution.sequence_number, f"fact:{rule_id}")
    envelope.occurred_at.CopyFrom(execution.recorded_at)
    envelope.trace_id = decision.trace_id
    envelope.causation_id = execution_event_id
    envelope.subject = decision.subject
    envelope.bus = decision.bus
    fact = envelope.fact
    fact.value.CopyFrom(value)
    report = execution.execution
    fact.decision_id = report.decision_id
    fact.execution_id = report.execution_id
    return envelope


@lru_cache(RULES_CACHED_MAX)
def _encode_constant_fields(key: str, rule_id: str, rule_version: int) -> bytes:
    """Encode the fields that all facts of a rule share (docs/performance.md#fragments)."""
    envelope = Envelope(
        schema_version=SCHEMA_VERSION,
        event_category=FACT,
        event_name="FactDerived",
        producer=Producer(type=common_pb2.PRODUCER_TYPE_SYSTEM, id=FACT_DERIVATION_REACTOR, version=str(rule_version)),
        fact=Fact(
            key=key,
            observed_from=fact_pb2.OBSERVED_FROM_EXECUTOR_FEEDBACK,
            derivation_rule_id=rule_id,
            derivation_rule_version=rule_version,
        ),
    )
    return envelope.SerializeToString()
