"""Generated histories that two versions of a rule set treat differently."""

from __future__ import annotations

import pytest
from gavel_rules.authoring.derived_facts import DerivedFact
from gavel_rules.authoring.suites.histories.compare import HistoryDiff, NotAnalysed, compare_histories
from gavel_rules.language.rule_set import compile_rule_set

RULES = """\
gavel: v2
rule_set: refunds
version: 1
actions:
  refund.create:
    params:
      type: object
      required: [amount, customer]
      properties: {amount: {type: number, minimum: 0}, customer: {type: string, maxLength: 20}}
    facts:
      status: {key: order.status, type: string, max_age_ms: 60000}
      limits: {key: customer.limit, subjects: '["customer/" + params.customer]', max: 3, type: number, max_age_ms: 60000}
      region: {key: shop.region, subject: '"shop/1"', type: string, max_age_ms: 60000, optional: true}
counters:
  refunded: {of: approvals, action: refund.create, by: params.customer, sum: params.amount, window_ms: 3600000}
  failures: {of: executions, action: refund.create, where: execution.status == "FAILED", by: params.customer, window_ms: 3600000}
  late: {of: proposals, action: refund.create, window_ms: 3600000}
rules:
  - id: over
    action: refund.create
    priority: 3
    when: history.refunded(params.customer) + params.amount > 100.0
    effect: reject
    reason_code: OVER
  - {id: failing, action: refund.create, priority: 2, when: history.failures(params.customer) > 2, effect: reject, reason_code: FAILING}
  - {id: rest, action: refund.create, priority: 1, when: 'facts.limits.all(l, l >= 0.0) && facts.status != ""', effect: approve}
derivations:
  - id: unstable
    version: 1
    on: {action: refund.create, status: FAILED}
    key: customer.unstable
    subject: '"customer/" + params.customer'
    value: history.failures(params.customer) >= 3
  - id: amount
    version: 1
    on: {action: refund.create, status: SUCCESS}
    key: order.refunded
    value: "has(execution.result.amount) ? execution.result.amount : params.amount"
"""


def compare(old: str, new: str) -> HistoryDiff:
    """Compare the rule set with a changed version."""
    assert old in RULES
    return compare_histories(compile_rule_set(RULES), compile_rule_set(RULES.replace(old, new)))


def test_equal_versions() -> None:
    """Versions whose counters and derivations are the same have no history, and nothing that was not analysed."""
    assert HistoryDiff((), ()) == compare("priority: 1", "priority: 1")
    assert HistoryDiff((), ()) == compare("version: 1", "version: 2")
    assert HistoryDiff((), ()) == compare("> 100.0", "> 200.0")


@pytest.mark.parametrize(
    ("old", "new", "reason_code"),
    [
        ("sum: params.amount, window_ms: 3600000", "sum: params.amount, window_ms: 86400000", "OVER"),
        ("sum: params.amount, window_ms: 3600000", "sum: params.amount, calendar: {unit: month}", "OVER"),
        ("by: params.customer, sum: params.amount", "by: params.customer, sum: params.amount * 2.0", "OVER"),
        ("refunded: {of: approvals, ", "refunded: {of: executions, ", "OVER"),
    ],
)
def test_edited_counters(old: str, new: str, reason_code: str) -> None:
    """An edited counter shows in a history on which the versions decide differently, and which the core has run."""
    diff = compare(old, new)
    assert () == diff.not_analysed
    decisions = {(change.before.reason_code, change.after.reason_code) for change in diff.changes}
    assert decisions & {("", reason_code), (reason_code, "")}
    assert all(change.earlier is not None and change.earlier.proposals for change in diff.changes)


@pytest.mark.long
def test_an_edited_counter_of_a_derivation() -> None:
    """An edited counter that a derivation reads shows in a derived fact if that needs fewer reports than a decision."""
    (change,) = compare('"FAILED", by: params.customer', '"SUCCESS", by: params.customer').changes
    assert change.earlier is not None
    assert ("FAILED", 2, "subject") == (change.earlier.status, change.earlier.proposals, change.earlier.numbered)
    assert [(True, False)] == [
        (before.value, after.value) for before, after in zip(change.derived_before, change.derived_after, strict=True)
    ]


def test_a_longer_window() -> None:
    """The earlier proposals of a longer window are older than the shorter window."""
    (change, *_) = compare("sum: params.amount, window_ms: 3600000", "sum: params.amount, window_ms: 86400000").changes
    assert change.earlier is not None
    assert 3_600_000 <= change.earlier.age_ms < 86_400_000
    assert ("APPROVED", "OVER") == (change.before.outcome, change.after.reason_code)


def test_an_edited_value() -> None:
    """An edited value of a derivation shows in the facts that the versions derive from a report."""
    diff = compare("execution.result.amount : params.amount", "execution.result.amount : params.amount * 2.0")
    assert () == diff.not_analysed
    change = diff.changes[0]
    ((before,), (after,)) = change.derived_before, change.derived_after
    assert ("order.refunded", "order.refunded") == (before.key, after.key)
    assert change.before == change.after
    assert change.execution is not None
    assert "SUCCESS" == change.execution["status"]


def test_an_edited_subject_and_field() -> None:
    """A report has the fields of the result that a derivation reads."""
    diff = compare("has(execution.result.amount) ? execution.result.amount", "has(execution.result.total) ? execution.result.total")
    assert () == diff.not_analysed
    assert any(change.execution is not None and {"amount", "total"} & {*change.execution.get("result", {})} for change in diff.changes)
    diff = compare("subject: '\"customer/\" + params.customer'", "subject: '\"client/\" + params.customer'")
    assert {"customer", "client"} == {
        fact.subject.partition("/")[0] for change in diff.changes for fact in (*change.derived_before, *change.derived_after)
    }


def test_a_number_of_earlier_reports() -> None:
    """A derivation over a counter shows its threshold with as many earlier reports as it needs."""
    diff = compare("history.failures(params.customer) >= 3", "history.failures(params.customer) >= 2")
    assert () == diff.not_analysed
    changes = [change for change in diff.changes if change.derived_before]
    facts = {(change.derived_before, change.derived_after) for change in changes}
    subjects = {fact.subject for change in changes for fact in change.derived_before}
    assert facts == {((DerivedFact("customer.unstable", one, False),), (DerivedFact("customer.unstable", one, True),)) for one in subjects}
    assert {("FAILED", 1)} == {(change.earlier.status, change.earlier.proposals) for change in changes if change.earlier is not None}


def test_added_and_removed_derivations() -> None:
    """A derivation that only one version has shows as a fact that the other does not derive."""
    start = RULES.index("  - id: amount")
    diff = compare(RULES[start:], "")
    assert {(1, 0)} == {(len(change.derived_before), len(change.derived_after)) for change in diff.changes}
    assert () == diff.not_analysed


@pytest.mark.long
def test_two_edited_counters_in_a_condition() -> None:
    """A counter whose number changes no decision is not shown by a history of another counter that the same rule reads."""
    start = RULES.index("  - id: over")
    rule = RULES[start : RULES.index("  - {id: failing")]
    both = rule.replace("+ params.amount > 100.0", "+ params.amount > 100.0 || history.failures(params.customer) > 900")
    text = RULES.replace(rule, both).replace("history.failures(params.customer) > 2", "'false'")
    edited = text.replace("window_ms: 3600000}", "window_ms: 7200000}")
    text, edited = (one[: one.index("derivations:")] for one in (text, edited))
    diff = compare_histories(compile_rule_set(text), compile_rule_set(edited))
    assert {("", "OVER")} == {(change.before.reason_code, change.after.reason_code) for change in diff.changes}
    assert ["counters.failures"] == [one.name for one in diff.not_analysed]


def test_a_settlement_by_the_result() -> None:
    """The earlier reports have the result by which only one version settles a reservation."""
    settle = "settle: 'has(execution.result.refunded) ? double(execution.result.refunded) : params.amount'"
    edit = "sum: params.amount, keep: reserved, window_ms: 3600000}"
    text = RULES.replace("sum: params.amount, window_ms: 3600000}", edit)
    diff = compare_histories(compile_rule_set(text), compile_rule_set(text.replace("keep: reserved", f"keep: reserved, {settle}")))
    assert () == diff.not_analysed
    assert [{"refunded"}] == [{*change.earlier.result} for change in diff.changes if change.earlier is not None]


@pytest.mark.long
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sum: params.amount", "sum: params.amount * 2.0"),
        ("refunded)'", "repaid)'"),
        ("refunded)'", "refunded) * 2.0'"),
        (", settle: 'double(execution.result.refunded)'", ""),
        ("keep: reserved", "scale: 0, keep: reserved"),
        ("by: params.customer, sum", "by: subject, sum"),
    ],
)
def test_settled_reservations(old: str, new: str) -> None:
    """Edits of amounts, settlements, scales and keys of a counter of reservations show in a history."""
    settle = "keep: reserved, settle: 'double(execution.result.refunded)'"
    text = RULES.replace("sum: params.amount, window_ms: 3600000}", f"sum: params.amount, {settle}, window_ms: 3600000}}")
    assert old in text
    diff = compare_histories(compile_rule_set(text), compile_rule_set(text.replace(old, new)))
    assert (True, ()) == (bool(diff.changes), diff.not_analysed)


@pytest.mark.parametrize(("old", "new"), [("sum: params.amount", "sum: params.amount * 2.0"), ("3600000, keep", "60000, keep")])
def test_a_sum_that_is_compared_alone(old: str, new: str) -> None:
    """A sum reaches its threshold by the amounts of the earlier proposals, also if no rule compares that param."""
    text = RULES.replace("history.refunded(params.customer) + params.amount > 100.0", "history.refunded(params.customer) > 100000.0")
    text = text.replace("window_ms: 3600000}\n  failures", "window_ms: 3600000, keep: reserved}\n  failures")
    assert old in text
    diff = compare_histories(compile_rule_set(text), compile_rule_set(text.replace(old, new)))
    assert () == diff.not_analysed
    assert diff.changes


@pytest.mark.long
def test_earlier_proposals_and_facts() -> None:
    """An edited counter of approvals shows in a rule that only matches if there are earlier facts too."""
    counter = "  complaints: {of: facts, fact: customer.complaint, by: subject.id, window_ms: 3600000}\n"
    text = RULES.replace("\nrules:\n", f"\n{counter}rules:\n").replace("> 100.0", "> 100.0 && history.complaints(params.customer) > 1")
    text = text[: text.index("derivations:")]
    edited = text.replace("sum: params.amount, window_ms: 3600000", "sum: params.amount, window_ms: 86400000")
    diff = compare_histories(compile_rule_set(text), compile_rule_set(edited))
    assert () == diff.not_analysed
    (change,) = diff.changes
    assert change.earlier is not None
    assert ["customer.complaint"] == [one.key for one in change.earlier_facts]


def test_a_history_of_another_edit() -> None:
    """A history that an edited rule explains does not pass for one of an edited counter."""
    text = RULES.replace("> 100.0", "> 200.0").replace("window_ms: 3600000}\n  failures", "window_ms: 3600000, entries_max: 7}\n  failures")
    diff = compare_histories(compile_rule_set(RULES), compile_rule_set(text))
    assert ["counters.refunded"] == [one.name for one in diff.not_analysed]


def test_an_edit_without_a_history() -> None:
    """An edit that no history shows is named: it may still change something. A counter that nothing reads changes nothing."""
    assert HistoryDiff((), ()) == compare(
        "late: {of: proposals, action: refund.create, window_ms: 3600000}", "late: {of: proposals, action: refund.create, window_ms: 60000}"
    )
    diff = compare("sum: params.amount, ", "sum: params.amount, groups_max: 5000, ")
    assert HistoryDiff((), (NotAnalysed("counters.refunded", "only its limits differ, which no generated history reaches"),)) == diff


@pytest.mark.long
def test_a_counter_of_another_action() -> None:
    """An edited counter that counts other actions is named with the reason why no history shows it."""
    text = RULES[: RULES.index("derivations:")].replace("counters:\n", "  refund.undo: {params: {type: object}}\ncounters:\n")
    text = text.replace("late: {of: proposals, action: refund.create", "late: {of: proposals, action: refund.undo")
    text = text.replace("history.failures(params.customer) > 2", "history.late() > 2")
    text += "  - {id: undo, action: refund.undo, priority: 1, when: 'true', effect: approve}\n"
    edited = text.replace("refund.undo, window_ms: 3600000", "refund.undo, window_ms: 60000")
    own = text.replace("proposals, action: refund.undo", "proposals, action: refund.create")
    both = own.replace("proposals, action: refund.create", "proposals, action: [refund.create, refund.undo]")
    for before, after in ((text, edited), (own, both)):
        (one,) = compare_histories(compile_rule_set(before), compile_rule_set(after)).not_analysed
        assert ("counters.late", "it counts other actions") == (one.name, one.reason.partition(", and")[0])


@pytest.mark.long
def test_many_earlier_proposals() -> None:
    """A count reaches its threshold by as many earlier proposals as that takes, and a reason names a threshold that takes too many."""
    text = RULES[: RULES.index("derivations:")].replace(
        '{of: executions, action: refund.create, where: execution.status == "FAILED"', "COUNTED"
    )
    text = text.replace("COUNTED", "{of: proposals, action: refund.create").replace(
        "history.failures(params.customer) > 2", "history.failures(params.customer) >= 50"
    )
    edit = ("by: params.customer, window_ms: 3600000", "by: params.customer, window_ms: 86400000")
    diff = compare_histories(compile_rule_set(text), compile_rule_set(text.replace(*edit)))
    assert () == diff.not_analysed
    assert [50] == [change.earlier.proposals for change in diff.changes if change.earlier is not None]
    more = text.replace(">= 50", ">= 500")
    (one,) = compare_histories(compile_rule_set(more), compile_rule_set(more.replace(*edit))).not_analysed
    assert "at most 100 earlier proposals are tried, and a number that it is compared with needs more" == one.reason


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param('where: execution.status == "FAILED"', "where: 'execution.status==\"FAILED\"'", id="layout"),
        pytest.param("properties: {", "properties: {note: {type: string}, ", id="a param that no counter reads"),
    ],
)
def test_an_edit_that_counts_alike(old: str, new: str) -> None:
    """A counter with another digest that counts all events alike needs no history."""
    assert old in RULES
    before, after = compile_rule_set(RULES), compile_rule_set(RULES.replace(old, new))
    assert any(before.counters[name].digest != after.counters[name].digest for name in before.counters)
    assert HistoryDiff((), ()) == compare_histories(before, after)


def test_a_history_that_an_edited_rule_explains() -> None:
    """Only histories that show an edit of a counter or derivation are shown if a rule was edited too."""
    text = RULES.replace("> 100.0", "> 200.0").replace("failures: {of: executions", "failures: {entries_max: 7, of: executions")
    diff = compare_histories(compile_rule_set(RULES), compile_rule_set(text))
    assert ((), ["counters.failures"]) == (diff.changes, [one.name for one in diff.not_analysed])
    text = RULES.replace("> 100.0", "> 200.0").replace("sum: params.amount, window", "sum: params.amount, keep: reserved, window")
    diff = compare_histories(compile_rule_set(RULES), compile_rule_set(text))
    assert () == diff.not_analysed


@pytest.mark.long
@pytest.mark.parametrize(
    ("value", "numbered"), [("subject", "subject"), ("producer.id", "producer.id"), ("params.customer", "params.customer")]
)
def test_different_values(value: str, numbered: str) -> None:
    """Earlier proposals differ in the value of which a counter counts the different ones."""
    text = RULES[: RULES.index("derivations:")].replace("late: {of: proposals", f"late: {{of: approvals, distinct: {value}")
    text = text.replace("history.failures(params.customer) > 2", "history.late() >= 3")
    edited = text.replace("refund.create, window_ms: 3600000}\nrules", "refund.create, window_ms: 7200000}\nrules")
    diff = compare_histories(compile_rule_set(text), compile_rule_set(edited))
    assert () == diff.not_analysed
    (change,) = diff.changes
    assert change.earlier is not None
    assert (3, numbered) == (change.earlier.proposals, change.earlier.numbered)
    values = [change.earlier.values(number) for number in range(3)]
    assert 3 == len({(subject, producer, params["customer"]) for subject, producer, params in values})


def test_open_approvals() -> None:
    """Approvals that are left open are of different subjects: only one for each subject can be open."""
    text = RULES[: RULES.index("derivations:")].replace("late: {of: proposals", "late: {of: approvals")
    text = text.replace("history.failures(params.customer) > 2", "history.late() >= 20")
    edited = text.replace("late: {of: approvals", "late: {of: executions")
    diff = compare_histories(compile_rule_set(text), compile_rule_set(edited))
    assert () == diff.not_analysed
    assert {(20, "subject", "")} == {
        (one.earlier.proposals, one.earlier.numbered, one.earlier.status) for one in diff.changes if one.earlier
    }
