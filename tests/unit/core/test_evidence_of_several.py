"""Evidence where several rule sets govern an action: each asks for its own, and an agent hears of all at once (seeds 002 §4.4-§4.8)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import common_pb2, decision_pb2, fact_pb2
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import evidence, reasons
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.unit.core.driver import PARTIAL, START_MS, SUBJECT, Core
from tests.unit.core.several import NAMES, STATUS, obedient, put_in_force, saying

APPROVED = decision_pb2.OUTCOME_APPROVED
APPROVAL = saying("approve", "approve", "approve")
EVIDENCE = {
    reasons.NO_FACT_INPUT,
    reasons.NEED_MORE_FACTS,
    reasons.FACT_TYPE_MISMATCH,
    reasons.INSUFFICIENT_EVIDENCE_TIER,
    reasons.STALE_FACTS,
    reasons.FACT_SUPERSEDED,
}
SCORE: dict[str, Any] = {"key": "order.score", "type": "number", "min_trust": 2, "max_age_ms": 30_000}


def wanting(**facts: dict[str, Any]) -> Core:
    """A bus on which rule sets are in force that each require order.status and what is given for them, as `wanted`."""
    return put_in_force(Core(), [obedient(name, facts={"status": STATUS, "wanted": wanted}) for name, wanted in facts.items()])


def rows(decision: Decision) -> list[tuple[object, ...]]:
    """What a hint asks for."""
    return [
        (row.key, row.subject, row.state, row.required_trust_tier, row.max_age_ms, list(row.sources))
        for row in decision.retry_hint.fact_requirements
    ]


# What is required


def test_all_that_is_missing_is_named_at_once() -> None:
    """What each rule set lacks stands in one hint."""
    core = wanting(alpha={**SCORE, "key": "order.a"}, beta={**SCORE, "key": "order.b", "subject": '"customer/1"'})
    decision = core.decide([core.fact("order.note", "x")], params=APPROVAL)
    assert reasons.NEED_MORE_FACTS == decision.reason_code
    assert {("order.status", SUBJECT), ("order.a", SUBJECT), ("order.b", "customer/1")} == {row[:2] for row in rows(decision)}
    assert 3 == len(rows(decision))


def test_one_row_asks_for_what_satisfies_all() -> None:
    """Where rule sets ask for one key of one subject, the row has the tightest tier and age and the sources that all accept."""
    core = wanting(
        alpha={**SCORE, "max_age_ms": 9_000, "sources": ["x", "y"]},
        beta={**SCORE, "min_trust": 1, "sources": ["y", "z"]},
        gamma={**SCORE, "min_trust": 3, "max_age_ms": 20_000},
    )
    decision = core.decide([core.fact("order.status", "delivered")], params=APPROVAL)
    assert [("order.score", SUBJECT, evidence.MISSING, 1, 9_000, ["y"])] == rows(decision)
    assert (1, 9_000, ["y"]) == (
        decision.retry_hint.required_trust_tier,
        decision.retry_hint.max_observation_age_ms,
        list(decision.retry_hint.preferred_sources),
    )


def test_no_source_for_all() -> None:
    """Where no one source would do there are as many rows as it takes; who takes any source joins the first."""
    core = wanting(alpha={**SCORE, "sources": ["x"]}, beta={**SCORE, "max_age_ms": 5, "sources": []}, gamma={**SCORE, "sources": ["y"]})
    decision = core.decide([core.fact("order.status", "delivered")], params=APPROVAL)
    assert [
        ("order.score", SUBJECT, evidence.MISSING, 2, 5, ["x"]),
        ("order.score", SUBJECT, evidence.MISSING, 2, 30_000, ["y"]),
    ] == rows(decision)


def test_the_first_thing_that_is_wrong_names_the_row() -> None:
    """One rule set finds a value stale, another one its source not accepted: the stage that comes first speaks, in code and row."""
    core = wanting(alpha={**SCORE, "max_age_ms": 10}, beta={**SCORE, "sources": ["x"]})
    core.fact("order.score", 0.5)
    core.pass_time(11)
    decision = core.decide([core.fact("order.status", "delivered")], params=APPROVAL)
    assert reasons.NEED_MORE_FACTS == decision.reason_code
    assert [("order.score", SUBJECT, evidence.SOURCE_NOT_ACCEPTED, 2, 10, ["x"])] == rows(decision)


def test_what_is_met_tightens_nothing() -> None:
    """A hint asks for no more than what is not met: a rule set that has what it wants leaves the row alone."""
    core = wanting(alpha={**SCORE, "min_trust": 1}, beta={**SCORE, "max_age_ms": 10, "min_trust": 3})
    core.fact("order.score", 0.5)
    core.pass_time(11)
    decision = core.decide([core.fact("order.status", "delivered")], params=APPROVAL)
    assert [("order.score", SUBJECT, evidence.STALE, 3, 10, [])] == rows(decision)


def test_what_a_proposal_asks_for_is_known_to_one_of_them() -> None:
    """A key that any rule set declares is required as declared there, and nobody else asks for it of the proposal's own subject."""
    core = wanting(alpha={**SCORE, "key": "order.a", "optional": True}, beta={**SCORE, "key": "customer.b", "subject": '"customer/1"'})
    status = core.fact("order.status", "delivered")
    of_customer = core.fact("customer.b", 1, subject="customer/1")
    decision = core.decide([status, of_customer], params=APPROVAL, required_facts=["customer.b"])
    assert APPROVED == decision.outcome
    refused = core.decide(
        [status], params=APPROVAL, trace_id="t2", subject="order/2", required_facts=["customer.b", "order.note", "order.a"]
    )
    assert {("order.status", "order/2"), ("order.note", "order/2"), ("order.a", "order/2")} == {row[:2] for row in rows(refused)}
    core.prove()


def test_one_version_that_rules_see_is_enough_to_cite() -> None:
    """Two rule sets see two versions of one key: a proposal that cites one of them cites what rules see; an older one is superseded."""
    core = wanting(alpha={**SCORE, "sources": ["x"]}, beta={**SCORE, "sources": ["y"]})
    status = core.fact("order.status", "delivered")
    old = core.fact("order.score", 0.1, source="y")
    seen = [core.fact("order.score", 0.2, source="x"), core.fact("order.score", 0.3, source="y")]
    refused = core.decide([status, old], params=APPROVAL)
    assert reasons.FACT_SUPERSEDED == refused.reason_code
    assert [["x"], ["y"]] == [row[-1] for row in rows(refused)]
    approved = core.decide([status, seen[1]], params=APPROVAL)
    assert APPROVED == approved.outcome
    assert {event.event_id for event in (status, *seen)} == {pin.event_id for pin in approved.pinned_facts}
    core.prove()


SOURCES = ("x", "y", "z")
REQUIREMENTS = st.fixed_dictionaries(
    {
        "min_trust": st.integers(1, 3),
        "max_age_ms": st.sampled_from([1_000, 5_000, 60_000]),
        "sources": st.lists(st.sampled_from(SOURCES), unique=True),
        "optional": st.booleans(),
    }
)
# Tier, source, age when the first proposal is made.
RECORDED = st.tuples(st.integers(1, 3), st.sampled_from(SOURCES), st.sampled_from([0, 2_000, 20_000, 100_000]))


@settings(max_examples=40, deadline=None)
@given(st.lists(REQUIREMENTS, min_size=2, max_size=3), st.lists(RECORDED, max_size=4), st.booleans())
def test_who_gets_what_the_hint_asks_for_is_not_refused_again(
    wanted: list[dict[str, Any]], recorded: list[tuple[int, str, int]], cites_all: bool
) -> None:
    """Whatever rule sets require of one key: an agent that gets exactly what the hint says is not refused for evidence again."""
    core = wanting(**{name: {**SCORE, **one} for name, one in zip(NAMES, wanted, strict=False)})
    known = []
    for tier, source, age_ms in sorted(recorded, key=lambda one: -one[2]):
        core.now_ms += 100_000 - age_ms - (core.now_ms - START_MS)
        known.append(provide(core, tier, source))
    core.now_ms += 100_000 - (core.now_ms - START_MS)
    status = core.fact("order.status", "delivered")
    first = core.decide([status, *(known if cites_all else [])], params=APPROVAL)
    assume(first.outcome != APPROVED)
    got = [provide(core, row.required_trust_tier, row.sources[0] if row.sources else "x") for row in first.retry_hint.fact_requirements]
    second = core.decide([status, *got], params=APPROVAL)
    assert second.reason_code not in EVIDENCE
    core.prove()


def provide(core: Core, tier: int, source: str) -> Envelope:
    """Record the score at a tier, from a source, as of now."""
    if tier == common_pb2.TRUST_TIER_1_SYSTEM_FACT:
        return core.fact("order.score", 0.5, source=source)
    evidence_of_tool = core.tool_result(tool_name=source) if tier == common_pb2.TRUST_TIER_2_TOOL_OBSERVATION else None
    return core.observe("order.score", 0.5, evidence=evidence_of_tool, tool=source)


@pytest.mark.parametrize("name", NAMES)
def test_input_is_what_any_of_them_knows(name: str) -> None:
    """A proposal that cites nothing but a fact that one rule set declares, of another subject, has an input; and any may change."""
    core = wanting(**{one: {**SCORE, "key": f"customer.{one}", "subject": '"customer/1"'} for one in NAMES})
    known = {one: core.fact(f"customer.{one}", 1, subject="customer/1") for one in NAMES}
    core.fact("order.status", "delivered")
    assert APPROVED == core.decide([known[name]], params=APPROVAL).outcome
    version = core.state.head
    core.fact(f"customer.{name}", 2, subject="customer/1")
    others = [known[one] for one in NAMES if one != name]
    changed = core.decide(others, params=APPROVAL, trace_id="t2", projection_version=version)
    assert reasons.PROJECTION_CHANGED == changed.reason_code


# What is pinned, and what becomes of it


def test_what_two_rule_sets_see_is_pinned_once() -> None:
    """A version that several rule sets see is pinned once, for as long as the strictest of them finds it fresh."""
    core = wanting(alpha=SCORE, beta={**SCORE, "max_age_ms": 2_000}, gamma={**SCORE, "max_age_ms": 9_000})
    cited = [core.fact("order.status", "delivered"), core.fact("order.score", 0.5)]
    decision = core.decide(cited, params=APPROVAL)
    assert [("order.status", 60_000), ("order.score", 2_000)] == [
        (pin.key, pin.fresh_until.ToMilliseconds() - core.now_ms) for pin in decision.pinned_facts
    ]


def test_an_optional_fact_may_be_absent_for_one_of_them() -> None:
    """A key that one rule set sees from another source is absent for the one that does not accept it, and both are recorded."""
    core = wanting(alpha={**SCORE, "optional": True, "sources": ["x"]}, beta=SCORE)
    decision = core.decide([core.fact("order.status", "delivered"), core.fact("order.score", 1)], params=APPROVAL)
    assert APPROVED == decision.outcome
    assert (["order.status", "order.score"], ["order.score"]) == (
        [pin.key for pin in decision.pinned_facts],
        [fact.key for fact in decision.absent_facts],
    )
    assert ([[], ["beta"]], [["alpha"]]) == (
        [list(pin.policy_ids) for pin in decision.pinned_facts],
        [list(fact.policy_ids) for fact in decision.absent_facts],
    )


@pytest.mark.parametrize("which", NAMES)
def test_a_fact_of_any_of_them_that_changes_stops_the_start(which: str) -> None:
    """The selection is repeated for every rule set that was consulted, whichever decided and whatever is in force by then."""
    keys = {name: f"order.{name}" for name in NAMES}
    core = wanting(**{name: {**SCORE, "key": key} for name, key in keys.items()})
    cited = [core.fact("order.status", "delivered"), *(core.fact(key, 1) for key in keys.values())]
    decision = core.propose(cited, params=APPROVAL)
    core.deactivate(which)
    core.fact(keys[which], 2)
    assert reasons.FACT_SUPERSEDED == core.refuse_start(decision).reason_code
    core.prove()


def test_a_rule_set_that_came_later_has_no_say_in_the_start() -> None:
    """What was approved is checked by what it was approved on: rule sets that come into force afterwards ask for nothing."""
    core = wanting(alpha=SCORE)
    decision = core.propose([core.fact("order.status", "delivered"), core.fact("order.score", 1)], params=APPROVAL)
    put_in_force(core, [obedient("beta", facts={"status": STATUS, "more": {**SCORE, "key": "order.more"}})])
    core.start(decision)
    core.prove()


@pytest.mark.parametrize(("waited_ms", "answer"), [(3_000, ""), (3_001, reasons.FACT_SUPERSEDED)])
def test_each_rule_set_has_to_see_what_it_saw(waited_ms: int, answer: str) -> None:
    """Versions that change hands between rule sets are changed: one would now rest on what only another one had seen."""
    core = wanting(alpha={**SCORE, "max_age_ms": 5_000}, beta={**SCORE, "max_age_ms": 60_000}, gamma={**SCORE, "sources": ["x"]})
    fact = core.fact("order.score", 0.1)
    core.pass_time(2_000)
    observed = provide(core, 2, "x")
    decision = core.propose([core.fact("order.status", "delivered"), fact, observed], params=APPROVAL)
    assert [(fact.event_id, ["alpha", "beta"]), (observed.event_id, ["gamma"])] == [
        (pin.event_id, list(pin.policy_ids)) for pin in decision.decision.pinned_facts if pin.key == "order.score"
    ]
    core.pass_time(waited_ms)
    assert answer == getattr(core.begin(decision), "reason_code", "")
    core.prove()


@pytest.mark.parametrize(("waited_ms", "answer"), [(1_000, ""), (1_001, reasons.FACT_SUPERSEDED)])
def test_an_absence_is_each_rule_sets_own(waited_ms: int, answer: str) -> None:
    """A retraction that gets too old lets a rule set see what only another one had seen, while a third one still sees nothing."""
    optional = {**SCORE, "optional": True}
    core = wanting(alpha=optional, beta={**optional, "sources": ["z"]}, gamma={**SCORE, "sources": ["y"]})
    core.fact("order.score", 0.1, source="y")
    core.fact("order.score", None, source="x", max_age_ms=1_000)
    decision = core.propose([core.fact("order.status", "delivered")], params=APPROVAL)
    assert [["alpha", "beta"]] == [list(fact.policy_ids) for fact in decision.decision.absent_facts]
    core.pass_time(waited_ms)
    assert answer == getattr(core.begin(decision), "reason_code", "")
    core.prove()


def test_a_person_overrules_the_rules_of_all_and_the_facts_of_none() -> None:
    """Approving a review needs the evidence of every rule set that was consulted, whatever is in force by then."""
    core = wanting(alpha=SCORE, beta={**SCORE, "key": "order.more", "max_age_ms": 1_000})
    cited = [core.fact("order.status", "delivered"), core.fact("order.score", 1), core.fact("order.more", 1)]
    review = core.propose(cited, params=saying("review", "approve"))
    core.deactivate("beta")
    core.pass_time(1_001)
    refused = core.resolve(review, fact_pb2.REVIEW_VERDICT_APPROVE).decision
    assert (reasons.STALE_FACTS, ["order.more"]) == (refused.reason_code, [row[0] for row in rows(refused)])
    core.fact("order.more", 2)
    approved = core.resolve(review, fact_pb2.REVIEW_VERDICT_APPROVE)
    assert (APPROVED, ["alpha", "beta"]) == (approved.decision.outcome, list(approved.decision.active_policy_ids))
    assert {"order.status", "order.score", "order.more"} == {pin.key for pin in approved.decision.pinned_facts}
    core.fact("order.more", 3)
    assert reasons.FACT_SUPERSEDED == core.refuse_start(approved).reason_code
    core.prove()


def test_one_more_attempt_rests_on_the_evidence_of_all() -> None:
    """A granted attempt names the rule sets whose evidence was read again for it, and is checked by them when it starts."""
    core = wanting(alpha=SCORE, beta={**SCORE, "key": "order.more"})
    cited = [core.fact("order.status", "delivered"), core.fact("order.score", 1), core.fact("order.more", 1)]
    decision = core.propose(cited, params=APPROVAL)
    core.report(core.start(decision), PARTIAL)
    review = core.named("HumanReviewRequested")[-1]
    granted = core.resolve(review, fact_pb2.REVIEW_VERDICT_APPROVE).decision
    assert (["alpha", "beta"], decision.decision.active_rule_sets) == (list(granted.active_policy_ids), granted.active_rule_sets)
    core.fact("order.more", 2)
    assert reasons.RETRY_FACTS_CHANGED == core.refuse_start(decision).reason_code
    core.prove()
