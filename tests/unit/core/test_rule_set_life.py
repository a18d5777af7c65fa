"""The life of a rule set: deployed once and for all, activated at one place in the log, replaced, taken out (seeds 002 §6.4)."""

from __future__ import annotations

import pytest
from gavel.v1 import decision_pb2, error_pb2, fact_pb2
from gavel.v1.fact_pb2 import CrossCheck
from gavel_rules import reasons
from gavel_rules.commands import (
    ActivateRuleSet,
    Answer,
    ChangeCrossCheck,
    DeactivateRuleSet,
    DeployRuleSet,
    Fault,
    OpenBus,
    Recorded,
    RuleSetAt,
)
from gavel_rules.decider import handle
from gavel_rules.events import ARBITER_VERSION, SYSTEM_PRODUCER
from gavel_rules.projection import State

from tests.unit.core.driver import RULES, Core, compiled, document, replayed

V1 = document()
V2 = document(rules=[{"id": "no", "when": "facts.status != '' || has(facts.score)", "effect": "reject", "reason_code": "NEVER"}], version=2)


def deploy(core: Core, text: str) -> Answer:
    """Deploy without activating."""
    return core.run(DeployRuleSet(core.new_id(), compiled(text), text))


def activate(core: Core, version: int, expected: int | None = None, policy_id: str = "refunds") -> ActivateRuleSet:
    """The command."""
    return ActivateRuleSet(core.new_id(), policy_id, version, expected)


def refused_with(core: Core) -> str:
    """The reason code that a proposal without evidence gets now."""
    return core.decide([core.fact("k.note", "x")], trace_id=f"t{core.state.head}").reason_code


def test_a_deployment_is_an_event_that_holds_everything() -> None:
    """The log holds the document as written and as it decides, with its digest: nothing else is needed to decide again."""
    core = Core()
    answer = deploy(core, V1)
    event = core.events[-1]
    deployed = event.fact.rule_set_deployed
    rule_set = compiled(V1)
    assert RuleSetAt("refunds", 1, rule_set.digest, event.sequence_number) == answer
    assert ("refunds", 1, rule_set.digest, V1, rule_set.canonical_json) == (
        deployed.policy_id,
        deployed.version,
        deployed.digest,
        deployed.document,
        deployed.canonical_json,
    )
    assert ("RuleSetDeployed", SYSTEM_PRODUCER, "rule-set/refunds", "gavel.rule_set_deployed", fact_pb2.OBSERVED_FROM_HUMAN_INPUT) == (
        event.event_name,
        event.producer,
        event.subject,
        event.fact.key,
        event.fact.observed_from,
    )
    core.prove()


def test_the_same_document_again_changes_nothing() -> None:
    """Deploying the same digest again answers as before, also when comments and layout differ, and appends nothing."""
    core = Core()
    first = deploy(core, V1)
    head = core.state.head
    assert first == deploy(core, V1) == deploy(core, "# a comment\n" + V1)
    assert head == core.state.head


def test_a_version_never_changes() -> None:
    """Another document under a deployed version is VERSION_REUSED."""
    core = Core()
    deploy(core, V1)
    other = document(rules=RULES[1:])
    fault = core.fault(DeployRuleSet(core.new_id(), compiled(other), other))
    assert error_pb2.ERROR_REASON_VERSION_REUSED == fault.reason
    assert compiled(V1).digest in fault.message
    assert compiled(other).digest in fault.message


def test_a_deployment_decides_nothing() -> None:
    """A deployed rule set governs only once it is activated, and from that number on."""
    core = Core()
    deploy(core, V1)
    assert reasons.NO_ACTIVE_POLICY == refused_with(core)
    answer = core.run(activate(core, 1))
    assert isinstance(answer, RuleSetAt)
    assert core.state.head == answer.sequence_number
    assert reasons.NEED_MORE_FACTS == refused_with(core)
    core.prove()


def test_an_activation_says_what_it_replaces() -> None:
    """The event names version, digest, mode and the version before."""
    core = Core(V1)
    deploy(core, V2)
    core.run(activate(core, 2))
    activated = core.events[-1].fact.rule_set_activated
    assert ("refunds", 2, compiled(V2).digest, fact_pb2.ACTIVATION_MODE_ACTIVE, 1) == (
        activated.policy_id,
        activated.version,
        activated.digest,
        activated.mode,
        activated.previous_version,
    )


def test_versions_take_turns() -> None:
    """A newer version replaces the older at once, and the older can come back."""
    core = Core(V1)
    deploy(core, V2)
    status = core.fact("order.status", "cancelled")
    codes = [core.decide([status], trace_id="trace-0").reason_code]
    for version in (2, 1):
        core.run(activate(core, version))
        codes.append(core.decide([status], trace_id=f"trace-{version}").reason_code)
    assert ["ORDER_CANCELLED", "NEVER", "ORDER_CANCELLED"] == codes
    core.prove()


def test_activating_what_is_active_changes_nothing() -> None:
    """The answer is where it was activated; nothing is appended."""
    core = Core(V1)
    head = core.state.head
    answer = core.run(activate(core, 1))
    assert RuleSetAt("refunds", 1, compiled(V1).digest, head) == answer
    assert head == core.state.head


@pytest.mark.parametrize(("policy_id", "version"), [("refunds", 2), ("nobody", 1)])
def test_only_a_deployed_version_can_be_activated(policy_id: str, version: int) -> None:
    """An unknown rule set or version is RULE_SET_NOT_FOUND."""
    core = Core(V1)
    assert error_pb2.ERROR_REASON_RULE_SET_NOT_FOUND == core.fault(activate(core, version, policy_id=policy_id)).reason


@pytest.mark.parametrize(("expected", "raced"), [(None, False), (1, False), (0, True), (2, True), (3, True)])
def test_an_expected_version_guards_against_races(expected: int | None, raced: bool) -> None:
    """Who names the version that he saw active is refused with ACTIVATION_RACED if it is another by now; 0 means none."""
    core = Core(V1)
    deploy(core, V2)
    command = activate(core, 2, expected)
    if raced:
        assert error_pb2.ERROR_REASON_ACTIVATION_RACED == core.fault(command).reason
        assert error_pb2.ERROR_REASON_ACTIVATION_RACED == core.fault(DeactivateRuleSet(core.new_id(), "refunds", expected)).reason
    else:
        assert isinstance(core.run(command), RuleSetAt)


def test_the_first_activation_may_expect_none() -> None:
    """0 expects that no version is active."""
    core = Core()
    deploy(core, V1)
    assert isinstance(core.run(activate(core, 1, 0)), RuleSetAt)


def test_rule_sets_of_different_actions_stand_side_by_side() -> None:
    """Several rule sets may be active as long as they share no action; a decision names those that govern its action."""
    core = Core(V1)
    core.activate(document(rule_set="others", action_type="other.do"))
    assert ["refunds"] == list(core.approve().decision.active_policy_ids)
    assert ["others"] == list(core.approve("order/2", action_type="other.do").decision.active_policy_ids)


def test_a_deactivated_rule_set_governs_no_longer() -> None:
    """After deactivation its actions meet NO_ACTIVE_POLICY; it stays deployed."""
    core = Core(V1)
    answer = core.run(DeactivateRuleSet(core.new_id(), "refunds", 1))
    assert RuleSetAt("refunds", 1, compiled(V1).digest, core.state.head) == answer
    assert reasons.NO_ACTIVE_POLICY == refused_with(core)
    assert error_pb2.ERROR_REASON_RULE_SET_NOT_FOUND == core.fault(DeactivateRuleSet(core.new_id(), "refunds", None)).reason
    assert isinstance(core.run(activate(core, 1)), RuleSetAt)
    core.prove()


def test_two_engines_one_verdict() -> None:
    """A log that the Rete engine decided comes out the same with the reference engine alone."""
    core = Core(V1)
    core.approve()
    core.decide([core.fact("order.status", "cancelled")], trace_id="t2")
    recomputation = replayed(core.bus, core.records, engine=decision_pb2.ENGINE_REFERENCE)
    assert core.state.digest() == recomputation.state.digest()


# The bus itself


def test_a_bus_opens_once() -> None:
    """BusOpened is the first event, and only that."""
    core = Core()
    opened = core.events[0].fact.bus_opened
    assert (ARBITER_VERSION, fact_pb2.CROSS_CHECK_MODE_ALWAYS) == (opened.arbiter_version, opened.cross_check.mode)
    fault = core.fault(OpenBus(core.new_id(), CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_OFF), 1))
    assert error_pb2.ERROR_REASON_WRONG_STATE == fault.reason


def test_the_cross_check_mode_is_an_event() -> None:
    """The mode changes from its event on, and a replay knows it."""
    core = Core(V1)
    assert isinstance(core.run(ChangeCrossCheck(core.new_id(), CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_OFF))), Recorded)
    assert fact_pb2.CROSS_CHECK_MODE_OFF == core.state.cross_check.mode
    core.approve()
    core.prove()


def test_a_sample_must_be_a_sample_of_something() -> None:
    """A mode that would check every 0th decision is refused, when the bus is opened and later."""
    core = Core(V1)
    nothing = CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_SAMPLE)
    assert error_pb2.ERROR_REASON_INVALID_REQUEST == core.fault(ChangeCrossCheck(core.new_id(), nothing)).reason
    handled = handle(State("new"), OpenBus(core.new_id(), nothing, 1), now_ms=core.now_ms)
    assert ([], True) == (handled.events, isinstance(handled.answer, Fault))
    core.approve()
