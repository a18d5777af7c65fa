"""Sharing in documents: parts of actions, rules of several actions, constants, and imported documents."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gavel_rules.authoring.diff import diff_rule_sets
from gavel_rules.authoring.lint import lint_rule_set
from gavel_rules.language.document.composition import library_digest
from gavel_rules.language.document.diagnostics import Messages
from gavel_rules.language.document.source import Source
from gavel_rules.language.rule_set import CompiledRuleSet, DocumentError, compile_rule_set

TEXT = """\
gavel: v2
rule_set: services
version: 1
constants:
  replicas: 5
  regions: [eu, us]
  owner: platform
variables:
  local: params.region in constants.regions
shared:
  change:
    params:
      type: object
      required: [service]
      additionalProperties: false
      properties:
        service: {type: string, maxLength: 64}
        region: {type: string, maxLength: 8}
    facts:
      team: {key: service.team, type: string, max_length: 64, max_age_ms: 60000}
    decision_ttl_ms: 5000
  approved:
    facts:
      approvers: {key: change.approvers, max_age_ms: 60000, value: {type: array, maxItems: 5, items: {type: string, maxLength: 64}}}
actions:
  service.deploy: {use: [change, approved], conflict_key: params.service}
  service.scale:
    use: [change]
    params: {type: object, required: [replicas], properties: {replicas: {type: integer}}}
    decision_ttl_ms: 1000
  node.drain: {params: {type: object, properties: {}}}
rules:
  - {id: foreign, actions: "service.*", priority: 900, when: 'has(params.region) && !local', effect: reject, reason_code: FOREIGN_REGION}
  - {id: own, actions: [service.deploy, service.scale], priority: 800, when: facts.team == constants.owner, effect: approve}
  - {id: large, action: service.scale, priority: 850, when: params.replicas > constants.replicas, effect: review, reason_code: LARGE}
  - {id: drain, action: node.drain, priority: 800, when: constants.replicas * 2.0 == 10.0, effect: approve}
"""


def compiled(**changes: str) -> CompiledRuleSet:
    """Return the rule set, with parts of its text replaced."""
    return compile_rule_set(changed(changes))


def changed(changes: dict[str, str]) -> str:
    """Return the text with some parts replaced."""
    text = TEXT
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def mistakes(text: str) -> list[tuple[int, str, str]]:
    """Return the line, code and message of every mistake."""
    with pytest.raises(DocumentError) as refused:
        compile_rule_set(text)
    return [(one.line, one.code, one.message) for one in refused.value.messages]


def test_actions_have_what_they_use() -> None:
    """Schemas, facts and settings of shared parts are joined; what an action declares itself takes precedence."""
    actions = compiled().actions
    deploy, scale = actions["service.deploy"], actions["service.scale"]
    assert {"service", "region"} == deploy.params_schema["properties"].keys()
    assert {"service", "region", "replicas"} == scale.params_schema["properties"].keys()
    assert ["service", "replicas"] == scale.params_schema["required"]
    assert scale.params_schema["additionalProperties"] is False
    assert ["approvers", "team"] == sorted(fact.name for fact in deploy.facts)
    assert ["team"] == [fact.name for fact in scale.facts]
    assert [5000, 1000] == [deploy.decision_ttl_ms, scale.decision_ttl_ms]


def test_a_rule_decides_on_each_of_its_actions() -> None:
    """A rule of several actions, or of a pattern, is a rule of each of them, under one id."""
    actions = compiled().actions
    rules = {name: [rule.id for rule in action.rules] for name, action in actions.items()}
    assert {"service.deploy": ["foreign", "own"], "service.scale": ["foreign", "large", "own"], "node.drain": ["drain"]} == rules


def test_the_digest_is_of_the_document_as_written() -> None:
    """The canonical JSON keeps the shared parts, and compiles to an equal rule set."""
    rule_set = compiled()
    again = compile_rule_set(rule_set.canonical_json)
    assert (rule_set.digest, rule_set.canonical_json) == (again.digest, again.canonical_json)
    assert '"shared"' in rule_set.canonical_json
    pairs = zip(rule_set.actions.values(), again.actions.values(), strict=True)
    assert all(one.conditions == other.conditions for one, other in pairs)


def test_constants_are_literals() -> None:
    """A constant stands for its literal: the network compares with it, and its numbers are doubles, in canonical JSON too."""
    scale = compiled().actions["service.scale"]
    (large,) = (condition for rule, condition in zip(scale.rules, scale.conditions, strict=True) if rule.id == "large")
    assert "params.replicas > (5.0)" == large.text
    deploy = compiled().actions["service.deploy"]
    assert '(["eu", "us"])' in deploy.conditions[0].text


@pytest.mark.parametrize(
    "use",
    ["constants . replicas", "(constants).replicas", "((constants) // five\n )\n. replicas", "constants // a: (\n.`replicas`"],
)
def test_a_constant_in_any_layout(use: str) -> None:
    """Spaces, comments and parentheses in the path of a constant change nothing."""
    text = changed({"> constants.replicas": f"> {use}"}).replace("when: params.replicas", 'when: "params.replicas')
    text = text.replace(f"> {use}", f"> {use}".replace("\n", "\\n") + '"')
    expected, actual = (one.actions["service.scale"].conditions for one in (compiled(), compile_rule_set(text)))
    assert [one.tree for one in expected] == [one.tree for one in actual]


def test_no_negative_zero() -> None:
    """A constant -0.0 is 0.0, as in the canonical JSON of the document."""
    text = changed({"replicas: 5": "replicas: -0.0", "constants.replicas * 2.0 == 10.0": "1.0 / constants.replicas > 0.0"})
    rule_set = compile_rule_set(text)
    again = compile_rule_set(rule_set.canonical_json)
    assert "1.0 / (0.0) > 0.0" == rule_set.actions["node.drain"].conditions[0].text == again.actions["node.drain"].conditions[0].text


def test_shared_parts_that_differ_in_type() -> None:
    """Two shared parts that say true and 1 disagree."""
    text = changed(
        {
            "  approved:\n": "  approved:\n    params: {type: object, properties: {flag: {const: 1}}}\n",
            "        region: {type: string, maxLength: 8}\n": "        region: {type: string, maxLength: 8}\n        flag: {const: true}\n",
        }
    )
    assert ["shared-parts-disagree"] == [code for _, code, _ in mistakes(text)]


def test_no_warning() -> None:
    """A document that uses all it declares has no warning."""
    rule_set = compiled(**{"approved]": "approved]", "facts.team == constants.owner": "facts.team == constants.owner"})
    assert {"fact-never-read"} == {one.code for one in rule_set.warnings}
    assert () == lint_rule_set(rule_set)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"use: [change]\n": "use: [chnge]\n"}, (28, "unknown-name", "`shared` has no part chnge")),
        ({'"service.*"': '"servce.*"'}, (33, "undeclared-action", "the action servce.* is not declared under `actions`")),
        ({"[service.deploy, service.scale]": "[service.deploy, servce.scale]"}, (34, "undeclared-action", "servce.scale")),
        ({"id: own, actions:": "id: own, action: node.drain, actions:"}, (34, "unknown-key", "an `action` and `actions`")),
        ({"id: own, actions: [service.deploy, service.scale],": "id: own,"}, (34, "missing-key", "the key action is missing")),
        ({"priority: 850": "priority: 900"}, (35, "duplicate-priority", "rule foreign has priority 900 too")),
        ({"> constants.replicas": "> constants.replica"}, (35, "unknown-name", "there is no constant replica")),
        (
            {"> constants.replicas": "> constants.replicas && has(constants.replicas)"},
            (35, "needless-has", "constants.replicas is always present"),
        ),
        (
            {"in constants.regions": "in constants.regions && has(constants.owner)"},
            (9, "needless-has", "constants.owner is always present"),
        ),
        ({"in constants.regions": "in constants.region"}, (9, "unknown-name", "there is no constant region")),
        ({"replicas: 5": "replicas: {a: 1}"}, (5, "wrong-type", "constants.replicas is not a number")),
        ({"owner: platform": "own-er: platform"}, (7, "bad-name", "the name 'own-er' of a constant")),
        ({"local: params": "constants: params"}, (9, "shadowed-name", "constants already has a meaning")),
        ({"has(params.region) && !local": "[1].exists(constants, true)"}, (33, "shadowed-name", "constants already has a meaning")),
        ({"type: string, max_length: 64,": "type: strin, max_length: 64,"}, (20, "unknown-value", "shared.change.facts.team.type")),
        ({"service: {type: string,": "service: {type: strin,"}, (17, "schema-invalid", "JSON Schema has no type 'strin'")),
        ({"    decision_ttl_ms: 5000\n": "    use: [approved]\n"}, (21, "unknown-key", "a shared part uses no others")),
        (
            {"  approved:\n": "  approved:\n    decision_ttl_ms: 7000\n"},
            (27, "shared-parts-disagree", "the shared parts change and approved give decision_ttl_ms different values"),
        ),
        (
            {"  approved:\n": "  approved:\n    params: 3\n"},
            (27, "shared-parts-disagree", "the shared parts change and approved give params different values"),
        ),
        ({"gavel: v2": "gavel: v1"}, (4, "unknown-key", "constants needs the language's second version")),
    ],
)
def test_mistakes_are_reported_where_they_are_written(changes: dict[str, str], expected: tuple[int, str, str]) -> None:
    """Each mistake is reported once, at its place in the text, also inside of a part that several actions use."""
    line, code, message = expected
    matches = [one for one in mistakes(changed(changes)) if one[:2] == (line, code)]
    assert [True] == [message in one[2] for one in matches], mistakes(changed(changes))


@pytest.mark.parametrize("name", ["constants", "zones", "calendars", "history"])
def test_the_first_version_has_these_names_free(name: str) -> None:
    """A variable of a document of the first version may have a name that the second version takes."""
    data = {
        "gavel": "v1",
        "rule_set": "old",
        "version": 1,
        "actions": {"a.b": {"params": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}}},
        "variables": {name: "params.n", "twice": f"{name} + {name}"},
        "rules": [{"id": "x", "action": "a.b", "priority": 1, "when": f"twice > 2 && {name} > 1", "effect": "approve"}],
    }
    (condition,) = compile_rule_set(json.dumps(data)).actions["a.b"].conditions
    assert "((params.n) + (params.n)) > 2 && (params.n) > 1" == condition.text


def test_a_constant_that_nothing_uses_is_noted() -> None:
    """An unused constant, and an unused shared part, get a warning."""
    rule_set = compiled(**{"use: [change, approved]": "use: [change]", "facts.team == constants.owner": 'facts.team == "x"'})
    warnings = {(one.line, one.code) for one in rule_set.warnings}
    assert {(7, "constant-never-used"), (22, "shared-never-used")} == warnings


def test_diff_sees_through_sharing() -> None:
    """A changed constant and a changed shared part change the actions that use them, with cases that show it."""
    diff = diff_rule_sets(compiled(), compiled(**{"replicas: 5": "replicas: 7", "* 2.0 == 10.0": "* 2.0 == 14.0"}))
    assert ("constants.replicas", 5, 7) in [tuple(edit) for edit in diff.edits]
    assert {"service.scale"} == {case.action for case in diff.cases}
    (case, *_) = diff.cases
    assert case.params["replicas"] in (6, 7)


LIBRARY = """\
gavel: v2
library: company
constants: {replicas: 5, regions: [eu, us], owner: platform}
variables: {local: params.region in constants.regions}
"""


def data_of(text: str) -> object:
    """Return a document as data."""
    return Source(text, Messages()).data


def importing(library: str = LIBRARY, digest: str = "") -> str:
    """Return the rule set with its constants and its variable in an imported document."""
    bundled = "".join(f"    {line}\n" for line in library.splitlines())
    digest = digest or library_digest(data_of(library))
    own = TEXT[: TEXT.index("constants:")] + TEXT[TEXT.index("shared:") :]
    return f'{own}imports:\n  - {{file: company.yaml, digest: "{digest}"}}\ndocuments:\n  "{digest}":\n{bundled}'


def test_imports_decide_as_if_written_out() -> None:
    """A rule set that imports constants and variables has the same conditions as one that declares them; the text is whole."""
    own, imported = compiled(), compile_rule_set(importing())
    assert [action.conditions for action in own.actions.values()] == [action.conditions for action in imported.actions.values()]
    assert "library: company" in imported.document
    assert compile_rule_set(imported.canonical_json).digest == imported.digest


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (importing(LIBRARY.replace("owner: platform", "owner: 5.5"), library_digest(data_of(LIBRARY))), "wrong-digest"),
        (importing().replace("imports:\n", "variables: {local: 'true'}\nimports:\n"), "duplicate-name"),
        (importing()[: importing().index("documents:")], "not-bundled"),
        (importing() + '  "sha256:' + "0" * 64 + '": {gavel: v2, library: other}\n', "not-imported"),
        (importing(LIBRARY + "rules: []\n"), "unknown-key"),
        (importing() + "constants: []\n", "wrong-type"),
        (importing(LIBRARY.replace("in constants.regions", "in constants.region")), "unknown-name"),
    ],
)
def test_imports_that_cannot_be_used_are_refused(text: str, code: str) -> None:
    """Another content than the digest says, colliding names, documents that are not bundled or not imported: all are refused."""
    assert code in {one[1] for one in mistakes(text)}


def test_mistakes_of_imported_documents_are_reported_in_them() -> None:
    """A mistake inside of an imported variable is reported at its place in the bundled document."""
    text = importing(LIBRARY.replace("in constants.regions", "in constants.region"))
    lines: list[Any] = [one[0] for one in mistakes(text)]
    assert [len(text.splitlines())] == lines


@pytest.mark.parametrize("wrong", ["[{}]", "[[service]]", "[1, 1]", "[null]"])
def test_required_properties_of_a_wrong_form(wrong: str) -> None:
    """A list of required properties with something else than names is a mistake of the schema, also where shared parts are joined."""
    for old in ("required: [service]", "required: [replicas]"):
        with pytest.raises(DocumentError) as refused:
            compiled(**{old: f"required: {wrong}"})
        assert "schema-invalid" in {message.code for message in refused.value.messages}
