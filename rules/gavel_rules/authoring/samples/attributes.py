"""The attributes of a sample case: everything that conditions read besides params and facts.

Each attribute has a default and a domain, as admission or Gavel itself bounds it. Some depend on each other: a subject is its type
and its id, and a case without evidence has no age of evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from gavel.v1.common_pb2 import ProducerType

from gavel_rules.authoring.samples.constraints import Domain, Scalar
from gavel_rules.authoring.samples.text_forms import BASE_TIME
from gavel_rules.language.cel.counter_reads import CounterRead
from gavel_rules.language.cel.vocabulary import COUNTER_READS, HISTORY
from gavel_rules.language.counters.counter import COUNT, DISTINCT, TOTAL_MAX, CompiledCounter
from gavel_rules.language.document.models import FACT_SUBJECTS_MAX, FACTS_PER_ACTION_MAX, REJECTION_LIMIT_MAX
from gavel_rules.language.engines.case import Case
from gavel_rules.limits import PRINCIPAL_GROUP_LENGTH_MAX, PRINCIPAL_GROUPS_MAX, REQUIRED_FACTS_MAX
from gavel_rules.values import INTEGER_MAX

BASE_TIME_MS: Final = int(BASE_TIME.timestamp() * 1000)
NOW: Final = "now"

_SUBJECT: Final = "subject"
_GROUPS: Final = "producer.groups"
_PRODUCERS: Final = frozenset(
    name.removeprefix("PRODUCER_TYPE_") for name in ProducerType.DESCRIPTOR.values_by_name if not name.endswith("UNSPECIFIED")
)
# The values that arbitration gives to a proposal without evidence.
_NO_EVIDENCE: Final = {"evidence.worst_trust": 3, "evidence.oldest_age_ms": 0}

_EVIDENCE_MAX: Final = FACTS_PER_ACTION_MAX * FACT_SUBJECTS_MAX + REQUIRED_FACTS_MAX
# Each class of reason codes may have its own limit.
_REJECTIONS_MAX: Final = 3 * REJECTION_LIMIT_MAX

# By variable: the default and the domain.
ATTRIBUTES: Final[Mapping[str, tuple[Scalar | list[str], Domain]]] = {
    "proposal.risk": (0.1, Domain(low=0, high=1)),
    "proposal.cost": (1.0, Domain(low=0, high=INTEGER_MAX)),
    "proposal.confidence": (0.9, Domain(low=0, high=1)),
    "proposal.priority": (0, Domain(low=-(2**31), high=2**31 - 1, integer=True)),
    "proposal.expected_outcome": ("", Domain()),
    _SUBJECT: ("subject/1", Domain()),
    "subject.type": ("subject", Domain()),
    "subject.id": ("1", Domain()),
    "producer.type": ("AGENT", Domain(allowed=_PRODUCERS)),
    "producer.id": ("agent", Domain()),
    "producer.version": ("1", Domain()),
    _GROUPS: ([], Domain()),
    "evidence.count": (0, Domain(low=0, high=_EVIDENCE_MAX, integer=True)),
    "evidence.worst_trust": (1, Domain(allowed=frozenset([1, 2, 3]), integer=True)),
    "evidence.oldest_age_ms": (1_000, Domain(low=0, high=INTEGER_MAX, integer=True)),
    "trace.consecutive_rejections": (0, Domain(low=0, high=_REJECTIONS_MAX, integer=True)),
    NOW: (BASE_TIME_MS, Domain(low=0, high=4_102_444_800_000, integer=True)),
}


def is_attribute(path: str) -> bool:
    """Return whether a path is an attribute: one of the table, or what a counter gives."""
    return path in ATTRIBUTES or path.startswith(f"{COUNTER_READS}.")


def attribute_of(path: str, kind: str = "") -> tuple[Scalar | list[str], Domain]:
    """Return the default and the domain of an attribute. `kind` is the type of a counter's read; `counter_domain` is narrower."""
    return ATTRIBUTES.get(path) or (0, Domain(low=-INTEGER_MAX, high=INTEGER_MAX, integer=kind == "int"))


def counter_domain(counter: CompiledCounter) -> Domain:
    """Return the numbers that a counter can give: counts are bounded by its limits, sums by the greatest number that it holds."""
    if counter.aggregate == COUNT:
        return Domain(low=0, high=counter.entries_max, integer=True)
    if counter.aggregate == DISTINCT:
        return Domain(low=0, high=counter.distinct_max, integer=True)
    bound = min(INTEGER_MAX, TOTAL_MAX // 10**counter.scale)
    return Domain(low=-bound, high=bound, integer=counter.is_whole)


def attribute_schema(path: str, kind: str = "") -> dict[str, Any]:
    """Return a JSON Schema for the values of an attribute."""
    default, domain = attribute_of(path, kind)
    if path == _GROUPS:
        return {"type": "array", "maxItems": PRINCIPAL_GROUPS_MAX, "items": {"type": "string", "maxLength": PRINCIPAL_GROUP_LENGTH_MAX}}
    if domain.allowed is not None:
        return {"enum": sorted(domain.allowed, key=repr)}
    if isinstance(default, str):
        return {"type": "string"}
    return {"type": "integer" if domain.integer else "number", "minimum": domain.low, "maximum": domain.high}


def complete_attributes(assignment: Mapping[str, object], facts: int) -> dict[str, Any] | None:
    """Return all attributes of a case with `facts` facts: those assigned, and defaults. None if they contradict each other."""
    attributes: dict[str, Any] = {path: assignment.get(path, default) for path, (default, _) in ATTRIBUTES.items()}
    attributes.update({path: value for path, value in assignment.items() if path.startswith(f"{COUNTER_READS}.")})
    if _SUBJECT not in assignment:
        attributes[_SUBJECT] = f"{attributes['subject.type']}/{attributes['subject.id']}"
    kind, _, identity = attributes[_SUBJECT].partition("/")
    parts = {"subject.type": kind, "subject.id": identity}
    if not kind or not identity or "/" in identity or any(assignment.get(name, part) != part for name, part in parts.items()):
        return None
    if "evidence.count" not in assignment:
        attributes["evidence.count"] = facts
    if attributes["evidence.count"] < facts:
        return None
    if attributes["evidence.count"] == 0:
        if any(assignment.get(name, value) != value for name, value in _NO_EVIDENCE.items()):
            return None
        attributes.update(_NO_EVIDENCE)
    return attributes


def build_case(params: dict[str, object], facts: dict[str, object], attributes: Mapping[str, Any]) -> Case:
    """Return a case with typed params, facts by declared name, and complete attributes."""
    return Case(
        params=params,
        facts=facts,
        risk=attributes["proposal.risk"],
        cost=attributes["proposal.cost"],
        confidence=attributes["proposal.confidence"],
        priority=int(attributes["proposal.priority"]),
        expected_outcome=attributes["proposal.expected_outcome"],
        subject=attributes[_SUBJECT],
        producer_type=attributes["producer.type"],
        producer_id=attributes["producer.id"],
        producer_version=attributes["producer.version"],
        evidence_count=int(attributes["evidence.count"]),
        evidence_worst_trust=int(attributes["evidence.worst_trust"]),
        evidence_oldest_age_ms=int(attributes["evidence.oldest_age_ms"]),
        consecutive_rejections=int(attributes["trace.consecutive_rejections"]),
        now_ms=int(attributes[NOW]),
        history={path: value for path, value in attributes.items() if path.startswith(f"{COUNTER_READS}.")},
        producer_groups=tuple(attributes[_GROUPS]),
    )


def attribute_name(path: str, reads: Iterable[CounterRead]) -> str:
    """Return the name of an attribute as authors write it: that of a counter's read is a call."""
    return next((f"{HISTORY}.{read.counter}({read.key})" for read in reads if read.variable == path), path)


def attribute_value(path: str, case: Case) -> object:
    """Return the value of an attribute of a case as authors write it: `now` is RFC 3339 text."""
    kind, _, identity = case.subject.partition("/")
    values: dict[str, object] = {
        _SUBJECT: case.subject,
        "subject.type": kind,
        "subject.id": identity,
        _GROUPS: list(case.producer_groups),
        NOW: datetime.fromtimestamp(case.now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    if path in values:
        return values[path]
    if path in case.history:
        return case.history[path]
    root, _, name = path.rpartition(".")
    return getattr(case, name if root in ("proposal", "trace") else f"{root}_{name}")
