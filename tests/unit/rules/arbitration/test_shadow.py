"""Shadows: evaluated beside the active rule sets without an effect; their differences are counted and recorded."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import decision_pb2, error_pb2, fact_pb2
from gavel.v1.decision_pb2 import Decision
from gavel.v1.diagnostic_pb2 import ShadowDifference
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import ActivateRuleSet, Answer, Command, DeactivateRuleSet, DeployRuleSet, Fault, RuleSetPosition
from gavel_rules.decider import handle
from gavel_rules.errors import NetworkFaultError
from gavel_rules.events.arbiter_versions import LATEST
from gavel_rules.events.ids import derived_event_id
from gavel_rules.language import rule_set_cache
from gavel_rules.language.engines.rete import Network
from gavel_rules.replay import DivergedError

from tests.support.driver import ACTION, RULES, Core, compile_cached, document, replay_log
from tests.support.entries import rechain

APPROVED = decision_pb2.OUTCOME_APPROVED
REJECTED = decision_pb2.OUTCOME_REJECTED
NEVER: list[dict[str, Any]] = [
    {"id": "never", "when": "facts.status != '' || has(facts.score)", "effect": "reject", "reason_code": "NEVER"}
]
V1 = document()
STRICT = document(rules=NEVER, version=2)


def deploy(core: Core, text: str) -> None:
    """Deploy without activating."""
    core.run(DeployRuleSet(core.new_id(), compile_cached(text), text))


def shadow(core: Core, version: int, policy_id: str = "refunds", expected: int | None = None) -> Answer:
    """Make a deployed version a shadow."""
    return core.run(ActivateRuleSet(core.new_id(), policy_id, version, expected, shadow=True))


def bus_with_shadow(text: str, shadow_text: str) -> Core:
    """Return a bus with an active rule set and a shadow."""
    core = Core(text)
    deploy(core, shadow_text)
    rule_set = compile_cached(shadow_text)
    assert isinstance(shadow(core, rule_set.version, rule_set.policy_id), RuleSetPosition)
    return core


def differences(core: Core) -> list[ShadowDifference]:
    """Return the differences of shadows in the log."""
    return [event.agent_diagnostic.shadow_difference for event in core.events_named("ShadowDifference")]


def counts(core: Core, policy_id: str = "refunds") -> tuple[int, int]:
    """Return how many decisions the shadow was compared with, and the number of differences."""
    watching = core.state.shadows[policy_id]
    return watching.decisions, watching.differences


def without_shadows(core: Core) -> list[Decision]:
    """Return the decisions of a log without the fields that depend on their place in it."""
    decisions = []
    for event in core.events:
        if event.HasField("decision"):
            decision = Decision()
            decision.CopyFrom(event.decision)
            decision.ClearField("state_version")
            for pin in decision.pinned_facts:
                pin.ClearField("sequence_number")
                pin.ClearField("event_id")
            for field in ("decision_id", "proposal_id", "conflict_with_proposal_ids"):
                decision.ClearField(field)
            decisions.append(decision)
    return decisions


def test_a_difference_is_recorded_with_its_decision() -> None:
    """A difference follows the decision in its commit, with both verdicts, and a replay recomputes it."""
    core = bus_with_shadow(V1, STRICT)
    decision = core.approve()
    event = core.events[-1]
    assert ("ShadowDifference", decision.event_id, decision.sequence_number + 1, decision.trace_id, decision.subject) == (
        event.event_name,
        event.causation_id,
        event.sequence_number,
        event.trace_id,
        event.subject,
    )
    assert (LATEST.system, derived_event_id(decision.event_id, decision.sequence_number, "ShadowDifference")) == (
        event.producer,
        event.event_id,
    )
    (difference,) = differences(core)
    digest = compile_cached(STRICT).digest
    assert (decision.event_id, "refunds", 2, digest) == (
        difference.decision_id,
        difference.policy_id,
        difference.policy_version,
        difference.rule_set_digest,
    )
    assert (APPROVED, "", "refunds", 1, "delivered") == _fields(difference.decided)
    assert (REJECTED, "NEVER", "refunds", 2, "never") == _fields(difference.shadowed)
    assert (1, 1) == counts(core)
    core.prove()


def _fields(verdict: Any) -> tuple[object, ...]:
    return verdict.outcome, verdict.reason_code, verdict.policy_id, verdict.policy_version, verdict.rule_id


def test_a_shadow_decides_nothing() -> None:
    """A shadow changes no decision: outcome, evidence, conflict keys and counts are the same without it."""

    def play(core: Core) -> None:
        core.approve()
        core.propose([core.fact("order.status", "delivered")], trace_id="rival")
        for number in range(3):
            core.propose([core.fact("order.status", "cancelled", subject="order/2")], subject="order/2", trace_id=f"t{number}")
        core.propose([core.fact("k.note", "x", subject="order/3")], subject="order/3", trace_id="none")

    limits: dict[str, Any] = {"rejection_limit": 3}
    plain, shadowed = Core(document(**limits)), bus_with_shadow(document(**limits), document(rules=NEVER, version=2, rejection_limit=1))
    play(plain)
    play(shadowed)
    assert without_shadows(plain) == without_shadows(shadowed)
    assert [] != differences(shadowed)
    shadowed.prove()


def test_equal_verdict_is_counted_and_not_recorded() -> None:
    """An equal verdict of the shadow is counted and not recorded."""
    core = bus_with_shadow(V1, document(version=2))
    before = core.state.head
    core.approve()
    assert ([], (1, 0), before + 3) == (differences(core), counts(core), core.state.head)


def test_another_rule_with_the_same_outcome_is_a_difference() -> None:
    """A difference in outcome, reason or rule is recorded."""
    rules = [{**rule, "id": f"{rule['id']}-2"} for rule in RULES]
    core = bus_with_shadow(V1, document(rules=rules, version=2))
    core.approve()
    (difference,) = differences(core)
    assert ("delivered", "delivered-2") == (difference.decided.rule_id, difference.shadowed.rule_id)


def test_shadow_without_an_active_version() -> None:
    """If no rule set governs an action yet, a shadow that does shows its decision; the refusal stays."""
    core = Core()
    deploy(core, V1)
    shadow(core, 1)
    assert "NO_ACTIVE_POLICY" == core.decide([core.fact("order.status", "delivered")]).reason_code
    (difference,) = differences(core)
    assert ("NO_ACTIVE_POLICY", "gavel") == (difference.decided.reason_code, difference.decided.policy_id)
    assert (APPROVED, "delivered") == (difference.shadowed.outcome, difference.shadowed.rule_id)
    core.prove()


def test_shadow_of_another_name_is_added() -> None:
    """A shadow of a rule set without an active version is evaluated beside the active rule sets, as if it were active."""
    core = bus_with_shadow(V1, document(rules=NEVER, rule_set="another"))
    core.approve()
    (difference,) = differences(core)
    assert ("another", "never") == (difference.policy_id, difference.shadowed.rule_id)
    core.prove()


def test_action_that_the_shadow_does_not_govern() -> None:
    """For an action that the active version governs and the shadow does not, the shadow's verdict is NO_ACTIVE_POLICY."""
    core = bus_with_shadow(V1, document(version=2, action_type="refund.other"))
    core.approve()
    (difference,) = differences(core)
    assert ("NO_ACTIVE_POLICY", (1, 1)) == (difference.shadowed.reason_code, counts(core))
    core.prove()


def test_shadow_ignores_other_actions() -> None:
    """A shadow ignores proposals of actions that it does not govern."""
    core = bus_with_shadow(V1, STRICT)
    core.decide([core.fact("order.status", "delivered")], action_type="unknown.action")
    assert ([], (0, 0)) == (differences(core), counts(core))


def test_several_shadows_of_one_action() -> None:
    """The difference of each shadow is recorded by itself, in the order of policy_id, and counted separately."""
    core = bus_with_shadow(V1, STRICT)
    deploy(core, document(rules=NEVER, rule_set="another"))
    shadow(core, 1, "another")
    decision = core.approve()
    assert ["another", "refunds"] == [difference.policy_id for difference in differences(core)]
    assert [derived_event_id(decision.event_id, decision.sequence_number, "ShadowDifference", ordinal) for ordinal in (0, 1)] == [
        event.event_id for event in core.events_named("ShadowDifference")
    ]
    assert ((1, 1), (1, 1)) == (counts(core), counts(core, "another"))
    core.prove()


def test_a_shadow_whose_rule_errs() -> None:
    """A rule of the shadow that fails makes the shadow refuse; the decision stays."""
    errs = [{"id": "errs", "when": "1 / int(params.amount - 50.0) > 0 && facts.status == 'delivered'", "effect": "approve"}]
    core = bus_with_shadow(V1, document(rules=errs, version=2))
    assert APPROVED == core.approve().decision.outcome
    (difference,) = differences(core)
    assert ("EVALUATION_ERROR", "errs") == (difference.shadowed.reason_code, difference.shadowed.rule_id)
    core.prove()


@pytest.mark.parametrize("failure", ["disagrees", "breaks"])
def test_a_shadow_whose_engines_fail(monkeypatch: pytest.MonkeyPatch, failure: str) -> None:
    """If engines disagree or fail on a shadow, only the shadow lacks a verdict; a replay does not reproduce that difference."""
    core = bus_with_shadow(V1, document(version=2))
    of_shadow = core.state.shadows["refunds"].rule_set.actions[ACTION]._network
    match = Network.match

    def failing(network: Network, text: str) -> list[int]:
        if network is not of_shadow:
            return match(network, text)
        if failure == "breaks":
            raise NetworkFaultError("the engine is gone")
        return []

    monkeypatch.setattr(Network, "match", failing)
    assert APPROVED == core.approve().decision.outcome
    (difference,) = differences(core)
    assert {"disagrees": "ENGINE_DISAGREEMENT", "breaks": "EVALUATION_ERROR"}[failure] == difference.shadowed.reason_code
    monkeypatch.undo()
    with pytest.raises(DivergedError):
        core.prove()


def test_activating_the_shadow_ends_it() -> None:
    """Activating the shadow's version ends the shadow; activating another version does not."""
    core = bus_with_shadow(V1, STRICT)
    deploy(core, document(version=3))
    core.run(ActivateRuleSet(core.new_id(), "refunds", 3, None))
    assert 2 == core.state.shadows["refunds"].version
    core.run(ActivateRuleSet(core.new_id(), "refunds", 2, 3))
    assert {} == core.state.shadows
    assert {} == core.state.shadows_by_action
    assert "NEVER" == core.decide([core.fact("order.status", "delivered")]).reason_code
    assert [] == differences(core)
    core.prove()


def test_another_shadow_replaces_the_first() -> None:
    """A rule set has one shadow. Another one replaces it, names it, and counts from 0; the same version again changes nothing."""
    core = bus_with_shadow(V1, STRICT)
    core.approve()
    deploy(core, document(rules=NEVER, version=3))
    first = shadow(core, 3)
    activated = core.events[-1].fact.rule_set_activated
    assert (fact_pb2.ACTIVATION_MODE_SHADOW, 3, 2) == (activated.mode, activated.version, activated.previous_version)
    assert (0, 0) == counts(core)
    head = core.state.head
    assert (first, head) == (shadow(core, 3), core.state.head)
    core.prove()


def test_ending_a_shadow() -> None:
    """Ending a shadow stops its evaluation; the active version stays."""
    core = bus_with_shadow(V1, STRICT)
    answer = core.run(DeactivateRuleSet(core.new_id(), "refunds", None, shadow=True))
    assert isinstance(answer, RuleSetPosition)
    deactivation = core.events[-1].fact.rule_set_deactivated
    assert (2, 2, fact_pb2.ACTIVATION_MODE_SHADOW) == (answer.version, deactivation.version, deactivation.mode)
    core.approve()
    assert ([], {}) == (differences(core), core.state.shadows)
    core.prove()


def test_deactivation_leaves_the_shadow() -> None:
    """A deactivated rule set keeps its shadow, which is then evaluated beside the active rule sets."""
    core = bus_with_shadow(V1, STRICT)
    core.deactivate("refunds")
    core.decide([core.fact("order.status", "delivered")])
    assert [("NO_ACTIVE_POLICY", "NEVER")] == [(one.decided.reason_code, one.shadowed.reason_code) for one in differences(core)]
    core.prove()


def test_invalid_shadows() -> None:
    """Shadowing the active version, a version that is not deployed, or with a wrong expectation is refused; nothing is appended."""
    core = bus_with_shadow(V1, STRICT)

    def fault(**command: Any) -> error_pb2.ErrorReason.ValueType:
        return core.fault(ActivateRuleSet(core.new_id(), "refunds", shadow=True, **command)).reason

    assert error_pb2.ERROR_REASON_WRONG_STATE == fault(version=1, expected_active_version=None)
    assert error_pb2.ERROR_REASON_RULE_SET_NOT_FOUND == fault(version=9, expected_active_version=None)
    assert error_pb2.ERROR_REASON_ACTIVATION_RACED == fault(version=2, expected_active_version=0)
    assert isinstance(shadow(core, 2, expected=1), RuleSetPosition)
    unknown = core.fault(DeactivateRuleSet(core.new_id(), "another", None, shadow=True))
    assert (error_pb2.ERROR_REASON_RULE_SET_NOT_FOUND, "rule set another has no shadow") == (unknown.reason, unknown.message)


def test_undo_restores_shadows() -> None:
    """A batch with the begin, the evaluations and the end of a shadow can be undone from any point in it."""
    core = Core(V1)
    deploy(core, STRICT)
    status = core.fact("order.status", "delivered")
    commands: list[Command] = [
        ActivateRuleSet(core.new_id(), "refunds", 2, None, shadow=True),
        core.proposal([status]),
        DeactivateRuleSet(core.new_id(), "refunds", None, shadow=True),
    ]
    state = core.state
    steps = []
    for command in commands:
        steps.append((state.mark(), state.digest(), bool(state.shadows_by_action)))
        assert not isinstance(handle(state, command, core.references(command), core.now_ms).answer, Fault)
    assert [False, True, True] == [watching for _, _, watching in steps]
    for mark, digest, watching in reversed(steps):
        state.undo(mark)
        assert (digest, watching) == (state.digest(), bool(state.shadows_by_action))


@pytest.mark.parametrize("tamper", ["drop", "change"])
def test_replay_finds_a_changed_difference(tamper: str) -> None:
    """A replay diverges at a difference that is missing from the log or has other contents."""
    core = bus_with_shadow(V1, STRICT)
    core.approve()
    core.fact("k.note", "x")
    events = [Envelope.FromString(record.envelope) for record in core.records]
    index = next(number for number, event in enumerate(events) if event.event_name == "ShadowDifference")
    if tamper == "drop":
        del events[index]
        for number, event in enumerate(events, 1):
            event.sequence_number = number
    else:
        events[index].agent_diagnostic.shadow_difference.shadowed.rule_id = "another"
    with pytest.raises(DivergedError) as failure:
        replay_log(core.bus, rechain(core.bus, events))
    assert index + 1 == failure.value.divergence.sequence_number


def test_documents_are_compiled_when_needed() -> None:
    """A version that is only deployed is not compiled; one that is soon activated again is not compiled again."""
    core = Core()
    text = document(version=77)
    deploy(core, text)
    digest = compile_cached(text).digest
    assert rule_set_cache.get(digest) is None
    assert isinstance(core.run(ActivateRuleSet(core.new_id(), "refunds", 77, None)), RuleSetPosition)
    in_force = core.state.active_rule_sets["refunds"].rule_set
    assert in_force is rule_set_cache.get(digest)
    core.deactivate("refunds")
    core.run(ActivateRuleSet(core.new_id(), "refunds", 77, None))
    assert in_force is core.state.active_rule_sets["refunds"].rule_set


def test_cache_of_compiled_rule_sets_is_bounded() -> None:
    """The cache holds the few latest unused rule sets, fewer of large ones, and always the last one."""

    def still_at_hand(texts: list[str]) -> list[bool]:
        rule_sets = [rule_set_cache.compile_cached(compile_cached(text).digest, compile_cached(text).canonical_json) for text in texts]
        return [rule_set_cache.get(rule_set.digest) is rule_set for rule_set in rule_sets]

    small = [document(version=1_000 + number) for number in range(rule_set_cache.RECENT_RULE_SETS_MAX + 2)]
    assert [False, False] + [True] * rule_set_cache.RECENT_RULE_SETS_MAX == still_at_hand(small)
    literals = [f"{'x' * 4_000}{number}" for number in range(40)]
    rules = [
        {"id": f"r{number}", "when": f'facts.status == "{literal}" || has(facts.score)', "effect": "approve"}
        for number, literal in enumerate(literals)
    ]
    large = [document(rules=rules, version=2_000 + number) for number in range(3)]
    assert rule_set_cache.RECENT_TEXT_LENGTH_MAX < 2 * len(large[0]) < 4 * rule_set_cache.RECENT_TEXT_LENGTH_MAX
    assert [False, False, True] == still_at_hand(large)
