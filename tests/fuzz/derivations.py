"""Random derivations: facts from the reports of executions, each with its meaning.

A derivation reads params, facts and counters as conditions do, and the report and its decision besides. `check_derivations` puts the
values of a case into a decision and a report, as arbitration and the executor record them, and compares the derived facts with what the
expressions mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gavel.v1 import common_pb2
from gavel.v1.decision_pb2 import Decision, FactValue
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution, ExecutionError, ExecutionStatus
from gavel_rules.derivation import STATUS_RULE_ID, applicable_rules, derive, failed_rules
from gavel_rules.events.timestamps import set_timestamp
from gavel_rules.language.derivation_rules import SUBJECT, VALUE
from gavel_rules.language.report_expressions import STATUS_PREFIX
from gavel_rules.language.rule_set import CompiledRuleSet
from gavel_rules.language.subject_templates import is_recordable_subject
from gavel_rules.values import problems, python_to_value, value_to_python
from hypothesis import strategies as st

from tests.fuzz.cases import STATUSES, Sample
from tests.fuzz.grammar.conditions import Writer
from tests.fuzz.meanings import ERROR, HISTORY, UNKNOWN, Expression
from tests.fuzz.vocabulary import BOOL, COUNTERS, DOUBLE, INT, STRING, Draw, Type, Variable, Vocabulary, subject_variables

DERIVATIONS_MAX: Final = 3
_COUNTERS: Final = {counter.name: counter for counter in COUNTERS}
_RESULT: Final = "execution.result"


@dataclass(frozen=True, slots=True)
class Derivation:
    """A derivation with the meaning of its parts. Without `subject`, the fact has the decision's."""

    status: str
    value: Expression
    subject: Expression | None


@st.composite
def derivations(draw: Draw, vocabulary: Vocabulary, writer: Writer) -> tuple[Derivation, ...]:
    """Draw derivations of a document. `writer` has written its conditions."""
    names = (
        *vocabulary.params_variables(),
        *vocabulary.facts_variables(len(vocabulary.facts)),
        *subject_variables(),
        *_report_variables(),
    )
    inner = writer.beside(names, COUNTERS)
    return tuple(
        Derivation(draw(st.sampled_from(STATUSES)), inner.value(), inner.subject() if draw(st.booleans()) else None)
        for _ in range(draw(st.integers(0, DERIVATIONS_MAX)))
    )


def declarations(drawn: Sequence[Derivation], action: str) -> list[dict[str, Any]]:
    """Return derivations as a document declares them. The id of each is its number."""
    return [
        {
            "id": f"x{number}",
            "version": 1,
            "on": {"action": action, "status": one.status},
            "key": f"thing.x{number}",
            "value": one.value.text,
            **({"subject": one.subject.text} if one.subject is not None else {}),
        }
        for number, one in enumerate(drawn)
    ]


def unexpected_facts(drawn: Sequence[Derivation], rule_set: CompiledRuleSet, sample: Sample) -> dict[str, Any]:
    """Return the facts that differ from what their derivations mean: by id, (meaning, fact).

    A fact is its subject and value, or the part of the derivation that has no value.
    """
    if not drawn:
        return {}
    decision, report = _events(rule_set, sample)
    actual: dict[str, object] = {rule.id: problem for rule, problem in failed_rules(report, decision, rule_set)}
    for envelope in derive(report, decision, rule_set):
        if envelope.fact.derivation_rule_id != STATUS_RULE_ID:
            actual[envelope.fact.derivation_rule_id] = (envelope.subject, value_to_python(envelope.fact.value))
    differences = {}
    for number, one in enumerate(drawn):
        expected = _meaning(one, sample) if one.status == sample.values["execution.status"] else None
        found = actual.get(f"x{number}")
        if expected is not UNKNOWN and repr(expected) != repr(found):  # 1 and true are equal in Python
            differences[f"x{number}"] = (expected, found)
    return differences


def _meaning(derivation: Derivation, sample: Sample) -> object:
    """Return the subject and value of the derived fact, or the part that has none; UNKNOWN if a part has no known meaning."""
    value = derivation.value.meaning(sample.values)
    if value is UNKNOWN:
        return UNKNOWN
    if value is ERROR or problems(value, ""):
        return VALUE
    subject: object = sample.case.subject
    if derivation.subject is not None:
        subject = derivation.subject.meaning(sample.values)
        if subject is UNKNOWN:
            return UNKNOWN
        if not isinstance(subject, str) or (subject != sample.case.subject and not is_recordable_subject(subject)):
            return SUBJECT
    return (subject, float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value)


def _events(rule_set: CompiledRuleSet, sample: Sample) -> tuple[Envelope, Envelope]:
    """Return the decision on a case, and the report of its execution with what the counters give after it."""
    values = sample.values
    (action,) = rule_set.actions.values()
    case = sample.case
    decision = Decision(**{name.removeprefix("decision."): value for name, value in values.items() if name.startswith("decision.")})
    decision.action_type = action.action_type
    decision.params.CopyFrom(python_to_value(case.params).struct_value)
    for name in action.derivation_facts:
        if name in case.facts:
            fact = FactValue(name=name, value=python_to_value(case.facts[name]), trust_tier=common_pb2.TRUST_TIER_1_SYSTEM_FACT)
            set_timestamp(fact.aged_from, case.now_ms)
            decision.fact_values.append(fact)
    execution = Execution(
        status=ExecutionStatus.Value(STATUS_PREFIX + values["execution.status"]),
        attempt=values["execution.attempt"],
        execution_id=values["execution.execution_id"],
        reason_code=values["execution.reason_code"],
        completed_steps=values["execution.completed_steps"],
        error=ExecutionError(code=values["execution.error.code"], message=values["execution.error.message"]),
    )
    execution.result.CopyFrom(python_to_value(values[_RESULT]).struct_value)
    decided = Envelope(event_id="decision", subject=case.subject, decision=decision)
    report = Envelope(event_id="report", sequence_number=2, subject=case.subject, execution=execution)
    set_timestamp(report.recorded_at, case.now_ms)
    numbers = {
        (key.counter.name, key.key): values[HISTORY](_COUNTERS[key.counter.name], key.key)
        for rule in applicable_rules(report, decided, rule_set)
        for key in rule.counter_keys(report, decided)
    }
    for (name, key), number in numbers.items():
        report.execution.counters.add(policy_id=rule_set.policy_id, counter=name, key=key, value=number)
    return decided, report


def _report_variables() -> Iterator[Variable]:
    """Yield the names of a report and its decision. No schema declares the fields of a result: each may be absent."""
    for name in ("status", "execution_id", "reason_code", "error.code", "error.message"):
        yield Variable(f"execution.{name}", STRING)
    yield Variable("execution.attempt", INT)
    yield Variable("execution.completed_steps", Type("list", element=STRING))
    for name, type_ in (("amount", DOUBLE), ("note", STRING), ("done", BOOL)):
        yield Variable(f"{_RESULT}.{name}", type_, (f"{_RESULT}.{name}",))
    for name in ("decision_id", "proposal_id", "policy_id", "rule_id", "conflict_key"):
        yield Variable(f"decision.{name}", STRING)
    yield Variable("decision.policy_version", INT)
