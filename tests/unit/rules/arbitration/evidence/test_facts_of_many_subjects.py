"""Facts of many subjects: one declaration, a list of subjects, a list of values (docs/rule-language.md)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision
from gavel_rules import reason_codes
from gavel_rules.language.rule_set import DocumentError, compile_rule_set

from tests.support.driver import START_MS, SUBJECT, Core, document

MISSING = decision_pb2.FACT_REQUIREMENT_STATE_MISSING
PARAMS: dict[str, Any] = {
    "type": "object",
    "required": ["accounts"],
    "properties": {"accounts": {"type": "array", "maxItems": 10, "items": {"type": "string", "maxLength": 40}}},
}
SUBJECTS = 'params.accounts.map(a, "account/" + a)'
CONDITION = "facts.balances.all(b, b > 0.0) && facts.balances.sum() >= 10.0"


def core_with(condition: str = CONDITION, **declaration: Any) -> Core:
    """Return a bus whose action approves if a condition over the balances of the accounts in its params holds."""
    facts = {"balances": {"key": "k.balance", "subjects": SUBJECTS, "max": 3, "type": "number", "max_age_ms": 60_000, **declaration}}
    return Core(document(facts, [{"id": "funded", "when": condition, "effect": "approve"}], gavel="v2", params=PARAMS))


def decide(core: Core, balances: dict[str, float], accounts: list[str]) -> Decision:
    """Publish balances and propose on accounts; the log must replay."""
    note = core.fact("k.note", "x", occurred_at_ms=START_MS)
    events = [core.fact("k.balance", value, subject=f"account/{name}", occurred_at_ms=START_MS) for name, value in balances.items()]
    decision = core.decide([note, *events], params={"accounts": accounts})
    core.prove()
    return decision


def test_rules_see_the_values_in_the_order_of_the_subjects() -> None:
    """Rules see one value for each subject, and the decision pins every fact with its subject, event and freshness."""
    decision = decide(core_with("facts.balances == [6.0, 4.0]"), {"a": 4.0, "b": 6.0, "c": -1.0}, ["b", "a", "b"])
    assert decision_pb2.OUTCOME_APPROVED == decision.outcome, decision
    assert [("k.balance", "account/b"), ("k.balance", "account/a")] == [(pin.key, pin.subject) for pin in decision.pinned_facts]
    assert all(pin.event_id and pin.sequence_number and pin.HasField("fresh_until") for pin in decision.pinned_facts)


@pytest.mark.parametrize(("balances", "outcome"), [({"a": 4.0, "b": 6.0}, 1), ({"a": 4.0, "b": 5.0}, 2), ({"a": 11.0, "b": 0.0}, 2)])
def test_values_are_quantified(balances: dict[str, float], outcome: int) -> None:
    """Conditions quantify the values with all, exists and sum."""
    expected = decision_pb2.OUTCOME_APPROVED if outcome == 1 else decision_pb2.OUTCOME_REJECTED
    assert expected == decide(core_with(), balances, ["a", "b"]).outcome


def test_integers_of_many_subjects() -> None:
    """Rules see facts of type integer as integers; a number with a fraction does not count."""
    core = core_with("facts.balances.all(b, b % 2 == 0)", type="integer")
    assert decision_pb2.OUTCOME_APPROVED == decide(core, {"a": 4, "b": 6}, ["a", "b"]).outcome
    assert reason_codes.FACT_TYPE_MISMATCH == decide(core, {"a": 4, "b": 6.5}, ["a", "b"]).reason_code


def test_the_hint_names_the_subjects_that_lack_a_fact() -> None:
    """If facts are missing, the hint has a row for each subject that lacks one, and no other."""
    decision = decide(core_with(), {"b": 1.0}, ["a", "b", "c"])
    assert reason_codes.NEED_MORE_FACTS == decision.reason_code
    rows = [(row.key, row.subject, row.state) for row in decision.retry_hint.fact_requirements]
    assert [("k.balance", "account/a", MISSING), ("k.balance", "account/c", MISSING)] == rows


def test_optional_facts_that_are_absent_are_left_out() -> None:
    """Of optional facts, rules see the values that exist; the decision lists the subjects without one."""
    decision = decide(core_with("facts.balances == [1.0]", optional=True), {"b": 1.0}, ["a", "b"])
    assert decision_pb2.OUTCOME_APPROVED == decision.outcome, decision
    assert [("k.balance", "account/a")] == [(fact.key, fact.subject) for fact in decision.absent_facts]


@pytest.mark.parametrize("accounts", [["a", "b", "c", "d"], ["", "a"]], ids=["more than max", "not a subject"])
def test_subjects_that_are_not_usable_are_refused(accounts: list[str]) -> None:
    """More subjects than `max`, or one that is no "type/id", refuse the proposal."""
    decision = decide(core_with(), {}, accounts)
    assert (reason_codes.INVALID_PARAMS, ["FACT_SUBJECT"]) == (decision.reason_code, [warning.code for warning in decision.warnings])


def test_no_subjects_need_no_facts() -> None:
    """An empty list of subjects gives an empty list of values."""
    assert decision_pb2.OUTCOME_APPROVED == decide(core_with("size(facts.balances) == 0"), {}, []).outcome


def test_values_may_have_structure() -> None:
    """Each value may have a schema, and its integers stay integers."""
    value = {"type": "object", "required": ["cents"], "properties": {"cents": {"type": "integer"}}}
    facts = {"balances": {"key": "k.balance", "subjects": f'["{SUBJECT}"]', "max": 1, "value": value, "max_age_ms": 60_000}}
    core = Core(document(facts, [{"id": "r", "when": "facts.balances.map(b, b.cents).sum() % 2 == 1", "effect": "approve"}], gavel="v2"))
    assert decision_pb2.OUTCOME_APPROVED == core.decide([core.fact("k.balance", {"cents": 3}, occurred_at_ms=START_MS)]).outcome


@pytest.mark.parametrize(
    ("declaration", "gavel", "code", "part"),
    [
        ({"subjects": SUBJECTS, "max": 3}, "v1", "unknown-key", "write `gavel: v2`"),
        ({"subjects": SUBJECTS}, "v2", "missing-key", "the key max is missing"),
        ({"subjects": SUBJECTS, "subject": "subject", "max": 3}, "v2", "unknown-key", "remove one of them"),
        ({"max": 3}, "v2", "unknown-key", "only a fact with `subjects` has a max"),
        ({"subjects": '"a/b"', "max": 3}, "v2", "type-error", "not a list of strings"),
    ],
)
def test_mistakes_of_a_declaration(declaration: dict[str, Any], gavel: str, code: str, part: str) -> None:
    """A declaration has one template, and a limit if it gives many subjects."""
    facts = {"it": {"key": "k.it", "type": "number", "max_age_ms": 1, **declaration}}
    with pytest.raises(DocumentError) as caught:
        compile_rule_set(document(facts, [{"id": "r", "when": "true", "effect": "approve"}], gavel=gavel, params=PARAMS))
    assert [code] == [message.code for message in caught.value.messages if part in str(message)], str(caught.value)
