"""Rule set documents: all mistakes are reported at once, each at its place; a valid document compiles alike everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from gavel.v1.decision_pb2 import RetryPolicy
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set
from gavel_rules.language.document.models import RULES_PER_ACTION_MAX
from gavel_rules.language.document.source import DOCUMENT_BYTES_MAX
from gavel_rules.language.document.yaml_reader import DOCUMENT_PARTS_MAX
from gavel_rules.language.engines.case import Case
from gavel_rules.language.fact_declaration import is_of_type
from gavel_rules.language.rule_set import DocumentError, DocumentMessage, FactDeclaration, compile_rule_set

Refusals = Callable[[str], list[tuple[int, int, str]]]
Document = Callable[..., dict[str, Any]]

GOOD = """\
gavel: v1
rule_set: demo
version: 1
actions:
  thing.do:
    params: {type: object, properties: {amount: {type: number}}, required: [amount]}
    facts:
      status: {key: order.status, type: string, max_age_ms: 1000}
      score: {key: order.score, type: number, max_age_ms: 1000, optional: true}
rules:
  - {id: small, action: thing.do, priority: 10, when: params.amount < 5, effect: approve}
  - {id: bad, action: thing.do, priority: 20, when: facts.status == "bad", effect: reject, reason_code: BAD_STATUS}
"""


def test_valid_document(refusals: Refusals) -> None:
    """The document that the other tests break is valid."""
    assert refusals(GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("max_age_ms: 1000}", "max_age_ms: 1h}", "input should be a valid integer (write milliseconds: 3600000)"),
        ("max_age_ms: 1000}", "max_age_ms: soon}", "input should be a valid integer (write milliseconds, e.g. 60000)"),
        ("params.amount < 5", "amount < 5", "there is no name amount (did you mean params.amount?)"),
        ("params.amount < 5", "facts.status == DELIVERED", 'there is no name DELIVERED (a text has quotes: "DELIVERED")'),
        ("    params:", "    retry: 3\n    params:", "input should be a mapping (write its keys, e.g. {key: value})"),
        ("max_age_ms: 1000}", "max_age_ms: 1000, sources: db}", "input should be a valid list (write a list, e.g. [one, two])"),
        ("optional: true", "optional: 1", "input should be a valid boolean (write true or false)"),
        ("type: number}", "type: numeric}", "JSON Schema has no type 'numeric' (did you mean number?)"),
        ("type: number}", "type: number, minimum: '1'}", "minimum must be of type number"),
        ("required: [amount]", "required: amount", "required must be of type array"),
        ("params.amount < 5", "len(facts.status) > 5", "there is no function len (size(x) counts the characters"),
        ("params.amount < 5", "facts.status != null", "(values are never null: test them with has(…))"),
        ("params.amount < 5", "'params.list.all(x > 1)'", '(write x.all(item, …), with a name for each item: x.all(item, item == "a"))'),
        ("params.amount < 5", "has(facts)", "(has() tests a field: write has(facts.score))"),
        ("params.amount < 5", "'[[1]] == [[1.0]]'", "== cannot be applied to list(list(int)), list(list(double)) ("),
        (
            "rules:",
            "variables: {tiny: params.amount < 1}\nrules:\n  - {id: t, action: thing.do, priority: 1, when: tiny(), effect: approve}",
            "tiny is a value",
        ),
        (
            "{id: small, action: thing.do, priority: 10, when: params.amount < 5, effect: approve}",
            "{when: !small }",
            "quote a text that begins with !",
        ),
        ("when: params.amount < 5", "when: params.amount < 5 ? true : false", "as in a ? b : c"),
        ("when: params.amount < 5", 'when: "a" == facts.status', "quote a text that begins with a quote"),
        ("when: params.amount < 5", "when: ", "(the value is empty: write one, or remove the key)"),
        ("params.amount < 5", "params.amount < 1e400", "bad-number: the number is too large for a double (write one below 1.8e308)"),
        ("    params:", "    versions: {planner_version: 7}\n    params:", "input should be a valid list (quote it)"),
        ("action: thing.do, priority: 10", "action: [thing.do], priority: 10", "(for several actions write `actions`, which"),
        ("params.amount < 5", "has(params.x.y)", "unknown-name: params has no field x (did you mean params."),
        ("params.amount < 5", "now.getHours('Europe/Berlin') < 5", 'a named time zone reads the host\'s time zone files (write "UTC" or a'),
    ],
)
def test_suggestions_for_common_mistakes(old: str, new: str, expected: str) -> None:
    """The usual mistakes of newcomers have a suggestion of what to write instead."""
    with pytest.raises(DocumentError) as failure:
        compile_rule_set(GOOD.replace(old, new, 1))
    assert [] != [one for one in failure.value.messages if expected in one.format("rules.yaml")], failure.value


def test_the_presence_of_an_undeclared_param_is_one_mistake() -> None:
    """A has() of a field that the schema does not declare is reported at the field, and not as a call of an unknown function."""
    with pytest.raises(DocumentError) as failure:
        compile_rule_set(GOOD.replace("params.amount < 5", "has(params.x.y)", 1))
    assert ["unknown-name"] == [one.code for one in failure.value.messages]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("gavel: v1", "gavel: v3", [(1, 8, "unknown-value")]),
        ("gavel: v1\n", "", [(1, 1, "missing-key")]),
        ("rule_set: demo", "rule_set: de mo", [(2, 11, "bad-name")]),
        ("rule_set: demo", "rule_set: gavel", [(2, 11, "reserved-name")]),
        ("version: 1", "version: 0", [(3, 10, "out-of-range")]),
        ("version: 1", "version: '1'", [(3, 10, "wrong-type")]),
        ("version: 1", "version: true", [(3, 10, "wrong-type")]),
        ("version: 1", "version: 1.5", [(3, 10, "wrong-type")]),
        ("version: 1", "version: 0x10", [(3, 10, "bad-number")]),
        ("version: 1", "version: 9007199254740993", [(3, 10, "bad-number")]),
        ("version: 1", "version: 9007199254740992", [(3, 10, "bad-number")]),
        ("version: 1", "version: 9007199254740991", []),
        ("{type: number}", "{type: number, maximum: -9007199254740992.0}", [(6, 73, "bad-number")]),
        ("{type: number}", "{enum: [1, 9007199254740992]}", [(6, 60, "bad-number")]),
        ("{type: number}", "{type: number, maximum: 9007199254740991.0}", []),
        ("version: 1", "version: 1\nversion: 2", [(4, 1, "duplicate-key")]),
        ("version: 1", "version: 1\nversoin: 2", [(4, 1, "unknown-key")]),
        ("version: 1", "version: 1\n5: 2", [(4, 1, "non-string-key")]),
        ("version: 1", "version: 1\ndescription: 2020-01-01", [(4, 14, "wrong-type")]),
        ("version: 1", 'version: 1\ndescription: "a\\0b"', [(4, 14, "bad-character")]),
        ("version: 1", 'version: 1\ndescription: "\\ud83d"', [(4, 14, "bad-character")]),
        ("version: 1", "version: 1\ndescription: !secret x", [(4, 14, "yaml-tag")]),
        ("version: 1", "version:", [(3, 1, "wrong-type")]),
        ("version: 1", "version: 1\ndescription: &d x", [(4, 14, "yaml-anchor")]),
        ("version: 1", "version: 1\nvariables: {a: 1}", [(4, 16, "wrong-type")]),
        ("version: 1", "version: 1\nvariables: {a-b: 'true'}", [(4, 13, "bad-name")]),
        (
            "version: 1",
            "version: 1\nvariables: {now: 'true', all: 'true', Facts: 'true'}",
            [(4, column, "shadowed-name") for column in (13, 26, 39)],
        ),
        ("version: 1", "version: 1\nderivations: {}", [(4, 14, "wrong-type")]),
        ("  thing.do:\n", "  thing do:\n", [(5, 3, "bad-name"), (11, 25, "undeclared-action"), (12, 23, "undeclared-action")]),
        ("    facts:\n", "    contest_window_ms: 0\n    facts:\n", []),
        ("    facts:\n", "    contest_window_ms: 86400000\n    facts:\n", []),
        ("    facts:\n", "    contest_window_ms: 86400001\n    facts:\n", [(7, 24, "out-of-range")]),
        ("    facts:\n", "    retry: {backoff_initial_ms: 2147483648}\n    facts:\n", [(7, 33, "out-of-range")]),
        ("    facts:\n", "    retry: {backoff_max_ms: 2147483648}\n    facts:\n", [(7, 29, "out-of-range")]),
        ("    facts:\n", "    contest_window_ms: -1\n    facts:\n", [(7, 24, "out-of-range")]),
        ("    facts:\n", "    score: 1.0 - proposal.risk\n    facts:\n", []),
        ("    facts:\n", "    score: proposal.priority\n    facts:\n", [(7, 12, "not-double")]),
        ("    facts:\n", "    score: facts.score\n    facts:\n", [(7, 12, "unguarded-optional")]),
        ("    facts:\n", "    compensation: {action: x.y}\n    facts:\n", []),
        ("    facts:\n", "    compensation: x.y\n    facts:\n", [(7, 19, "wrong-type")]),
        ("    facts:\n", "    retry: 3\n    facts:\n", [(7, 12, "wrong-type")]),
        ("    facts:\n", "    rejection_limits: {evidence: 5}\n    facts:\n", []),
        ("    facts:\n", "    rejection_limits: {policies: 5}\n    facts:\n", [(7, 24, "unknown-key")]),
        ("    facts:\n", "    review: {quorum: 2, groups: [risk], separation: true}\n    facts:\n", []),
        ("    facts:\n", "    review: {quorum: 0}\n    facts:\n", [(7, 22, "out-of-range")]),
        ("    facts:\n", "    review: {quorum: 17}\n    facts:\n", [(7, 22, "out-of-range")]),
        ("    facts:\n", "    review: {quorum: 2, group: risk}\n    facts:\n", [(7, 25, "unknown-key")]),
        ("    facts:\n", "    review: {groups: risk}\n    facts:\n", [(7, 22, "wrong-type")]),
        ("    facts:\n", "    review: {groups: ['two words']}\n    facts:\n", [(7, 23, "bad-name")]),
        ("    facts:\n", "    review: {escalate_after_ms: 4h}\n    facts:\n", [(7, 33, "wrong-type")]),
        ("    facts:\n", "    review: two\n    facts:\n", [(7, 13, "wrong-type")]),
        ("effect: approve", "effect: approve, review: {}", [(11, 91, "unwanted-review")]),
        ("    facts:\n", "    on_version_mismatch: refuse\n    facts:\n", [(7, 26, "unknown-value")]),
        ("    facts:\n", "    versions: {planner: '7'}\n    facts:\n", [(7, 16, "unknown-key")]),
        ("    facts:\n", "    versions: {planner_version: 7}\n    facts:\n", [(7, 33, "wrong-type")]),
        ("    facts:\n", "    versions: {planner_version: []}\n    facts:\n", [(7, 33, "out-of-range")]),
        ("    facts:\n", "    versions: {planner_version: ['7', 8]}\n    facts:\n", [(7, 39, "wrong-type")]),
        ("    facts:\n", "    versions: {planner_version: é}\n    facts:\n", [(7, 33, "bad-name")]),
        ("    facts:\n", "    rejection_limit: 0\n    facts:\n", [(7, 22, "out-of-range")]),
        ("    facts:\n", "    decision_ttl_ms: 1.5\n    facts:\n", [(7, 22, "wrong-type")]),
        ("    facts:\n", "    retry: {max_attempts: 0, wait: 3}\n    facts:\n", [(7, 27, "out-of-range"), (7, 30, "unknown-key")]),
        ("    facts:\n", "    conflict_key: params.amount\n    facts:\n", [(7, 19, "not-string")]),
        ("      status:", "      in: {key: a, type: string, max_age_ms: 5}\n      status:", [(8, 7, "bad-name")]),
        ("      status: {key: order.status, ", "      status: {key: 'order status', ", [(8, 21, "bad-name")]),
        ("      status: {key: order.status, ", "      status: {key: Order.Status, ", [(8, 21, "bad-name")]),
        ("  thing.do:\n", "  Thing.Do:\n", [(5, 3, "bad-name"), (11, 25, "undeclared-action"), (12, 23, "undeclared-action")]),
        ("type: string, max_age_ms: 1000", "type: text, max_age_ms: 0, min_trust: 4", None),
        ("type: string, max_age_ms: 1000", "type: string", [(8, 7, "missing-key")]),
        ("params: {type: object,", "params: {type: array,", [(6, 13, "schema-not-object")]),
        ("{type: number}", "{type: numbr}", [(6, 50, "schema-invalid")]),
        ("{type: number}", "{type: number, minimun: 3}", [(6, 64, "schema-keyword")]),
        ("{type: number}", "{type: number, $id: 'x'}", [(6, 64, "schema-keyword")]),
        ("{type: number}", "{$ref: 'http://example.com/s.json'}", [(6, 50, "schema-reference")]),
        ("{type: number}", "{$ref: '#/$defs/none'}", [(6, 50, "schema-reference")]),
        ("{type: number}", "{type: object, additionalProperties: {$ref: '#'}}", [(6, 87, "schema-reference")]),
        ("{type: number}", "{type: string, pattern: '(?=a)'}", [(6, 64, "schema-invalid"), (11, 69, "type-error")]),
        ("{type: object, prop", "{type: object, $schema: 'http://json-schema.org/draft-07/schema#', prop", [(6, 28, "schema-keyword")]),
        ("priority: 10", "priority: 20", [(12, 43, "duplicate-priority")]),
        ("priority: 10", "priority: 65536", [(11, 45, "out-of-range")]),
        ("id: small", "id: bad", [(12, 10, "duplicate-id")]),
        ("id: small", "id: sm all", [(11, 10, "bad-name")]),
        ("id: small, ", "", [(11, 5, "missing-key")]),
        ("action: thing.do, priority: 10", "action: thing.doo, priority: 10", [(11, 25, "undeclared-action")]),
        ("when: params.amount < 5", "when: true", [(11, 55, "wrong-type")]),
        ("effect: approve", "effect: allow", [(11, 82, "unknown-value")]),
        ("effect: approve", "effect: approve, reason_code: FINE", [(11, 91, "unwanted-reason-code")]),
        (", reason_code: BAD_STATUS", "", [(12, 5, "missing-reason-code")]),
        ("BAD_STATUS", "bad_status", [(12, 105, "bad-name")]),
        ("BAD_STATUS", "NO_RULE_MATCHED", [(12, 105, "reserved-reason-code")]),
        ("when: params.amount < 5", "when: params.amout < 5", [(11, 55, "unknown-name")]),
        ('when: facts.status == "bad"', "when: 'true && facts.status == 5'", [(12, 75, "type-error")]),
        ('when: facts.status == "bad"', "when: true || facts.score > 1", [(12, 61, "unguarded-optional")]),
        (GOOD, "%YAML 1.1\n---\n" + GOOD.replace("optional: true", "optional: yes"), [(11, 75, "wrong-type")]),
        ("gavel: v1", "gavel: [v1", None),
        (GOOD, "", [(1, 1, "wrong-type")]),
        (GOOD, "- a", [(1, 1, "wrong-type")]),
        (GOOD, "[" * 3000, [(1, 66, "too-deep")]),
        (GOOD, "a: \x00", [(1, 1, "bad-character")]),
        (GOOD, "\ud800", [(1, 1, "bad-character")]),
        (GOOD, "#" * (DOCUMENT_BYTES_MAX + 1), [(1, 1, "document-too-long")]),
        (GOOD, "- 1\n" * DOCUMENT_PARTS_MAX, [(1, 1, "document-too-long")]),
        (GOOD, json.dumps({"examples": [{"a": 1}] * (DOCUMENT_PARTS_MAX // 3)}), [(1, 1, "document-too-long")]),
    ],
)
def test_mistakes(refusals: Refusals, old: str, new: str, expected: list[tuple[int, int, str]] | None) -> None:
    """Each mistake has its code and place, and causes no second one."""
    assert old in GOOD
    actual = refusals(GOOD.replace(old, new, 1))
    if expected is None:
        assert actual
    else:
        assert actual == expected


def test_all_mistakes_at_once() -> None:
    """Mistakes of every layer are reported together, sorted by place."""
    document = GOOD.replace("version: 1", "version: 0").replace("priority: 10", "priority: 20").replace("params.amount <", "params.amout <")
    document = document.replace("{type: number}", "{type: number, minimun: 3}").replace(", effect: reject", ", efect: reject")
    with pytest.raises(DocumentError) as failure:
        compile_rule_set(document)
    assert [message.format("demo.yaml").partition(" (")[0] for message in failure.value.messages] == [
        "demo.yaml:3:10: out-of-range: version: input should be greater than or equal to 1",
        "demo.yaml:6:64: schema-keyword: JSON Schema 2020-12 has no keyword 'minimun'",
        "demo.yaml:11:55: unknown-name: params has no field amout",
        "demo.yaml:12:43: duplicate-priority: rule small has priority 20 too",
        "demo.yaml:12:76: unknown-key: no such key here: efect",
    ]


def test_suggestions() -> None:
    """The nearest name is suggested, and a message prints on one line."""
    with pytest.raises(DocumentError) as failure:
        compile_rule_set(GOOD.replace("params.amount", "params.amout"))
    (message,) = failure.value.messages
    assert message == DocumentMessage(11, 55, "unknown-name", "params has no field amout", "did you mean params.amount?")
    assert message.format("a.yaml") == "a.yaml:11:55: unknown-name: params has no field amout (did you mean params.amount?)"


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("when: params.oops", (11, 55)),
        ("when: 'it == ''s'' || params.oops'", (11, 71)),
        ('when: "true && params.oops"', (11, 64)),
        ('when: "\\"a\\" == \\"b\\" || params.oops"', (11, 74)),
    ],
)
def test_places_inside_of_quotes(refusals: Refusals, written: str, place: tuple[int, int]) -> None:
    """A mistake in a condition has its place in the text, whatever the quoting."""
    actual = refusals(GOOD.replace("when: params.amount < 5", written))
    assert (*place, "unknown-name") in actual


def test_places_inside_of_blocks(refusals: Refusals) -> None:
    """A mistake in a block scalar, literal or folded, has its line and column."""
    for style in ("|", ">-", "|-", ">"):
        rule = ["  - id: block", "    action: thing.do", "    priority: 5", "    effect: approve"]
        block = [f"    when: {style}", "      true &&", "        params.oops", ""]
        assert refusals(GOOD + "\n".join([*rule, *block])) == [(19, 9, "unknown-name")]


def test_json_and_yaml_are_one_language(document: Document, refusals: Refusals) -> None:
    """A document has one digest, however it is written; mistakes in JSON have places too."""
    data = document(['params.name == "😀"'])
    compact = compile_rule_set(json.dumps(data))
    assert compact.digest == compile_rule_set(json.dumps(data, ensure_ascii=False, indent=2)).digest
    assert compact.digest == compile_rule_set(compact.canonical_json).digest
    assert compact.canonical_json == compile_rule_set(compact.canonical_json).canonical_json
    assert refusals('{"gavel": "v1",\n "gavel": "v1"}')[-1] == (2, 2, "duplicate-key")
    assert refusals('{"gavel":\n "v3", "rule_set": "a\\u0000"}')[-2:] == [(2, 2, "unknown-value"), (2, 20, "bad-character")]


@pytest.mark.parametrize("section", ["params", "shared", "documents", "constants", "variables", "facts"])
def test_keys_that_no_text_can_hold(refusals: Refusals, section: str) -> None:
    """A lone surrogate in a key of a JSON document is a mistake wherever the key stands."""
    broken = {"\ud800": {"params": {"\ud800": 1}}}
    data = {"gavel": "v2", section: broken, "actions": {"a.b": {section: broken, "use": ["\ud800"]}}}
    assert {(1, "bad-character")} <= {(line, code) for line, _, code in refusals(json.dumps(data))}


@pytest.mark.parametrize(("old", "new"), [("order.status", "order\x7f\ufffe"), ('"rules":', '"rules"\n:')])
def test_places_in_json_that_is_no_yaml(refusals: Refusals, document: Document, old: str, new: str) -> None:
    """A mistake in JSON that YAML cannot read is reported at its place."""
    text = json.dumps(document(["params.nothing > 1"]), ensure_ascii=False).replace(old, new)
    before = text[: text.index("params.nothing")]
    place = (1 + before.count("\n"), len(before) - before.rfind("\n"))
    assert (*place, "unknown-name") in refusals(text)


def test_digest_follows_content(document: Document) -> None:
    """Comments and order do not change the digest; a single literal does."""
    original = compile_rule_set(GOOD)
    lines = GOOD.splitlines()
    reordered = "\n".join(["# a comment", *lines[1:3], lines[0], *lines[3:]])
    assert compile_rule_set(reordered).digest == original.digest
    assert compile_rule_set(GOOD.replace("< 5", "< 6")).digest != original.digest
    assert original.digest.startswith("sha256:")
    assert len(original.digest) == len("sha256:") + 64


def test_attributes() -> None:
    """A compiled rule set has the values of its document, with the defaults filled in."""
    compiled = compile_rule_set(GOOD)
    action = compiled.actions["thing.do"]
    assert (compiled.policy_id, compiled.version, compiled.description, compiled.document) == ("demo", 1, "", GOOD)
    assert (action.policy_id, action.version, action.digest, action.action_type) == ("demo", 1, compiled.digest, "thing.do")
    assert [(rule.id, rule.priority, rule.effect, rule.reason_code, rule.condition) for rule in action.rules] == [
        ("bad", 20, "reject", "BAD_STATUS", 'facts.status == "bad"'),
        ("small", 10, "approve", "", "params.amount < 5"),
    ]
    assert action.facts == (
        FactDeclaration("score", "order.score", "number", 1, 1000, frozenset(), optional=True),
        FactDeclaration("status", "order.status", "string", 1, 1000, frozenset(), optional=False),
    )
    assert action.decision_ttl_ms == 60_000
    assert action.rejection_limit is None
    assert action.retry == RetryPolicy(
        max_attempts=1, backoff_initial_ms=500, backoff_multiplier=2.0, backoff_max_ms=30_000, human_takeover_after_ms=600_000
    )
    assert [warning.code for warning in compiled.warnings] == ["fact-never-read"]


def test_warnings() -> None:
    """A document that is valid but probably not intended gets a warning, not an error."""
    compiled = compile_rule_set(GOOD.replace("effect: approve", "effect: reject, reason_code: NO"))
    assert [(warning.line, warning.code) for warning in compiled.warnings] == [(5, "never-approves"), (9, "fact-never-read")]


def test_a_compensation_needs_no_rule() -> None:
    """An action without rules gets a warning, unless it is the target of a compensation."""
    other = "  x.undo: {params: {type: object}}\nrules:\n"
    with_other = GOOD.replace("rules:\n", other, 1)
    assert "never-approves" in [warning.code for warning in compile_rule_set(with_other).warnings]
    with_compensation = with_other.replace("    facts:\n", "    compensation: {action: x.undo}\n    facts:\n", 1)
    assert "never-approves" not in [warning.code for warning in compile_rule_set(with_compensation).warnings]


def test_reviews_can_end_in_an_approval() -> None:
    """An action whose rules leave every case to a person gets no warning: the person may approve."""
    compiled = compile_rule_set(GOOD.replace("effect: approve", "effect: review, reason_code: LOOK"))
    assert [warning.code for warning in compiled.warnings] == ["fact-never-read"]


@pytest.mark.parametrize(("window_ms", "codes"), [(999, []), (1_000, ["contest-outlasts-fact"] * 2)])
def test_window_longer_than_the_evidence_is_fresh(window_ms: int, codes: list[str]) -> None:
    """Evidence that is too old before a contest closes is a warning: its proposals would be refused again and again."""
    compiled = compile_rule_set(GOOD.replace("    facts:\n", f"    contest_window_ms: {window_ms}\n    facts:\n"))
    assert codes == [warning.code for warning in compiled.warnings if warning.code != "fact-never-read"]


@pytest.mark.parametrize(
    ("value_type", "accepted", "refused"),
    [
        ("string", ["", "x"], [1.0, True, None, ["x"]]),
        ("number", [1, 1.5, -0.0], ["1", True, None, float("nan"), float("inf"), 2.0**60]),
        ("integer", [1, 1.0, -(2.0**53)], [1.5, "1", True, None, float("inf"), 2.0**54]),
        ("boolean", [True, False], [0, 1.0, "true", None]),
    ],
)
def test_fact_types(value_type: str, accepted: list[object], refused: list[object]) -> None:
    """A fact's value is accepted only if it is of the declared type, without conversion."""
    declaration = FactDeclaration("f", "k", value_type, 1, 1, frozenset(), optional=False)
    assert [value for value in accepted if not is_of_type(value, declaration.value_type)] == []
    assert [value for value in refused if is_of_type(value, declaration.value_type)] == []


def test_rules_per_action(refusals: Refusals, document: Document) -> None:
    """An action may have RULES_PER_ACTION_MAX rules; one more is refused."""
    conditions = [f"params.amount > {number}" for number in range(RULES_PER_ACTION_MAX)]
    assert refusals(json.dumps(document(conditions))) == []
    assert [code for _, _, code in refusals(json.dumps(document([*conditions, "true"])))] == ["too-many-rules"]


def test_many_mistakes(document: Document) -> None:
    """Of very many mistakes the first thousand are reported, with the number of the others."""
    conditions = [" && ".join(f"params.x{number}" for number in range(10))] * 150
    with pytest.raises(DocumentError) as failure:
        compile_rule_set(json.dumps(document(conditions), indent=1))
    assert len(failure.value.messages) == 1001
    assert failure.value.messages[-1].message == "500 more mistakes follow"


def test_searches_for_suggestions_are_bounded(document: Document) -> None:
    """The nearest name is searched for only a few times, however many names are unknown."""
    names = [f"thing.{'a' * 40}{number}" for number in range(20)]
    data = document(["true"])
    data["actions"] = {name: {"params": {"type": "object"}} for name in names}
    data["rules"] = [{**data["rules"][0], "id": f"r{number}", "action": f"{names[0]}b{number}"} for number in range(300)]
    with pytest.raises(DocumentError) as failure:
        compile_rule_set(json.dumps(data))
    undeclared = [one for one in failure.value.messages if one.code == "undeclared-action"]
    assert 300 == len(undeclared)
    assert 100 == sum(one.suggestion != "" for one in undeclared)


def test_action_without_rules(document: Document, case: Callable[..., Case]) -> None:
    """An action may have no rules; then nothing matches."""
    data = document(["true"])
    data["actions"]["other.do"] = {"params": {"type": "object"}}
    verdict = compile_rule_set(json.dumps(data)).actions["other.do"].evaluate(case(), cross_check=True)
    assert (verdict.matches, verdict.error, verdict.disagreement) == ((), "", None)


@pytest.mark.parametrize("text", ["!" * 1_000_000, "gavel: " + "!x" * 500_000, "gavel: !<" + "x" * 500_000, "[!" + "a" * 1_000_000])
def test_long_tag_is_refused_early(refusals: Refusals, text: str) -> None:
    """A tag of any length is refused at its start: the YAML reader's time would grow with the square of its length."""
    ((line, column, code),) = refusals(text)
    assert (1, text.index("!") + 1, "yaml-tag") == (line, column, code)


def test_too_many_values(refusals: Refusals, document: Document) -> None:
    """Conditions that read more values than a network has slots are refused."""
    conditions = [f"params.name.contains('{number}')" for number in range(201)]
    assert refusals(json.dumps(document(conditions[:200]))) == []
    assert [code for _, _, code in refusals(json.dumps(document(conditions)))] == ["too-complex"]


_COMPILE_AND_PRINT = """
from gavel_rules.language.rule_set import compile_rule_set
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set
compiled = compile_rule_set(shipped_rule_set("refunds"))
action = compiled.actions["refund.create"]
print(compiled.digest, action._checked.plan.definition, [fact.name for fact in action.facts])
"""


@pytest.mark.long
def test_compiling_is_deterministic() -> None:
    """Compiling gives the same rule set, to the network's text, in every process and with every hash seed."""
    runs = [
        subprocess.run(
            [sys.executable, "-c", _COMPILE_AND_PRINT],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "random")
    ]
    assert len(set(runs)) == 1
    assert runs[0].split()[0] == compile_rule_set(shipped_rule_set("refunds")).digest


@pytest.mark.parametrize(
    ("text", "column"),
    [(f"%YAML 1.{'1' * 5_000}\n---\na: 1\n", 9), ('a: "\\UFFFFFFFF"', 7), ('a: "\\U00110000"', 7)],
)
def test_numbers_that_the_yaml_reader_cannot_hold(refusals: Refusals, text: str, column: int) -> None:
    """A version of YAML with thousands of digits, and the code of a character that does not exist, are mistakes at their places."""
    assert [(1, column, "yaml-syntax")] == refusals(text)


def test_a_directive_is_accepted(refusals: Refusals) -> None:
    """A document that names its version of YAML is read."""
    assert "yaml-syntax" not in {code for _, _, code in refusals("%YAML 1.2\n---\ngavel: v1\n")}
