"""The life of a rule set: deployed once, activated at a place in the log, replaced, deactivated (constitution §6.4)."""

from __future__ import annotations

import pytest
from gavel.v1 import decision_pb2, error_pb2, fact_pb2
from gavel.v1.fact_pb2 import CrossCheck, DataLossAccepted
from gavel_rules import reason_codes
from gavel_rules.commands import (
    AcceptClock,
    AcceptLoss,
    ActivateRuleSet,
    Answer,
    ChangeCrossCheck,
    DeactivateRuleSet,
    DeployRuleSet,
    EventAnswer,
    Fault,
    OpenBus,
    RuleSetPosition,
)
from gavel_rules.decider import handle
from gavel_rules.events.arbiter_versions import ARBITER_VERSION, LATEST
from gavel_rules.state.state import State

from tests.support.driver import RULES, Core, compile_cached, document, replay_log

HOUR_MS = 3_600_000

V1 = document()
V2 = document(rules=[{"id": "no", "when": "facts.status != '' || has(facts.score)", "effect": "reject", "reason_code": "NEVER"}], version=2)


def deploy(core: Core, text: str) -> Answer:
    """Deploy without activating."""
    return core.run(DeployRuleSet(core.new_id(), compile_cached(text), text))


def activate(core: Core, version: int, expected: int | None = None, policy_id: str = "refunds") -> ActivateRuleSet:
    """Return the command that activates a version."""
    return ActivateRuleSet(core.new_id(), policy_id, version, expected)


def refused_with(core: Core) -> str:
    """Return the reason code of a proposal without evidence."""
    return core.decide([core.fact("k.note", "x")], trace_id=f"t{core.state.head}").reason_code


def test_deployment_records_the_document_and_its_digest() -> None:
    """The log holds the document as written and its canonical form, with the digest: a replay needs nothing else."""
    core = Core()
    answer = deploy(core, V1)
    event = core.events[-1]
    deployed = event.fact.rule_set_deployed
    rule_set = compile_cached(V1)
    assert RuleSetPosition("refunds", 1, rule_set.digest, event.sequence_number) == answer
    assert ("refunds", 1, rule_set.digest, V1, rule_set.canonical_json) == (
        deployed.policy_id,
        deployed.version,
        deployed.digest,
        deployed.document,
        deployed.canonical_json,
    )
    assert ("RuleSetDeployed", LATEST.system, "rule-set/refunds", "gavel.rule_set_deployed", fact_pb2.OBSERVED_FROM_HUMAN_INPUT) == (
        event.event_name,
        event.producer,
        event.subject,
        event.fact.key,
        event.fact.observed_from,
    )
    core.prove()


def test_the_same_document_again_changes_nothing() -> None:
    """Deploying the same digest again gives the first answer and appends nothing, even if comments and layout differ."""
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
    fault = core.fault(DeployRuleSet(core.new_id(), compile_cached(other), other))
    assert error_pb2.ERROR_REASON_VERSION_REUSED == fault.reason
    assert compile_cached(V1).digest in fault.message
    assert compile_cached(other).digest in fault.message


def test_a_deployment_decides_nothing() -> None:
    """A deployed rule set governs from the sequence number of its activation on."""
    core = Core()
    deploy(core, V1)
    assert reason_codes.NO_ACTIVE_POLICY == refused_with(core)
    answer = core.run(activate(core, 1))
    assert isinstance(answer, RuleSetPosition)
    assert core.state.head == answer.sequence_number
    assert reason_codes.NEED_MORE_FACTS == refused_with(core)
    core.prove()


def test_activation_records_the_previous_version() -> None:
    """The event has the version, its digest, its mode and the previous version."""
    core = Core(V1)
    deploy(core, V2)
    core.run(activate(core, 2))
    activated = core.events[-1].fact.rule_set_activated
    assert ("refunds", 2, compile_cached(V2).digest, fact_pb2.ACTIVATION_MODE_ACTIVE, 1) == (
        activated.policy_id,
        activated.version,
        activated.digest,
        activated.mode,
        activated.previous_version,
    )


def test_versions_take_turns() -> None:
    """A newer version replaces the older one at once, and the older one can be activated again."""
    core = Core(V1)
    deploy(core, V2)
    status = core.fact("order.status", "cancelled")
    codes = [core.decide([status], trace_id="trace-0").reason_code]
    for version in (2, 1):
        core.run(activate(core, version))
        codes.append(core.decide([status], trace_id=f"trace-{version}").reason_code)
    assert ["ORDER_CANCELLED", "NEVER", "ORDER_CANCELLED"] == codes
    core.prove()


def test_repeated_activation_changes_nothing() -> None:
    """Activating the active version returns its position again and appends nothing."""
    core = Core(V1)
    head = core.state.head
    answer = core.run(activate(core, 1))
    assert RuleSetPosition("refunds", 1, compile_cached(V1).digest, head) == answer
    assert head == core.state.head


@pytest.mark.parametrize(("policy_id", "version"), [("refunds", 2), ("nobody", 1)])
def test_only_a_deployed_version_can_be_activated(policy_id: str, version: int) -> None:
    """An unknown rule set or version is RULE_SET_NOT_FOUND."""
    core = Core(V1)
    assert error_pb2.ERROR_REASON_RULE_SET_NOT_FOUND == core.fault(activate(core, version, policy_id=policy_id)).reason


@pytest.mark.parametrize(("expected", "raced"), [(None, False), (1, False), (0, True), (2, True), (3, True)])
def test_an_expected_version_guards_against_races(expected: int | None, raced: bool) -> None:
    """An activation that expects another active version is refused with ACTIVATION_RACED; 0 expects none."""
    core = Core(V1)
    deploy(core, V2)
    command = activate(core, 2, expected)
    if raced:
        assert error_pb2.ERROR_REASON_ACTIVATION_RACED == core.fault(command).reason
        assert error_pb2.ERROR_REASON_ACTIVATION_RACED == core.fault(DeactivateRuleSet(core.new_id(), "refunds", expected)).reason
    else:
        assert isinstance(core.run(command), RuleSetPosition)


def test_the_first_activation_may_expect_none() -> None:
    """0 expects that no version is active."""
    core = Core()
    deploy(core, V1)
    assert isinstance(core.run(activate(core, 1, 0)), RuleSetPosition)


def test_rule_sets_of_different_actions_are_active_together() -> None:
    """Several rule sets may be active as long as they share no action; a decision names those that govern its action."""
    core = Core(V1)
    core.activate(document(rule_set="others", action_type="other.do"))
    assert ["refunds"] == list(core.approve().decision.active_policy_ids)
    assert ["others"] == list(core.approve("order/2", action_type="other.do").decision.active_policy_ids)


def test_deactivated_rule_set_does_not_govern() -> None:
    """After a deactivation, proposals of the rule set's actions are NO_ACTIVE_POLICY; it stays deployed."""
    core = Core(V1)
    answer = core.run(DeactivateRuleSet(core.new_id(), "refunds", 1))
    assert RuleSetPosition("refunds", 1, compile_cached(V1).digest, core.state.head) == answer
    assert reason_codes.NO_ACTIVE_POLICY == refused_with(core)
    assert error_pb2.ERROR_REASON_RULE_SET_NOT_FOUND == core.fault(DeactivateRuleSet(core.new_id(), "refunds", None)).reason
    assert isinstance(core.run(activate(core, 1)), RuleSetPosition)
    core.prove()


def test_reference_engine_replays_the_log() -> None:
    """A log that was decided with the Rete engine replays with the reference engine alone."""
    core = Core(V1)
    core.approve()
    core.decide([core.fact("order.status", "cancelled")], trace_id="t2")
    recomputation = replay_log(core.bus, core.records, engine=decision_pb2.ENGINE_REFERENCE)
    assert core.state.digest() == recomputation.state.digest()


# The bus itself


def test_a_bus_opens_once() -> None:
    """The first event of a bus is BusOpened, and no later event is."""
    core = Core()
    opened = core.events[0].fact.bus_opened
    assert (ARBITER_VERSION, fact_pb2.CROSS_CHECK_MODE_ALWAYS) == (opened.arbiter_version, opened.cross_check.mode)
    fault = core.fault(OpenBus(core.new_id(), CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_OFF), 1))
    assert error_pb2.ERROR_REASON_WRONG_STATE == fault.reason


def test_the_cross_check_mode_is_an_event() -> None:
    """A change of the cross-check mode applies from its event on, in a replay too."""
    core = Core(V1)
    assert isinstance(core.run(ChangeCrossCheck(core.new_id(), CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_OFF))), EventAnswer)
    assert fact_pb2.CROSS_CHECK_MODE_OFF == core.state.cross_check.mode
    core.approve()
    core.prove()


def test_an_accepted_clock() -> None:
    """A bus that is ahead of the clock goes on at half speed until the clock has caught up, and a replay proves it."""
    core = Core(V1)
    clock_ms = core.now_ms - HOUR_MS
    answer = core.run(AcceptClock(core.new_id(), clock_ms, "ada", "host-3 was set wrongly"))
    assert isinstance(answer, EventAnswer)
    fact = answer.envelope.fact
    assert ("ClockAccepted", "gavel.clock_accepted") == (answer.envelope.event_name, fact.key)
    accepted = fact.clock_accepted
    assert (clock_ms, "ada", "host-3 was set wrongly") == (accepted.clock.ToMilliseconds(), accepted.accepted_by, accepted.reason)
    ahead_ms = [core.state.time_ms(clock_ms + elapsed_ms) - core.now_ms for elapsed_ms in (0, 1_000, HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS)]
    assert [0, 500, HOUR_MS // 2, HOUR_MS, 2 * HOUR_MS] == ahead_ms
    core.approve()
    core.prove()


def test_a_clock_that_is_right_is_not_accepted() -> None:
    """The time of a bus is accepted only while its last event is ahead, an acceptance before included."""
    core = Core(V1)
    for clock_ms in (core.now_ms, core.now_ms + 1):
        assert error_pb2.ERROR_REASON_WRONG_STATE == core.fault(AcceptClock(core.new_id(), clock_ms, "ada", "")).reason
    core.run(AcceptClock(core.new_id(), core.now_ms - HOUR_MS, "ada", ""))
    assert error_pb2.ERROR_REASON_WRONG_STATE == core.fault(AcceptClock(core.new_id(), core.now_ms - HOUR_MS, "ada", "")).reason


def test_an_accepted_loss() -> None:
    """A loss is accepted at the end of the log alone, with both heads, and a replay proves it and names it."""
    core = Core(V1)
    head = core.state.head
    accepted = DataLossAccepted(
        acknowledged_sequence_number=head + 5,
        acknowledged_chain_hash=bytes(32),
        accepted_by="ada",
        reason="the disk is gone",
        head_sequence_number=head,
        head_chain_hash=core.chain_hash,
    )
    for number in (head - 1, head + 1):
        wrong = DataLossAccepted(accepted_by="ada", head_sequence_number=number)
        assert error_pb2.ERROR_REASON_WRONG_STATE == core.fault(AcceptLoss(core.new_id(), wrong)).reason
    answer = core.run(AcceptLoss(core.new_id(), accepted))
    assert isinstance(answer, EventAnswer)
    fact = answer.envelope.fact
    assert ("DataLossAccepted", "gavel.data_loss_accepted") == (answer.envelope.event_name, fact.key)
    assert accepted == fact.data_loss_accepted
    core.approve()
    core.prove()


def test_timers_wait_for_the_acceptance_of_a_loss() -> None:
    """Timers that are due fire after the acceptance, which directly follows the head that it names; a replay proves it."""
    core = Core(V1)
    core.approve()
    core.pass_time(HOUR_MS)
    head = core.state.head
    accepted = DataLossAccepted(accepted_by="ada", head_sequence_number=head, head_chain_hash=core.chain_hash)
    core.run(AcceptLoss(core.new_id(), accepted))
    core.tick()
    assert ["DataLossAccepted", "DecisionExpired"] == [event.event_name for event in core.events[head:]]
    core.prove()


def test_sample_of_zero_is_refused() -> None:
    """A cross-check of every 0th decision is refused, both when the bus is opened and later."""
    core = Core(V1)
    nothing = CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_SAMPLE)
    assert error_pb2.ERROR_REASON_INVALID_REQUEST == core.fault(ChangeCrossCheck(core.new_id(), nothing)).reason
    handled = handle(State("new"), OpenBus(core.new_id(), nothing, 1), now_ms=core.now_ms)
    assert ([], True) == (handled.envelopes, isinstance(handled.answer, Fault))
    core.approve()
