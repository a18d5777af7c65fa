"""The cases of a suite as seeds of the searches of lint and diff."""

from __future__ import annotations

from gavel_rules.authoring.diff import diff_rule_sets
from gavel_rules.authoring.lint import lint_rule_set
from gavel_rules.authoring.suites.reader import read_suite
from gavel_rules.authoring.suites.seeds import find_seeds
from gavel_rules.language.rule_set import compile_rule_set

# A search does not guess such codes.
CODE = "{0}.matches('^[A-Z]{{2}}[0-9]{{4}}$') && int({0}.substring(2)) > 9000"
RULES = """\
gavel: v2
rule_set: parts
version: 1
actions:
  part.order:
    params: {type: object, required: [code], properties: {code: {type: string, maxLength: 20}}}
    facts: {stock: {key: part.stock, subject: '"shop/1"', type: integer, max_age_ms: 60000}}
counters:
  orders: {of: approvals, action: part.order, window_ms: 60000}
rules:
  - {id: known, action: part.order, priority: 9, when: "KNOWN", effect: approve}
  - {id: busy, action: part.order, priority: 2, when: history.orders() > 0, effect: reject, reason_code: BUSY}
"""
BY_PARAM = RULES.replace("KNOWN", CODE.format("params.code"))
BY_PRODUCER = RULES.replace("KNOWN", CODE.format("producer.id"))
SUITE = """\
gavel: v1
tests: parts.yaml
defaults: {params: {code: AB9001}, producer: {id: AB9001}, facts: {stock: 1}}
cases:
  - {name: alone, expect: {outcome: APPROVED}}
  - {name: after another, subject: part/1, earlier: [{subject: part/2}], expect: {outcome: APPROVED}}
  - {name: without stock, facts: {stock: null}, expect: {outcome: REJECTED}}
"""


def lint(text: str, suite: str = "") -> list[tuple[str, str]]:
    """Return code and message of the warnings about a rule set, with the cases of a suite."""
    rule_set = compile_rule_set(text)
    seeds = find_seeds(read_suite(suite), rule_set) if suite else []
    return [(one.code, one.message) for one in lint_rule_set(rule_set, seeds=seeds)]


def test_seeds() -> None:
    """Each case that reaches the rules is a seed, with what its history gives."""
    seeds = find_seeds(read_suite(SUITE), compile_rule_set(BY_PARAM))
    assert [("alone", "part.order", {"code": "AB9001"}, [0]), ("after another", "part.order", {"code": "AB9001"}, [1])] == [
        (seed.name, seed.action_type, seed.params, list(seed.case.history.values())) for seed in seeds
    ]


def test_seeds_of_one_of_several_rule_sets() -> None:
    """The seeds of a rule set are found wherever it stands among those that the suite tests."""
    rule_set = compile_rule_set(BY_PARAM)
    other = compile_rule_set(
        BY_PARAM.replace("rule_set: parts", "rule_set: company").replace("{stock: {key: part.stock", "{place: {key: part.place")
    )
    suite = read_suite(SUITE.replace("facts: {stock: 1}", "facts: {stock: 1, place: 1}"))
    for tested in ((rule_set, other), (other, rule_set)):
        assert ["alone", "after another"] == [seed.name for seed in find_seeds(suite, rule_set, tested)]


def test_a_rule_that_only_a_suite_reaches() -> None:
    """A rule that no search finds a case for is analysed with the cases of its suite, whatever value its condition tests."""
    unknown = ("not-analysed", "no case was found that rule known decides; it may still decide some")
    assert [unknown] == lint(BY_PARAM)
    assert [unknown] == lint(BY_PRODUCER)
    assert not {"not-analysed"} & {code for code, _ in lint(BY_PARAM, SUITE)}
    assert not {"not-analysed"} & {code for code, _ in lint(BY_PRODUCER, SUITE)}


def test_an_overlap_that_only_a_suite_shows() -> None:
    """An approval above a refusal is reported on a case of the suite, with the values of the case or by its name."""
    (code, message), *others = lint(BY_PARAM, SUITE)
    assert ("overlapping-rules", [], True) == (code, others, '"code": "AB9001"' in message)
    assert [
        ("overlapping-rules", 'known approves a case that the lower rule busy would refuse: the case "after another" of its suite')
    ] == lint(BY_PRODUCER, SUITE)


def test_params_that_only_a_suite_has() -> None:
    """An action whose schema no generated params fit is analysed with the params of its suite."""
    schema = "{type: string, maxLength: 20, pattern: '^(?:[A-Z]{2}[0-9]{4}){3}$', not: {pattern: '^A+'}}"
    text = BY_PARAM.replace("{type: string, maxLength: 20}", schema)
    suite = SUITE.replace("{code: AB9001}", "{code: BA9001BA9001BA9001}")
    message = "part.order was not analysed in full: no params were found that match its schema"
    assert [True, False] == [message in {one for _, one in lint(text, cases)} for cases in ("", suite)]


def test_diff() -> None:
    """A case of a suite shows an edit for which no case is found otherwise."""
    old, new = compile_rule_set(BY_PARAM), compile_rule_set(BY_PARAM.replace("9000", "9500"))
    assert (("known",), ()) == (diff_rule_sets(old, new).not_analysed, diff_rule_sets(old, new).cases)
    diff = diff_rule_sets(old, new, find_seeds(read_suite(SUITE), old))
    assert () == diff.not_analysed
    assert "AB9001" in {case.params["code"] for case in diff.cases}
