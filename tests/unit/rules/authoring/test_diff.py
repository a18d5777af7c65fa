"""Differences between two versions of a rule set: edits, and cases that the versions decide differently."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from gavel_rules.authoring.diff import _RULE_KEYS, CaseDecision, diff_rule_sets
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set
from gavel_rules.authoring.suites.histories.compare import HistoryDiff, compare_histories
from gavel_rules.language.document.diagnostics import Messages
from gavel_rules.language.document.models import RulePart
from gavel_rules.language.document.source import Source
from gavel_rules.language.rule_set import CompiledRuleSet, compile_rule_set

from tests.unit.rules.conftest import rule_set_data

_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"|\b\d+(?:\.\d+)?\b')


def document(*rules: tuple[str, str, str], **changes: Any) -> dict[str, Any]:
    """Return a document with rules of these (id, condition, effect), highest first."""
    data = rule_set_data([condition for _, condition, _ in rules], **changes)
    for rule, (rule_id, _, effect) in zip(data["rules"], rules, strict=True):
        rule.update(id=rule_id, effect=effect)
        if effect != "approve":
            rule["reason_code"] = "BECAUSE"
    return data


def compared(before: dict[str, Any], after: dict[str, Any]) -> Any:
    """Return the differences between two documents."""
    return diff_rule_sets(compile_rule_set(json.dumps(before)), compile_rule_set(json.dumps(after)))


BIG = ("big", "params.amount > 500", "review")
REST = ("rest", "true", "approve")


def test_nothing_differs() -> None:
    """Version number, description and the layout of conditions make no difference."""
    before = document(BIG, REST)
    after = {**document(("big", "( params.amount>500 )  // much", "review"), REST), "version": 2, "description": "Newer."}
    assert not compared(before, after)


def test_a_threshold() -> None:
    """A changed threshold is an edit with both values, and has a case between the two."""
    diff = compared(document(BIG, REST), document(("big", "params.amount > 600", "review"), REST))
    assert (diff.added, diff.removed, diff.changed) == ((), (), ("big",))
    assert ("rules.big.threshold", 500, 600) in diff.edits
    (case,) = diff.cases
    assert 500 < case.params["amount"] <= 600
    assert (case.before, case.after) == (CaseDecision("NEEDS_HUMAN_REVIEW", "BECAUSE", "big"), CaseDecision("APPROVED", "", "rest"))


def test_a_threshold_of_the_context() -> None:
    """A case lists the attributes that conditions read besides params and facts."""
    diff = compared(
        document(("sure", "proposal.risk < 0.5 && now.getHours() < 12", "approve")),
        document(("sure", "proposal.risk < 0.4 && now.getHours() < 12", "approve")),
    )
    context = diff.cases[0].context
    assert 0.4 <= context["proposal.risk"] < 0.5
    assert context["now"].endswith("Z")


def test_added_and_removed_rules() -> None:
    """An added and a removed rule are listed, each with a case that it decides."""
    diff = compared(document(BIG, REST), document(("urgent", "params.urgent", "reject"), REST))
    assert (diff.added, diff.removed, diff.changed) == (("urgent",), ("big",), ())
    assert CaseDecision("REJECTED", "BECAUSE", "urgent") in {case.after for case in diff.cases}
    assert CaseDecision("NEEDS_HUMAN_REVIEW", "BECAUSE", "big") in {case.before for case in diff.cases}


def test_effects_and_priorities() -> None:
    """A changed effect and a changed order of overlapping rules change decisions without a change of conditions."""
    diff = compared(document(BIG, REST), document(("big", BIG[1], "reject"), REST))
    assert ("rules.big.effect", "review", "reject") in diff.edits
    assert [case.after.outcome for case in diff.cases] == ["REJECTED"]
    before = document(("urgent", "params.urgent", "reject"), BIG, REST)
    after = json.loads(json.dumps(before))
    after["rules"][0]["priority"], after["rules"][1]["priority"] = after["rules"][1]["priority"], after["rules"][0]["priority"]
    diff = compared(before, after)
    assert diff.changed == ("urgent", "big")
    assert {(case.before.rule_id, case.after.rule_id) for case in diff.cases} == {("urgent", "big")}
    assert diff.cases[0].params["urgent"] is True


def test_declarations() -> None:
    """Changed declarations are edits; those that rules can see have a case."""
    before, after = document(REST), document(REST)
    action = after["actions"]["thing.do"] = json.loads(json.dumps(after["actions"]["thing.do"]))
    action["params"]["properties"]["amount"]["maximum"] = 1000
    action["facts"]["status"]["max_age_ms"] = 1
    action["facts"]["score"]["optional"] = False
    diff = compared(before, after)
    assert diff.edits == (
        ("actions.thing.do.facts.score.optional", True, False),
        ("actions.thing.do.facts.status.max_age_ms", 60_000, 1),
        ("actions.thing.do.params.properties.amount.maximum", None, 1000),
    )
    reasons = {case.after.reason_code for case in diff.cases}
    assert "NEED_MORE_FACTS" in reasons


def test_every_key_of_a_rule_is_compared() -> None:
    """The keys that rules are compared by are all keys of a rule but its id."""
    assert {"id", *_RULE_KEYS} == {*RulePart.model_fields}


def test_values_of_different_types_differ() -> None:
    """A constant that changes from 1 to true is an edit."""
    before = {**document(REST), "gavel": "v2", "constants": {"flag": 1}}
    assert [("constants.flag", 1, True)] == [*map(tuple, compared(before, {**before, "constants": {"flag": True}}).edits)]


def test_reviews() -> None:
    """A changed review is an edit, of an action and of a rule; it decides no case otherwise."""
    before, after = document(REST, ("odd", "params.amount < 0", "review")), document(REST, ("odd", "params.amount < 0", "review"))
    before["actions"]["thing.do"] = {**before["actions"]["thing.do"], "review": {"quorum": 1, "groups": ["risk"]}}
    after["actions"]["thing.do"] = {**after["actions"]["thing.do"], "review": {"quorum": 2, "groups": ["risk"], "separation": True}}
    after["rules"][1]["review"] = {"quorum": 3}
    diff = compared(before, after)
    assert diff.changed == ("odd",)
    assert diff.edits == (
        ("actions.thing.do.review.quorum", 1, 2),
        ("actions.thing.do.review.separation", None, True),
        ("rules.odd.review", None, {"quorum": 3}),
    )
    assert diff.cases == ()


def test_a_fact_under_another_name() -> None:
    """A fact with the same key is the same evidence, whatever its name."""
    before, after = document(("open", 'facts.status == "open"', "approve")), document(("open", 'facts.state == "open"', "approve"))
    facts = after["actions"]["thing.do"]["facts"] = dict(after["actions"]["thing.do"]["facts"])
    facts["state"] = facts.pop("status")
    diff = compared(before, after)
    assert diff.changed == ("open",)
    assert diff.cases == ()


def test_added_and_removed_actions() -> None:
    """An action of only one version has NO_ACTIVE_POLICY in the other."""
    before = document(REST)
    after = json.loads(json.dumps(before).replace("thing.do", "thing.undo"))
    diff = compared(before, after)
    assert {("thing.do", case.after.reason_code) for case in diff.cases if case.action == "thing.do"} == {("thing.do", "NO_ACTIVE_POLICY")}
    assert {case.before.reason_code for case in diff.cases if case.action == "thing.undo"} == {"NO_ACTIVE_POLICY"}


def mutations(name: str) -> Iterator[Any]:
    """Yield a shipped document with each literal of a condition changed: both texts and the id of the rule."""
    text = shipped_rule_set(name)
    data: Any = Source(text, Messages()).data
    for index, rule in enumerate(data["rules"]):
        for literal in _LITERAL.finditer(rule["when"]):
            mutant = json.loads(json.dumps({**data, "version": data["version"] + 1}))
            mutant["rules"][index]["when"] = rule["when"][: literal.start()] + _mutate(literal.group()) + rule["when"][literal.end() :]
            yield pytest.param(text, json.dumps(mutant), rule["id"], id=f"{name}-{rule['id']}-{literal.group()}")


def _mutate(literal: str) -> str:
    if literal.startswith('"'):
        return f'{literal[:-2]}x"' if len(literal) > 2 else '"x"'
    return str(int(literal) + 1) if literal.isdigit() else repr(round(float(literal) * 1.01, 6))


@pytest.mark.parametrize(("before", "after", "rule_id"), list(mutations("refunds")))
def test_every_changed_literal_shows(before: str, after: str, rule_id: str) -> None:
    """For every changed literal of a shipped condition, a case shows the difference, and the engines agree on it."""
    older, newer = compile_rule_set(before), compile_rule_set(after)
    diff = diff_rule_sets(older, newer)
    assert diff.changed == (rule_id,)
    assert rule_id in {diff.cases[0].before.rule_id, diff.cases[0].after.rule_id}
    assert "ENGINE_DISAGREEMENT" not in {decision.reason_code for case in diff.cases for decision in (case.before, case.after)}


FORMS = """
gavel: v2
rule_set: forms
version: 1
actions:
  pod.run:
    params:
      type: object
      required: [memory, address, network, replicas]
      properties:
        memory: {type: string, maxLength: 20}
        address: {type: string, maxLength: 40}
        network: {type: string, maxLength: 40}
        replicas: {type: string, maxLength: 9}
    facts: {age: {key: pod.age, type: string, max_length: 32, max_age_ms: 60000}}
rules:
  - id: memory
    action: pod.run
    priority: 9
    when: quantity(params.memory).isGreaterThan(quantity("1Gi"))
    effect: reject
    reason_code: A
  - {id: address, action: pod.run, priority: 8, when: '!cidr("10.0.0.0/8").containsIP(params.address)', effect: reject, reason_code: B}
  - {id: network, action: pod.run, priority: 7, when: '!cidr("10.0.0.0/8").containsCIDR(params.network)', effect: reject, reason_code: C}
  - {id: replicas, action: pod.run, priority: 6, when: 'int(params.replicas) > 3', effect: reject, reason_code: D}
  - {id: age, action: pod.run, priority: 5, when: 'duration(facts.age) > duration("1h")', effect: reject, reason_code: E}
  - {id: rest, action: pod.run, priority: 1, when: 'true', effect: approve}
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after", "rule_id"),
    [
        ('"1Gi"', '"2Gi"', "memory"),
        ('"10.0.0.0/8").containsIP', '"10.0.0.0/16").containsIP', "address"),
        ('"10.0.0.0/8").containsCIDR', '"10.0.0.0/16").containsCIDR', "network"),
        ("> 3'", "> 4'", "replicas"),
        ('"1h"', '"90m"', "age"),
    ],
)
def test_texts_that_functions_read(before: str, after: str, rule_id: str) -> None:
    """A changed threshold shows whatever form of text a function compares with it, and other such rules do not hide it."""
    assert before in FORMS
    diff = diff_rule_sets(compile_rule_set(FORMS), compile_rule_set(FORMS.replace(before, after)))
    assert ((rule_id,), ()) == (diff.changed, diff.not_analysed)
    assert any(rule_id in (case.before.rule_id, case.after.rule_id) for case in diff.cases)


def test_an_edit_that_was_not_analysed() -> None:
    """A rule for whose edit neither a case nor a proof is found is named; an edit that provably changes nothing is not."""
    before = document(("named", "params.name.matches('^(?:ab){3}$') && params.name.size() > 40", "reject"), REST)
    after = document(("named", "params.name.matches('^a{2}$') && params.name.size() > 50", "reject"), REST)
    assert ("named",) == compared(before, after).not_analysed
    before = document(("named", "params.amount > 500 && params.amount < 400", "reject"), REST)
    after = document(("named", "params.amount > 600 && params.amount < 400", "reject"), REST)
    assert ((), ("named",), ()) == (compared(before, after).not_analysed, compared(before, after).changed, compared(before, after).cases)


COUNTED = """\
gavel: v2
rule_set: refunds
version: 1
actions:
  refund.create:
    params: {type: object, required: [amount, customer], properties: {amount: {type: number}, customer: {type: string, maxLength: 20}}}
counters:
  spent: {of: approvals, action: refund.create, by: params.customer, sum: params.amount, window_ms: 3600000}
rules:
  - {id: over, action: refund.create, priority: 3, when: 'history.spent(params.customer) > 1000.0', effect: reject, reason_code: OVER}
  - {id: rest, action: refund.create, priority: 1, when: 'true', effect: approve}
"""
OF_SUBJECT = (
    "  - {id: first, action: refund.create, priority: 4, when: 'history.spent(subject) > 1e9', effect: reject, reason_code: NEVER}\n"
)


def test_the_key_of_a_counter() -> None:
    """A rule that reads a counter with another key is edited, and has a case in which the keys have different numbers."""
    edited = COUNTED.replace("history.spent(params.customer)", "history.spent(subject)")
    diff = diff_rule_sets(compile_rule_set(COUNTED), compile_rule_set(edited))
    assert (("over",), ()) == (diff.changed, diff.not_analysed)
    assert diff.cases
    for case in diff.cases:
        numbers: Mapping[str, Any] = case.context
        assert {"history.spent(params.customer)", "history.spent(subject)"} == {*numbers}
        assert (case.before.reason_code == "OVER") == (numbers["history.spent(params.customer)"] > 1000.0)
        assert (case.after.reason_code == "OVER") == (numbers["history.spent(subject)"] > 1000.0)


def test_the_key_of_a_counter_beside_another_counter() -> None:
    """A rule whose edit the cases show is not listed as one that was not analysed."""
    text = COUNTED.replace("> 1000.0", "+ params.amount > 1000.0").replace(
        "spent:", "count: {of: approvals, action: refund.create, window_ms: 60000}\n  spent:"
    )
    text = text.replace(
        "rules:\n",
        "rules:\n  - {id: often, action: refund.create, priority: 2, when: history.count() > 9, effect: reject, reason_code: OFTEN}\n",
    )
    edited = text.replace("history.spent(params.customer)", 'history.spent(params.customer + ":" + producer.id)')
    edited = edited.replace("by: params.customer", "by: 'params.customer + \":\" + producer.id'")
    diff = diff_rule_sets(compile_rule_set(text), compile_rule_set(edited))
    assert (("over",), ()) == (diff.changed, diff.not_analysed)
    assert {("OVER", ""), ("", "OVER")} == {(case.before.reason_code, case.after.reason_code) for case in diff.cases}


def test_the_layout_of_the_key_of_a_counter() -> None:
    """Spaces and parentheses in the key of a counter are no edit of the rule, and it is read with one number in both versions."""
    laid_out = COUNTED.replace("history.spent(params.customer)", "history.spent( (params . customer) )")
    diff = diff_rule_sets(compile_rule_set(COUNTED), compile_rule_set(laid_out))
    assert ((), (), ()) == (diff.changed, diff.edits, diff.cases)
    stricter = laid_out.replace("> 1000.0", "> 1000.0 || params.amount > 500.0")
    cases = diff_rule_sets(compile_rule_set(COUNTED), compile_rule_set(stricter)).cases
    assert [("", "OVER")] == [(case.before.reason_code, case.after.reason_code) for case in cases]


def test_a_renamed_counter() -> None:
    """A counter with another name alone is an edit that changes no rule and no decision, wherever the counter is read."""
    reads = "retry_after: 'history.spent.frees(params.customer, 0, 1000)', detail: {sum: history.spent(params.customer)}"
    text = COUNTED.replace("reason_code: OVER", f"reason_code: OVER, {reads}")
    diff = diff_rule_sets(compile_rule_set(text), compile_rule_set(text.replace("customer, 0", "customer,0").replace("spent", "used")))
    assert ((), (), ["counters.spent", "counters.used"]) == (diff.changed, diff.cases, [edit.path for edit in diff.edits])


def test_an_edited_detail() -> None:
    """A detail with another expression or name, or that reads another counter, is an edit of its rule; its layout is none."""
    text = COUNTED.replace("reason_code: OVER", "reason_code: OVER, detail: {spent: history.spent(params.customer)}")
    changed = {
        detail: diff_rule_sets(
            compile_rule_set(text), compile_rule_set(text.replace("spent: history.spent(params.customer)", detail))
        ).changed
        for detail in (
            "'spent': '( history.spent( params.customer ) )'",
            "spent: history.spent(subject)",
            "used: history.spent(params.customer)",
        )
    }
    assert [(), ("over",), ("over",)] == [*changed.values()]


def with_counters(windows: Mapping[str, int], over: str, much: str) -> CompiledRuleSet:
    """Return a rule set with counters of these windows by name. Its rules `over` and `much` read these counters."""
    of = "{of: approvals, action: refund.create, by: params.customer, sum: params.amount, window_ms: "
    head = COUNTED[: COUNTED.index("  spent:")] + "".join(f"  {name}: {of}{window_ms}}}\n" for name, window_ms in windows.items())
    rules = (("over", 3, over, "> 1000.0"), ("much", 2, much, "> 500.0"))
    texts = (
        f"  - {{id: {rule_id}, action: refund.create, priority: {priority}, when: 'history.{name}(params.customer) {comparison}', "
        f"effect: reject, reason_code: {rule_id.upper()}}}\n"
        for rule_id, priority, name, comparison in rules
    )
    return compile_rule_set(head + "rules:\n" + "".join(texts) + COUNTED[COUNTED.index("  - {id: rest") :])


HOUR, DAY = 3_600_000, 86_400_000
EQUAL = with_counters({"one": HOUR, "two": HOUR}, "one", "two")
DIFFERENT = with_counters({"one": HOUR, "two": DAY}, "one", "two")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(EQUAL, with_counters({"a": HOUR, "b": HOUR}, "a", "b"), id="both renamed"),
        pytest.param(EQUAL, with_counters({"one": HOUR}, "one", "one"), id="merged"),
        pytest.param(with_counters({"one": HOUR}, "one", "one"), EQUAL, id="split"),
        pytest.param(EQUAL, with_counters({"one": HOUR, "two": HOUR}, "two", "one"), id="equal ones swapped"),
        pytest.param(DIFFERENT, with_counters({"one": DAY, "two": HOUR}, "two", "one"), id="swapped with their reads"),
        pytest.param(DIFFERENT, with_counters({"two": HOUR, "three": DAY}, "two", "three"), id="one takes the name of another"),
    ],
)
def test_other_names_of_counters(old: CompiledRuleSet, new: CompiledRuleSet) -> None:
    """Counters that only have other names change no rule and no decision, and need no history."""
    diff = diff_rule_sets(old, new)
    assert ((), (), ()) == (diff.changed, diff.cases, diff.not_analysed)
    assert HistoryDiff((), ()) == compare_histories(old, new)


@pytest.mark.parametrize(
    ("old", "windows"),
    [
        pytest.param(EQUAL, {"one": HOUR, "two": DAY}, id="one of two equal counters"),
        pytest.param(DIFFERENT, {"one": DAY, "two": DAY}, id="to be equal to another"),
        pytest.param(DIFFERENT, {"one": DAY, "two": HOUR}, id="the windows of two counters swapped"),
    ],
)
def test_an_edited_counter_that_equals_another(old: CompiledRuleSet, windows: Mapping[str, int]) -> None:
    """A counter that is edited under its name changes no rule, also if another counter has its old or its new definition."""
    new = with_counters(windows, "one", "two")
    assert ((), ()) == (diff_rule_sets(old, new).changed, diff_rule_sets(old, new).cases)
    histories = compare_histories(old, new)
    assert (True, ()) == (bool(histories.changes), histories.not_analysed)


def test_a_name_that_means_another_counter() -> None:
    """A rule that reads a name which now means another counter is edited; its case has the numbers of both."""
    diff = diff_rule_sets(DIFFERENT, with_counters({"one": DAY, "two": HOUR}, "two", "two"))
    assert ("much",) == diff.changed
    names = {"history.two(params.customer) before", "history.two(params.customer) after"}
    assert diff.cases
    assert all(names <= case.context.keys() for case in diff.cases)
    assert all(case.context["history.one(params.customer)"] == case.context["history.two(params.customer) after"] for case in diff.cases)


def test_another_counter() -> None:
    """Cases of two versions that read different counters have a number of each."""
    other = COUNTED.replace("spent", "used").replace("window_ms: ", "window_ms: 1")
    diff = diff_rule_sets(compile_rule_set(COUNTED), compile_rule_set(other))
    assert ("over",) == diff.changed
    assert {"OVER", ""} == {decision.reason_code for case in diff.cases for decision in (case.before, case.after)}
    assert all({"history.spent(params.customer)", "history.used(params.customer)"} == {*case.context} for case in diff.cases)


def test_another_rule_that_reads_a_counter() -> None:
    """A rule before them that reads a counter with another key changes no other rules and no decisions of theirs."""
    added = COUNTED.replace("rules:\n", f"rules:\n{OF_SUBJECT}")
    diff = diff_rule_sets(compile_rule_set(COUNTED), compile_rule_set(added))
    assert (("first",), (), ()) == (diff.added, diff.changed, diff.not_analysed)
    assert {"NEVER"} == {case.after.reason_code for case in diff.cases}


@pytest.mark.parametrize("is_first", [True, False])
def test_a_rule_that_reads_another_kind_of_number(is_first: bool) -> None:
    """A rule that reads a count, before or after one that reads a sum, leaves the cases of the other rule what they are."""
    rule = "  - {id: often, action: refund.create, priority: 2, when: 'history.calls() > 9', effect: reject, reason_code: OFTEN}\n"
    counted = COUNTED.replace("spent:", "calls: {of: approvals, action: refund.create, window_ms: 60000}\n  spent:")
    place = "rules:\n" if is_first else "  - {id: rest"
    added = counted.replace(place, rule + place if not is_first else place + rule).replace("> 1000.0", "> 900.0")
    diff = diff_rule_sets(compile_rule_set(COUNTED), compile_rule_set(added))
    assert (("often",), ("over",), ()) == (diff.added, diff.changed, diff.not_analysed)
    assert {("", "OVER"), ("", "OFTEN")} == {(case.before.reason_code, case.after.reason_code) for case in diff.cases}


@pytest.mark.parametrize("is_count", [True, False])
def test_a_counter_of_another_kind_of_number(is_count: bool) -> None:
    """A counter that adds up in place of counting, or the reverse, has cases by its number before and by that after."""
    counting = COUNTED.replace("sum: params.amount, ", "").replace("> 1000.0", "> 10")
    old, new = [compile_rule_set(text) for text in ((counting, COUNTED) if is_count else (COUNTED, counting))]
    diff = diff_rule_sets(old, new)
    assert ("over",) == diff.changed
    assert {("", "OVER"), ("OVER", "")} == {(case.before.reason_code, case.after.reason_code) for case in diff.cases}
    assert compare_histories(old, new).changes


@pytest.mark.parametrize(
    ("before", "after", "edit"),
    [
        pytest.param("'a'", "b'a'", ("a", "b'a'"), id="text and bytes"),
        pytest.param("b'a'", "b'b'", ("b'a'", "b'b'"), id="bytes"),
        pytest.param("0.0", "-0.0", (0.0, -0.0), id="the sign of zero"),
        pytest.param("1", "1u", (1, "1u"), id="signed and unsigned"),
    ],
)
def test_literals_of_every_kind(before: str, after: str, edit: tuple[object, object]) -> None:
    """An edit of a literal is shown with values that JSON has, also if it is one of kind or sign alone."""
    versions = [document(("named", f"params.amount < 1.0 / double(string({text}).size())", "reject"), REST) for text in (before, after)]
    if "0.0" in before:
        versions = [document(("named", f"params.amount < 1.0 / ({text})", "reject"), REST) for text in (before, after)]
    edits = [one for one in compared(*versions).edits if one.path == "rules.named.threshold"]
    assert [edit] == [(one.before, one.after) for one in edits]
    assert json.dumps(edit) == json.dumps([edits[0].before, edits[0].after])
