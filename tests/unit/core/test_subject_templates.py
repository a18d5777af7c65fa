"""Whose fact a declared fact is: templates name another subject, and everything that rests on evidence goes by that one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision
from gavel_rules import reasons
from gavel_rules.arbitration import explain
from gavel_rules.language.ruleset import DocumentError, compile_rule_set
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.driver import ACTION, SOURCE, Core, compiled, document, proposal_envelope

MISSING = decision_pb2.FACT_REQUIREMENT_STATE_MISSING
STALE = decision_pb2.FACT_REQUIREMENT_STATE_STALE

CUSTOMER = {"key": "order.customer", "type": "string", "max_age_ms": 60_000, "sources": [SOURCE]}
SCORE = {"key": "customer.score", "subject": '"customer/" + facts.customer', "type": "number", "max_age_ms": 30_000}
FACTS: dict[str, Any] = {"customer": CUSTOMER, "score": SCORE}
RULES: list[dict[str, Any]] = [{"id": "fine", "when": "facts.score < 0.5", "effect": "approve"}]
OPTIONAL_RULES: list[dict[str, Any]] = [{"id": "fine", "when": "!has(facts.score) || facts.score < 0.5", "effect": "approve"}]


def bus(facts: Mapping[str, Any] = FACTS, rules: list[dict[str, Any]] = RULES, **action: Any) -> Core:
    """A bus whose action reads the score of the order's customer."""
    return Core(document(facts, rules, **action))


def rows(decision: Decision) -> list[tuple[str, str, int]]:
    """The hint's rows: key, subject, state."""
    return [(row.key, row.subject, row.state) for row in decision.retry_hint.fact_requirements]


def warnings(decision: Decision) -> list[str]:
    """The codes of a decision's warnings."""
    return [warning.code for warning in decision.warnings]


def test_the_named_subject_speaks() -> None:
    """The fact of the subject that the template names counts; the proposal's own subject has no say in it."""
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


def test_the_hint_names_the_named_subject() -> None:
    """What is missing or stale is asked for about the subject that the template names."""
    core = bus()
    customer = core.fact("order.customer", "7")
    decision = core.decide([customer])
    assert (reasons.NEED_MORE_FACTS, [("customer.score", "customer/7", MISSING)]) == (decision.reason_code, rows(decision))
    core.fact("customer.score", 0.1, subject="customer/7")
    core.pass_time(30_001)
    decision = core.decide([customer])
    assert (reasons.STALE_FACTS, [("customer.score", "customer/7", STALE)]) == (decision.reason_code, rows(decision))
    core.prove()


def test_what_depends_on_a_missing_fact_is_asked_for_later() -> None:
    """While the fact that names the subject is not as required nobody can say whose fact is needed: a warning says that it will be."""
    core = bus()
    core.fact("customer.score", 0.1, subject="customer/7")
    decision = core.decide([core.fact("k.note", "x")])
    assert (reasons.NEED_MORE_FACTS, [("order.customer", "order/1", MISSING)]) == (decision.reason_code, rows(decision))
    assert ["SUBJECT_UNRESOLVED"] == warnings(decision)
    core.prove()


@pytest.mark.parametrize("dependency", [{}, {"optional": True}], ids=["required", "optional"])
def test_an_unfit_dependency_is_never_permission(dependency: dict[str, Any]) -> None:
    """A fact that names the subject but is too old refuses, also when it is optional and so is what depends on it."""
    template = 'has(facts.customer) ? "customer/" + facts.customer : subject'
    facts = {"customer": {**CUSTOMER, "max_age_ms": 10_000, **dependency}, "score": {**SCORE, "subject": template, "optional": True}}
    core = bus(facts, OPTIONAL_RULES)
    customer = core.fact("order.customer", "7")
    core.pass_time(10_001)
    decision = core.decide([customer])
    assert (reasons.STALE_FACTS, [("order.customer", "order/1", STALE)]) == (decision.reason_code, rows(decision))
    core.prove()


def test_an_absent_optional_may_name_another_subject() -> None:
    """A template may say whose fact is meant where an optional fact is absent; both absences are recorded and hold at the start."""
    template = 'has(facts.customer) ? "customer/" + facts.customer : subject'
    facts = {"customer": {**CUSTOMER, "optional": True}, "score": {**SCORE, "subject": template, "optional": True}}
    core = bus(facts, OPTIONAL_RULES)
    approved = core.propose([core.fact("k.note", "x")])
    assert [("order.customer", "order/1"), ("customer.score", "order/1")] == [
        (fact.key, fact.subject) for fact in approved.decision.absent_facts
    ]
    core.fact("order.customer", "7")
    assert reasons.FACT_SUPERSEDED == core.refuse_start(approved).reason_code
    core.prove()


@pytest.mark.parametrize(
    ("template", "customer"),
    [
        ("facts.customer", "7"),
        ('"Customer/" + facts.customer', "7"),
        ('"customer/" + facts.customer', ""),
        ('"customer/" + facts.customer', "a b"),
        ('"customer/" + facts.customer', "x" * 257),
        ('facts.customer == "7" ? string(1 / (size(facts.customer) - 1)) : ""', "7"),
    ],
)
def test_what_is_no_subject_is_invalid(template: str, customer: str) -> None:
    """A template that errs or gives no "type/id" makes the params invalid, and names the key."""
    core = bus({"customer": CUSTOMER, "score": {**SCORE, "subject": template}})
    decision = core.decide([core.fact("order.customer", customer)])
    assert (decision_pb2.OUTCOME_REJECTED, reasons.INVALID_PARAMS, ["FACT_SUBJECT"]) == (
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
        ('"customer/a b"', "customer/a b"),
        ('""', ""),
    ],
)
def test_a_constant_that_is_no_subject_is_refused(template: str, written: str) -> None:
    """What can be seen when a document is compiled is said there: no fact could ever have such a subject."""
    with pytest.raises(DocumentError) as caught:
        compile_rule_set(document({"customer": CUSTOMER, "score": {**SCORE, "subject": template}}, RULES))
    assert [("not-a-subject", f"{written!r} is no subject, so no fact can have it")] == [
        (message.code, message.message) for message in caught.value.messages
    ]


def test_a_constant_subject_speaks() -> None:
    """A subject that is written out is that of a fact about something that all proposals share."""
    core = bus({"customer": CUSTOMER, "score": {**SCORE, "subject": '"settings/" + "refunds"'}})
    customer = core.fact("order.customer", "7")
    core.fact("customer.score", 0.1, subject="settings/refunds")
    assert decision_pb2.OUTCOME_APPROVED == core.decide([customer]).outcome


def test_subjects_out_of_params_and_chains() -> None:
    """Templates may take params and each other's facts, in whatever order a mapping lists them."""
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
    assert reasons.NEED_MORE_FACTS == core.decide([group], params={"amount": 50, "note": "8"}, subject="account/9").reason_code
    core.prove()


STRUNG = (
    '"customer/" + facts.customer',
    '("a" + "b/") + (params.note + "é-" + facts.customer)',
    "facts.customer",
    'subject.type + "/" + subject.id',
)


@pytest.mark.parametrize("template", STRUNG)
@given(customer=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20), note=st.text("ab/", max_size=5))
def test_strung_together_as_evaluated(template: str, customer: str, note: str) -> None:
    """A template that only strings texts together, which asks no evaluator, names whom the evaluator would name."""
    named = []
    for written in (template, f'true ? {template} : ""'):
        facts = {"customer": CUSTOMER, "score": {**SCORE, "subject": written, "optional": True}}
        schema = {"type": "object", "required": ["note"], "properties": {"note": {"type": "string"}}}
        action = compiled(document(facts, OPTIONAL_RULES, params=schema)).actions[ACTION]
        named.append(action.subject_templates[written].subject({"note": note}, {"customer": customer}, "order/1"))
    assert named[1] == named[0]


def test_citing_the_named_subjects_fact_is_input() -> None:
    """A proposal that cites only the fact of the named subject rests on evidence; citing an old version of it is superseded."""
    core = bus()
    core.fact("order.customer", "7")
    old = core.fact("customer.score", 0.1, subject="customer/7")
    assert decision_pb2.OUTCOME_APPROVED == core.decide([old]).outcome
    core.fact("customer.score", 0.2, subject="customer/7")
    decision = core.decide([old], trace_id="trace-2")
    assert (reasons.FACT_SUPERSEDED, "customer/7") == (decision.reason_code, decision.retry_hint.fact_requirements[0].subject)
    core.prove()


def test_a_change_of_the_named_subject_changes_the_projection() -> None:
    """An uncited change of the named subject's fact since `projection_version` refuses; one of another customer's does not."""
    core = bus()
    customer = core.fact("order.customer", "7")
    core.fact("customer.score", 0.1, subject="customer/7")
    version = core.state.head
    core.fact("customer.score", 0.2, subject="customer/8")
    assert decision_pb2.OUTCOME_APPROVED == core.decide([customer], projection_version=version).outcome
    core.fact("customer.score", 0.2, subject="customer/7")
    assert reasons.PROJECTION_CHANGED == core.decide([customer], projection_version=version, trace_id="trace-2").reason_code
    core.prove()


@pytest.mark.parametrize(
    ("key", "value", "subject", "expected"),
    [
        ("customer.score", 0.2, "customer/7", reasons.FACT_SUPERSEDED),
        ("customer.score", 0.2, "customer/8", ""),
        ("customer.score", 0.2, "order/1", ""),
        ("order.customer", "8", "order/1", reasons.FACT_SUPERSEDED),
    ],
)
def test_a_start_repeats_the_selection(key: str, value: object, subject: str, expected: str) -> None:
    """Before a start the subjects are named anew: a change of what they named, or of the fact itself, ends the approval."""
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
    """Where the fact that names the subject has merely grown old the start is refused as stale."""
    facts = {"customer": {**CUSTOMER, "max_age_ms": 5_000}, "score": {**SCORE, "optional": True}}
    core = bus(facts, OPTIONAL_RULES, decision_ttl_ms=60_000)
    approved = core.propose([core.fact("order.customer", "7")])
    assert decision_pb2.OUTCOME_APPROVED == approved.decision.outcome
    core.pass_time(5_001)
    assert reasons.STALE_FACT == core.refuse_start(approved).reason_code
    core.prove()


def test_asking_for_an_optional_fact_asks_about_the_named_subject() -> None:
    """`required_facts` with the key of an optional declaration requires it of the subject that its template names."""
    core = bus({"customer": CUSTOMER, "score": {**SCORE, "optional": True}}, OPTIONAL_RULES)
    customer = core.fact("order.customer", "7")
    decision = core.decide([customer], required_facts=["customer.score"])
    assert [("customer.score", "customer/7", MISSING)] == rows(decision)
    score = core.fact("customer.score", 0.1, subject="customer/7")
    assert decision_pb2.OUTCOME_APPROVED == core.decide([customer, score], required_facts=["customer.score"]).outcome
    core.prove()


def test_a_dry_run_explains_with_the_named_facts() -> None:
    """Preflight's explanation shows the value of the named subject's fact."""
    core = bus()
    customer = core.fact("order.customer", "7")
    core.fact("customer.score", 0.25, subject="customer/7")
    (explanation,) = explain(core.state, core.admitted(proposal_envelope([customer])), core.now_ms)
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
    """What a template cannot name, and templates that rest on each other, are refused at their places."""
    facts = {name: {**FACTS[name], **({"subject": templates[name]} if name in templates else {})} for name in FACTS}
    with pytest.raises(DocumentError) as caught:
        compile_rule_set(document(facts, RULES))
    assert expected == sorted(message.code for message in caught.value.messages)


def test_the_canonical_form_selects_alike() -> None:
    """The facts of a rule set have one order, each after those that it takes, in its text and in its canonical form."""
    facts = {"b": {**SCORE, "subject": '"customer/" + facts.c'}, "c": CUSTOMER}
    one = compile_rule_set(document(facts, [{"id": "fine", "when": "facts.b < 0.5", "effect": "approve"}]))
    other = compile_rule_set(one.canonical_json)
    names = [[declared.name for declared in compiled.actions["refund.create"].facts] for compiled in (one, other)]
    assert [["c", "b"], ["c", "b"]] == names
    assert json.loads(one.canonical_json)["actions"]["refund.create"]["facts"]["b"]["subject"] == '"customer/" + facts.c'
