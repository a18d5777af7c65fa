"""Which evidence is selected: candidates, sources, types, tiers, freshness, and the states of unmet requirements.

Constitution §4.4 to §4.8. The rule set here approves on one fact of any tier, so the pinned event is the selected candidate.
"""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import common_pb2, decision_pb2
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import reason_codes
from google.protobuf.json_format import MessageToDict

from tests.support.driver import START_MS, SUBJECT, Core, document
from tests.support.hashes import sha256_of

APPROVE: list[dict[str, Any]] = [{"id": "fine", "when": '!has(facts.value) || facts.value != ""', "effect": "approve"}]
MISSING = decision_pb2.FACT_REQUIREMENT_STATE_MISSING
STALE = decision_pb2.FACT_REQUIREMENT_STATE_STALE
TIER_TOO_LOW = decision_pb2.FACT_REQUIREMENT_STATE_TIER_TOO_LOW
SOURCE_NOT_ACCEPTED = decision_pb2.FACT_REQUIREMENT_STATE_SOURCE_NOT_ACCEPTED
WRONG_TYPE = decision_pb2.FACT_REQUIREMENT_STATE_WRONG_TYPE


def one_fact(**changes: Any) -> Core:
    """Return a bus whose action needs `k.value`, of any tier, at most 10 s old; `changes` go into the declaration."""
    declaration = {"key": "k.value", "type": "string", "min_trust": 3, "max_age_ms": 10_000, "optional": False, **changes}
    return Core(document({"value": declaration}, APPROVE))


def decide(core: Core, **changes: Any) -> Decision:
    """Propose, citing an unrelated fact about the subject; the log must replay."""
    decision = core.decide([core.fact("k.note", "x", occurred_at_ms=START_MS)], **changes)
    core.prove()
    return decision


def selected_event(decision: Decision, key: str = "k.value") -> str:
    """Return the event that was selected for a key."""
    assert decision_pb2.OUTCOME_APPROVED == decision.outcome, decision
    (pin,) = [pin for pin in decision.pinned_facts if pin.key == key]
    assert SUBJECT == pin.subject
    return pin.event_id


def refusal(decision: Decision) -> tuple[str, list[tuple[str, int]]]:
    """Return the reason code and the hint's rows."""
    assert decision_pb2.OUTCOME_REJECTED == decision.outcome, decision
    return decision.reason_code, [(row.key, row.state) for row in decision.retry_hint.fact_requirements]


def test_later_claim_wins_within_a_tier() -> None:
    """Of two sources of one tier the claim with the later `occurred_at` is selected, in any order of arrival."""
    core = one_fact()
    later = core.fact("k.value", "new", source="a", occurred_at_ms=START_MS - 1_000)
    core.fact("k.value", "old", source="b", occurred_at_ms=START_MS - 2_000)
    assert later.event_id == selected_event(decide(core))


def test_sequence_number_breaks_ties() -> None:
    """Equal times are settled by the sequence number."""
    core = one_fact()
    core.fact("k.value", "a", source="z", occurred_at_ms=START_MS)
    second = core.fact("k.value", "b", source="a", occurred_at_ms=START_MS)
    assert second.event_id == selected_event(decide(core))


def test_a_late_arrival_does_not_displace_a_later_claim_of_its_source() -> None:
    """The latest claim of a source is kept when an older one arrives late."""
    core = one_fact()
    current = core.fact("k.value", "new", occurred_at_ms=START_MS - 1_000)
    core.fact("k.value", "old", occurred_at_ms=START_MS - 2_000)
    assert current.event_id == selected_event(decide(core))
    late_claim = core.fact("k.value", "newer", occurred_at_ms=START_MS - 1_000)
    assert [late_claim.event_id] == [candidate.event_id for candidate in core.state.evidence_of(SUBJECT)["k.value"]]


def test_best_tier_wins_at_any_age() -> None:
    """A fact takes precedence over an observation with evidence, and this over one without evidence, whatever their ages."""
    core = one_fact()
    fact = core.fact("k.value", "fact")
    core.pass_time(5_000)
    core.observe("k.value", "tool", evidence=core.tool_result())
    core.pass_time(1_000)
    core.observe("k.value", "guess")
    assert fact.event_id == selected_event(decide(core))


def test_a_bare_observation_does_not_displace_one_with_evidence() -> None:
    """Candidates are kept per tier: an observation without evidence does not replace one of the same tool with evidence."""
    core = one_fact()
    observation = core.observe("k.value", "tool", evidence=core.tool_result())
    core.pass_time(1_000)
    core.observe("k.value", "guess")
    decision = decide(core)
    assert observation.event_id == selected_event(decision)
    assert (common_pb2.TRUST_TIER_2_TOOL_OBSERVATION, sha256_of("1")) == (
        decision.pinned_facts[0].trust_tier,
        decision.pinned_facts[0].evidence_hash,
    )


def test_lower_tier_replaces_a_stale_one() -> None:
    """The best tier is selected among qualifying evidence: a fresh observation replaces a stale fact."""
    core = one_fact()
    core.fact("k.value", "fact")
    core.pass_time(10_001)
    observation = core.observe("k.value", "guess")
    assert observation.event_id == selected_event(decide(core))


def test_evidence_of_another_subject_does_not_count() -> None:
    """A fact of another subject is no candidate."""
    core = one_fact()
    core.fact("k.value", "x", subject="order/2")
    assert (reason_codes.NEED_MORE_FACTS, [("k.value", MISSING)]) == refusal(decide(core))


@pytest.mark.parametrize("optional", [False, True])
def test_only_accepted_sources_count(optional: bool) -> None:
    """A fact from a source that is not accepted counts as absent; the row of a required fact has SOURCE_NOT_ACCEPTED."""
    core = one_fact(sources=["good"], optional=optional)
    core.fact("k.value", "x", source="bad")
    decision = decide(core)
    if optional:
        assert [("k.value", SUBJECT)] == [(absent.key, absent.subject) for absent in decision.absent_facts]
    else:
        assert (reason_codes.NEED_MORE_FACTS, [("k.value", SOURCE_NOT_ACCEPTED)]) == refusal(decision)
        assert ["good"] == list(decision.retry_hint.preferred_sources)


def test_sources_are_producers_of_facts_and_tools_of_observations() -> None:
    """`sources` names a fact by its producer.id and an observation by its source_tool."""
    core = one_fact(sources=["orders-db", "fraud-tool"])
    core.fact("k.value", "x", source="fraud-tools")
    observation = core.observe("k.value", "x", tool="fraud-tool")
    core.observe("k.value", "y", tool="agent-1")
    assert observation.event_id == selected_event(decide(core))


TYPED: list[tuple[str, object, bool]] = [
    ("string", "x", True),
    ("string", 1, False),
    ("string", True, False),
    ("number", 1.5, True),
    ("number", 2, True),
    ("number", True, False),
    ("number", "1", False),
    ("integer", 2, True),
    ("integer", 2.5, False),
    ("integer", False, False),
    ("boolean", True, True),
    ("boolean", 1, False),
    ("boolean", "true", False),
    ("string", ["x"], False),
    ("string", {"x": 1}, False),
]


@pytest.mark.parametrize(("value_type", "value", "accepted"), TYPED, ids=str)
def test_a_value_must_be_of_the_declared_type(value_type: str, value: object, accepted: bool) -> None:
    """A value of another type is refused with FACT_TYPE_MISMATCH; an integer may come as a number without fraction."""
    rules = [{"id": "fine", "when": "facts.value == facts.value", "effect": "approve"}]
    core = Core(document({"value": {"key": "k.value", "type": value_type, "max_age_ms": 10_000}}, rules))
    core.fact("k.value", value)
    decision = decide(core)
    if accepted:
        selected_event(decision)
    else:
        assert (reason_codes.FACT_TYPE_MISMATCH, [("k.value", WRONG_TYPE)]) == refusal(decision)


def test_longer_value_than_declared() -> None:
    """A string of the declared max_length counts; a longer one is refused with FACT_TYPE_MISMATCH, and hides no other source."""
    rules = [{"id": "fine", "when": "facts.value == facts.value", "effect": "approve"}]
    core = Core(document({"value": {"key": "k.value", "type": "string", "max_length": 3, "max_age_ms": 10_000}}, rules))
    core.fact("k.value", "ä" * 4)
    assert (reason_codes.FACT_TYPE_MISMATCH, [("k.value", WRONG_TYPE)]) == refusal(decide(core))
    core.fact("k.value", "ä" * 3, source="other-db")
    selected_event(decide(core))
    core.prove()


def test_source_of_the_wrong_type_does_not_hide_others() -> None:
    """A source with a value of the wrong type does not hide the others."""
    core = one_fact()
    right = core.fact("k.value", "x", source="a")
    core.pass_time(100)
    core.fact("k.value", 7, source="b")
    assert right.event_id == selected_event(decide(core))


def test_null_retracts() -> None:
    """A fact with the value null retracts the key."""
    core = one_fact()
    core.fact("k.value", "x")
    core.pass_time(1)
    core.fact("k.value", None)
    assert (reason_codes.NEED_MORE_FACTS, [("k.value", MISSING)]) == refusal(decide(core))


@pytest.mark.parametrize("null_is_later", [True, False])
def test_null_competes_like_any_claim(null_is_later: bool) -> None:
    """A null retracts the earlier claims of all sources and none of the later ones."""
    core = one_fact()
    core.fact("k.value", None, source="a", occurred_at_ms=START_MS - (1_000 if null_is_later else 3_000))
    value = core.fact("k.value", "x", source="b", occurred_at_ms=START_MS - 2_000)
    decision = decide(core)
    if null_is_later:
        assert (reason_codes.NEED_MORE_FACTS, [("k.value", MISSING)]) == refusal(decision)
    else:
        assert value.event_id == selected_event(decision)


@pytest.mark.parametrize(("source", "later_speaks"), [("a", False), ("b", True)])
def test_claim_dated_in_the_future(source: str, later_speaks: bool) -> None:
    """Among the claims of one source `occurred_at` orders a claim dated ahead; among several sources the time of its recording does."""
    core = one_fact()
    ahead = core.fact("k.value", "x", source="a", occurred_at_ms=START_MS + 4_000)
    core.pass_time(1_000)
    later = core.fact("k.value", "y", source=source, occurred_at_ms=START_MS + 1_000)
    assert (later if later_speaks else ahead).event_id == selected_event(decide(core))


def test_a_retracted_optional_is_absent() -> None:
    """A null makes an optional fact absent, and the approval names it as absent."""
    core = one_fact(optional=True)
    core.fact("k.value", "x")
    core.fact("k.value", None)
    decision = decide(core)
    assert decision_pb2.OUTCOME_APPROVED == decision.outcome
    assert ([], ["k.value"]) == ([pin.key for pin in decision.pinned_facts], [absent.key for absent in decision.absent_facts])


def _publish_nothing(core: Core) -> None:
    """Leave the key without a candidate."""


def _publish_wrong_type(core: Core) -> None:
    core.fact("k.value", 7)


def _publish_low_tier(core: Core) -> None:
    core.observe("k.value", "x")


def _publish_stale(core: Core) -> None:
    core.fact("k.value", "x", occurred_at_ms=START_MS - 10_001)


@pytest.mark.parametrize(
    ("publish", "expected"),
    [
        (_publish_nothing, None),
        (_publish_wrong_type, (reason_codes.FACT_TYPE_MISMATCH, [("k.value", WRONG_TYPE)])),
        (_publish_low_tier, (reason_codes.INSUFFICIENT_EVIDENCE_TIER, [("k.value", TIER_TOO_LOW)])),
        (_publish_stale, (reason_codes.STALE_FACTS, [("k.value", STALE)])),
    ],
)
def test_present_optional_fact_is_checked(publish: Any, expected: tuple[str, list[tuple[str, int]]] | None) -> None:
    """An optional fact that is present is checked like a required one; a missing one is recorded as absent."""
    core = one_fact(optional=True, min_trust=1)
    publish(core)
    decision = decide(core)
    if expected is None:
        assert decision_pb2.OUTCOME_APPROVED == decision.outcome
        assert ["k.value"] == [absent.key for absent in decision.absent_facts]
    else:
        assert expected == refusal(decision)


@pytest.mark.parametrize("min_trust", [1, 2, 3])
@pytest.mark.parametrize("tier", [1, 2, 3])
def test_required_tier_is_a_minimum(min_trust: int, tier: int) -> None:
    """Evidence of a lower tier than required is refused with INSUFFICIENT_EVIDENCE_TIER; a better tier is accepted."""
    core = one_fact(min_trust=min_trust)
    if tier == 1:
        core.fact("k.value", "x")
    else:
        core.observe("k.value", "x", evidence=core.tool_result() if tier == 2 else None)
    decision = decide(core)
    if tier <= min_trust:
        selected_event(decision)
    else:
        assert (reason_codes.INSUFFICIENT_EVIDENCE_TIER, [("k.value", TIER_TOO_LOW)]) == refusal(decision)
        assert min_trust == decision.retry_hint.required_trust_tier


LIMITS = [
    pytest.param(5_000, 0, 9_000, id="rule-set"),
    pytest.param(9_000, 5_000, 8_000, id="fact"),
    pytest.param(9_000, 8_000, 5_000, id="proposal"),
]


@pytest.mark.parametrize(("declared_ms", "of_fact_ms", "of_proposal_ms"), LIMITS)
@pytest.mark.parametrize("age_ms", [5_000, 5_001])
def test_age_equal_to_the_tightest_limit_is_fresh(declared_ms: int, of_fact_ms: int, of_proposal_ms: int, age_ms: int) -> None:
    """Evidence exactly as old as the tightest limit is fresh, and stale a millisecond later."""
    core = one_fact(max_age_ms=declared_ms)
    core.fact("k.value", "x", max_age_ms=of_fact_ms)
    core.pass_time(age_ms)
    decision = decide(core, max_fact_age_ms=of_proposal_ms)
    if age_ms == 5_000:
        selected_event(decision)
        assert (START_MS + 5_000) * 1_000_000 == decision.pinned_facts[0].fresh_until.ToNanoseconds()
    else:
        assert (reason_codes.STALE_FACTS, [("k.value", STALE)]) == refusal(decision)


def test_unlimited_age_gives_the_last_timestamp() -> None:
    """Without an age limit `fresh_until` is the last Timestamp, which every JSON reader accepts."""
    core = one_fact()
    core.fact("k.extra", 1)
    core.fact("k.value", "x")
    decision = decide(core, required_facts=["k.extra"], max_fact_age_ms=2**53)
    assert "9999-12-31T23:59:59.999Z" in [pin["freshUntil"] for pin in MessageToDict(decision)["pinnedFacts"]]
    core.pass_time(9_000)
    core.start(core.events[-1])


def test_age_of_a_fact_counts_from_occurred_at() -> None:
    """The age of a fact counts from `occurred_at`, not from `recorded_at`."""
    core = one_fact()
    core.fact("k.value", "x", occurred_at_ms=START_MS - 10_001)
    assert (reason_codes.STALE_FACTS, [("k.value", STALE)]) == refusal(decide(core))


@pytest.mark.parametrize(
    ("evidence_age_ms", "observed_age_ms", "fresh"),
    [(10_000, 0, True), (10_001, 0, False), (0, 10_000, True), (0, 10_001, False)],
)
def test_age_of_an_observation_counts_from_its_earlier_time(evidence_age_ms: int, observed_age_ms: int, fresh: bool) -> None:
    """The age of an observation counts from the earlier of its tool result's time and its own."""
    core = one_fact()
    evidence = core.tool_result()
    core.pass_time(evidence_age_ms)
    core.observe("k.value", "x", evidence=evidence, observed_at_ms=core.now_ms - observed_age_ms)
    decision = decide(core)
    if fresh:
        selected_event(decision)
    else:
        assert (reason_codes.STALE_FACTS, [("k.value", STALE)]) == refusal(decision)


def test_summary_of_the_evidence() -> None:
    """`evidence` has the number of selected facts, their worst tier and the age of the oldest."""
    facts = {
        "value": {"key": "k.value", "type": "string", "min_trust": 1, "max_age_ms": 10_000},
        "score": {"key": "k.score", "type": "number", "min_trust": 2, "max_age_ms": 10_000},
        "other": {"key": "k.other", "type": "number", "min_trust": 3, "max_age_ms": 10_000, "optional": True},
    }
    candidates = "evidence.count == 2 && evidence.worst_trust == 2 && evidence.oldest_age_ms == 4000"
    rules = [
        {"id": "seen", "when": candidates, "effect": "approve"},
        {"id": "read", "when": "facts.value == '' || facts.score == 0.0 || has(facts.other)", "effect": "reject", "reason_code": "READ"},
    ]
    core = Core(document(facts, rules))
    core.fact("k.value", "x")
    core.pass_time(4_000)
    core.observe("k.score", 0.5, evidence=core.tool_result())
    assert "seen" == decide(core).rule_id


def test_without_evidence_the_worst_trust_is_inference() -> None:
    """Without selected facts `evidence` is empty and has the tier of inference."""
    rules = [{"id": "none", "when": "evidence.count == 0 && evidence.worst_trust == 3 && evidence.oldest_age_ms == 0", "effect": "approve"}]
    assert "none" == decide(Core(document({}, rules))).rule_id


# Facts that the proposal requires


def required(core: Core, *keys: str, **changes: Any) -> Decision:
    """Propose with `required_facts`."""
    core.fact("k.value", "x")
    return decide(core, required_facts=list(keys), **changes)


def test_undeclared_required_fact_must_be_present() -> None:
    """`required_facts` that no rule set declares are facts of the proposal's subject, from any source."""
    core = one_fact()
    assert (reason_codes.NEED_MORE_FACTS, [("k.extra", MISSING)]) == refusal(required(core, "k.extra"))
    extra = core.fact("k.extra", {"any": ["type"]}, source="whoever")
    assert extra.event_id == selected_event(required(core, "k.extra"), "k.extra")


def test_required_fact_accepts_tool_evidence_only() -> None:
    """A fact that the proposal requires needs tier 2 or better."""
    core = one_fact()
    core.observe("k.extra", "x")
    assert (reason_codes.INSUFFICIENT_EVIDENCE_TIER, [("k.extra", TIER_TOO_LOW)]) == refusal(required(core, "k.extra"))
    observation = core.observe("k.extra", "x", evidence=core.tool_result())
    assert observation.event_id == selected_event(required(core, "k.extra"), "k.extra")


@pytest.mark.parametrize(("of_fact_ms", "of_proposal_ms"), [(0, 3_000), (3_000, 5_000)])
def test_a_required_fact_is_bounded_by_proposal_or_fact(of_fact_ms: int, of_proposal_ms: int) -> None:
    """The age of such a fact is limited by `max_fact_age_ms` and the fact's own limit; the shorter one counts."""
    core = one_fact()
    core.fact("k.extra", "x", max_age_ms=of_fact_ms)
    core.pass_time(3_001)
    assert (reason_codes.STALE_FACTS, [("k.extra", STALE)]) == refusal(required(core, "k.extra", max_fact_age_ms=of_proposal_ms))


def test_requiring_a_declared_optional_makes_it_required() -> None:
    """A proposal may require a fact that the rule set declares as optional."""
    core = one_fact(optional=True)
    assert (reason_codes.NEED_MORE_FACTS, [("k.value", MISSING)]) == refusal(decide(core, required_facts=["k.value"]))


def test_requiring_a_declared_fact_changes_nothing() -> None:
    """A declared key that `required_facts` repeats has one row, with the requirements of the declaration."""
    core = one_fact()
    decision = decide(core, required_facts=["k.value", "k.value"])
    assert (reason_codes.NEED_MORE_FACTS, [("k.value", MISSING)]) == refusal(decision)
    assert 3 == decision.retry_hint.fact_requirements[0].required_trust_tier


# Versions that the proposal cites


def cited(core: Core, *events: Envelope) -> Decision:
    """Propose with exactly these citations."""
    decision = core.decide(events)
    core.prove()
    return decision


def test_citing_an_outdated_version_is_refused() -> None:
    """A proposal that cites a declared fact must cite the version that the rules select."""
    core = one_fact()
    old = core.fact("k.value", "old")
    new = core.fact("k.value", "new")
    superseded = (reason_codes.FACT_SUPERSEDED, [("k.value", decision_pb2.FACT_REQUIREMENT_STATE_SUPERSEDED)])
    assert superseded == refusal(cited(core, old))
    assert new.event_id == selected_event(cited(core, old, new))


def test_citing_a_version_that_is_not_selected_is_refused() -> None:
    """A citation must name the selected version, not the latest of the cited source."""
    core = one_fact()
    unselected = core.fact("k.value", "a", source="a", occurred_at_ms=START_MS - 1_000)
    core.fact("k.value", "b", source="b", occurred_at_ms=START_MS)
    assert reason_codes.FACT_SUPERSEDED == cited(core, unselected).reason_code


def test_citations_are_not_required() -> None:
    """A proposal need not cite declared facts."""
    core = one_fact()
    value = core.fact("k.value", "x")
    assert value.event_id == selected_event(cited(core, core.fact("k.note", "x")))
