"""The runner of test suites: cases are set up as docs/rule-tests.md says, decided by the real core, and compared."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel_rules.authoring.suites.coverage import Coverage
from gavel_rules.authoring.suites.reader import read_suite
from gavel_rules.authoring.suites.runner import CaseResult, run_cases
from gavel_rules.language.rule_set import CompiledRuleSet, DocumentError

from tests.support.driver import FACTS, PARAMS, RULES, compile_cached, document

DELIVERED = {"status": "delivered"}


def suite(*cases: dict[str, Any], **defaults: Any) -> str:
    """Return a suite of cases, named by index; each expects an approval by default."""
    cases_by_name = [{"name": f"case {index}", **case} for index, case in enumerate(cases)]
    shared = {"params": {"amount": 50}, "facts": DELIVERED, "expect": {"outcome": "APPROVED"}, **defaults}
    return json.dumps({"gavel": "v1", "tests": "rules.json", "defaults": shared, "cases": cases_by_name})


def rule_set(**changes: Any) -> CompiledRuleSet:
    """Return the rule set that these suites test."""
    return compile_cached(document(**changes))


def counting_rule_set(name: str = "refunds", **counters: dict[str, Any]) -> CompiledRuleSet:
    """Return a rule set with counters, which its rules do not read."""
    return compile_cached(json.dumps({**json.loads(document()), "gavel": "v2", "rule_set": name, "counters": counters}))


def run(*cases: dict[str, Any], rules: CompiledRuleSet | None = None, **defaults: Any) -> list[CaseResult]:
    """Run the cases."""
    return list(run_cases(read_suite(suite(*cases, **defaults)), rules or rule_set()))


def test_attributes_of_a_case() -> None:
    """Params, facts, proposal, subject, producer, trace and now reach the conditions as a case sets them."""
    condition = (
        'params.amount == 7.0 && facts.status == "sent" && proposal.risk == 0.5 && proposal.cost == 2.0 && proposal.confidence == 0.25 '
        '&& proposal.priority == 3 && proposal.expected_outcome == "x" && subject == "order/9" && producer.type == "AGENT" '
        '&& producer.id == "buyer" && producer.version == "2" && trace.consecutive_rejections == 2 && evidence.count == 1 '
        '&& evidence.oldest_age_ms == 5 && now == timestamp("2026-03-01T08:00:00Z")'
    )
    rules = rule_set(rules=[{"id": "all", "when": condition, "effect": "approve"}])
    case = {
        "now": "2026-03-01T08:00:00Z",
        "subject": "order/9",
        "params": {"amount": 7},
        "facts": {"status": {"value": "sent", "age_ms": 5}},
        "proposal": {"risk": 0.5, "cost": 2, "confidence": 0.25, "priority": 3, "expected_outcome": "x"},
        "producer": {"id": "buyer", "version": "2"},
        "trace": {"consecutive_rejections": 2},
    }
    (result,) = run(case, rules=rules)
    assert () == result.differences


@pytest.mark.parametrize(
    ("fact", "reason_code", "state"),
    [
        ({"age_ms": 60_000}, "", None),
        ({"age_ms": 60_001}, "STALE_FACTS", "STALE"),
        ({"age_ms": 10, "max_age_ms": 9}, "STALE_FACTS", "STALE"),
        ({"tier": 2}, "INSUFFICIENT_EVIDENCE_TIER", "TIER_TOO_LOW"),
        ({"source": "elsewhere"}, "NEED_MORE_FACTS", "SOURCE_NOT_ACCEPTED"),
        ({"subject": "order/2"}, "NO_FACT_INPUT", "MISSING"),
        ({"value": 7}, "FACT_TYPE_MISMATCH", "WRONG_TYPE"),
        ({"retracted": True}, "NEED_MORE_FACTS", "MISSING"),
        (None, "NO_FACT_INPUT", "MISSING"),
    ],
)
def test_details_of_a_fact(fact: Any, reason_code: str, state: str | None) -> None:
    """The selection of evidence sees a fact's age, tier, source, subject, value and retraction."""
    hint = [{"key": "order.status", "state": state, "sources": ["orders-copy", "orders-db"]}] if state else []
    expect = {"outcome": "REJECTED" if reason_code else "APPROVED", "reason_code": reason_code, "hint": hint}
    if fact and "retracted" not in fact:
        fact = {"value": "delivered", **fact}
    (result,) = run({"facts": {"status": fact}, "expect": expect})
    assert () == result.differences


@pytest.mark.parametrize(("tier", "count"), [(1, 2), (2, 2), (3, 0)])
def test_tiers(tier: int, count: int) -> None:
    """An observation of tier 2 has a tool result, one of tier 3 has none and counts as tier 3."""
    rules = rule_set(rules=[{"id": "two", "when": f"evidence.count == 2 && evidence.worst_trust == {tier}", "effect": "approve"}])
    expect = {"outcome": "APPROVED"} if count else {"outcome": "REJECTED", "reason_code": "INSUFFICIENT_EVIDENCE_TIER"}
    (result,) = run({"facts": {"score": {"value": 0.1, "tier": tier}}, "expect": expect}, rules=rules)
    assert () == result.differences


def test_evidence_with_an_undeclared_name() -> None:
    """A fact of an undeclared name needs a key, and takes source and tier from the declaration of that key, if any."""
    newer = {"newer": {"key": "order.status", "value": "cancelled"}}
    older = {"status": {"age_ms": 1}}
    (result,) = run({"facts": {**older, **newer}, "expect": {"outcome": "REJECTED", "rule_id": "cancelled"}})
    assert () == result.differences
    cites = {"cites": ["status"], "expect": {"outcome": "REJECTED", "reason_code": "FACT_SUPERSEDED", "hint": [{"key": "order.status"}]}}
    (result,) = run({"facts": {**older, **newer}, **cites})
    assert () == result.differences


def test_citing_nothing() -> None:
    """A proposal that cites nothing is rejected even if the log has the facts."""
    (result,) = run({"cites": [], "expect": {"outcome": "REJECTED", "reason_code": "NO_FACT_INPUT", "hint": []}})
    assert () == result.differences


def test_earlier_proposals() -> None:
    """An earlier approval holds the conflict key; one about another subject does not."""
    conflict = {"earlier": [{}], "expect": {"outcome": "REJECTED", "reason_code": "CONFLICTING_DECISION", "conflict_key": "subject/1"}}
    other = {"facts": {"second": {"key": "order.status", "value": "delivered", "subject": "order/2"}}, "earlier": [{"subject": "order/2"}]}
    assert [(), ()] == [result.differences for result in run(conflict, other)]


def test_earlier_rejections() -> None:
    """Earlier rejections count towards the limit, which requests a review."""
    rules = rule_set(rejection_limit=3)
    case = {"facts": {"status": "cancelled"}, "trace": {"consecutive_rejections": 2}}
    warnings = ["NO_FEASIBLE_PROPOSAL", "ORDER_CANCELLED"]
    expect = {"outcome": "NEEDS_HUMAN_REVIEW", "reason_code": "REJECTION_LIMIT", "warnings": warnings, "rule_id": ""}
    (result,) = run({**case, "expect": expect}, rules=rules)
    assert () == result.differences
    assert 3 == result.decision.consecutive_rejections


def test_required_facts_and_limits_of_the_proposal() -> None:
    """The proposal's required facts must be present, and not older than its own limit."""
    case = {"proposal": {"required_facts": ["order.weight"], "max_fact_age_ms": 10}}
    row = {"key": "order.weight", "state": "MISSING", "subject": "subject/1", "sources": []}
    expect = {"outcome": "REJECTED", "reason_code": "NEED_MORE_FACTS", "hint": [row]}
    stale = {"outcome": "REJECTED", "reason_code": "STALE_FACTS", "hint": [{"key": "order.weight", "state": "STALE"}]}
    weight = {"weight": {"key": "order.weight", "value": 3, "age_ms": 11}}
    assert [(), ()] == [result.differences for result in run({**case, "expect": expect}, {**case, "facts": weight, "expect": stale})]


def test_differences() -> None:
    """All expected keys are compared, and a difference has both values."""
    expect = {
        "outcome": "REJECTED",
        "reason_code": "NO",
        "rule_id": "",
        "matched": [],
        "hint": [{"key": "a.b", "state": "STALE", "subject": "c/d", "sources": ["x"]}],
        "retry_after_ms": 7,
        "counters": [{"counter": "spent", "key": "ann", "value": 7.5}, {"counter": "calls", "value": 1}],
        "warnings": ["W"],
        "terminal": True,
        "conflict_key": "other",
    }
    counter = {"of": "approvals", "action": "refund.create", "window_ms": 60_000}
    (result,) = run({"expect": expect}, rules=counting_rule_set(spent=counter, calls=counter))
    assert [
        ("outcome", "REJECTED", "APPROVED"),
        ("reason_code", "NO", '""'),
        ("rule_id", '""', "delivered"),
        ("conflict_key", "other", "subject/1"),
        ("terminal", "true", "false"),
        ("matched", "[]", "[delivered]"),
        ("warnings", "[W]", "[]"),
        ("hint", "[a.b STALE of c/d from x]", "[]"),
        ("retry_after_ms", "7", "0"),
        ("counters", "[spent(ann) = 7.5, calls = 1]", "[]"),
    ] == list(result.differences)


def test_hint_rows_are_paired() -> None:
    """Rows may be in any order, and none may be left over on either side."""
    facts = {"status": {"source": "elsewhere", "value": "x"}, "score": {"value": 0.5, "age_ms": 30_001}}
    rows = [{"key": "order.score", "state": "STALE"}, {"key": "order.status"}]
    cases = [{"facts": facts, "expect": {"outcome": "REJECTED", "hint": hint}} for hint in (rows, rows[::-1], rows[:1], [*rows, rows[0]])]
    assert [True, True, False, False] == [result.passed for result in run(*cases)]


def test_cases_are_independent() -> None:
    """A case has the same result alone, after others, and repeated."""
    cases: list[dict[str, Any]] = [{"earlier": [{}]}, {}, {"facts": {"status": "cancelled"}}, {}]
    together = [result.decision for result in run(*cases)]
    assert together == [run(case)[0].decision for case in cases]


def test_explanations() -> None:
    """A result explains every rule, by falling priority, only if explanations are requested."""
    (result,) = run({})
    assert [("cancelled", False), ("suspicious", False), ("delivered", True)] == [
        (rule.rule_id, rule.matched) for rule in result.explanations
    ]
    (bare,) = run_cases(read_suite(suite({})), rule_set(), explain=False)
    assert ((), result.decision) == (bare.explanations, bare.decision)


def test_explanations_of_a_contest() -> None:
    """A proposal that competes is explained as it is decided: at the close of its contest."""
    late = {"id": "late", "when": 'now >= timestamp("2026-01-01T12:00:00.500Z")', "effect": "reject", "reason_code": "LATE"}
    rules = rule_set(rules=[late, *RULES], contest_window_ms=1_000)
    (result,) = run({"expect": {"outcome": "REJECTED", "rule_id": "late"}}, rules=rules)
    assert ((), {"late", "delivered"}) == (result.differences, {rule.rule_id for rule in result.explanations if rule.matched})
    coverage = Coverage(rules)
    coverage.add([result])
    assert [(1, 1)] == [(rule.matched, rule.decided) for rule in coverage.rules() if rule.rule_id == "late"]


def test_explanations_do_not_change_decisions() -> None:
    """A contest has the same decision with explanations and without, also if another timer fires when it closes."""
    rules = rule_set(contest_window_ms=1_000, decision_ttl_ms=1_000, conflict_key="string(params.amount)")
    text = suite({"earlier": [{"age_ms": age_ms, "params": {"amount": 1 + age_ms}} for age_ms in (1_000, 0)]})
    with_explanations, without = (next(run_cases(read_suite(text), rules, explain=explain)) for explain in (True, False))
    assert ((), with_explanations.decision) == (without.differences, without.decision)


def test_several_actions() -> None:
    """An inherited fact that only another action declares is left out; a fact that the case sets must be declared."""
    more = {"refund.note": {"params": PARAMS, "facts": {"note": {"key": "order.note", "type": "string", "max_age_ms": 1_000}}}}
    note = {"id": "note", "action": "refund.note", "priority": 1, "when": "evidence.count == 1", "effect": "approve"}
    rules = rule_set(rules=[*RULES, note], more_actions=more)
    facts = {**DELIVERED, "note": "fine"}
    noting = {"action": "refund.note", "expect": {"rule_id": "note"}}
    refunding = {"action": "refund.create", "expect": {"rule_id": "delivered"}}
    assert [(), ()] == [result.differences for result in run(noting, refunding, rules=rules, facts=facts)]
    with pytest.raises(DocumentError, match=r"refund\.note declares no fact status"):
        run({"action": "refund.note", "facts": {"status": "x"}}, rules=rules)
    with pytest.raises(DocumentError, match="missing-key: the key action is missing"):
        run({}, rules=rules)


def test_params_of_several_actions() -> None:
    """An inherited param that only another action declares is left out, also of earlier proposals; one that the case sets is not."""
    schema = {"type": "object", "required": ["count"], "additionalProperties": False, "properties": {"count": {"type": "integer"}}}
    rule = {"id": "count", "action": "refund.count", "priority": 1, "when": "params.count > 0", "effect": "approve"}
    rules = rule_set(rules=[*RULES, rule], more_actions={"refund.count": {"params": schema, "facts": FACTS}})
    counting: dict[str, Any] = {"action": "refund.count", "expect": {"rule_id": "count"}}
    refunding = {"action": "refund.create", "expect": {"rule_id": "delivered"}}
    params = {"amount": 50, "count": 1}
    after_another = {
        "action": "refund.create",
        "earlier": [{"action": "refund.count"}],
        "expect": {"outcome": "REJECTED", "reason_code": "CONFLICTING_DECISION"},
    }
    results = run(counting, refunding, after_another, rules=rules, params=params)
    assert [(), (), ()] == [result.differences for result in results]
    rejection = {**counting, "params": {"amount": 60}, "expect": {"outcome": "REJECTED", "reason_code": "INVALID_PARAMS"}}
    assert [()] == [result.differences for result in run(rejection, rules=rules, params=params)]


def test_unknown_names() -> None:
    """Unknown actions and facts are mistakes of the suite, all reported at once, each at its place."""
    text = (
        "gavel: v1\ntests: rules.json\ndefaults:\n  facts: {statu: delivered}\n  expect: {outcome: APPROVED}\n"
        "cases:\n  - {name: x, action: refund.craete}\n  - {name: y}\n  - {name: z}\n"
    )
    with pytest.raises(DocumentError) as failure:
        list(run_cases(read_suite(text), rule_set()))
    assert [
        "4:11: unknown-name: refund.create declares no fact statu (did you mean status?)",
        "7:15: undeclared-action: the rule set does not govern refund.craete (did you mean refund.create?)",
    ] == [message.format("").lstrip(":") for message in failure.value.messages]


def test_unknown_earlier_actions() -> None:
    """An earlier proposal of an action that no rule set governs cannot be approved; its rejection may be expected."""
    with pytest.raises(DocumentError, match=r"no rule set governs refund\.craete, so it is not approved \(did you mean refund\.create\?\)"):
        run({"earlier": [{"action": "refund.craete"}]})
    rejected = {"action": "mail.send", "expect": {"outcome": "REJECTED"}}
    assert [()] == [result.differences for result in run({"earlier": [rejected]})]


def test_unknown_counters() -> None:
    """An expected counter that no rule set declares is a mistake of the suite, also of an earlier proposal; those of other sets count."""
    counter = {"of": "approvals", "action": "refund.create", "window_ms": 60_000}
    other = counting_rule_set("other", tries=counter)
    text = (
        "gavel: v1\ntests: rules.json\ndefaults: {expect: {outcome: APPROVED}}\ncases:\n"
        "  - {name: x, expect: {counters: [{counter: spnt, value: 0}, {counter: tries, value: 0}]}}\n"
        "  - {name: y, earlier: [{expect: {outcome: APPROVED, counters: [{counter: tris, value: 0}]}}]}\n"
    )
    with pytest.raises(DocumentError) as failure:
        list(run_cases(read_suite(text), counting_rule_set(spent=counter), [other]))
    assert [
        "5:36: unknown-name: no rule set declares a counter spnt (did you mean spent?)",
        "6:66: unknown-name: no rule set declares a counter tris (did you mean tries?)",
    ] == [message.format("").lstrip(":") for message in failure.value.messages]


def test_declared_facts_have_their_keys() -> None:
    """A bare value takes key, source and tier from its declaration."""
    (result,) = run(
        {
            "facts": {"score": 0.95},
            "expect": {"outcome": "NEEDS_HUMAN_REVIEW", "rule_id": "suspicious", "matched": ["delivered", "suspicious"]},
        }
    )
    assert () == result.differences
    pins = {fact.key: fact for fact in run({"facts": {"score": 0.5}})[0].decision.pinned_facts}
    assert [FACTS["score"]["key"], FACTS["status"]["key"]] == sorted(pins)
    assert (2, 1) == (pins["order.score"].trust_tier, pins["order.status"].trust_tier)


def test_facts_of_other_subjects() -> None:
    """A fact whose declaration asks about another subject is recorded for that subject."""
    facts = {
        "owner": {"key": "order.owner", "type": "string", "max_age_ms": 1_000},
        "score": {"key": "customer.score", "subject": '"customer/" + facts.owner', "type": "number", "max_age_ms": 1_000},
    }
    rules = rule_set(facts=facts, rules=[{"id": "good", "when": "facts.score > 0.5", "effect": "approve"}])
    values = {"owner": "ann", "score": 0.9}
    (result,) = run({"facts": {"status": None, **values}}, {"facts": {"status": None, **values, "owner": "bob"}}, rules=rules)[:1]
    assert ((), {"order.owner": "subject/1", "customer.score": "customer/ann"}) == (
        result.differences,
        {pin.key: pin.subject for pin in result.decision.pinned_facts},
    )
    # A param that only another action declares does not change the subject.
    more = {"refund.count": {"params": {"type": "object", "additionalProperties": False, "properties": {"count": {"type": "integer"}}}}}
    strict = {"type": "object", "required": ["amount"], "additionalProperties": False, "properties": {"amount": {"type": "number"}}}
    count = {"id": "count", "action": "refund.count", "priority": 1, "when": "true", "effect": "approve"}
    good = {"id": "good", "when": "facts.score > 0.5", "effect": "approve"}
    several = rule_set(params=strict, facts=facts, rules=[good, count], more_actions=more)
    case = {"action": "refund.create", "facts": {"status": None, **values}, "params": {"amount": 1}}
    (result,) = run(case, rules=several, params={"amount": 1, "count": 1})
    assert [("customer.score", "customer/ann")] == [(pin.key, pin.subject) for pin in result.decision.pinned_facts if pin.key[0] == "c"]
    wrong_facts = {"facts": {"status": None, **values, "owner": 7}, "expect": {"outcome": "REJECTED", "reason_code": "FACT_TYPE_MISMATCH"}}
    (result,) = run(wrong_facts, rules=rules)
    assert () == result.differences
