"""The retry hint is complete: an agent that follows it is not refused for evidence again."""

from __future__ import annotations

from typing import Any, Final

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import FactRequirement
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.reason_codes import RefusalClass, refusal_class
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.driver import SUBJECT, Core, document
from tests.support.hashes import sha256_of

VALUES: Final[dict[str, object]] = {"string": "x", "number": 0.5, "integer": 3, "boolean": True}
NAMES: Final = ("a", "b", "c", "d")
SOURCES: Final = ("orders-db", "fraud-tool")
DECLARATIONS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(sorted(VALUES)),
        "min_trust": st.integers(1, 3),
        "max_age_ms": st.sampled_from([1_000, 60_000]),
        "sources": st.lists(st.sampled_from(SOURCES), unique=True),
        "optional": st.booleans(),
        "subject": st.sampled_from([None, "'customer/' + params.customer"]),
    }
)
# The evidence about a key that the log holds beforehand: value, tier, source, age.
EVIDENCE = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from([*VALUES.values(), None]),
    st.integers(1, 3),
    st.sampled_from([*SOURCES, "hearsay"]),
    st.sampled_from([0, 500, 2_000, 100_000]),
)


def subject_of(declaration: dict[str, Any]) -> str:
    """Return the subject of a declared fact."""
    return "customer/7" if declaration["subject"] else SUBJECT


def say(core: Core, key: str, value: object, tier: int, source: str, subject: str, age_ms: int = 0) -> Envelope:
    """Publish a value at a tier."""
    at_ms = core.now_ms - age_ms
    if tier == 1:
        return core.fact(key, value, subject=subject, source=source, occurred_at_ms=at_ms)
    evidence = core.tool_result(tool_name=source, content_hash=sha256_of(str(len(core.events)))) if tier == 2 else None
    return core.observe(key, value, evidence=evidence, tool=source, subject=subject, observed_at_ms=at_ms)


def fetch(core: Core, row: FactRequirement, declared: dict[str, Any]) -> Envelope:
    """Publish evidence that meets a row of the hint and is no better than required."""
    value = VALUES[declared.get(row.key, {"type": "string"})["type"]]
    source = row.sources[0] if row.sources else SOURCES[0]
    return say(core, row.key, value, row.required_trust_tier, source, row.subject)


@pytest.mark.long
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.dictionaries(st.sampled_from(NAMES), DECLARATIONS, max_size=4),
    st.lists(EVIDENCE, max_size=8),
    st.sets(st.sampled_from(["k.a", "k.b", "k.other"])),
    st.sampled_from([1_000, 3_600_000]),
    st.sets(st.integers(0, 7)),
)
def test_hint_suffices(
    declarations: dict[str, dict[str, Any]],
    evidence: list[tuple[str, object, int, str, int]],
    required: set[str],
    max_fact_age_ms: int,
    cited: set[int],
) -> None:
    """After a refusal for evidence, an agent that gets each row's fact and cites all of them is decided by the rules."""
    facts = {
        name: {"key": f"k.{name}", **{key: value for key, value in one.items() if value is not None}} for name, one in declarations.items()
    }
    by_key = {f"k.{name}": one for name, one in declarations.items()}
    params = {"type": "object", "properties": {"customer": {"type": "string"}}, "required": ["customer"]}
    core = Core(document(facts, [{"id": "fine", "when": "true", "effect": "approve"}], params=params))
    citations = [core.fact("k.note", "x")]
    for name, value, tier, source, age_ms in evidence:
        subject = subject_of(declarations[name]) if name in declarations else SUBJECT
        if value is not None or tier == 1:
            citations.append(say(core, f"k.{name}", value, tier, source, subject, age_ms))
    proposal: dict[str, Any] = {
        "params": {"customer": "7"},
        "required_facts": sorted(required),
        "max_fact_age_ms": max_fact_age_ms,
    }
    first = core.decide([event for index, event in enumerate(citations) if index in cited], **proposal)
    if first.outcome != decision_pb2.OUTCOME_APPROVED:
        assert RefusalClass.EVIDENCE == refusal_class(first.reason_code)
        citations.extend(fetch(core, row, by_key) for row in first.retry_hint.fact_requirements if row.state != _SUPERSEDED)
        second = core.decide(citations, **proposal)
        assert decision_pb2.OUTCOME_APPROVED == second.outcome, (first, second)
    core.prove()


_SUPERSEDED: Final = decision_pb2.FACT_REQUIREMENT_STATE_SUPERSEDED
