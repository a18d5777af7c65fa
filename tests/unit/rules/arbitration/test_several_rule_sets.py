"""Several rule sets on one action: each selects its own evidence, and their verdicts are combined (constitution §6.2, §6.3)."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision
from gavel_rules import reason_codes
from gavel_rules.authoring.simulate import ChangedDecision, Simulation
from gavel_rules.commands import ActivateRuleSet, RuleSetPosition
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.driver import ACTION, SUCCESS, Core, compile_cached, document, replay_log
from tests.support.histories.several_rule_sets import (
    ANSWERS,
    NAMES,
    PARAMS,
    STATUS,
    activate_all,
    activate_shadow,
    script,
    scripted_params,
)

APPROVED = decision_pb2.OUTCOME_APPROVED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
REJECTED = decision_pb2.OUTCOME_REJECTED
OUTCOME_OF = {"reject": REJECTED, "review": REVIEW, "approve": APPROVED}
ALL = tuple(script(name) for name in NAMES)

properties = settings(max_examples=30, deadline=None)


def verdict(core: Core, *says: str, **changes: Any) -> Decision:
    """Return the decision on a proposal, with a subject and a trace of its own, for which the rule sets answer `says`."""
    number = len(core.events)
    subject = f"order/{number}"
    status = core.fact("order.status", "delivered", subject=subject)
    return core.decide([status], subject=subject, trace_id=f"trace-{number}", params=scripted_params(*says), **changes)


def comparable_fields(decision: Decision) -> Decision:
    """Return a decision without the fields that depend on its place in the log."""
    copied = Decision()
    copied.CopyFrom(decision)
    for field in ("decision_id", "proposal_id", "state_version", "conflict_key"):
        copied.ClearField(field)
    for pin in copied.pinned_facts:
        pin.ClearField("event_id")
        pin.ClearField("sequence_number")
        pin.ClearField("subject")
    return copied


# Combination of answers


def test_reject_wins_then_review_then_approve() -> None:
    """Of the answers of three rule sets, any reject wins, then any review, then approve; without a matching rule nothing is approved.

    Of the rule sets with the winning effect, the one with the lowest policy_id decides. The decision names all consulted rule sets and all
    matches.
    """
    core = activate_all(Core(), ALL)
    for answers in product(ANSWERS[:4], repeat=3):
        decision = verdict(core, *answers)
        assert list(NAMES) == list(decision.active_policy_ids)
        assert [(name, 1, compile_cached(text).digest) for name, text in zip(NAMES, ALL, strict=True)] == [
            (one.policy_id, one.version, one.digest) for one in decision.active_rule_sets
        ]
        assert [
            (name, f"{say}-{which}") for name, say in zip(NAMES, answers, strict=True) if say != "nothing" for which in ("first", "second")
        ] == [(match.policy_id, match.rule_id) for match in decision.rule_matches]
        winning = next((effect for effect in ("reject", "review", "approve") if effect in answers), None)
        if winning is None:
            assert (REJECTED, reason_codes.NO_RULE_MATCHED, "gavel", "") == decided_by(decision)
            continue
        name = NAMES[answers.index(winning)]
        code = "" if winning == "approve" else f"{name.upper()}_{winning.upper()}S"
        assert (OUTCOME_OF[winning], code, name, f"{winning}-first") == decided_by(decision)
        assert (1, compile_cached(script(name)).digest) == (decision.policy_version, decision.rule_set_digest)
    core.prove()


def decided_by(decision: Decision) -> tuple[object, ...]:
    """Return the outcome, the reason code, and the deciding policy and rule."""
    return decision.outcome, decision.reason_code, decision.policy_id, decision.rule_id


@pytest.mark.parametrize("others", ["approve", "reject", "review", "nothing"])
def test_evaluation_error_of_any_rule_set_wins(others: str) -> None:
    """If a rule set fails, the decision is EVALUATION_ERROR whatever the others answer; all rule sets that err are named."""
    core = activate_all(Core(), ALL)
    decision = verdict(core, others, "err", "err")
    assert (REJECTED, reason_codes.EVALUATION_ERROR, "gavel", "erring") == decided_by(decision)
    assert ["beta/erring", "gamma/erring"] == [warning.message for warning in decision.warnings]
    core.prove()


def test_reference_engine_replays_several_rule_sets() -> None:
    """A log decided by several rule sets is proved with the reference engine alone."""
    core = activate_all(Core(), ALL)
    for answers in product(ANSWERS, repeat=2):
        verdict(core, *answers)
    assert core.state.digest() == replay_log(core.bus, core.records, engine=decision_pb2.ENGINE_REFERENCE).state.digest()


@properties
@given(st.permutations(NAMES), st.lists(st.sampled_from(NAMES), max_size=4), st.tuples(*[st.sampled_from(ANSWERS)] * 3))
def test_order_of_activation_does_not_matter(order: list[str], out_and_in: list[str], says: tuple[str, ...]) -> None:
    """Rule sets decide the same in whatever order they are activated, even if some are deactivated and activated again."""
    plain = activate_all(Core(), ALL)
    other = activate_all(Core(), [script(name) for name in order])
    for name in out_and_in:
        other.deactivate(name)
        assert isinstance(other.run(ActivateRuleSet(other.new_id(), name, 1, 0)), RuleSetPosition)
    assert comparable_fields(verdict(plain, *says)) == comparable_fields(verdict(other, *says))


@properties
@given(st.tuples(*[st.sampled_from(ANSWERS)] * 3), st.sampled_from(["reject", "nothing", "err"]), st.booleans(), st.booleans())
def test_rule_set_without_approvals_permits_nothing(says: tuple[str, ...], third: str, known: bool, wary: bool) -> None:
    """A rule set that never approves turns neither a refusal nor a review into an approval, whatever the evidence."""
    facts = {"status": STATUS, "score": {"key": "order.score", "type": "number", "max_age_ms": 9, "optional": not wary}}

    def outcome(texts: list[str]) -> int:
        core = activate_all(Core(), texts)
        cited = [core.fact("order.status", "delivered")] if known else [core.fact("order.note", "x")]
        return core.decide(cited, params=scripted_params(says[0], says[1], third)).outcome

    base = outcome([script("alpha"), script("beta")])
    together = outcome([script("alpha"), script("beta"), script("gamma", facts=facts)])
    assert together != APPROVED or base == APPROVED
    assert together != REVIEW or base in (APPROVED, REVIEW)


def status_rules(name: str, *rules: tuple[str, str]) -> str:
    """Return a rule set that reads only order.status; `rules` are (status, effect)."""
    parts: list[dict[str, Any]] = [
        {"id": f"rule-{number}", "when": f'facts.status == "{status}"', "effect": effect}
        | ({} if effect == "approve" else {"reason_code": f"{name.upper()}_{effect.upper()}S"})
        for number, (status, effect) in enumerate(rules)
    ]
    return document({"status": STATUS}, parts, rule_set=name)


@pytest.mark.parametrize(
    ("others", "terminal"),
    [
        ([("delivered", "reject")], True),  # a certain rejection is hopeless
        ([("lost", "approve")], False),  # a rule set without a matching rule is not
    ],
)
def test_certain_rejection_of_one_rule_set_is_terminal(others: list[tuple[str, str]], terminal: bool) -> None:
    """If one rule set rejects every proposal under these facts, the refusal is terminal until that rule set is deactivated."""
    small = [{"id": "small", "when": "params.amount < 10", "effect": "approve"}]
    core = activate_all(Core(), [document({"status": STATUS}, small, rule_set="alpha"), status_rules("beta", *others)])
    status = core.fact("order.status", "delivered")
    decision = core.decide([status], amount=50)
    assert terminal == decision.terminal
    core.deactivate("beta")
    assert APPROVED == core.decide([status], amount=5).outcome
    core.prove()


def test_certain_silence_of_all_rule_sets_is_terminal() -> None:
    """If no rule set can approve or review under these facts, the refusal is terminal until a rule set that can is activated."""
    core = activate_all(Core(), [status_rules("alpha", ("lost", "approve")), status_rules("beta", ("lost", "review"))])
    status = core.fact("order.status", "delivered")
    first, second = core.decide([status]), core.decide([status])
    assert (reason_codes.NO_RULE_MATCHED, True, reason_codes.NO_FEASIBLE_PROPOSAL) == (
        first.reason_code,
        first.terminal,
        second.reason_code,
    )
    core.activate(status_rules("gamma", ("delivered", "approve")))
    assert APPROVED == core.decide([status], amount=49).outcome
    core.prove()


# Schemas, limits


def test_params_must_fit_every_schema() -> None:
    """The violations of all schemas are named at once, each once."""
    narrow = {**PARAMS, "properties": {**PARAMS["properties"], "note": {"type": "string"}}, "additionalProperties": False}
    core = activate_all(Core(), [script("alpha"), script("beta", params=narrow)])
    status = core.fact("order.status", "delivered")
    decision = core.decide([status], params={"alpha": "shout", "beta": "approve", "extra": 1})
    assert reason_codes.INVALID_PARAMS == decision.reason_code
    assert ["/alpha: enum", "/extra: additionalProperties", "/gamma: required"] == [warning.message for warning in decision.warnings]


def test_shortest_time_to_live_applies() -> None:
    """The shortest time to live of all consulted rule sets applies, whichever decides; the retry policy is common."""
    core = activate_all(
        Core(),
        [script("alpha", decision_ttl_ms=9_000), script("beta", decision_ttl_ms=4_000), script("gamma")],
    )
    decision = verdict(core, "approve")
    assert (4_000, 2) == (decision.valid_until.ToMilliseconds() - core.now_ms, decision.retry_policy.max_attempts)


@pytest.mark.parametrize("strict", NAMES)
def test_lowest_rejection_limit_applies(strict: str) -> None:
    """The lowest rejection limit of all consulted rule sets applies, whichever of them rejects."""
    core = activate_all(Core(), [script(name, rejection_limit=2 if name == strict else 1_000) for name in NAMES])
    status = core.fact("order.status", "delivered")
    codes = [core.decide([status], params=scripted_params("reject"), priority=number).reason_code for number in range(2)]
    assert ["ALPHA_REJECTS", reason_codes.REJECTION_LIMIT] == codes
    core.prove()


def test_strictest_version_policy_applies() -> None:
    """If one rule set warns of a version and another one fails, the proposal is refused, with the warnings of both."""
    versions: dict[str, Any] = {"versions": {"planner_version": "7"}}
    texts = [
        script("alpha", on_version_mismatch="warn", **versions),
        script("beta", on_version_mismatch="fail", versions={"planner_version": "8"}),
    ]
    decision = verdict(activate_all(Core(), texts), "approve", "approve")
    assert reason_codes.VERSION_MISMATCH == decision.reason_code
    assert ["alpha requires 7", "beta requires 8"] == [warning.message.rpartition("; ")[2] for warning in decision.warnings]


def test_one_conflict_key_for_all() -> None:
    """All rule sets have the same conflict key, and an approval holds it once."""
    key: dict[str, Any] = {"conflict_key": '"till/" + subject.id'}
    core = activate_all(Core(), [script(name, **key) for name in NAMES])
    status = core.fact("order.status", "delivered")
    first = core.decide([status], params=scripted_params("approve", "approve"))
    second = core.decide([status], params=scripted_params("approve", "approve"), trace_id="rival")
    assert ("till/1", reason_codes.CONFLICTING_DECISION) == (first.conflict_key, second.reason_code)


# Derived facts, shadows, replacement


def test_derivations_are_those_of_the_rule_set_that_decided() -> None:
    """Only the derivations of the deciding rule set give facts, even if that is no longer active."""
    texts = []
    for name in NAMES:
        data = json.loads(script(name))
        derivation = {
            "id": f"{name}-derived",
            "version": 1,
            "on": {"action": ACTION, "status": "SUCCESS"},
            "key": f"{name}.done",
            "value": "true",
        }
        texts.append(json.dumps({**data, "derivations": [derivation]}))
    core = activate_all(Core(), texts)
    status = core.fact("order.status", "delivered")
    decision = core.propose([status], params=scripted_params("nothing", "approve", "approve"))
    core.deactivate("beta")
    report = core.report(core.start(decision), SUCCESS)
    assert ["execution.refund.create.status", "beta.done"] == [fact.fact.key for fact in core.derive(report)]
    core.prove()


def test_shadow_replaces_its_active_version() -> None:
    """A shadow is evaluated in place of the active version of its own rule set; the other rule sets stay."""
    core = activate_all(Core(), ALL[:2])
    activate_shadow(core, script("beta", version=2).replace("BETA_REJECTS", "BETA_TWO_REJECTS"))
    equal, other = verdict(core, "review", "approve"), verdict(core, "approve", "reject")
    (difference,) = [event.agent_diagnostic.shadow_difference for event in core.events_named("ShadowDifference")]
    assert (other.decision_id, "beta", 2) == (difference.decision_id, difference.policy_id, difference.policy_version)
    assert ("BETA_REJECTS", "BETA_TWO_REJECTS") == (difference.decided.reason_code, difference.shadowed.reason_code)
    assert ["alpha", "beta"] == list(equal.active_policy_ids)
    assert (2, 1) == (core.state.shadows["beta"].decisions, core.state.shadows["beta"].differences)
    core.prove()


def test_shadow_of_another_rule_set_is_added() -> None:
    """A shadow without an active version is evaluated besides the active rule sets; the deciding policy is part of the difference."""
    core = activate_all(Core(), ALL[1:])
    activate_shadow(core, ALL[0])
    for answers in (("reject", "approve"), ("nothing", "approve"), ("approve", "nothing", "approve")):
        verdict(core, *answers)
    recorded = [event.agent_diagnostic.shadow_difference for event in core.events_named("ShadowDifference")]
    assert [("beta", "alpha"), ("gamma", "alpha")] == [(one.decided.policy_id, one.shadowed.policy_id) for one in recorded]
    assert [(APPROVED, REJECTED), (APPROVED, APPROVED)] == [(one.decided.outcome, one.shadowed.outcome) for one in recorded]
    core.prove()


def test_shadows_are_evaluated_separately() -> None:
    """Each shadow is evaluated with the active rule sets, not with the other shadows."""
    core = activate_all(Core(), ALL[1:2])
    activate_shadow(core, ALL[0])
    activate_shadow(core, ALL[2])
    verdict(core, "reject", "approve", "review")
    recorded = [event.agent_diagnostic.shadow_difference for event in core.events_named("ShadowDifference")]
    assert [("alpha", REJECTED), ("gamma", REVIEW)] == [(one.policy_id, one.shadowed.outcome) for one in recorded]
    core.prove()


def test_simulation_replaces_one_of_several_rule_sets() -> None:
    """A simulation puts the candidate in place of its own rule set, or beside the active ones where that was not active."""
    core = activate_all(Core(), ALL[:2])
    verdict(core, "approve", "reject")
    verdict(core, "approve", "approve", "reject")

    def changed(candidate: str) -> list[tuple[int, int]]:
        impact = Simulation(core.bus, compile_cached(candidate))
        recorded = [impact.feed(record.sequence_number, record.envelope) for record in core.records]
        return [(one.recorded.outcome, one.simulated.outcome) for one in recorded if isinstance(one, ChangedDecision)]

    assert [] == changed(script("beta", version=2))
    assert [(REJECTED, APPROVED)] == changed(script("beta", version=2).replace('== \\"reject\\"', '== \\"never\\"'))
    assert [(APPROVED, REJECTED)] == changed(ALL[2])


def test_deactivated_rule_set_has_no_effect() -> None:
    """A deactivated rule set has no effect from then on; the others still decide."""
    core = activate_all(Core(), ALL)
    assert REJECTED == verdict(core, "approve", "reject").outcome
    core.deactivate("beta")
    decision = verdict(core, "approve", "reject")
    assert (APPROVED, ["alpha", "gamma"]) == (decision.outcome, list(decision.active_policy_ids))
    core.prove()
