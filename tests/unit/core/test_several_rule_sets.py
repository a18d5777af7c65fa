"""Several rule sets on one action: each has its own evidence and its own say, and what comes of it (seeds 002 §6.2, §6.3)."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision
from gavel_rules import reasons
from gavel_rules.authoring.impact import Impact
from gavel_rules.commands import ActivateRuleSet, RuleSetAt
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.driver import ACTION, SUCCESS, Core, compiled, document, replayed
from tests.unit.core.several import NAMES, PARAMS, SAYS, STATUS, obedient, put_in_force, saying, watch

APPROVED = decision_pb2.OUTCOME_APPROVED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
REJECTED = decision_pb2.OUTCOME_REJECTED
OUTCOME_OF = {"reject": REJECTED, "review": REVIEW, "approve": APPROVED}
ALL = tuple(obedient(name) for name in NAMES)

properties = settings(max_examples=30, deadline=None)


def verdict(core: Core, *says: str, **changes: Any) -> Decision:
    """What comes of it if the rule sets say this: a proposal of its own subject and trace."""
    number = len(core.events)
    subject = f"order/{number}"
    status = core.fact("order.status", "delivered", subject=subject)
    return core.decide([status], subject=subject, trace_id=f"trace-{number}", params=saying(*says), **changes)


def essence(decision: Decision) -> Decision:
    """A decision without what depends on its place in the log."""
    copied = Decision()
    copied.CopyFrom(decision)
    for field in ("decision_id", "proposal_id", "state_version", "conflict_key"):
        copied.ClearField(field)
    for pin in copied.pinned_facts:
        pin.ClearField("event_id")
        pin.ClearField("sequence_number")
        pin.ClearField("subject")
    return copied


# Says


def test_reject_wins_then_review_then_approve() -> None:
    """Whatever three rule sets say: any reject wins, then any review, then approve; silence of all is no permission.

    Of those with the winning effect the one of the lowest policy_id decides; whoever was asked and every match is named.
    """
    core = put_in_force(Core(), ALL)
    for says in product(SAYS[:4], repeat=3):
        decision = verdict(core, *says)
        assert list(NAMES) == list(decision.active_policy_ids)
        assert [(name, 1, compiled(text).digest) for name, text in zip(NAMES, ALL, strict=True)] == [
            (one.policy_id, one.version, one.digest) for one in decision.active_rule_sets
        ]
        assert [
            (name, f"{say}-{which}") for name, say in zip(NAMES, says, strict=True) if say != "nothing" for which in ("first", "second")
        ] == [(match.policy_id, match.rule_id) for match in decision.rule_matches]
        winning = next((effect for effect in ("reject", "review", "approve") if effect in says), None)
        if winning is None:
            assert (REJECTED, reasons.NO_RULE_MATCHED, "gavel", "") == decided_by(decision)
            continue
        name = NAMES[says.index(winning)]
        code = "" if winning == "approve" else f"{name.upper()}_{winning.upper()}S"
        assert (OUTCOME_OF[winning], code, name, f"{winning}-first") == decided_by(decision)
        assert (1, compiled(obedient(name)).digest) == (decision.policy_version, decision.rule_set_digest)
    core.prove()


def decided_by(decision: Decision) -> tuple[object, ...]:
    """What was decided, and by which rule."""
    return decision.outcome, decision.reason_code, decision.policy_id, decision.rule_id


@pytest.mark.parametrize("others", ["approve", "reject", "review", "nothing"])
def test_an_erring_rule_anywhere_spoils_it(others: str) -> None:
    """EVALUATION_ERROR, whatever the others say: nobody knows what the erring one would have. All that err are named."""
    core = put_in_force(Core(), ALL)
    decision = verdict(core, others, "err", "err")
    assert (REJECTED, reasons.EVALUATION_ERROR, "gavel", "erring") == decided_by(decision)
    assert ["beta/erring", "gamma/erring"] == [warning.message for warning in decision.warnings]
    core.prove()


def test_the_second_engine_comes_to_the_same() -> None:
    """A log decided by several rule sets is proved with the reference engine alone."""
    core = put_in_force(Core(), ALL)
    for says in product(SAYS, repeat=2):
        verdict(core, *says)
    assert core.state.digest() == replayed(core.bus, core.records, engine=decision_pb2.ENGINE_REFERENCE).state.digest()


@properties
@given(st.permutations(NAMES), st.lists(st.sampled_from(NAMES), max_size=4), st.tuples(*[st.sampled_from(SAYS)] * 3))
def test_how_they_came_into_force_does_not_matter(order: list[str], out_and_in: list[str], says: tuple[str, ...]) -> None:
    """Rule sets activated in any order, some taken out of force and back, decide the same."""
    plain = put_in_force(Core(), ALL)
    other = put_in_force(Core(), [obedient(name) for name in order])
    for name in out_and_in:
        other.deactivate(name)
        assert isinstance(other.run(ActivateRuleSet(other.new_id(), name, 1, 0)), RuleSetAt)
    assert essence(verdict(plain, *says)) == essence(verdict(other, *says))


@properties
@given(st.tuples(*[st.sampled_from(SAYS)] * 3), st.sampled_from(["reject", "nothing", "err"]), st.booleans(), st.booleans())
def test_one_that_only_rejects_permits_nothing(says: tuple[str, ...], third: str, known: bool, wary: bool) -> None:
    """A rule set that never approves makes no approval out of a refusal, nor of a review; whatever evidence there is."""
    facts = {"status": STATUS, "score": {"key": "order.score", "type": "number", "max_age_ms": 9, "optional": not wary}}

    def outcome(texts: list[str]) -> int:
        core = put_in_force(Core(), texts)
        cited = [core.fact("order.status", "delivered")] if known else [core.fact("order.note", "x")]
        return core.decide(cited, params=saying(says[0], says[1], third)).outcome

    without = outcome([obedient("alpha"), obedient("beta")])
    together = outcome([obedient("alpha"), obedient("beta"), obedient("gamma", facts=facts)])
    assert together != APPROVED or without == APPROVED
    assert together != REVIEW or without in (APPROVED, REVIEW)


def ruled(name: str, *rules: tuple[str, str]) -> str:
    """A rule set about order.status alone: (status, effect) of its rules."""
    parts: list[dict[str, Any]] = [
        {"id": f"rule-{number}", "when": f'facts.status == "{status}"', "effect": effect}
        | ({} if effect == "approve" else {"reason_code": f"{name.upper()}_{effect.upper()}S"})
        for number, (status, effect) in enumerate(rules)
    ]
    return document({"status": STATUS}, parts, rule_set=name)


@pytest.mark.parametrize(
    ("others", "terminal"),
    [
        ([("delivered", "reject")], True),  # one that surely rejects makes it hopeless
        ([("lost", "approve")], False),  # silence does not
    ],
)
def test_hopeless_is_what_one_of_them_surely_rejects(others: list[tuple[str, str]], terminal: bool) -> None:
    """Facts on which one rule set rejects whatever is proposed make it hopeless; it lifts when that rule set is out of force."""
    small = [{"id": "small", "when": "params.amount < 10", "effect": "approve"}]
    core = put_in_force(Core(), [document({"status": STATUS}, small, rule_set="alpha"), ruled("beta", *others)])
    status = core.fact("order.status", "delivered")
    decision = core.decide([status], amount=50)
    assert terminal == decision.terminal
    core.deactivate("beta")
    assert APPROVED == core.decide([status], amount=5).outcome
    core.prove()


def test_hopeless_is_what_all_are_silent_on() -> None:
    """If no rule set can approve or review with these facts, it is hopeless, and one more rule set that could lifts that."""
    core = put_in_force(Core(), [ruled("alpha", ("lost", "approve")), ruled("beta", ("lost", "review"))])
    status = core.fact("order.status", "delivered")
    first, second = core.decide([status]), core.decide([status])
    assert (reasons.NO_RULE_MATCHED, True, reasons.NO_FEASIBLE_PROPOSAL) == (first.reason_code, first.terminal, second.reason_code)
    core.activate(ruled("gamma", ("delivered", "approve")))
    assert APPROVED == core.decide([status], amount=49).outcome
    core.prove()


# Schemas, limits


def test_params_have_to_fit_every_schema() -> None:
    """Violations of all schemas are named at once, each once."""
    narrow = {**PARAMS, "properties": {**PARAMS["properties"], "note": {"type": "string"}}, "additionalProperties": False}
    core = put_in_force(Core(), [obedient("alpha"), obedient("beta", params=narrow)])
    status = core.fact("order.status", "delivered")
    decision = core.decide([status], params={"alpha": "shout", "beta": "approve", "extra": 1})
    assert reasons.INVALID_PARAMS == decision.reason_code
    assert ["/alpha: enum", "/extra: additionalProperties", "/gamma: required"] == [warning.message for warning in decision.warnings]


def test_the_shortest_time_to_live_holds() -> None:
    """An approval may be started for as long as every rule set consulted allows, whoever decides; the retry policy is shared."""
    core = put_in_force(Core(), [obedient("alpha", decision_ttl_ms=9_000), obedient("beta", decision_ttl_ms=4_000), obedient("gamma")])
    decision = verdict(core, "approve")
    assert (4_000, 2) == (decision.valid_until.ToMilliseconds() - core.now_ms, decision.retry_policy.max_attempts)


@pytest.mark.parametrize("strict", NAMES)
def test_the_lowest_limit_of_rejections_holds(strict: str) -> None:
    """A person is called when the limit of any rule set is reached, whichever of them rejected."""
    core = put_in_force(Core(), [obedient(name, rejection_limit=2 if name == strict else 1_000) for name in NAMES])
    status = core.fact("order.status", "delivered")
    codes = [core.decide([status], params=saying("reject"), priority=number).reason_code for number in range(2)]
    assert ["ALPHA_REJECTS", reasons.REJECTION_LIMIT] == codes
    core.prove()


def test_the_strictest_version_policy_speaks() -> None:
    """If one rule set only warns of a version and another one fails for it, the proposal is refused, and both are heard."""
    versions: dict[str, Any] = {"versions": {"planner_version": "7"}}
    texts = [
        obedient("alpha", on_version_mismatch="warn", **versions),
        obedient("beta", on_version_mismatch="fail", versions={"planner_version": "8"}),
    ]
    decision = verdict(put_in_force(Core(), texts), "approve", "approve")
    assert reasons.VERSION_MISMATCH == decision.reason_code
    assert ["alpha requires 7", "beta requires 8"] == [warning.message.rpartition("; ")[2] for warning in decision.warnings]


def test_one_conflict_key_for_all() -> None:
    """The key is the one that all agree on, and it is held once."""
    key: dict[str, Any] = {"conflict_key": '"till/" + subject.id'}
    core = put_in_force(Core(), [obedient(name, **key) for name in NAMES])
    status = core.fact("order.status", "delivered")
    first = core.decide([status], params=saying("approve", "approve"))
    second = core.decide([status], params=saying("approve", "approve"), trace_id="rival")
    assert ("till/1", reasons.CONFLICTING_DECISION) == (first.conflict_key, second.reason_code)


# Derived facts, shadows, replacement


def test_derivations_are_those_of_the_rule_set_that_decided() -> None:
    """Facts follow by the derivations of the deciding rule set alone, also when another one is in force by then."""
    texts = []
    for name in NAMES:
        data = json.loads(obedient(name))
        derivation = {
            "id": f"{name}-derived",
            "version": 1,
            "on": {"action": ACTION, "status": "SUCCESS"},
            "key": f"{name}.done",
            "value": "true",
        }
        texts.append(json.dumps({**data, "derivations": [derivation]}))
    core = put_in_force(Core(), texts)
    status = core.fact("order.status", "delivered")
    decision = core.propose([status], params=saying("nothing", "approve", "approve"))
    core.deactivate("beta")
    report = core.report(core.start(decision), SUCCESS)
    assert ["execution.refund.create.status", "beta.done"] == [fact.fact.key for fact in core.derive(report)]
    core.prove()


def test_a_shadow_beside_several() -> None:
    """A shadow is judged in place of the version in force of its own rule set, with the others as they are."""
    core = put_in_force(Core(), ALL[:2])
    watch(core, obedient("beta", version=2).replace("BETA_REJECTS", "BETA_TWO_REJECTS"))
    same, other = verdict(core, "review", "approve"), verdict(core, "approve", "reject")
    (difference,) = [event.agent_diagnostic.shadow_difference for event in core.named("ShadowDifference")]
    assert (other.decision_id, "beta", 2) == (difference.decision_id, difference.policy_id, difference.policy_version)
    assert ("BETA_REJECTS", "BETA_TWO_REJECTS") == (difference.decided.reason_code, difference.shadowed.reason_code)
    assert ["alpha", "beta"] == list(same.active_policy_ids)
    assert (2, 1) == (core.state.shadows["beta"].decisions, core.state.shadows["beta"].differences)
    core.prove()


def test_a_shadow_of_a_further_rule_set() -> None:
    """One that is not in force in any version is judged in addition to those that are; who would decide is part of the verdict."""
    core = put_in_force(Core(), ALL[1:])
    watch(core, ALL[0])
    for says in (("reject", "approve"), ("nothing", "approve"), ("approve", "nothing", "approve")):
        verdict(core, *says)
    found = [event.agent_diagnostic.shadow_difference for event in core.named("ShadowDifference")]
    assert [("beta", "alpha"), ("gamma", "alpha")] == [(one.decided.policy_id, one.shadowed.policy_id) for one in found]
    assert [(APPROVED, REJECTED), (APPROVED, APPROVED)] == [(one.decided.outcome, one.shadowed.outcome) for one in found]
    core.prove()


def test_several_shadows_are_judged_one_by_one() -> None:
    """Each shadow sees what is in force, not the other shadows."""
    core = put_in_force(Core(), ALL[1:2])
    watch(core, ALL[0])
    watch(core, ALL[2])
    verdict(core, "reject", "approve", "review")
    found = [event.agent_diagnostic.shadow_difference for event in core.named("ShadowDifference")]
    assert [("alpha", REJECTED), ("gamma", REVIEW)] == [(one.policy_id, one.shadowed.outcome) for one in found]
    core.prove()


def test_a_forecast_replaces_one_of_several() -> None:
    """A candidate is tried on the past in place of its own rule set, or beside those in force where that was not."""
    core = put_in_force(Core(), ALL[:2])
    verdict(core, "approve", "reject")
    verdict(core, "approve", "approve", "reject")

    def changed(candidate: str) -> list[tuple[int, int]]:
        impact = Impact(core.bus, compiled(candidate))
        found = [impact.feed(record.sequence_number, record.envelope) for record in core.records]
        return [(one.recorded.outcome, one.simulated.outcome) for one in found if one is not None]

    assert [] == changed(obedient("beta", version=2))
    assert [(REJECTED, APPROVED)] == changed(obedient("beta", version=2).replace('== \\"reject\\"', '== \\"never\\"'))
    assert [(APPROVED, REJECTED)] == changed(ALL[2])


def test_out_of_force_is_out_of_the_decision() -> None:
    """A rule set that is taken out of force has no say from then on; what the others say goes on."""
    core = put_in_force(Core(), ALL)
    assert REJECTED == verdict(core, "approve", "reject").outcome
    core.deactivate("beta")
    decision = verdict(core, "approve", "reject")
    assert (APPROVED, ["alpha", "gamma"]) == (decision.outcome, list(decision.active_policy_ids))
    core.prove()
