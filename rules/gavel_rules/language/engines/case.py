"""The case: everything that rules may read of one proposal.

Arbitration builds a case from the log and the proposal. `CaseReader` picks the values that an action's conditions read, under the
dotted names of `vocabulary`, each converted to its declared type. A value of another type never reaches an engine: it raises
CaseError, because a schema, a declaration or admission should have refused it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from gavel_rules.errors import CaseError
from gavel_rules.language.cel.vocabulary import COUNTER_READS, PRESENCE_MAPS, ValueType
from gavel_rules.values import INTEGER_MAX, problems

_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_INFINITE: Final = float("inf")
NO_HISTORY: Final[Mapping[str, float]] = {}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Proposer(NamedTuple):
    """The producer of a proposal, as expressions read it."""

    type: str  # "AGENT"
    id: str
    version: str
    groups: tuple[str, ...]  # verified; none without authentication


NOBODY: Final = Proposer("", "", "", ())


class Case:
    """Everything that rules may read. Times are milliseconds since the epoch. Cases with equal values have equal `repr`."""

    def __init__(
        self,
        params: dict[str, object],  # typed by CompiledAction.typed_params
        facts: dict[str, object],  # by declared name; absent facts are left out
        risk: float,
        cost: float,
        confidence: float,
        priority: int,
        expected_outcome: str,
        subject: str,  # "type/id"
        producer_type: str,  # "AGENT"
        producer_id: str,
        producer_version: str,
        evidence_count: int,
        evidence_worst_trust: int,
        evidence_oldest_age_ms: int,
        consecutive_rejections: int,
        now_ms: int,
        history: Mapping[str, float] = NO_HISTORY,  # what counters give, by the variable of the read
        producer_groups: tuple[str, ...] = (),  # verified; none without authentication
    ) -> None:
        self.params: Final = params
        self.facts: Final = facts
        self.risk: Final = risk
        self.cost: Final = cost
        self.confidence: Final = confidence
        self.priority: Final = priority
        self.expected_outcome: Final = expected_outcome
        self.subject: Final = subject
        self.producer_type: Final = producer_type
        self.producer_id: Final = producer_id
        self.producer_version: Final = producer_version
        self.evidence_count: Final = evidence_count
        self.evidence_worst_trust: Final = evidence_worst_trust
        self.evidence_oldest_age_ms: Final = evidence_oldest_age_ms
        self.consecutive_rejections: Final = consecutive_rejections
        self.now_ms: Final = now_ms
        self.history: Final = history
        self.producer_groups: Final = producer_groups

    def __repr__(self) -> str:
        return f"Case({', '.join([f'{name}={getattr(self, name)!r}' for name in CASE_FIELDS])})"

    def with_params(self, params: dict[str, object], facts: dict[str, object] | None = None, evidence_count: int | None = None) -> Case:
        """Return the same case with other typed params, and optionally other facts and another count of evidence."""
        return Case(
            params,
            self.facts if facts is None else facts,
            self.risk,
            self.cost,
            self.confidence,
            self.priority,
            self.expected_outcome,
            self.subject,
            self.producer_type,
            self.producer_id,
            self.producer_version,
            self.evidence_count if evidence_count is None else evidence_count,
            self.evidence_worst_trust,
            self.evidence_oldest_age_ms,
            self.consecutive_rejections,
            self.now_ms,
            self.history,
            self.producer_groups,
        )

    def with_history(self, history: Mapping[str, float]) -> Case:
        """Return the same case with what its counters give."""
        return Case(
            self.params,
            self.facts,
            self.risk,
            self.cost,
            self.confidence,
            self.priority,
            self.expected_outcome,
            self.subject,
            self.producer_type,
            self.producer_id,
            self.producer_version,
            self.evidence_count,
            self.evidence_worst_trust,
            self.evidence_oldest_age_ms,
            self.consecutive_rejections,
            self.now_ms,
            history,
            self.producer_groups,
        )


def bare_case(params: dict[str, object], facts: dict[str, object], subject: str = "", proposer: Proposer = NOBODY) -> Case:
    """Return a case for expressions that read only params, facts, the subject and the producer."""
    kind, identity, version, groups = proposer
    return Case(params, facts, 0.0, 0.0, 0.0, 0, "", subject, kind, identity, version, 0, 0, 0, 0, 0, NO_HISTORY, groups)


# The attributes of a case, by variable; params and facts aside.
_ATTRIBUTES: Final[Mapping[str, str]] = {
    "proposal.risk": "risk",
    "proposal.cost": "cost",
    "proposal.confidence": "confidence",
    "proposal.priority": "priority",
    "proposal.expected_outcome": "expected_outcome",
    "subject": "subject",
    "producer.type": "producer_type",
    "producer.id": "producer_id",
    "producer.version": "producer_version",
    "producer.groups": "producer_groups",
    "evidence.count": "evidence_count",
    "evidence.worst_trust": "evidence_worst_trust",
    "evidence.oldest_age_ms": "evidence_oldest_age_ms",
    "trace.consecutive_rejections": "consecutive_rejections",
}
# All attributes of a case.
CASE_FIELDS: Final = ("params", "facts", *_ATTRIBUTES.values(), "now_ms", "history")


class CaseReader:
    """Reads the values of some variables from cases. Built once per action."""

    def __init__(self, reads: Iterable[tuple[str, ValueType]], presences: Iterable[str]) -> None:
        """`reads` are variables with their types; `presences` are dotted paths whose presence is tested ("facts.fraud_score")."""
        self._params: list[tuple[str, str, str]] = []
        self._nested: list[tuple[str, tuple[str, ...], str]] = []
        self._facts: list[tuple[str, str, str]] = []
        self._nested_facts: list[tuple[str, tuple[str, ...], str]] = []
        self._attributes: list[tuple[str, str, str]] = []
        self._subject_parts: list[str] = []
        self._history: list[tuple[str, str]] = []
        self._reads_now = False
        for name, type_ in sorted(dict(reads).items()):
            root, *steps = name.split(".")
            if name == "now":
                self._reads_now = True
            elif name in ("subject.type", "subject.id"):
                self._subject_parts.append(name)
            elif root == COUNTER_READS:
                self._history.append((name, type_.kind))
            elif root == "facts" and len(steps) == 1:
                self._facts.append((name, steps[0], type_.kind))
            elif root == "facts":
                self._nested_facts.append((name, tuple(steps), type_.kind))
            elif root == "params" and len(steps) == 1:
                self._params.append((name, steps[0], type_.kind))
            elif root == "params":
                self._nested.append((name, tuple(steps), type_.kind))
            else:
                self._attributes.append((name, _ATTRIBUTES[name], type_.kind))
        tested = [tuple(path.split(".")) for path in sorted(set(presences))]
        self._params_tree = _tree(steps[1:] for steps in tested if steps[0] == "params")
        self._facts_tree = _tree(steps[1:] for steps in tested if steps[0] == "facts")

    def read(self, case: Case) -> dict[str, object]:
        """Return the value of every variable that the case has, by dotted name. Raises CaseError for a value of the wrong type.

        The result also has the tested paths that are present, as nested maps under the names of `PRESENCE_MAPS`.
        """
        values: dict[str, object] = {}
        params = case.params
        for name, key, kind in self._params:
            value = params.get(key)
            if value is not None or key in params:
                values[name] = convert(value, kind, name)
        facts = case.facts
        for name, key, kind in self._facts:
            value = facts.get(key)
            if value is not None or key in facts:
                values[name] = convert(value, kind, name)
        for name, attribute, kind in self._attributes:
            values[name] = convert(getattr(case, attribute), kind, name)
        for name, steps, kind in self._nested:
            exists, value = _find(params, steps)
            if exists:
                values[name] = convert(value, kind, name)
        for name, steps, kind in self._nested_facts:
            exists, value = _find(facts, steps)
            if exists:
                values[name] = convert(value, kind, name)
        for name in self._subject_parts:
            kind_of_subject, _, identity = case.subject.partition("/")
            values[name] = convert(kind_of_subject if name == "subject.type" else identity, "string", name)
        history = case.history
        for name, kind in self._history:
            number = history.get(name)
            if number is not None:
                values[name] = convert(number, kind, name)
        if self._reads_now:
            values["now"] = _EPOCH + timedelta(milliseconds=case.now_ms)
        if self._params_tree:
            values[PRESENCE_MAPS["params"]] = _present(self._params_tree, params)
        if self._facts_tree:
            values[PRESENCE_MAPS["facts"]] = _present(self._facts_tree, facts)
        return values


_Tree = dict[str, "_Tree"]


def _tree(paths: Iterable[tuple[str, ...]]) -> _Tree:
    tree: _Tree = {}
    for path in paths:
        node = tree
        for step in path:
            node = node.setdefault(step, {})
    return tree


def _present(tree: _Tree, value: Mapping[str, object]) -> dict[str, object]:
    """Return the tested paths that a value has, as nested maps for has()."""
    answer: dict[str, object] = {}
    for name, below in tree.items():
        if name in value:
            item = value[name]
            answer[name] = _present(below, item) if below and isinstance(item, dict) else True
    return answer


def _find(value: object, steps: tuple[str, ...]) -> tuple[bool, object]:
    for step in steps:
        if not isinstance(value, dict) or step not in value:
            return False, None
        value = value[step]
    return True, value


def convert(value: Any, kind: str, name: str) -> object:
    """Return a value as its declared kind. A number may be an int or a float; a bool is never a number."""
    actual = type(value)
    if kind == "string":
        if actual is str and "\0" not in value and (value.isascii() or not _SURROGATE.search(value)):
            return value
    elif kind == "double":
        if isinstance(value, float):
            if -_INFINITE < value < _INFINITE:
                return value
        elif actual is int and -INTEGER_MAX <= value <= INTEGER_MAX:
            return float(value)
    elif kind == "int":
        if actual is int and -INTEGER_MAX <= value <= INTEGER_MAX:
            return value
        if actual is float and -INTEGER_MAX <= value <= INTEGER_MAX and value.is_integer():
            return int(value)
    elif kind == "bool":
        if actual is bool:
            return value
    elif actual is tuple:
        return list(value)  # of names that admission checks
    elif not problems(value, name):
        return value
    raise CaseError(f"{name} is not a {kind} that the rules may see: a schema, a declaration or admission should have refused it")
