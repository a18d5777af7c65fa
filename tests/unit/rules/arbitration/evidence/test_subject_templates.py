"""Subject templates: a declared fact may have another subject, which every use of the evidence respects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision
from gavel_rules import reason_codes
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.language.rule_set import DocumentError, compile_rule_set
from gavel_rules.preflight import explain
from hypothesis import given
from hypothesis import strategies as st

from tests.support.driver import ACTION, SOURCE, Core, compile_cached, document, proposal_envelope

MISSING = decision_pb2.FACT_REQUIREMENT_STATE_MISSING
STALE = decision_pb2.FACT_REQUIREMENT_STATE_STALE

CUSTOMER = {"key": "order.customer", "type": "string", "max_age_ms": 60_000, "sources": [SOURCE]}
SCORE = {"key": "customer.score", "subject": '"customer/" + facts.customer', "type": "number", "max_age_ms": 30_000}
FACTS: dict[str, Any] = {"customer": CUSTOMER, "score": SCORE}
RULES: list[dict[str, Any]] = [{"id": "fine", "when": "facts.score < 0.5", "effect": "approve"}]
OPTIONAL_RULES: list[dict[str, Any]] = [{"id": "fine", "when": "!has(facts.score) || facts.score < 0.5", "effect": "approve"}]


def bus(facts: Mapping[str, Any] = FACTS, rules: list[dict[str, Any]] = RULES, **action: Any) -> Core:
    """Return a bus whose action reads the score of the order's customer."""
    return Core(document(facts, rules, **action))


def rows(decision: Decision) -> list[tuple[str, str, int]]:
    """Return the hint's rows: key, subject, state."""
    return [(row.key, row.subject, row.state) for row in decision.retry_hint.fact_requirements]


def warnings(decision: Decision) -> list[str]:
    """Return the codes of a decision's warnings."""
    return [warning.code for warning in decision.warnings]


def test_fact_of_the_template_subject_counts() -> None:
    """The fact of the subject that the template gives is selected, not that of the proposal's own subject."""
    core = bus()
    customer = core.fact("order.customer", "7")
    core.fact("customer.score", 0.9)
    theirs = core.fact("customer.score", 0.1, subject="customer/7")
    core.fact("customer.score", 0.9, subject="customer/8")
    decision = core.decide([customer])
    assert decision_pb2.OUTCOME_APPROVED == decision.outcome
    assert [("order.customer", "order/1", customer.event_id), ("customer.score", "customer/7", theirs.event_id)] == [
        (pin.key, pin.subject, pin.event_id) for pin in decision.pinned_facts
    ]
    core.prove()


def test_hint_has_the_template_subject() -> None:
    """The row of a missing or stale fact has the subject of the template."""
    core = bus()
    customer = core.fact("order.customer", "7")
    decision = core.decide([customer])
    assert (reason_codes.NEED_MORE_FACTS, [("customer.score", "customer/7", MISSING)]) == (decision.reason_code, rows(decision))
    core.fact("customer.score", 0.1, subject="customer/7")
    core.pass_time(30_001)
    decision = core.decide([customer])
    assert (reason_codes.STALE_FACTS, [("customer.score", "customer/7", STALE)]) == (decision.reason_code, rows(decision))
    core.prove()


def test_fact_of_an_unknown_subject_is_a_warning() -> None:
    """While the fact that names the subject is missing or unfit, the subject is unknown: a warning announces the dependent fact."""
    core = bus()
    core.fact("customer.score", 0.1, subject="customer/7")
    decision = core.decide([core.fact("k.note", "x")])
    assert (reason_codes.NEED_MORE_FACTS, [("order.customer", "order/1", MISSING)]) == (decision.reason_code, rows(decision))
    assert ["SUBJECT_UNRESOLVED"] == warnings(decision)
    core.prove()


@pytest.mark.parametrize("dependency", [{}, {"optional": True}], ids=["required", "optional"])
def test_stale_dependency_is_refused(dependency: dict[str, Any]) -> None:
    """A stale fact that names the subject leads to a refusal, even if it and the fact that depends on it are optional."""
    template = 'has(facts.customer) ? "customer/" + facts.customer : subject'
    facts = {"customer": {**CUSTOMER, "max_age_ms": 10_000, **dependency}, "score": {**SCORE, "subject": template, "optional": True}}
    core = bus(facts, OPTIONAL_RULES)
    customer = core.fact("order.customer", "7")
    core.pass_time(10_001)
    decision = core.decide([customer])
    assert (reason_codes.STALE_FACTS, [("order.customer", "order/1", STALE)]) == (decision.reason_code, rows(decision))
    core.prove()


def test_an_absent_optional_may_name_another_subject() -> None:
    """A template may give a subject where an optional fact is absent. Both absences are recorded and checked at the start."""
    template = 'has(facts.customer) ? "customer/" + facts.customer : subject'
    facts = {"customer": {**CUSTOMER, "optional": True}, "score": {**SCORE, "subject": template, "optional": True}}
    core = bus(facts, OPTIONAL_RULES)
    approved = core.propose([core.fact("k.note", "x")])
    assert [("order.customer", "order/1"), ("customer.score", "order/1")] == [
        (fact.key, fact.subject) for fact in approved.decision.absent_facts
    ]
    core.fact("order.customer", "7")
    assert reason_codes.FACT_SUPERSEDED == core.refuse_start(approved).reason_code
    core.prove()


@pytest.mark.parametrize(
    ("template", "customer"),
    [
        ("facts.customer", "7"),
        ('"Customer/" + facts.customer', "7"),
        ('"customer/" + facts.customer', ""),
        ('"customer/" + facts.customer', "a\tb"),
        ('"customer/" + facts.customer', "x" * 257),
        ('facts.customer == "7" ? string(1 / (size(facts.customer) - 1)) : ""', "7"),
    ],
)
def test_template_without_a_valid_subject(template: str, customer: str) -> None:
    """A template that fails or gives no "type/id" is refused as INVALID_PARAMS with the fact's key."""
    core = bus({"customer": CUSTOMER, "score": {**SCORE, "subject": template}})
    decision = core.decide([core.fact("order.customer", customer)])
    assert (decision_pb2.OUTCOME_REJECTED, reason_codes.INVALID_PARAMS, ["FACT_SUBJECT"]) == (
        decision.outcome,
        decision.reason_code,
        warnings(decision),
    )
    assert "customer.score" in decision.warnings[0].message
    core.prove()


@pytest.mark.parametrize(
    ("template", "written"),
    [
        ('"settings"', "settings"),
        ('"set" + "tings"', "settings"),
        ('"Customer/" + "7"', "Customer/7"),
        ('"customer/a\\tb"', "customer/a\tb"),
        ('""', ""),
    ],
)
def test_invalid_constant_subject_does_not_compile(template: str, written: str) -> None:
    """A constant template that is not a subject is a mistake of the document."""
    with pytest.raises(DocumentError) as failure:
        compile_rule_set(document({"customer": CUSTOMER, "score": {**SCORE, "subject": template}}, RULES))
    assert [("not-a-subject", f"{written!r} is not a valid subject, so no fact can have it")] == [
        (message.code, message.message) for message in failure.value.messages
    ]


def test_constant_subject() -> None:
    """A constant template selects a fact of one subject for all proposals."""
    core = bus({"customer": CUSTOMER, "score": {**SCORE, "subject": '"settings/" + "refunds"'}})
    customer = core.fact("order.customer", "7")
    core.fact("customer.score", 0.1, subject="settings/refunds")
    assert decision_pb2.OUTCOME_APPROVED == core.decide([customer]).outcome


def test_templates_of_params_and_facts() -> None:
    """Templates may read params and facts that other templates place, whatever the order of the mapping."""
    facts = {
        "a_limit": {"key": "group.limit", "subject": '"group/" + facts.z_group', "type": "number", "max_age_ms": 60_000},
        "z_group": {"key": "account.group", "subject": '"account/" + params.note', "type": "string", "max_age_ms": 60_000},
    }
    rules = [{"id": "fine", "when": "params.amount <= facts.a_limit", "effect": "approve"}]
    schema = {"type": "object", "required": ["amount", "note"], "properties": {"amount": {"type": "number"}, "note": {"type": "string"}}}
    core = bus(facts, rules, params=schema)
    group = core.fact("account.group", "g", subject="account/9")
    core.fact("group.limit", 50, subject="group/g")
    decision = core.decide([group], params={"amount": 50, "note": "9"})
    assert decision_pb2.OUTCOME_APPROVED == decision.outcome, decision
    assert ["account/9", "group/g"] == [pin.subject for pin in decision.pinned_facts]
    assert reason_codes.NEED_MORE_FACTS == core.decide([group], params={"amount": 50, "note": "8"}, subject="account/9").reason_code
    core.prove()


STRUNG = (
    '"customer/" + facts.customer',
    '("a" + "b/") + (params.note + "é-" + facts.customer)',
    "facts.customer",
    'subject.type + "/" + subject.id',
)


@pytest.mark.parametrize("template", STRUNG)
@given(customer=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20), note=st.text("ab/", max_size=5))
def test_concatenated_template_equals_the_evaluated_one(template: str, customer: str, note: str) -> None:
    """A template that only concatenates texts is computed without CEL's evaluator, and gives the same subject as the evaluator."""
    subjects = []
    for written in (template, f'true ? {template} : ""'):
        facts = {"customer": CUSTOMER, "score": {**SCORE, "subject": written, "optional": True}}
        schema = {"type": "object", "required": ["note"], "properties": {"note": {"type": "string"}}}
        action = compile_cached(document(facts, OPTIONAL_RULES, params=schema)).actions[ACTION]
        subjects.append(action.subject_templates[written].subject({"note": note}, {"customer": customer}, "order/1"))
    assert subjects[1] == subjects[0]


def test_citing_a_fact_of_the_template_subject() -> None:
    """A proposal that cites only the fact of the named subject has input; citing an old version of it is FACT_SUPERSEDED."""
    core = bus()
    core.fact("order.customer", "7")
    old = core.fact("customer.score", 0.1, subject="customer/7")
    assert decision_pb2.OUTCOME_APPROVED == core.decide([old]).outcome
    core.fact("customer.score", 0.2, subject="customer/7")
    decision = core.decide([old], trace_id="trace-2")
    assert (reason_codes.FACT_SUPERSEDED, "customer/7") == (decision.reason_code, decision.retry_hint.fact_requirements[0].subject)
    core.prove()


def test_change_of_the_template_subject_changes_the_projection() -> None:
    """A change of the named subject's fact since `projection_version` refuses the proposal; a change of another customer's does not."""
    core = bus()
    customer = core.fact("order.customer", "7")
    core.fact("customer.score", 0.1, subject="customer/7")
    version = core.state.head
    core.fact("customer.score", 0.2, subject="customer/8")
    assert decision_pb2.OUTCOME_APPROVED == core.decide([customer], projection_version=version).outcome
    core.fact("customer.score", 0.2, subject="customer/7")
    assert reason_codes.PROJECTION_CHANGED == core.decide([customer], projection_version=version, trace_id="trace-2").reason_code
    core.prove()


@pytest.mark.parametrize(
    ("key", "value", "subject", "expected"),
    [
        ("customer.score", 0.2, "customer/7", reason_codes.FACT_SUPERSEDED),
        ("customer.score", 0.2, "customer/8", ""),
        ("customer.score", 0.2, "order/1", ""),
        ("order.customer", "8", "order/1", reason_codes.FACT_SUPERSEDED),
    ],
)
def test_start_selects_the_evidence_again(key: str, value: object, subject: str, expected: str) -> None:
    """A start evaluates the templates again: if a subject or its fact has changed, the approval ends."""
    core = bus()
    customer = core.fact("order.customer", "7")
    core.fact("customer.score", 0.1, subject="customer/7")
    core.fact("customer.score", 0.1, subject="customer/8")
    approved = core.propose([customer])
    core.fact(key, value, subject=subject)
    if expected:
        assert expected == core.refuse_start(approved).reason_code
    else:
        core.start(approved)
    core.prove()


def test_a_start_with_a_stale_dependency_is_stale() -> None:
    """If the fact that names the subject is stale, the start is refused as stale."""
    facts = {"customer": {**CUSTOMER, "max_age_ms": 5_000}, "score": {**SCORE, "optional": True}}
    core = bus(facts, OPTIONAL_RULES, decision_ttl_ms=60_000)
    approved = core.propose([core.fact("order.customer", "7")])
    assert decision_pb2.OUTCOME_APPROVED == approved.decision.outcome
    core.pass_time(5_001)
    assert reason_codes.STALE_FACT == core.refuse_start(approved).reason_code
    core.prove()


def test_required_optional_fact_has_the_template_subject() -> None:
    """`required_facts` with the key of an optional declaration requires the fact of the subject that its template names."""
    core = bus({"customer": CUSTOMER, "score": {**SCORE, "optional": True}}, OPTIONAL_RULES)
    customer = core.fact("order.customer", "7")
    decision = core.decide([customer], required_facts=["customer.score"])
    assert [("customer.score", "customer/7", MISSING)] == rows(decision)
    score = core.fact("customer.score", 0.1, subject="customer/7")
    assert decision_pb2.OUTCOME_APPROVED == core.decide([customer, score], required_facts=["customer.score"]).outcome
    core.prove()


def test_explanation_shows_the_fact_of_the_template_subject() -> None:
    """A preflight's explanation has the value of the template subject's fact."""
    core = bus()
    customer = core.fact("order.customer", "7")
    core.fact("customer.score", 0.25, subject="customer/7")
    (explanation,) = explain(core.state, ProposalView(core.admit(proposal_envelope([customer]))), core.now_ms)
    assert ("facts.score", "0.25") in [(term.expression, term.value) for term in explanation.terms]


@pytest.mark.parametrize(
    ("templates", "expected"),
    [
        ({"score": '"a/" + string(facts.score)'}, ["subject-cycle"]),
        ({"score": '"a/" + facts.nobody'}, ["unknown-name"]),
        ({"score": '"a/" + facts.customer', "customer": '"b/" + string(facts.score)'}, ["subject-cycle", "subject-cycle"]),
        ({"score": '"a/" + params.note'}, ["unguarded-optional"]),
        ({"score": '"a/" + producer.id'}, ["unknown-name"]),
        ({"score": "7"}, ["not-string"]),
        ({"score": ""}, ["out-of-range"]),
    ],
)
def test_mistakes_in_templates(templates: dict[str, str], expected: list[str]) -> None:
    """Names that a template may not use, and templates that depend on each other, are mistakes at their places."""
    facts = {name: {**FACTS[name], **({"subject": templates[name]} if name in templates else {})} for name in FACTS}
    with pytest.raises(DocumentError) as failure:
        compile_rule_set(document(facts, RULES))
    assert expected == sorted(message.code for message in failure.value.messages)


def test_canonical_form_selects_the_same_evidence() -> None:
    """Facts are sorted each after those that its subject depends on, in the same order for the text and its canonical form."""
    facts = {"b": {**SCORE, "subject": '"customer/" + facts.c'}, "c": CUSTOMER}
    one = compile_rule_set(document(facts, [{"id": "fine", "when": "facts.b < 0.5", "effect": "approve"}]))
    other = compile_rule_set(one.canonical_json)
    names = [[declared.name for declared in compile_cached.actions["refund.create"].facts] for compile_cached in (one, other)]
    assert [["c", "b"], ["c", "b"]] == names
    assert json.loads(one.canonical_json)["actions"]["refund.create"]["facts"]["b"]["subject"] == '"customer/" + facts.c'
