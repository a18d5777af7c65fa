"""Facts whose values are lists and objects, with a JSON Schema in their declaration (docs/rule-language.md)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision
from gavel_rules import reason_codes
from gavel_rules.language.rule_set import DocumentError, compile_rule_set

from tests.support.driver import START_MS, Core, document

APPROVED = decision_pb2.OUTCOME_APPROVED
REJECTED = decision_pb2.OUTCOME_REJECTED
WRONG_TYPE = decision_pb2.FACT_REQUIREMENT_STATE_WRONG_TYPE
FILE: dict[str, Any] = {
    "type": "object",
    "required": ["path", "lines"],
    "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
}
APPROVERS: dict[str, Any] = {"type": "array", "maxItems": 3, "items": {"type": "string", "maxLength": 64}}
CHANGE: dict[str, Any] = {
    "type": "object",
    "required": ["author", "files"],
    "additionalProperties": False,
    "properties": {
        "author": {"type": "string", "maxLength": 64},
        "files": {"type": "array", "maxItems": 20, "items": {"$ref": "#/$defs/file"}},
        "merged_by": {"type": "string", "maxLength": 64},
    },
    "$defs": {"file": FILE},
}


def core_with(value: dict[str, Any], condition: str, **declaration: Any) -> Core:
    """Return a bus whose action approves if a condition over `facts.it` holds; `value` is the schema of the fact."""
    facts = {"it": {"key": "k.it", "value": value, "max_age_ms": 60_000, **declaration}}
    return Core(document(facts, [{"id": "fine", "when": condition, "effect": "approve"}], gavel="v2"))


def decide(core: Core, value: object) -> Decision:
    """Publish a value, propose, and return the decision; the log must replay."""
    decision = core.decide([core.fact("k.it", value, occurred_at_ms=START_MS)])
    core.prove()
    return decision


@pytest.mark.parametrize(
    ("schema", "condition", "value", "outcome"),
    [
        (APPROVERS, "facts.it.exists_one(a, a != producer.id)", ["ann"], APPROVED),
        (APPROVERS, "size(facts.it) >= 2", ["ann"], REJECTED),
        (
            CHANGE,
            'facts.it.author == "ann" && facts.it.files.all(f, f.lines < 10)',
            {"author": "ann", "files": []},
            APPROVED,
        ),
        # An integer stays an integer inside of a value, whatever the wire carries.
        (CHANGE, "facts.it.files[0].lines % 2 == 1", {"author": "a", "files": [{"path": "p", "lines": 3}]}, APPROVED),
        (
            CHANGE,
            "!has(facts.it.merged_by) || facts.it.merged_by != facts.it.author",
            {"author": "a", "files": []},
            APPROVED,
        ),
        (
            CHANGE,
            "!has(facts.it.merged_by) || facts.it.merged_by != facts.it.author",
            {"author": "a", "files": [], "merged_by": "a"},
            REJECTED,
        ),
    ],
    ids=str,
)
def test_rules_read_parts_of_a_fact(schema: dict[str, Any], condition: str, value: object, outcome: int) -> None:
    """Rules read the elements and fields of a fact as they read those of params, and both engines agree."""
    assert outcome == decide(core_with(schema, condition), value).outcome


@pytest.mark.parametrize(
    ("schema", "value", "violation"),
    [
        (APPROVERS, "ann", "violates type"),
        (APPROVERS, ["ann", 1], "/1 violates type"),
        (APPROVERS, ["a", "b", "c", "d"], "violates maxItems"),
        (APPROVERS, ["a" * 65], "/0 violates maxLength"),
        (CHANGE, {"author": "ann"}, "/files violates required"),
        (CHANGE, {"author": "ann", "files": [{"path": "p", "lines": 1.5}]}, "/files/0/lines violates type"),
        (CHANGE, {"author": "ann", "files": [], "admin": True}, "/admin violates additionalProperties"),
        ({"type": "string", "maxLength": 3}, "long", "violates maxLength"),
    ],
    ids=str,
)
@pytest.mark.parametrize("optional", [False, True])
def test_a_value_that_violates_the_schema_is_no_evidence(schema: dict[str, Any], value: object, violation: str, optional: bool) -> None:
    """A value that does not fit is refused with the place and keyword of the violation, also if the fact is optional."""
    decision = decide(core_with(schema, "has(facts.it) || true" if optional else "true || facts.it == facts.it", optional=optional), value)
    assert (REJECTED, reason_codes.FACT_TYPE_MISMATCH) == (decision.outcome, decision.reason_code)
    assert [("k.it", WRONG_TYPE)] == [(row.key, row.state) for row in decision.retry_hint.fact_requirements]
    assert [f"k.it of order/1 is not what facts.it declares: {violation}"] == [warning.message for warning in decision.warnings]


def test_a_later_value_that_fits_counts() -> None:
    """After a value that does not fit, a later one of the same source that fits is evidence."""
    core = core_with(APPROVERS, 'facts.it == ["ann"]')
    assert reason_codes.FACT_TYPE_MISMATCH == decide(core, [1]).reason_code
    assert APPROVED == decide(core, ["ann"]).outcome


def test_a_subject_template_reads_a_part_of_a_fact() -> None:
    """A fact's subject may be computed from a part of another fact, which is then selected first."""
    facts = {
        "a_limit": {"key": "k.limit", "subject": '"customer/" + facts.order.customer', "type": "number", "max_age_ms": 60_000},
        "order": {
            "key": "k.order",
            "value": {"type": "object", "required": ["customer"], "properties": {"customer": {"type": "string", "maxLength": 64}}},
            "max_age_ms": 60_000,
        },
    }
    core = Core(document(facts, [{"id": "fine", "when": "facts.a_limit > 5", "effect": "approve"}], gavel="v2"))
    order = core.fact("k.order", {"customer": "7"}, occurred_at_ms=START_MS)
    limit = core.fact("k.limit", 6.0, subject="customer/7", occurred_at_ms=START_MS)
    assert APPROVED == core.decide([order, limit]).outcome
    core.prove()


@pytest.mark.parametrize(
    ("declaration", "gavel", "code", "part"),
    [
        ({"value": APPROVERS}, "v1", "unknown-key", "write `gavel: v2`"),
        ({"value": APPROVERS, "type": "string"}, "v2", "unknown-key", "remove `type`"),
        ({"value": APPROVERS, "max_length": 5}, "v2", "unknown-key", "write maxLength in its `value`"),
        ({}, "v2", "missing-key", "the key type is missing"),
        ({"value": {"type": "array", "maxItem": 5}}, "v2", "schema-keyword", "did you mean maxItems?"),
        ({"value": {"type": "array", "items": {"$ref": "#/properties/x"}}}, "v2", "schema-reference", "names no part of this schema"),
    ],
)
def test_mistakes_of_a_declaration(declaration: dict[str, Any], gavel: str, code: str, part: str) -> None:
    """A fact is declared by a type or by a schema, which is checked like the schema of params."""
    facts = {"it": {"key": "k.it", "max_age_ms": 1, **declaration}}
    with pytest.raises(DocumentError) as caught:
        compile_rule_set(document(facts, [{"id": "r", "when": "has(facts.it) || true", "effect": "approve"}], gavel=gavel))
    assert [code] == [message.code for message in caught.value.messages if part in str(message)], str(caught.value)


def test_reads_without_a_type_are_refused() -> None:
    """A condition may read only parts of a fact to which the schema gives a type."""
    facts = {"it": {"key": "k.it", "max_age_ms": 1, "value": {"type": "object", "required": ["x"], "properties": {"x": {}}}}}
    with pytest.raises(DocumentError) as caught:
        compile_rule_set(document(facts, [{"id": "r", "when": "facts.it.x == 1", "effect": "approve"}], gavel="v2"))
    (message,) = caught.value.messages
    assert ("untyped-param", "declare its type in the fact's schema") == (message.code, message.suggestion)
