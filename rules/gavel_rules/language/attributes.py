"""What a made case has beside params and facts: the plainest values, what may be set, and what follows from what.

Agents set some of it within the bounds that admission holds them to; Gavel itself knows the rest. Some hang together: a subject
is its type and its id, and where there is no evidence it has no age.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gavel.v1.common_pb2 import ProducerType

from gavel_rules.language.case import Case
from gavel_rules.language.constraints import Domain, Scalar
from gavel_rules.language.samples import BASE_MOMENT
from gavel_rules.values import INTEGER_MAX

BASE_MS: Final = int(BASE_MOMENT.timestamp() * 1000)
NOW: Final = "now"

_SUBJECT: Final = "subject"
_PRODUCERS: Final = frozenset(
    name.removeprefix("PRODUCER_TYPE_") for name in ProducerType.DESCRIPTOR.values_by_name if not name.endswith("UNSPECIFIED")
)
# What arbitration says of evidence where there is none.
_NO_EVIDENCE: Final = {"evidence.worst_trust": 3, "evidence.oldest_age_ms": 0}

# By variable: the plainest value, and what values it may have.
ATTRIBUTES: Final[Mapping[str, tuple[Scalar, Domain]]] = {
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
    "evidence.count": (0, Domain(low=0, high=128, integer=True)),
    "evidence.worst_trust": (1, Domain(allowed=frozenset([1, 2, 3]), integer=True)),
    "evidence.oldest_age_ms": (1_000, Domain(low=0, high=INTEGER_MAX, integer=True)),
    "trace.consecutive_rejections": (0, Domain(low=0, high=1_000, integer=True)),
    NOW: (BASE_MS, Domain(low=0, high=4_102_444_800_000, integer=True)),
}


def attribute_schema(path: str) -> dict[str, Any]:
    """Return a JSON Schema for the values of an attribute."""
    base, domain = ATTRIBUTES[path]
    if domain.allowed is not None:
        return {"enum": sorted(domain.allowed, key=repr)}
    if isinstance(base, str):
        return {"type": "string"}
    return {"type": "integer" if domain.integer else "number", "minimum": domain.low, "maximum": domain.high}


def settled(assigned: Mapping[str, object], facts: int) -> dict[str, Any] | None:
    """Return the value of every attribute, where some are assigned and `facts` are there; None where they contradict each other."""
    of: dict[str, Any] = {path: assigned.get(path, base) for path, (base, _) in ATTRIBUTES.items()}
    if _SUBJECT not in assigned:
        of[_SUBJECT] = f"{of['subject.type']}/{of['subject.id']}"
    kind, _, identity = of[_SUBJECT].partition("/")
    parts = {"subject.type": kind, "subject.id": identity}
    if not kind or not identity or "/" in identity or any(assigned.get(name, part) != part for name, part in parts.items()):
        return None
    if "evidence.count" not in assigned:
        of["evidence.count"] = facts
    if of["evidence.count"] < facts:
        return None
    if of["evidence.count"] == 0:
        if any(assigned.get(name, value) != value for name, value in _NO_EVIDENCE.items()):
            return None
        of.update(_NO_EVIDENCE)
    return of


def case_of(params: dict[str, object], facts: dict[str, object], of: Mapping[str, Any]) -> Case:
    """Return a case with typed params, facts by declared name, and settled attributes."""
    return Case(
        params=params,
        facts=facts,
        risk=of["proposal.risk"],
        cost=of["proposal.cost"],
        confidence=of["proposal.confidence"],
        priority=int(of["proposal.priority"]),
        expected_outcome=of["proposal.expected_outcome"],
        subject=of[_SUBJECT],
        producer_type=of["producer.type"],
        producer_id=of["producer.id"],
        producer_version=of["producer.version"],
        evidence_count=int(of["evidence.count"]),
        evidence_worst_trust=int(of["evidence.worst_trust"]),
        evidence_oldest_age_ms=int(of["evidence.oldest_age_ms"]),
        consecutive_rejections=int(of["trace.consecutive_rejections"]),
        now_ms=int(of[NOW]),
    )
