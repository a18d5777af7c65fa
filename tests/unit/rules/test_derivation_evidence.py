"""Derivations that read facts and counters and name a subject: values, tier, age, and the proof by replay, on the real core."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel.v1 import common_pb2, decision_pb2, error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import ActivateRuleSet, DeployRuleSet, PublishEvent
from gavel_rules.decider import handle
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.language.rule_set import DocumentError, compile_rule_set
from gavel_rules.values import python_to_value, value_to_python
from gavel_server.bus.idempotency.same_request import is_same_request

from tests.support.driver import ABORTED, ACTION, FAILED, PARTIAL, SOURCE, SUBJECT, SUCCESS, Core, compile_cached, copy_command, document
from tests.support.state.snapshots import restore

DAY_MS = 86_400_000
FACTS: dict[str, Any] = {
    "status": {"key": "order.status", "type": "string", "max_age_ms": 60_000, "sources": [SOURCE]},
    "customer": {"key": "order.customer", "type": "string", "max_age_ms": DAY_MS, "min_trust": 3},
    "score": {"key": "order.score", "type": "integer", "max_age_ms": DAY_MS, "min_trust": 3, "optional": True},
}
RULES: list[dict[str, Any]] = [{"id": "delivered", "when": 'facts.status == "delivered"', "effect": "approve"}]
COUNTERS: dict[str, Any] = {
    "refunded": {
        "of": "approvals",
        "action": ACTION,
        "sum": "params.amount",
        "window_ms": DAY_MS,
        "keep": "reserved",
        "settle": "double(execution.result.refunded)",
    },
    "failures": {
        "of": "executions",
        "action": ACTION,
        "where": 'execution.status == "FAILED"',
        "by": "subject.type",
        "window_ms": DAY_MS,
    },
    "observed": {"of": "observations", "fact": "order.score", "window_ms": DAY_MS},
    "derived": {"of": "facts", "fact": "customer.standing", "window_ms": DAY_MS},
}


def derivation(value: str, subject: str | None = None, status: str = "SUCCESS", **changes: Any) -> dict[str, Any]:
    """Return a derivation of customer.standing."""
    named = {} if subject is None else {"subject": subject}
    part = {"id": "standing", "version": 1, "on": {"action": ACTION, "status": status}, "key": "customer.standing", "value": value}
    return {**part, **named, **changes}


def rule_set(*derivations: dict[str, Any], version: int = 1, facts: dict[str, Any] = FACTS, **action: Any) -> str:
    """Return a rule set of the second version with the counters and these derivations."""
    data = json.loads(document(facts, RULES, version=version, gavel="v2", **action))
    return json.dumps({**data, "counters": COUNTERS, "derivations": derivations})


class Orders:
    """A bus with a rule set in force."""

    def __init__(self, *derivations: dict[str, Any], **changes: Any) -> None:
        self.core = Core(rule_set(*derivations, **changes))

    def approve(self, subject: str = SUBJECT, customer: object = "ann", amount: float = 50, **changes: Any) -> Envelope:
        """Publish what the rule set needs, and propose; return the approval."""
        core = self.core
        cited = [core.fact("order.status", "delivered", subject=subject), core.fact("order.customer", customer, subject=subject, **changes)]
        params = python_to_value({"amount": amount}).struct_value
        decision = core.propose(cited, subject=subject, params=params)
        assert decision_pb2.OUTCOME_APPROVED == decision.decision.outcome, decision.decision
        return decision

    def report(self, decision: Envelope, status: int = SUCCESS, refunded: float = 50) -> Envelope:
        """Carry an approval out and return the report."""
        result = python_to_value({"refunded": refunded}).struct_value
        return self.core.report(self.core.start(decision), status, result=result)  # type: ignore[arg-type]

    def derive(self, report: Envelope) -> Envelope | None:
        """Publish what follows from a report, and return the derived fact, if there is one. The log must replay."""
        facts = self.core.derive(report)
        self.core.prove()
        return next((fact for fact in facts if fact.fact.derivation_rule_id == "standing"), None)

    def failures(self) -> list[dict[str, object]]:
        """Return the attributes of the notices of derivations without a fact."""
        notices = [event.agent_diagnostic for event in self.core.events if event.agent_diagnostic.kind == "DerivationFailed"]
        return [{name: value_to_python(value) for name, value in notice.attributes.fields.items()} for notice in notices]


def value_of(envelope: Envelope | None) -> object:
    """Return the value of a fact."""
    assert envelope is not None
    return value_to_python(envelope.fact.value)


def test_a_derivation_reads_facts_and_counters_and_names_a_subject() -> None:
    """A derived fact may be about another subject, and its value may come from a pinned fact and from a counter."""
    bus = Orders(derivation('facts.customer + ": " + string(history.refunded())', '"customer/" + facts.customer'))
    decision = bus.approve()
    report = bus.report(decision, refunded=20)
    fact = bus.derive(report)
    assert fact is not None
    assert ("customer/ann", "ann: 20") == (fact.subject, value_of(fact))
    assert ["customer"] == [one.name for one in decision.decision.fact_values]
    assert [("refunds", "refunded", "", 20.0)] == [(one.policy_id, one.counter, one.key, one.value) for one in report.execution.counters]
    (candidate,) = bus.core.state.evidence_of("customer/ann")["customer.standing"]
    assert ("ann: 20", 1) == (candidate.value, candidate.trust_tier)


def test_counters_include_the_report() -> None:
    """The numbers are those after the report: settled, and with the report itself counted."""
    bus = Orders(derivation("history.failures(subject.type)", status="FAILED"), retry={"max_attempts": 3})
    decision = bus.approve()
    assert [1, 2, 3] == [value_of(bus.derive(bus.report(decision, FAILED))) for _ in range(3)]


def test_the_value_of_a_fact_is_the_one_that_the_decision_rests_on() -> None:
    """A derivation reads the fact as the decision pinned it, even if it has changed by the time of the report."""
    bus = Orders(derivation("facts.customer"))
    attempt = bus.core.start(bus.approve())
    bus.core.fact("order.customer", "bob")
    assert "ann" == value_of(bus.derive(bus.core.report(attempt, SUCCESS)))


@pytest.mark.parametrize(("score", "expected"), [(None, "none"), (7, "7")])
def test_optional_facts(score: int | None, expected: str) -> None:
    """An optional fact is read under has(), and keeps its declared type."""
    bus = Orders(derivation('has(facts.score) ? string(facts.score) : "none"'))
    if score is not None:
        bus.core.fact("order.score", score)
    assert expected == value_of(bus.derive(bus.report(bus.approve())))


def test_facts_of_many_subjects_and_with_structure() -> None:
    """A derivation reads a fact of many subjects as the list of their values, and the fields of a fact with structure."""
    schema = {"type": "object", "required": ["name", "size"], "properties": {"name": {"type": "string"}, "size": {"type": "integer"}}}
    facts = {
        **FACTS,
        "balances": {"key": "account.balance", "subjects": '["account/a", "account/b"]', "max": 2, "type": "number", "max_age_ms": DAY_MS},
        "team": {"key": "order.team", "value": schema, "max_age_ms": DAY_MS},
    }
    bus = Orders(derivation('facts.team.name + string(facts.team.size + 1) + ":" + string(facts.balances.sum())'), facts=facts)
    for name, balance in (("a", 1.5), ("b", 2)):
        bus.core.fact("account.balance", balance, subject=f"account/{name}")
    bus.core.fact("order.team", {"name": "red", "size": 3})
    assert "red4:3.5" == value_of(bus.derive(bus.report(bus.approve())))


def test_a_derived_fact_is_no_better_than_what_it_rests_on() -> None:
    """It has the tier of the least trusted evidence, the age of the oldest, and the limit that expires first."""
    bus = Orders(
        derivation("facts.customer + string(facts.score)", version=2), facts={**FACTS, "score": {**FACTS["score"], "optional": False}}
    )
    core = bus.core
    observed_at_ms = core.now_ms
    core.observe("order.score", 3, trace_id="trace-0")
    core.pass_time(5_000)
    decision = bus.approve(max_age_ms=30_000)
    pinned_at_ms = core.now_ms
    core.pass_time(2_000)
    fact = bus.derive(bus.report(decision))
    assert fact is not None
    assert common_pb2.TRUST_TIER_3_AGENT_INFERENCE == fact.fact.trust_tier
    assert (observed_at_ms, pinned_at_ms + 30_000) == (milliseconds(fact.fact.aged_from), observed_at_ms + fact.fact.max_age_ms)
    assert core.now_ms == milliseconds(fact.occurred_at)
    (candidate,) = core.state.evidence_of(SUBJECT)["customer.standing"]
    assert (3, observed_at_ms, core.now_ms) == (candidate.trust_tier, candidate.aged_from_ms, candidate.claimed_at_ms)
    assert common_pb2.TRUST_TIER_3_AGENT_INFERENCE == core.state.evidence_of(SUBJECT)["customer.standing"][0].trust_tier


def test_facts_that_only_one_of_two_derivations_reads() -> None:
    """The tier and the age are those of the evidence that the derivation reads itself."""
    other = derivation("true", id="other", key="order.refunded")
    bus = Orders(derivation("facts.customer"), other)
    decision = bus.approve()
    bus.core.pass_time(1)
    facts = bus.core.derive(bus.report(decision))
    assert {"standing": True, "other": False} == {
        fact.fact.derivation_rule_id: fact.fact.HasField("aged_from")
        for fact in facts
        if fact.fact.derivation_rule_id in ("standing", "other")
    }


def test_numbers_of_observations_are_inference() -> None:
    """A counter of observations counts any tier, so a fact derived from it has the worst. A counter of facts leaves such facts out."""
    bus = Orders(derivation("history.observed() > 0"))
    bus.core.observe("order.score", 3, trace_id="trace-0")
    fact = bus.derive(bus.report(bus.approve()))
    assert fact is not None
    assert common_pb2.TRUST_TIER_3_AGENT_INFERENCE == fact.fact.trust_tier
    table = next(table for table in bus.core.state.counters.values() if table.counter.name == "derived")
    assert 0 == len(table.entries)


def test_derived_facts_count() -> None:
    """A counter of facts counts derived facts that rest on system facts alone."""
    bus = Orders(derivation("history.refunded() > 0.0"))
    bus.derive(bus.report(bus.approve()))
    table = next(table for table in bus.core.state.counters.values() if table.counter.name == "derived")
    assert 1 == len(table.entries)


@pytest.mark.parametrize(
    ("subject", "customer", "expected"),
    [
        ('"customer/" + facts.customer', "ann", "customer/ann"),
        ('"customer/" + facts.customer', "Zoë Ü", "customer/Zoë Ü"),
        ('"customer/" + facts.customer', "a/b", "customer/a/b"),
        ('"customer/" + facts.customer', "a" * 247, "customer/" + "a" * 247),
        ('"customer/" + facts.customer', "", None),
        ("facts.customer", "no subject", None),
        ('"customer/" + facts.customer', "a" * 248, None),
        ('"customer/" + facts.customer', "ü" * 124, None),
        ('"customer/" + facts.customer', "Zoe\u0308", None),
        ('"customer/" + facts.customer', "☃", None),
        ('"customer/" + facts.customer', "a\tb", None),
        ('"customer/" + facts.customer', "a//b", None),
        ('"customer/" + execution.result.nothing', "ann", None),
    ],
)
def test_subjects(subject: str, customer: str, expected: str | None) -> None:
    """A fact gets the subject of the template; a text that no event can have as its subject gives no fact, and a notice says so."""
    bus = Orders(derivation("true", subject))
    fact = bus.derive(bus.report(bus.approve(customer=customer)))
    assert expected == (fact.subject if fact is not None else None)
    problem = {"derivation_rule_id": "standing", "derivation_rule_version": 1, "key": "customer.standing", "problem": "subject"}
    assert ([] if expected else [problem]) == bus.failures()


def test_a_counter_without_a_number_gives_no_fact() -> None:
    """If a counter gives no number after a report, the derivation that reads it gives no fact; the others do."""
    bus = Orders(derivation("history.refunded() > 0.0"), derivation("1", id="other", key="order.refunded"))
    attempt = bus.core.start(bus.approve())
    report = bus.core.report(attempt, SUCCESS)  # without the amount that settles the reservation
    assert bus.derive(report) is None
    assert [] == list(report.execution.counters)
    assert ["standing"] == [failure["derivation_rule_id"] for failure in bus.failures()]


def test_an_aborted_start_reads_counters() -> None:
    """A decision that is aborted before any attempt derives facts from counters too."""
    bus = Orders(derivation("history.refunded()", status="ABORTED"))
    decision = bus.approve()
    bus.core.fact("order.status", "cancelled")
    bus.core.refuse_start(decision)
    (report,) = [event for event in bus.core.events if event.execution.status == ABORTED]
    assert 50 == value_of(bus.derive(report))


def test_a_compensation_rests_on_no_facts() -> None:
    """The report of a compensation derives no fact from facts, because its decision has none; a notice says so."""
    reverse = "refund.reverse"
    on = {"action": reverse, "status": "SUCCESS"}
    bus = Orders(
        derivation("facts.customer", on=on),
        derivation("subject", id="plain", key="order.reversed", on=on),
        compensation={"action": reverse, "params": {"amount": "params.amount"}},
        more_actions={reverse: {"params": {"type": "object", "properties": {"amount": {"type": "number"}}}, "facts": FACTS}},
    )
    bus.core.derive(bus.report(bus.approve(), PARTIAL))
    compensation = next(event for event in bus.core.events if event.decision.compensates_decision_id)
    facts = bus.core.derive(bus.report(compensation))
    assert ["plain"] == [fact.fact.derivation_rule_id for fact in facts if fact.fact.derivation_rule_id != "gavel.execution-status"]
    assert ["standing"] == [failure["derivation_rule_id"] for failure in bus.failures()]
    bus.core.prove()


@pytest.mark.parametrize(
    "forge",
    [
        lambda fact: setattr(fact, "subject", "customer/bob"),
        lambda fact: setattr(fact.fact, "trust_tier", common_pb2.TRUST_TIER_2_TOOL_OBSERVATION),
        lambda fact: fact.fact.ClearField("aged_from"),
        lambda fact: setattr(fact.fact, "max_age_ms", 0),
        lambda fact: fact.fact.value.CopyFrom(python_to_value("bob")),
    ],
)
def test_another_fact_than_the_derived_one_is_refused(forge: Any) -> None:
    """A fact with another subject, tier, age or value than the derived one is refused."""
    bus = Orders(derivation("facts.customer", '"customer/" + facts.customer'))
    bus.core.pass_time(1)
    decision = bus.approve(max_age_ms=1_000)
    bus.core.pass_time(1)
    (fact,) = [one for one in bus.core.derived_facts(bus.report(decision)) if one.fact.derivation_rule_id == "standing"]
    forge(fact)
    fault = bus.core.fault(PublishEvent(bus.core.admit(fact)))
    assert error_pb2.ERROR_REASON_DERIVATION_MISMATCH == fault.reason


def test_a_snapshot_between_report_and_fact() -> None:
    """A bus restored from a snapshot accepts the derived fact: what it reads is in the log's events."""
    bus = Orders(derivation("string(history.refunded()) + facts.customer", '"customer/" + facts.customer'))
    report = bus.report(bus.approve())
    bus.core.state = restore(bus.core.state)
    fact = next(fact for fact in bus.core.derive(report) if fact.fact.derivation_rule_id == "standing")
    assert ("customer/ann", "50ann") == (fact.subject, value_of(fact))


def test_an_undone_report_leaves_nothing() -> None:
    """A report that is undone and decided again has the numbers of the second time."""
    bus = Orders(derivation("history.refunded()"))
    core = bus.core
    started = core.start(bus.approve())
    command = core.report_command(started, SUCCESS, result=python_to_value({"refunded": 5}).struct_value)
    digest = core.state.digest()
    position = core.state.mark()
    handled = handle(core.state, command, core.references(command), core.now_ms, decision_pb2.ENGINE_RETE)
    assert [5] == [one.value for one in handled.envelopes[0].execution.counters]
    core.state.undo(position)
    assert digest == core.state.digest()
    assert [] == list(command.envelope.execution.counters)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"value": "facts.scor"}, "unknown-name: facts has no field scor (did you mean facts.score?)"),
        ({"value": "facts.score"}, "unguarded-optional: facts.score may be absent (write has(facts.score) ? facts.score : 0)"),
        ({"value": "history.failures()"}, "type-error: history.failures takes one argument, the key of a group"),
        ({"value": "producer.id"}, "unknown-name: there is no name producer (known: decision, execution, facts, history, params, subject)"),
        ({"subject": "params.amount"}, "not-string: the expression gives double, not string (convert it with string(x))"),
        ({"subject": "params.customer"}, "unknown-name: params has no field customer"),
        ({"subject": '"settings"'}, "not-a-subject: 'settings' is not a valid subject, so no fact can have it"),
        ({"subject": '"customer/" + ""'}, "not-a-subject: 'customer/' is not a valid subject, so no fact can have it"),
        ({"subject": f'"customer/" + "{"a" * 248}"'}, "not-a-subject: 'customer/aaaa"),
    ],
)
def test_mistakes(changes: dict[str, str], expected: str) -> None:
    """Unknown names, unguarded facts, and literals that are no subject are mistakes of the document."""
    with pytest.raises(DocumentError) as caught:
        compile_rule_set(rule_set(derivation(**{"value": "true", **changes})))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("subject", "unknown-key: no such key here: subject needs the language's second version"),
        (None, "unknown-name: there is no name facts (known: decision, execution, params, subject)"),
    ],
)
def test_the_first_version_has_no_evidence_in_derivations(subject: str | None, expected: str) -> None:
    """A document of the first version has neither a subject, nor facts, nor counters in its derivations."""
    data = json.loads(document(FACTS, RULES))
    with pytest.raises(DocumentError) as caught:
        compile_rule_set(json.dumps({**data, "derivations": [derivation("facts.status", subject)]}))
    assert expected in str(caught.value)


def test_one_key_about_several_subjects() -> None:
    """Two derivations may give one key about different subjects, but not about the same one."""
    first, second = derivation("1", '"customer/1"'), derivation("2", '"customer/2"', id="second")
    assert ["second", "standing"] == [rule.id for rule in compile_rule_set(rule_set(first, second)).derivations]
    with pytest.raises(DocumentError, match="duplicate-derivation"):
        compile_rule_set(rule_set(first, {**second, "subject": '"customer/1"'}))


def test_what_derivations_read_is_read() -> None:
    """Lint does not warn of facts and counters that only a derivation reads."""
    text = rule_set(derivation('facts.customer + string(history.failures(subject.type)) + (has(facts.score) ? "x" : "")'))
    warnings = [one for one in compile_rule_set(text).warnings if one.code.endswith("never-read")]
    assert {"derived", "observed", "refunded"} == {one.message.split()[-1] for one in warnings}


def test_values_beyond_the_limit_are_left_out() -> None:
    """A fact whose value exceeds the limit is not recorded for derivations; the derivation that reads it gives no fact."""
    schema = {"type": "array", "items": {"type": "string"}}
    facts = {**FACTS, "texts": {"key": "order.texts", "value": schema, "max_age_ms": DAY_MS}}
    bus = Orders(derivation("facts.texts.size()"), derivation("facts.customer", id="other", key="order.by"), facts=facts)
    bus.core.fact("order.texts", ["x" * 60_000] * 5)
    decision = bus.approve()
    assert ["customer"] == [one.name for one in decision.decision.fact_values]
    assert bus.derive(bus.report(decision)) is None
    assert ["standing"] == [failure["derivation_rule_id"] for failure in bus.failures()]


def test_a_repeated_report_is_the_same() -> None:
    """A report that is sent again is the same request: the numbers of counters are the server's."""
    bus = Orders(derivation("history.refunded()"))
    core = bus.core
    command = core.report_command(core.start(bus.approve()), SUCCESS, result=python_to_value({"refunded": 5}).struct_value)
    core.run(copy_command(command))
    recorded = core.by_id[command.envelope.event_id]
    assert [5] == [one.value for one in recorded.execution.counters]
    assert is_same_request(recorded, command.envelope)


def test_buses_of_an_older_version_refuse_such_rule_sets() -> None:
    """On a bus of arbiter version 2 a rule set whose derivations read facts or counters, or name a subject, cannot be activated."""
    core = Core(arbiter_version=2)
    text = rule_set(derivation("true", '"customer/1"'))
    compiled = compile_cached(text)
    core.run(DeployRuleSet(core.new_id(), compiled, text))
    core.fill_counters(core.open_counters(compiled))
    fault = core.fault(ActivateRuleSet(core.new_id(), compiled.policy_id, 1, None))
    assert "rule set refunds: derivation standing reads facts or counters, or names a subject" in fault.message
