"""The content of decisions: the deciding rule, what an approval is bound to, and the rule sets consulted (constitution §6.3)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import common_pb2, decision_pb2, fact_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.decision_pb2 import Decision
from gavel_rules import reason_codes
from gavel_rules.codec.rule_set_fragments import read_effect
from gavel_rules.events.arbiter_versions import ARBITER_VERSION
from gavel_rules.events.ids import derived_event_id
from gavel_rules.limits import CONDITIONS_QUOTED_MAX
from gavel_rules.values import python_to_value

from tests.support.driver import ACTION, AGENT, RULES, SOURCE, START_MS, SUBJECT, SUCCESS, Core, compile_cached, document, event_id

APPROVED = decision_pb2.OUTCOME_APPROVED
REJECTED = decision_pb2.OUTCOME_REJECTED
REVIEW = decision_pb2.OUTCOME_NEEDS_HUMAN_REVIEW
NO_FACTS: dict[str, Any] = {}


def decide_by(when: str, **changes: Any) -> Decision:
    """Decide a proposal under a single rule with condition `when`, which approves; the log must replay with either engine."""
    core = Core(document(NO_FACTS, [{"id": "only", "when": when, "effect": "approve"}], **changes))
    decision = core.decide([core.fact("k.note", "x")])
    core.prove()
    return decision


def test_every_proposal_gets_one_decision_right_after_it() -> None:
    """The DECISION follows its PROPOSAL at once; the ids, names, causes and times of both follow from the proposal."""
    core = Core(document())
    core.pass_time(17)
    envelope = core.approve()
    proposal = core.events[envelope.sequence_number - 2]
    decision = envelope.decision
    assert ("ProposalSubmitted", "DecisionApproved") == (proposal.event_name, envelope.event_name)
    assert derived_event_id(proposal.event_id, proposal.sequence_number, "decision") == decision.decision_id == envelope.event_id
    assert (proposal.event_id, proposal.event_id) == (decision.proposal_id, envelope.causation_id)
    assert (proposal.trace_id, proposal.subject) == (envelope.trace_id, envelope.subject)
    assert (ARBITER_VERSION, proposal.sequence_number) == (decision.arbiter_version, decision.state_version)
    assert proposal.recorded_at == envelope.recorded_at == decision.evaluated_at
    assert Producer(type=common_pb2.PRODUCER_TYPE_ARBITRATOR, id="gavel", version=str(ARBITER_VERSION)) == envelope.producer


def test_the_highest_matching_rule_decides_and_all_matches_are_named() -> None:
    """`rule_matches` lists all matching rules by falling priority; the first one decides."""
    core = Core(document())
    core.observe("order.score", 0.95, evidence=core.tool_result())
    decision = core.decide([core.fact("order.status", "delivered")])
    matches = [(match.policy_id, match.rule_id, read_effect(match), match.condition) for match in decision.rule_matches]
    expected = [("refunds", rule["id"], rule["effect"], rule["when"]) for rule in RULES[1:]]
    assert expected == matches
    assert (REVIEW, "FRAUD_SUSPECTED", "suspicious") == (decision.outcome, decision.reason_code, decision.rule_id)


def test_quoted_conditions_are_bounded() -> None:
    """A decision names all rules that match. It quotes the conditions of the highest ones, and always that of the deciding rule."""
    conditions = [f'subject != "{number}{"x" * 999}"' for number in range(500)]
    rules = [{"id": f"r{rank}", "priority": 1_000 - rank, "when": when, "effect": "approve"} for rank, when in enumerate(conditions)]
    core = Core(document(NO_FACTS, rules))
    decision = core.decide([core.fact("k.note", "x")])
    core.prove()
    assert [rule["id"] for rule in rules] == [match.rule_id for match in decision.rule_matches]
    quotes = [match.condition for match in decision.rule_matches if match.condition]
    assert conditions[: len(quotes)] == quotes
    assert CONDITIONS_QUOTED_MAX - len(conditions[-1]) < sum(map(len, quotes)) <= CONDITIONS_QUOTED_MAX


def test_a_decision_names_its_policy() -> None:
    """A decision has the version and digest of the deciding rule set and of all rule sets consulted."""
    text = document(version=7)
    core = Core(text)
    decision = core.approve().decision
    digest = compile_cached(text).digest
    assert ("refunds", 7, digest) == (decision.policy_id, decision.policy_version, decision.rule_set_digest)
    (reference,) = decision.active_rule_sets
    assert ("refunds", 7, digest) == (reference.policy_id, reference.version, reference.digest)
    assert ["refunds"] == list(decision.active_policy_ids)


def test_a_rejection_by_a_rule_may_be_retried() -> None:
    """A rule's rejection carries its reason code and is retryable: other parameters or newer facts may be approved."""
    much = {"id": "much", "when": "params.amount > 10.0", "effect": "reject", "reason_code": "TOO_MUCH"}
    core = Core(document(rules=[much, *RULES]))
    decision = core.decide([core.fact("order.status", "delivered")])
    assert (REJECTED, "TOO_MUCH", "much") == (decision.outcome, decision.reason_code, decision.rule_id)
    assert (True, []) == (decision.retry_hint.retryable, list(decision.retry_hint.fact_requirements))
    assert not decision.HasField("valid_until")


def test_no_matching_rule_is_a_refusal() -> None:
    """If no rule matches, the proposal is rejected with NO_RULE_MATCHED."""
    decision = decide_by("params.amount > 1000.0")
    assert (REJECTED, reason_codes.NO_RULE_MATCHED, "gavel", "") == (
        decision.outcome,
        decision.reason_code,
        decision.policy_id,
        decision.rule_id,
    )
    assert [] == list(decision.rule_matches)


@pytest.mark.parametrize(
    "when", ["1 / int(params.amount - 50.0) == 1", "[1][int(params.amount)] == 1", "params.amount > 0.0 && 1 % 0 == 0"]
)
def test_evaluation_error_is_refused(when: str) -> None:
    """A condition that fails makes the decision EVALUATION_ERROR with the rule's id, whatever other rules match."""
    core = Core(document(NO_FACTS, [{"id": "bad", "when": when, "effect": "approve"}, {"id": "good", "when": "true", "effect": "approve"}]))
    decision = core.decide([core.fact("k.note", "x")])
    assert (REJECTED, reason_codes.EVALUATION_ERROR, "gavel", "bad") == (
        decision.outcome,
        decision.reason_code,
        decision.policy_id,
        decision.rule_id,
    )
    assert [(reason_codes.EVALUATION_ERROR, "refunds/bad")] == [(warning.code, warning.message) for warning in decision.warnings]
    assert not decision.retry_hint.retryable
    core.prove()


@pytest.mark.parametrize("mode", [fact_pb2.CROSS_CHECK_MODE_ALWAYS, fact_pb2.CROSS_CHECK_MODE_SAMPLE, fact_pb2.CROSS_CHECK_MODE_OFF])
def test_an_erring_condition_is_an_error_in_every_mode(mode: fact_pb2.CrossCheckMode.ValueType) -> None:
    """A failing condition gives the same decision in every cross-check mode."""
    core = Core(document(NO_FACTS, [{"id": "bad", "when": "1 / int(params.amount) == 1", "effect": "approve"}]), mode=mode)
    note = core.fact("k.note", "x")
    codes = [core.decide([note], amount=amount, trace_id=f"t{amount}").reason_code for amount in (0.5, 1, 2, 0.25, 1)]
    errs, none, conflict = reason_codes.EVALUATION_ERROR, reason_codes.NO_RULE_MATCHED, reason_codes.CONFLICTING_DECISION
    assert [errs, "", conflict, conflict, conflict] == codes
    assert none not in codes
    core.prove()


def test_true_absorbs_an_error() -> None:
    """A rule fails only if its whole condition fails: `true || error` is true."""
    assert APPROVED == decide_by("params.amount == 50.0 || 1 / 0 == 1").outcome


@pytest.mark.parametrize(
    "when",
    [
        "params.amount == 50.0",
        "proposal.risk == 0.25 && proposal.cost == 3.0 && proposal.confidence == 0.9 && proposal.priority == -2",
        "proposal.expected_outcome == 'money back'",
        "subject == 'order/1' && subject.type == 'order' && subject.id == '1'",
        "producer.type == 'AGENT' && producer.id == 'agent-1' && producer.version == '1.0'",
        "trace.consecutive_rejections == 0",
        f"now == timestamp('2023-11-14T22:13:20Z') && now.getHours() == {START_MS // 3_600_000 % 24}",
    ],
)
def test_attributes_of_conditions(when: str) -> None:
    """Conditions can read the proposal, its subject and producer, the trace's count and the time of the decision."""
    core = Core(document(NO_FACTS, [{"id": "only", "when": when, "effect": "approve"}]))
    decision = core.decide([core.fact("k.note", "x")], risk=0.25, cost=3, priority=-2, expected_outcome="money back")
    assert APPROVED == decision.outcome, decision
    core.prove()


def test_rules_see_rejections_before_this_one() -> None:
    """`trace.consecutive_rejections` is the count before the proposal."""
    core = Core(document(NO_FACTS, [{"id": "third-try", "when": "trace.consecutive_rejections == 2", "effect": "approve"}]))
    note = core.fact("k.note", "x")
    assert [REJECTED, REJECTED, APPROVED] == [core.decide([note], amount=amount).outcome for amount in (1, 2, 3)]


def test_an_approval_is_bound_to_its_action_and_evidence() -> None:
    """An approval repeats action and params, pins every piece of evidence, names absent optional facts, and is limited in time."""
    core = Core(document())
    status = core.fact("order.status", "delivered", occurred_at_ms=START_MS - 10_000)
    decision = core.decide([status], params={"amount": 12.5, "note": "n"})
    assert (ACTION, python_to_value({"amount": 12.5, "note": "n"}).struct_value) == (decision.action_type, decision.params)
    (pin,) = decision.pinned_facts
    assert (SUBJECT, status.event_id, status.sequence_number) == (pin.subject, pin.event_id, pin.sequence_number)
    assert (common_pb2.TRUST_TIER_1_SYSTEM_FACT, "") == (pin.trust_tier, pin.evidence_hash)
    assert START_MS + 50_000 == pin.fresh_until.ToMilliseconds()
    assert [("order.score", SUBJECT)] == [(absent.key, absent.subject) for absent in decision.absent_facts]
    assert START_MS + 10_000 == decision.valid_until.ToMilliseconds()
    assert (2, 5_000) == (decision.retry_policy.max_attempts, decision.retry_policy.human_takeover_after_ms)
    assert (SUBJECT, "", False) == (decision.conflict_key, decision.reason_code, decision.terminal)


def test_the_conflict_key_stands_on_decisions_that_reached_it() -> None:
    """A decision that reaches stage 15 has its conflict key; an earlier refusal does not."""
    core = Core(document(conflict_key="subject.type + '/' + producer.id"))
    assert "" == core.decide([core.fact("k.note", "x")]).conflict_key
    assert "order/agent-1" == core.approve().decision.conflict_key
    assert "order/agent-1" == core.decide([core.fact("order.status", "delivered")]).conflict_key


@pytest.mark.parametrize("key", ["''", "params.note", "'x'.substring(5) == '' ? 'a' : 'b'"])
def test_a_conflict_key_without_a_value_is_invalid_params(key: str) -> None:
    """If the conflict key is empty, too long or fails for these params, they are refused with the reason."""
    core = Core(document(conflict_key=key if key != "params.note" else "has(params.note) ? params.note : ''"))
    decision = core.decide([core.fact("order.status", "delivered")], params={"amount": 1, "note": "n" * 513})
    assert (REJECTED, reason_codes.INVALID_PARAMS) == (decision.outcome, decision.reason_code)
    assert ["CONFLICT_KEY"] == [warning.code for warning in decision.warnings]
    core.prove()


@pytest.mark.parametrize("arbiter_version", [2, 3])
def test_patterns_of_texts_that_are_too_long(arbiter_version: int) -> None:
    """A text that is too long for its maxLength violates the pattern beside it only on a bus of version 2."""
    note = {"type": "string", "maxLength": 3, "pattern": "^[a-z]*$"}
    core = Core(document(params={"type": "object", "properties": {"note": note}}), arbiter_version=arbiter_version)
    decision = core.decide([core.fact("order.status", "delivered")], params={"note": "TOO LONG"})
    expected = ["/note: maxLength", "/note: pattern"][: 2 if arbiter_version == 2 else 1]
    assert expected == [warning.message for warning in decision.warnings]
    core.prove()


def test_schema_violation_has_pointer_and_keyword() -> None:
    """Violations are named by pointer and keyword, sorted, never in the words of a library."""
    core = Core(document())
    decision = core.decide([core.fact("order.status", "delivered")], params={"amount": -1, "note": 7, "other": 1})
    assert (REJECTED, reason_codes.INVALID_PARAMS, True) == (decision.outcome, decision.reason_code, decision.retry_hint.retryable)
    expected = ["/amount: exclusiveMinimum", "/note: type", "/other: additionalProperties"]
    assert [("SCHEMA_VIOLATION", message) for message in expected] == [(warning.code, warning.message) for warning in decision.warnings]
    core.prove()


def test_violations_of_a_decision_are_bounded() -> None:
    """A decision lists a limited number of violations."""
    core = Core(document())
    status = core.fact("order.status", "delivered")
    decision = core.decide([status], params={"amount": 1, **{f"{number:03}{'x' * 300}": 1 for number in range(140)}})
    messages = [warning.message for warning in decision.warnings]
    assert (101, "and 40 more") == (len(messages), messages[-1])
    assert f"/000{'x' * 251}…: additionalProperties" == messages[0]
    assert len(core.decide([status], params={"amount": 1, "note": [1.0] * 50_000}).warnings) == 1
    core.prove()


# Citations


@pytest.mark.parametrize("wrong", ["number", "id", "category", "ahead"])
def test_citations_must_match_id_and_number(wrong: str) -> None:
    """A citation has an event's right id and number, and the event is an earlier fact or observation; a wrong citation is named."""
    core = Core(document())
    status = core.fact("order.status", "delivered")
    (reference,) = core.proposal([status]).envelope.proposal.based_on_events
    if wrong == "number":
        reference.sequence_number -= 1
    elif wrong == "id":
        reference.event_id = event_id(12345)
    elif wrong == "category":
        result = core.tool_result()
        reference.event_id, reference.sequence_number = result.event_id, result.sequence_number
    else:
        reference.sequence_number = core.state.head + 2
    decision = core.decide([status], references=[reference])
    assert reason_codes.UNKNOWN_EVENT == decision.reason_code
    message = f"{reference.event_id} is no fact or observation at {reference.sequence_number}"
    assert [("UNKNOWN_EVENT", message)] == [(warning.code, warning.message) for warning in decision.warnings]
    core.prove()


def test_citing_a_declared_key_of_the_subject_is_input() -> None:
    """A citation must be about the subject or a declared key; citing an event twice is harmless."""
    core = Core(document())
    other_fact = core.fact("order.status", "delivered", subject="order/2")
    status = core.fact("order.status", "delivered")
    assert reason_codes.NO_FACT_INPUT == core.decide([other_fact]).reason_code
    assert reason_codes.NO_FACT_INPUT == core.decide([]).reason_code
    assert APPROVED == core.decide([other_fact, status, status]).outcome


def test_fact_about_gavel_is_not_an_input() -> None:
    """Facts about Gavel itself can be cited, but do not count as input for an order."""
    core = Core(document())
    core.fact("order.status", "delivered")
    assert reason_codes.NO_FACT_INPUT == core.decide([core.events_named("RuleSetActivated")[0]]).reason_code
    core.prove()


# The projection that the agent read (constitution §10.1)


@pytest.mark.parametrize("cites_change", [False, True])
@pytest.mark.parametrize("key", ["order.status", "order.score", "order.note"])
def test_an_uncited_change_of_declared_evidence_refuses(key: str, cites_change: bool) -> None:
    """With a `projection_version`, an uncited later change of a declared key refuses the proposal."""
    core = Core(document())
    status = core.fact("order.status", "delivered")
    version = core.state.head
    change = core.fact(key, "delivered" if key == "order.status" else 0.1)
    decision = core.decide([status, change] if cites_change else [status], projection_version=version)
    is_refused = key != "order.note" and not cites_change
    assert (reason_codes.PROJECTION_CHANGED if is_refused else "") == decision.reason_code
    core.prove()


def test_change_of_unselected_evidence_is_accepted() -> None:
    """A change of evidence that no rule set selects does not refuse a proposal with a `projection_version`."""
    core = Core(document())
    status = core.fact("order.status", "delivered")
    version = core.state.head
    core.fact("order.status", "cancelled", source="hearsay")
    assert APPROVED == core.decide([status], projection_version=version).outcome


@pytest.mark.parametrize("arbiter_version", [2, 3])
def test_a_value_of_a_lower_tier_is_no_change(arbiter_version: int) -> None:
    """What an agent infers of a key that needs a system fact, under the name of an accepted source, refuses no proposal on a projection."""
    core = Core(document(), arbiter_version=arbiter_version)
    status = core.fact("order.status", "delivered")
    version = core.state.head
    core.observe("order.status", "cancelled", tool=SOURCE)
    decision = core.decide([status], projection_version=version, trace_id="one")
    assert (reason_codes.PROJECTION_CHANGED if arbiter_version == 2 else "") == decision.reason_code
    core.fact("order.status", 7)  # of another type, and in the place of the cited value
    assert reason_codes.PROJECTION_CHANGED == core.decide([status], projection_version=version, trace_id="two").reason_code
    core.prove()


def test_unseen_approval_on_the_key_refuses() -> None:
    """An approval on the key after `projection_version` refuses with PROJECTION_CHANGED, not CONFLICTING_DECISION."""
    core = Core(document())
    status = core.fact("order.status", "delivered")
    version = core.state.head
    core.propose([status], trace_id="rival")
    assert reason_codes.PROJECTION_CHANGED == core.decide([status], projection_version=version).reason_code
    assert reason_codes.CONFLICTING_DECISION == core.decide([status], projection_version=core.state.head).reason_code
    core.prove()


@pytest.mark.parametrize("arbiter_version", [2, 3])
def test_an_execution_that_has_ended_since_refuses(arbiter_version: int) -> None:
    """A proposal on a projection from before an execution on its subject is refused, although the key is free again: it is not repeated."""
    core = Core(document(), arbiter_version=arbiter_version)
    status = core.fact("order.status", "delivered")
    version = core.state.head
    approval = core.propose([status], projection_version=version, trace_id="one")
    (derived,) = core.derive(core.report(core.start(approval), SUCCESS))
    assert not core.state.conflict_keys
    decision = core.decide([status], projection_version=version, trace_id="two")
    assert (reason_codes.PROJECTION_CHANGED if arbiter_version > 2 else "") == decision.reason_code
    if arbiter_version > 2:
        assert APPROVED == core.decide([status, derived], projection_version=version, trace_id="three").outcome
    core.prove()


def test_what_others_say_of_executions_refuses_nothing() -> None:
    """Only derived facts say that an execution has ended; what somebody else states with such a key hinders no proposal."""
    core = Core(document())
    status = core.fact("order.status", "delivered")
    version = core.state.head
    core.fact(f"execution.{ACTION}.status", "SUCCESS")
    core.observe(f"execution.{ACTION}.status", "SUCCESS", tool="fact-derivation-reactor")
    assert APPROVED == core.decide([status], projection_version=version).outcome
    core.prove()


def test_projection_version_ahead_of_the_log_is_invalid() -> None:
    """A `projection_version` ahead of the log is INVALID_REQUEST, and nothing is recorded."""
    core = Core(document())
    status = core.fact("order.status", "delivered")
    fault = core.fault(core.proposal([status], projection_version=core.state.head + 1))
    assert ["envelope.proposal.projection_version"] == [field for field, _ in fault.violations]


def test_projection_version_zero_means_the_empty_log() -> None:
    """A `projection_version` of 0 means the empty log; it does not count as unset."""
    core = Core(document())
    core.observe("order.score", 0.1, evidence=core.tool_result())
    status = core.fact("order.status", "delivered")
    assert reason_codes.PROJECTION_CHANGED == core.decide([status], projection_version=0).reason_code


def test_projection_version_is_optional() -> None:
    """Without `projection_version` only citations are compared with the present state."""
    core = Core(document())
    status = core.fact("order.status", "delivered")
    core.observe("order.score", 0.1, evidence=core.tool_result())
    assert APPROVED == core.decide([status], producer=AGENT).outcome
