"""Evidence if several rule sets govern an action: each requires its own, and one hint names all missing (constitution §4.4-§4.8)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import common_pb2, decision_pb2, fact_pb2
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reason_codes
from gavel_rules.arbitration import evidence
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.driver import PARTIAL, START_MS, SUBJECT, Core
from tests.support.histories.several_rule_sets import NAMES, STATUS, activate_all, script, scripted_params

APPROVED = decision_pb2.OUTCOME_APPROVED
APPROVAL = scripted_params("approve", "approve", "approve")
EVIDENCE = {
    reason_codes.NO_FACT_INPUT,
    reason_codes.NEED_MORE_FACTS,
    reason_codes.FACT_TYPE_MISMATCH,
    reason_codes.INSUFFICIENT_EVIDENCE_TIER,
    reason_codes.STALE_FACTS,
    reason_codes.FACT_SUPERSEDED,
}
SCORE: dict[str, Any] = {"key": "order.score", "type": "number", "min_trust": 2, "max_age_ms": 30_000}


def bus_with_facts(**facts: dict[str, Any]) -> Core:
    """Return a bus with active rule sets. Each requires order.status and the fact that is given for it, under the name `wanted`."""
    return activate_all(Core(), [script(name, facts={"status": STATUS, "wanted": wanted}) for name, wanted in facts.items()])


def rows(decision: Decision) -> list[tuple[object, ...]]:
    """Return the rows of a hint."""
    return [
        (row.key, row.subject, row.state, row.required_trust_tier, row.max_age_ms, list(row.sources))
        for row in decision.retry_hint.fact_requirements
    ]


# What is required


def test_one_hint_names_the_evidence_of_all_rule_sets() -> None:
    """One hint has the missing evidence of every rule set."""
    core = bus_with_facts(alpha={**SCORE, "key": "order.a"}, beta={**SCORE, "key": "order.b", "subject": '"customer/1"'})
    decision = core.decide([core.fact("order.note", "x")], params=APPROVAL)
    assert reason_codes.NEED_MORE_FACTS == decision.reason_code
    assert {("order.status", SUBJECT), ("order.a", SUBJECT), ("order.b", "customer/1")} == {row[:2] for row in rows(decision)}
    assert 3 == len(rows(decision))


def test_row_of_a_shared_key_satisfies_all_rule_sets() -> None:
    """If rule sets require one key of one subject, its row has the tightest tier and age and the sources that all accept."""
    core = bus_with_facts(
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


def test_rule_sets_without_a_common_source_have_several_rows() -> None:
    """Rule sets without a common source get a row each; a rule set that accepts any source shares the first row."""
    core = bus_with_facts(
        alpha={**SCORE, "sources": ["x"]}, beta={**SCORE, "max_age_ms": 5, "sources": []}, gamma={**SCORE, "sources": ["y"]}
    )
    decision = core.decide([core.fact("order.status", "delivered")], params=APPROVAL)
    assert [
        ("order.score", SUBJECT, evidence.MISSING, 2, 5, ["x"]),
        ("order.score", SUBJECT, evidence.MISSING, 2, 30_000, ["y"]),
    ] == rows(decision)


def test_earliest_stage_names_the_row() -> None:
    """If a value is stale for one rule set and of no accepted source for another, the earlier stage gives reason code and state."""
    core = bus_with_facts(alpha={**SCORE, "max_age_ms": 10}, beta={**SCORE, "sources": ["x"]})
    core.fact("order.score", 0.5)
    core.pass_time(11)
    decision = core.decide([core.fact("order.status", "delivered")], params=APPROVAL)
    assert reason_codes.NEED_MORE_FACTS == decision.reason_code
    assert [("order.score", SUBJECT, evidence.SOURCE_NOT_ACCEPTED, 2, 10, ["x"])] == rows(decision)


def test_met_requirements_do_not_tighten_a_row() -> None:
    """A rule set whose requirement is met does not tighten the row."""
    core = bus_with_facts(alpha={**SCORE, "min_trust": 1}, beta={**SCORE, "max_age_ms": 10, "min_trust": 3})
    core.fact("order.score", 0.5)
    core.pass_time(11)
    decision = core.decide([core.fact("order.status", "delivered")], params=APPROVAL)
    assert [("order.score", SUBJECT, evidence.STALE, 3, 10, [])] == rows(decision)


def test_required_fact_follows_the_rule_set_that_declares_it() -> None:
    """A required key that a rule set declares has the declared subject, not the subject of the proposal."""
    core = bus_with_facts(
        alpha={**SCORE, "key": "order.a", "optional": True}, beta={**SCORE, "key": "customer.b", "subject": '"customer/1"'}
    )
    status = core.fact("order.status", "delivered")
    of_customer = core.fact("customer.b", 1, subject="customer/1")
    decision = core.decide([status, of_customer], params=APPROVAL, required_facts=["customer.b"])
    assert APPROVED == decision.outcome
    refusal = core.decide(
        [status], params=APPROVAL, trace_id="t2", subject="order/2", required_facts=["customer.b", "order.note", "order.a"]
    )
    assert {("order.status", "order/2"), ("order.note", "order/2"), ("order.a", "order/2")} == {row[:2] for row in rows(refusal)}
    core.prove()


def test_any_selected_version_may_be_cited() -> None:
    """If two rule sets select two versions of one key, a proposal may cite either; an older one is superseded."""
    core = bus_with_facts(alpha={**SCORE, "sources": ["x"]}, beta={**SCORE, "sources": ["y"]})
    status = core.fact("order.status", "delivered")
    old = core.fact("order.score", 0.1, source="y")
    candidates = [core.fact("order.score", 0.2, source="x"), core.fact("order.score", 0.3, source="y")]
    refusal = core.decide([status, old], params=APPROVAL)
    assert reason_codes.FACT_SUPERSEDED == refusal.reason_code
    assert [["x"], ["y"]] == [row[-1] for row in rows(refusal)]
    approved = core.decide([status, candidates[1]], params=APPROVAL)
    assert APPROVED == approved.outcome
    assert {event.event_id for event in (status, *candidates)} == {pin.event_id for pin in approved.pinned_facts}
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


@pytest.mark.long
@settings(max_examples=20, deadline=None)
@given(st.lists(REQUIREMENTS, min_size=2, max_size=3), st.lists(RECORDED, max_size=4), st.booleans())
def test_hint_suffices_for_several_rule_sets(wanted: list[dict[str, Any]], recorded: list[tuple[int, str, int]], cites_all: bool) -> None:
    """An agent that publishes exactly the facts of a hint is not refused for evidence again, also if rule sets differ about a key."""
    core = bus_with_facts(**{name: {**SCORE, **one} for name, one in zip(NAMES, wanted, strict=False)})
    citations = []
    for tier, source, age_ms in sorted(recorded, key=lambda one: -one[2]):
        core.now_ms += 100_000 - age_ms - (core.now_ms - START_MS)
        citations.append(provide(core, tier, source))
    core.now_ms += 100_000 - (core.now_ms - START_MS)
    status = core.fact("order.status", "delivered")
    first = core.decide([status, *(citations if cites_all else [])], params=APPROVAL)
    assume(first.outcome != APPROVED)
    facts = [provide(core, row.required_trust_tier, row.sources[0] if row.sources else "x") for row in first.retry_hint.fact_requirements]
    second = core.decide([status, *facts], params=APPROVAL)
    assert second.reason_code not in EVIDENCE
    core.prove()


def provide(core: Core, tier: int, source: str) -> Envelope:
    """Publish the score now, with a tier and a source."""
    if tier == common_pb2.TRUST_TIER_1_SYSTEM_FACT:
        return core.fact("order.score", 0.5, source=source)
    evidence_of_tool = core.tool_result(tool_name=source) if tier == common_pb2.TRUST_TIER_2_TOOL_OBSERVATION else None
    return core.observe("order.score", 0.5, evidence=evidence_of_tool, tool=source)


@pytest.mark.parametrize("name", NAMES)
def test_input_is_evidence_of_any_rule_set(name: str) -> None:
    """A fact of another subject that one rule set declares is input; an uncited change of it since `projection_version` refuses."""
    core = bus_with_facts(**{one: {**SCORE, "key": f"customer.{one}", "subject": '"customer/1"'} for one in NAMES})
    facts = {one: core.fact(f"customer.{one}", 1, subject="customer/1") for one in NAMES}
    core.fact("order.status", "delivered")
    assert APPROVED == core.decide([facts[name]], params=APPROVAL).outcome
    version = core.state.head
    core.fact(f"customer.{name}", 2, subject="customer/1")
    others = [facts[one] for one in NAMES if one != name]
    changed = core.decide(others, params=APPROVAL, trace_id="t2", projection_version=version)
    assert reason_codes.PROJECTION_CHANGED == changed.reason_code


# Pinned evidence, and its recheck


def test_shared_version_is_pinned_once() -> None:
    """A version that several rule sets select is pinned once, with the earliest end of its freshness."""
    core = bus_with_facts(alpha=SCORE, beta={**SCORE, "max_age_ms": 2_000}, gamma={**SCORE, "max_age_ms": 9_000})
    cited = [core.fact("order.status", "delivered"), core.fact("order.score", 0.5)]
    decision = core.decide(cited, params=APPROVAL)
    assert [("order.status", 60_000), ("order.score", 2_000)] == [
        (pin.key, pin.fresh_until.ToMilliseconds() - core.now_ms) for pin in decision.pinned_facts
    ]


def test_an_optional_fact_may_be_absent_for_one_of_them() -> None:
    """A key from a source that only one rule set accepts is pinned for that one and absent for the other; both are recorded."""
    core = bus_with_facts(alpha={**SCORE, "optional": True, "sources": ["x"]}, beta=SCORE)
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
def test_changed_fact_of_any_rule_set_refuses_the_start(which: str) -> None:
    """A start repeats the selection for every rule set that was consulted, whichever decided and whatever is active by then."""
    keys = {name: f"order.{name}" for name in NAMES}
    core = bus_with_facts(**{name: {**SCORE, "key": key} for name, key in keys.items()})
    cited = [core.fact("order.status", "delivered"), *(core.fact(key, 1) for key in keys.values())]
    decision = core.propose(cited, params=APPROVAL)
    core.deactivate(which)
    core.fact(keys[which], 2)
    assert reason_codes.FACT_SUPERSEDED == core.refuse_start(decision).reason_code
    core.prove()


def test_later_rule_set_does_not_affect_the_start() -> None:
    """A start checks the evidence of the approval; rule sets that are activated later require nothing."""
    core = bus_with_facts(alpha=SCORE)
    decision = core.propose([core.fact("order.status", "delivered"), core.fact("order.score", 1)], params=APPROVAL)
    activate_all(core, [script("beta", facts={"status": STATUS, "more": {**SCORE, "key": "order.more"}})])
    core.start(decision)
    core.prove()


@pytest.mark.parametrize(("waited_ms", "answer"), [(3_000, ""), (3_001, reason_codes.FACT_SUPERSEDED)])
def test_each_rule_set_needs_its_own_version_at_the_start(waited_ms: int, answer: str) -> None:
    """A version counts as changed if another rule set selects it now than at the approval."""
    core = bus_with_facts(alpha={**SCORE, "max_age_ms": 5_000}, beta={**SCORE, "max_age_ms": 60_000}, gamma={**SCORE, "sources": ["x"]})
    fact = core.fact("order.score", 0.1)
    core.pass_time(2_000)
    observation = provide(core, 2, "x")
    decision = core.propose([core.fact("order.status", "delivered"), fact, observation], params=APPROVAL)
    assert [(fact.event_id, ["alpha", "beta"]), (observation.event_id, ["gamma"])] == [
        (pin.event_id, list(pin.policy_ids)) for pin in decision.decision.pinned_facts if pin.key == "order.score"
    ]
    core.pass_time(waited_ms)
    assert answer == getattr(core.begin(decision), "reason_code", "")
    core.prove()


@pytest.mark.parametrize(("waited_ms", "answer"), [(1_000, ""), (1_001, reason_codes.FACT_SUPERSEDED)])
def test_an_absence_is_each_rule_sets_own(waited_ms: int, answer: str) -> None:
    """A retraction that becomes stale lets a second rule set select a value that only the first had selected; a third selects none."""
    optional = {**SCORE, "optional": True}
    core = bus_with_facts(alpha=optional, beta={**optional, "sources": ["z"]}, gamma={**SCORE, "sources": ["y"]})
    core.fact("order.score", 0.1, source="y")
    core.fact("order.score", None, source="x", max_age_ms=1_000)
    decision = core.propose([core.fact("order.status", "delivered")], params=APPROVAL)
    assert [["alpha", "beta"]] == [list(fact.policy_ids) for fact in decision.decision.absent_facts]
    core.pass_time(waited_ms)
    assert answer == getattr(core.begin(decision), "reason_code", "")
    core.prove()


def test_approval_by_a_person_needs_the_evidence_of_all_rule_sets() -> None:
    """Approving a review needs the evidence of every rule set that was consulted, whatever is active by then."""
    core = bus_with_facts(alpha=SCORE, beta={**SCORE, "key": "order.more", "max_age_ms": 1_000})
    cited = [core.fact("order.status", "delivered"), core.fact("order.score", 1), core.fact("order.more", 1)]
    review = core.propose(cited, params=scripted_params("review", "approve"))
    core.deactivate("beta")
    core.pass_time(1_001)
    refusal = core.resolve(review, fact_pb2.REVIEW_VERDICT_APPROVE).decision
    assert (reason_codes.STALE_FACTS, ["order.more"]) == (refusal.reason_code, [row[0] for row in rows(refusal)])
    core.fact("order.more", 2)
    approved = core.resolve(review, fact_pb2.REVIEW_VERDICT_APPROVE)
    assert (APPROVED, ["alpha", "beta"]) == (approved.decision.outcome, list(approved.decision.active_policy_ids))
    assert {"order.status", "order.score", "order.more"} == {pin.key for pin in approved.decision.pinned_facts}
    core.fact("order.more", 3)
    assert reason_codes.FACT_SUPERSEDED == core.refuse_start(approved).reason_code
    core.prove()


def test_granted_attempt_needs_the_evidence_of_all_rule_sets() -> None:
    """A granted attempt names the rule sets whose evidence was selected again for it; its start is checked by these."""
    core = bus_with_facts(alpha=SCORE, beta={**SCORE, "key": "order.more"})
    cited = [core.fact("order.status", "delivered"), core.fact("order.score", 1), core.fact("order.more", 1)]
    decision = core.propose(cited, params=APPROVAL)
    core.report(core.start(decision), PARTIAL)
    review = core.events_named("HumanReviewRequested")[-1]
    grant = core.resolve(review, fact_pb2.REVIEW_VERDICT_APPROVE).decision
    assert (["alpha", "beta"], decision.decision.active_rule_sets) == (list(grant.active_policy_ids), grant.active_rule_sets)
    core.fact("order.more", 2)
    assert reason_codes.RETRY_FACTS_CHANGED == core.refuse_start(decision).reason_code
    core.prove()
