"""Mistakes in scenario files, and scenarios that fail, are reported with their place and a suggestion."""

from __future__ import annotations

import pytest

from tests.scenarios.layers import CoreLayer
from tests.scenarios.player import play
from tests.scenarios.reader import ScenarioError, ScenarioFileError, read_scenarios

HEAD = """\
about: An example.
rule_sets:
  - gavel: v1
    rule_set: refunds
    version: 1
    actions: {refund.create: {params: {type: object}, facts: {status: {key: order.status, type: string, max_age_ms: 60000}}}}
    rules: [{id: delivered, action: refund.create, priority: 1, when: 'facts.status == "delivered"', effect: approve}]
scenarios:
  - must: Something must hold here.
    steps:
      - {fact: status, key: order.status, value: delivered}
"""


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("- {propose: a, cites: [stats]}", "12:22: unknown-name: no step before is named stats (did you mean status?)"),
        ("- {propose: a, sites: [status]}", "12:22: unknown-key: no such key here: sites (did you mean cites?)"),
        ("- {propose: a, expect: {outcome: OK}}", "12:31: unknown-value: expect.outcome: Input should be 'APPROVED', 'REJECTED', "),
        ("- {propose: a, expect: {outcom: APPROVED}}", "12:31: unknown-key: no such key here: outcom (did you mean outcome?)"),
        ("- {propose: a, then: [{evnt: X}]}", "12:30: unknown-key: no such key here: evnt (did you mean event?)"),
        ("- {begin: a}", "12:9: missing-key: the key of is missing (add it)"),
        ("- {begin: a, propose: b}", "12:9: unknown-verb: a step has one verb, this one has begin and propose"),
        ("- {bgin: a}", "12:9: unknown-verb: a step has one verb, this one has none"),
        ("- {at: soon}", "12:10: wrong-type: at: 'soon' is not a duration; write it like 90s, 24h or 1h 1ms"),
        ("- {fact: status, key: k.x, value: 1}", "12:9: duplicate-name: status is named already (names are unique in a scenario)"),
        ("- {at: 5s}\n- {at: 4s}", "13:1: out-of-range: time does not go back (give a later `at`)"),
        ("- nothing", "12:9: wrong-type: a step is a mapping (write it like `- fact: status`)"),
    ],
)
def test_places_of_mistakes(steps: str, message: str) -> None:
    """A mistake is reported as file:line:column: code: message."""
    text = HEAD + "".join(f"      {line}\n" for line in steps.splitlines())
    with pytest.raises(ScenarioFileError) as caught:
        read_scenarios(text, "example.yaml")
    assert f"example.yaml:{message}" in str(caught.value)


def test_a_rule_set_with_a_mistake() -> None:
    """A mistake in a rule set is reported at the rule set's place in the file."""
    with pytest.raises(ScenarioFileError) as caught:
        read_scenarios(HEAD.replace("facts.status ==", "facts.state =="), "example.yaml")
    assert "example.yaml:3:5: unknown-name: facts has no field state" in str(caught.value)


def test_all_mistakes_at_once() -> None:
    """All mistakes of a file are reported, sorted by place."""
    text = HEAD + "      - {begin: a}\n      - {bgin: a}\n    finally: {reviews: [nobody]}\n"
    with pytest.raises(ScenarioFileError) as caught:
        read_scenarios(text, "example.yaml")
    assert [12, 13, 14] == [int(line.split(":")[1]) for line in str(caught.value).splitlines()]


@pytest.mark.parametrize(
    ("steps", "wrong"),
    [
        ("- {propose: a, cites: [status], expect: {outcome: REJECTED}}", "expect: outcome: expected 'REJECTED', got 'APPROVED'"),
        ("- {propose: a, cites: [status], then: [NeedsHumanReview]}", "then: expected ['NeedsHumanReview'], got []"),
        ("- {propose: a, cites: [status]}\n- {at: 60s}", "then: expected [], got ['DecisionExpired APPROVAL_EXPIRED']"),
        ("- {propose: a, expect: {hint: [{key: order.status, state: STALE}]}}", "expect: hint: expected [{'key': 'order.status'"),
        ("- {propose: a, cites: [status], expect: {error: EVENT_ID_REUSED}}", "error: expected 'EVENT_ID_REUSED', got None"),
        ("- {begin: b, of: status}", "error: expected None, got 'DECISION_NOT_FOUND'"),
        ("- {propose: a, cites: [status]}\n- {begin: b, of: a, expect: {refused: EXPIRED}}", "refused: expected 'EXPIRED', got None"),
    ],
)
async def test_a_difference_is_reported(steps: str, wrong: str) -> None:
    """A scenario that differs from its expectation fails, with its place, its sentence and the difference."""
    (scenario,) = read_scenarios(HEAD + "".join(f"      {line}\n" for line in steps.splitlines()), "example.yaml")
    with pytest.raises(ScenarioError) as caught:
        await play(scenario, CoreLayer("example"))
    line = 11 + len(steps.splitlines())
    assert f"tests/scenarios/example.yaml:{line}: Something must hold here." in str(caught.value)
    assert wrong in str(caught.value)


@pytest.mark.parametrize(
    ("end", "wrong"),
    [
        ("facts: {order/1: {order.status: lost}}", "finally: facts of order/1"),
        ("pending: {}", "finally: pending: expected {}, got {'a': 'APPROVED'}"),
        ("reviews: [a]", "finally: reviews: expected ['a'], got []"),
    ],
)
async def test_different_final_state_is_reported(end: str, wrong: str) -> None:
    """The expected state at the end is compared as well."""
    text = HEAD + "      - {propose: a, cites: [status]}\n" + f"    finally: {{{end}}}\n"
    (scenario,) = read_scenarios(text, "example.yaml")
    with pytest.raises(ScenarioError) as caught:
        await play(scenario, CoreLayer("example"))
    assert wrong in str(caught.value)
