"""Reading of test suites (docs/rule-tests.md): layers, defaults, tables, and every mistake at its place."""

from __future__ import annotations

import ast
import re
from typing import Any, Final

import pytest
from gavel_rules.authoring.suites.models import CasePart, ExecutionCase, ExpectCase, FactCase, ProducerCase, ProposalCase, TraceCase
from gavel_rules.authoring.suites.reader import read_suite
from gavel_rules.authoring.suites.suite import Suite
from gavel_rules.language.rule_set import DocumentError

from tests.support.paths import ROOT

PAGE: Final = (ROOT / "docs/rule-tests.md").read_text(encoding="utf-8")
HEAD: Final = "gavel: v1\ntests: rules.yaml\n"


def sample() -> str:
    """Return the suite at the top of the page."""
    match = re.search(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    assert match is not None
    return match[1]


def parts(suite: Suite) -> dict[str, CasePart]:
    """Return the merged cases by name."""
    return {case.name: case.part for case in suite.cases}


def mistakes(text: str) -> list[str]:
    """Return the mistakes of a suite, without the suggestions."""
    with pytest.raises(DocumentError) as failure:
        read_suite(text)
    return [f"{one.line}:{one.column}: {one.code}: {one.message}" for one in failure.value.messages]


def test_sample() -> None:
    """The page's sample has three cases and three rows, and names its rule set."""
    suite = read_suite(sample())
    assert "refunds.yaml" == suite.tests
    assert [
        "a refund of a delivered order is approved",
        "a status older than a minute does not count",
        "no refund while the total is unknown",
        "order status: delivered",
        "order status: cancelled",
        "order status: in transit",
    ] == [case.name for case in suite.cases]


def test_patches() -> None:
    """A bare value keeps the fact's other keys, null removes, and a cell patches its table."""
    cases = parts(read_suite(sample()))
    status = cases["order status: cancelled"].facts["order_status"]
    assert ("cancelled", 10_000) == (status.value, status.age_ms)
    stale = cases["a status older than a minute does not count"].facts["order_status"]
    assert ("delivered", 60_001) == (stale.value, stale.age_ms)
    assert ["order_status", "order_customer"] == list(cases["no refund while the total is unknown"].facts)
    assert "" == cases["order status: delivered"].expect.reason_code


def test_layers_do_not_mix() -> None:
    """A change in one case does not affect the next."""
    text = HEAD + (
        "defaults: {params: {a: {b: 1}}, expect: {outcome: APPROVED}}\n"
        "cases: [{name: x, params: {a: {c: 2}}, facts: {f: {key: a.b, value: 1}}}, {name: y}]\n"
    )
    cases = parts(read_suite(text))
    assert {"a": {"b": 1, "c": 2}} == cases["x"].params
    assert ({"a": {"b": 1}}, {}) == (cases["y"].params, cases["y"].facts)


def test_earlier_proposals_patch_the_case() -> None:
    """An earlier proposal sets only what differs from the case."""
    text = HEAD + (
        "defaults: {subject: order/1, params: {a: 1, b: 2}, proposal: {risk: 0.5}, expect: {outcome: APPROVED}}\n"
        "cases: [{name: x, earlier: [{params: {a: 3}}, {subject: order/2, proposal: {cost: 1}}]}]\n"
    )
    first, second = parts(read_suite(text))["x"].earlier
    assert ("order/1", {"a": 3, "b": 2}, 0.5) == (first.subject, first.params, first.proposal.risk)
    assert ("order/2", {"a": 1, "b": 2}, 0.5, 1.0) == (second.subject, second.params, second.proposal.risk, second.proposal.cost)


def test_json() -> None:
    """A suite may be JSON."""
    suite = read_suite('{"gavel": "v1", "tests": "a.yaml", "cases": [{"name": "x", "expect": {"outcome": "APPROVED"}}]}')
    assert ["x"] == [case.name for case in suite.cases]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("tests: refunds.yaml", "tests: 7", "2:8: wrong-type: tests: input should be a valid string"),
        ("gavel: v1", "gavel: v2", "1:8: unknown-value: gavel: the version of the format must be v1"),
        ("defaults:", "default:", "4:1: unknown-key: no such key here: default"),
        ("{age_ms: 60001}", "{age: 60001}", "18:28: unknown-key: no such key here: age"),
        ("order_total: 200", "order_total: {age_ms: 1}", "10:5: missing-key: facts.order_total has no value"),
        ("age_ms: 10000", "age_ms: -1", "9:46: out-of-range: facts.order_status.age_ms: input should be greater than or equal to 0"),
        ("outcome: APPROVED,", "outcome: APROVED,", "15:23: unknown-value: expect.outcome: input should be 'APPROVED', 'REJECTED' or"),
        ("subject: order/1", "subject: order", "6:12: bad-name: subject does not have the required form"),
        ("facts.order_status, expect", "facts.order_status, expct", "31:41: unknown-column: a case has no key expct.outcome"),
        ("[delivered, delivered, APPROVED", "[delivered, APPROVED", "33:9: wrong-row: the row has 4 cells, but the table has 5 columns"),
        ("[cancelled, cancelled", "[delivered, cancelled", "34:9: duplicate-name: another case is named"),
        ("[delivered, delivered", "[delivered, [1, .nan]", "33:25: bad-number: the number .nan is not written as a plain decimal"),
        ("    facts: {order_total: null}", "    cites: [order_sum]", "26:13: unknown-name: the case has no fact order_sum"),
    ],
)
def test_mistakes(old: str, new: str, expected: str) -> None:
    """A mistake is reported where its author wrote it, in any layer."""
    assert old in sample()
    actual = mistakes(sample().replace(old, new, 1))
    assert [one for one in actual if one.startswith(expected)] == actual[:1], actual


@pytest.mark.parametrize(
    ("old", "new", "meant"),
    [
        ("{age_ms: 60001}", "{age: 60001}", "did you mean age_ms?"),
        ("- {key: order.status, state", "- {key: order.status, stat", "did you mean state?"),
        (
            "    facts: {order_total: null}",
            "    earlier: [{now: x}]",
            "known: action, age_ms, execution, expect, params, producer, proposal, subject",
        ),
    ],
)
def test_suggestions_for_unknown_keys(old: str, new: str, meant: str) -> None:
    """The suggestion for an unknown key names keys of the same place."""
    assert old in sample()
    with pytest.raises(DocumentError) as failure:
        read_suite(sample().replace(old, new, 1))
    assert meant in {message.suggestion for message in failure.value.messages if message.code == "unknown-key"}


@pytest.mark.parametrize(
    ("case", "hint"),
    [
        ("earlier: {age_ms: 5}", "write a list, e.g. [{age_ms: 60000}]"),
        ("earlier: [5]", "write its keys, e.g. {age_ms: 60000}"),
        ("earlier: [{expect: REJECTED}]", "write its keys, e.g. {outcome: APPROVED}"),
        ("earlier: [{execution: SUCCESS}]", "write its keys, e.g. {status: SUCCESS}"),
        ("earlier: [{age_ms: 2 h}]", "write milliseconds: 7200000"),
        ("earlier: [{outcome: REJECTED}]", "write it under `expect`"),
        ("expect: {counters: {spent: 5}}", "write a list, e.g. [{counter: spent, value: 5}]"),
        ("expect: {counters: [spent]}", "write its keys, e.g. {counter: spent, value: 5}"),
        ("expect: {matched: r1}", "write a list, e.g. [one, two]"),
    ],
)
def test_forms_of_parts(case: str, hint: str) -> None:
    """The suggestion for a value of the wrong form shows the form of that part."""
    text = HEAD + f"defaults: {{expect: {{outcome: APPROVED}}}}\ncases: [{{name: x, {case}}}]\n"
    with pytest.raises(DocumentError) as failure:
        read_suite(text)
    assert [hint] == [message.suggestion for message in failure.value.messages]


def test_all_mistakes_at_once() -> None:
    """Mistakes of several layers are reported together, each once, sorted by place."""
    text = sample().replace("age_ms: 60001", "age: 60001").replace("order_total: 200", "order_total: {valu: 200}")
    text = text.replace("rule_id: delivered}", "rule: delivered}")
    places = [one.split(": ")[0] for one in mistakes(text)]
    assert ["10:19", "15:33", "18:28"] == places


def test_invalid_times() -> None:
    """A date that does not exist is a mistake, and so is a fact from before 1970."""
    case = 'cases: [{name: x, now: "2026-02-30T12:00:00Z", expect: {outcome: APPROVED}}]\n'
    assert ["3:24: wrong-type: now: 2026-02-30T12:00:00Z is not a valid time"] == mistakes(HEAD + case)
    case = (
        'cases: [{name: x, now: "1970-01-02T00:00:00Z", facts: {a: {key: b, value: 1, age_ms: 86400000}}, expect: {outcome: APPROVED}}]\n'
    )
    assert ["3:78: out-of-range: facts.a would date from before 1970"] == mistakes(HEAD + case)


def test_suite_without_cases() -> None:
    """A suite without cases is a mistake."""
    assert ["1:1: no-cases: the suite has no cases"] == mistakes(HEAD)
    assert ["1:1: wrong-type: the suite is not a mapping"] == mistakes("[]")


@pytest.mark.parametrize("model", [CasePart, ProposalCase, FactCase, ExecutionCase, ExpectCase], ids=lambda model: model.__name__)
def test_keys_are_documented(model: Any) -> None:
    """Every key of a case is in a table of the page."""
    cells = [line.split(" | ")[0] for line in PAGE.splitlines() if line.startswith("| `")]
    documented = set(re.findall(r"`([a-z_]+)`", " ".join(cells)))
    assert sorted(set(model.model_fields) - documented) == []


def test_codes_are_documented() -> None:
    """The page's table lists exactly the codes of mistakes in a suite."""
    modules = [
        ROOT / "rules/gavel_rules/authoring/suites/reader.py",
        ROOT / "rules/gavel_rules/authoring/suites/runner.py",
        ROOT / "server/gavel_server/cli/rule_files.py",
    ]
    codes = set()
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[a-z]+(-[a-z]+)+", node.value):
                codes.add(node.value)
    table = PAGE.partition("**Mistakes in a suite**")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", table))
    assert codes | {"out-of-range", "bad-name", "unknown-key", "unknown-value"} == documented | {"test-source"}


def test_defaults_are_documented() -> None:
    """The defaults on the page are those of the format."""
    assert f'`"{CasePart.model_fields["now"].default}"`' in PAGE
    assert f"`{CasePart.model_fields['subject'].default}`" in PAGE
    assert f'`{{id: {ProducerCase().id}, version: ""}}`' in PAGE
    assert f"`{{consecutive_rejections: {TraceCase().consecutive_rejections}}}`" in PAGE


_EXPECT: Final = "expect: {outcome: APPROVED}"


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("cases: [{name: a, EXPECT}, {}]", "3:49: missing-key: the case is empty"),
        ("cases: [{name: a, EXPECT}, null]", "3:49: missing-key: the case is empty"),
        ("cases: [{name: a, EXPECT}]\ntables: [{}]", "4:10: missing-key: the table is empty"),
        ("tables: [{name: t, columns: [], rows: [], EXPECT}]", "3:33: missing-key: the list of rows is empty"),
        (
            "cases: [{name: a, EXPECT}]\ntables: [{name: t, columns: [name], rows: , EXPECT}]",
            "4:37: missing-key: the list of rows is empty",
        ),
        (
            "tables: [{name: t, columns: [params.a, params.b, params.a], rows: [[1, 2, 3]], EXPECT}]",
            "3:50: unknown-column: the column params.a appears twice",
        ),
        ("tables: [{name: t, columns: [name], rows: [[5]], EXPECT}]", "3:45: wrong-type: name: input should be a valid string"),
        ("cases: [{name: a, facts: {f: {key: k, value: 1, retracted: true}}, EXPECT}]", "3:39: unknown-key: facts.f.value has no effect"),
        ("cases: [{name: a, facts: {f: {key: k, tier: 2, retracted: true}}, EXPECT}]", "3:39: unknown-key: facts.f.tier has no effect"),
        (
            "cases: [{name: a, facts: {f: {key: k, value: 1, tier: 3, max_age_ms: 5}}, EXPECT}]",
            "3:58: unknown-key: facts.f.max_age_ms has no effect: only a FACT, of tier 1, sets a limit for itself",
        ),
        (
            "tables: [{name: t, columns: [facts.f, facts.f.retracted], rows: [[1, true]], facts: {f: {key: k}}, EXPECT}]",
            "3:67: unknown-key: facts.f.value has no effect",
        ),
        ("cases: [{name: a, EXPECT, params: {<<: {b: 1}}}]", "3:57: non-string-key: merge keys are not supported"),
    ],
)
def test_input_without_effect(rest: str, expected: str) -> None:
    """Input that no case would show is a mistake: empty parts, a column twice, a name that is no text, keys of a fact without effect."""
    (mistake,) = mistakes(HEAD + rest.replace("EXPECT", _EXPECT) + "\n")
    assert mistake.startswith(expected)


def test_inherited_keys_may_have_no_effect() -> None:
    """A case may retract a fact, or change its tier, of which a layer below it says the value or the limit."""
    text = f"{HEAD}defaults: {{facts: {{f: {{key: k, value: 1, tier: 1, max_age_ms: 5}}}}, {_EXPECT}}}\n"
    text += (
        "cases: [{name: a, facts: {f: {retracted: true}}}, {name: b, facts: {f: {tier: 3}}}, {name: c, facts: {f: {retracted: false}}}]\n"
    )
    assert ["a", "b", "c"] == list(parts(read_suite(text)))
