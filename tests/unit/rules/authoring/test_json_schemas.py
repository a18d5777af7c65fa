"""The schemas for editors are generated, shipped, described, and never stricter than the compiler."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, get_args

import jsonschema_rs
import pytest
from gavel_rules.authoring.json_schemas import SchemaName, generate_schema, shipped_schema
from gavel_rules.authoring.suites.reader import read_suite
from gavel_rules.authoring.suites.suite import SUITE_SUFFIXES
from gavel_rules.language.rule_set import DocumentError, compile_rule_set
from ruamel.yaml import YAML

from tests.support.paths import ROOT
from tests.unit.rules.authoring.suites.test_suite import sample

SETS: Final = ROOT / "rules/sets"
NAMES: Final[tuple[SchemaName, ...]] = get_args(SchemaName)
FILES: Final = sorted(SETS.glob("*.yaml"))


def rule_set() -> str:
    """Return the document at the top of docs/rule-language.md."""
    match = re.search(r"```yaml\n(.*?)```", (ROOT / "docs/rule-language.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert match is not None
    return match[1]


def valid(name: SchemaName, text: str) -> bool:
    """Return whether a document is valid for a schema."""
    return bool(jsonschema_rs.validator_for(json.loads(shipped_schema(name))).is_valid(YAML(typ="safe", pure=True).load(text)))


def kind(file: Path) -> SchemaName:
    """Return the name of a shipped file's schema."""
    return "test" if file.name.endswith(SUITE_SUFFIXES) else "rule-set"


@pytest.mark.parametrize("name", NAMES)
def test_shipped_schemas_are_current(name: SchemaName) -> None:
    """The shipped schemas are those that the models generate."""
    assert generate_schema(name) == shipped_schema(name), "run `make schemas`"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_shipped_files(file: Path) -> None:
    """Every shipped file is valid and names its schema in its first line."""
    text = file.read_text(encoding="utf-8")
    assert f"# yaml-language-server: $schema=../gavel_rules/schemas/{kind(file)}.json" == text.partition("\n")[0]
    assert valid(kind(file), text)


def test_samples_fit() -> None:
    """The samples of the documentation are valid."""
    assert valid("rule-set", rule_set())
    assert valid("test", sample())


def _undescribed(schema: Any, path: str = "") -> list[str]:
    if not isinstance(schema, dict):
        return []
    properties = schema.get("properties", {})
    missing = [f"{path}.{name}" for name, field in properties.items() if "description" not in field]
    return missing + [one for name, part in schema.get("$defs", {}).items() for one in _undescribed(part, name)]


@pytest.mark.parametrize("name", NAMES)
def test_every_key_is_explained(name: SchemaName) -> None:
    """Every key has a description."""
    assert [] == _undescribed(json.loads(shipped_schema(name)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("version: 1", "version: 0"),
        ("version: 1", "version: one"),
        ("rule_set: refunds", "rule_set: my refunds"),
        ("gavel: v1", "gavel: v3"),
        ("rules:", "rulez:"),
        ("refund.create:\n", "Refund:\n"),
        ("max_age_ms: 60000", "max_age_ms: 0"),
        ("min_trust: 2", "min_trust: 4"),
        ("optional: true", "optinal: true"),
        ("type: string, max_age_ms", "type: text, max_age_ms"),
        ("type: object", "type: array"),
        ("effect: approve", "effect: accept"),
        ("effect: approve", "effect: reject"),
        ("effect: approve", "effect: approve, reason_code: FINE"),
        ("priority: 800", "priority: 70000"),
        ("max_attempts: 3", "max_attempts: 0"),
    ],
)
def test_compiler_refuses_documents_that_the_schema_refuses(old: str, new: str) -> None:
    """A rule set that the schema refuses does not compile either."""
    assert old in rule_set()
    text = rule_set().replace(old, new, 1)
    assert not valid("rule-set", text)
    with pytest.raises(DocumentError):
        compile_rule_set(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tests: refunds.yaml", "tests: 7"),
        ("gavel: v1", "gavel: v3"),
        ("defaults:", "default:"),
        ("{age_ms: 60001}", "{age: 60001}"),
        ("age_ms: 10000", "age_ms: -1"),
        ("outcome: APPROVED,", "outcome: APROVED,"),
        ("subject: order/1", "subject: order"),
        ("facts.order_status, expect", "facts.order_status, expct"),
        ("state: STALE", "state: OLD"),
        ("  - name: a refund", "  - title: a refund"),
    ],
)
def test_runner_refuses_suites_that_the_schema_refuses(old: str, new: str) -> None:
    """A suite that the schema refuses cannot be read either."""
    assert old in sample()
    text = sample().replace(old, new, 1)
    assert not valid("test", text)
    with pytest.raises(DocumentError):
        read_suite(text)


def test_patches_fit() -> None:
    """The schema of tests allows whatever a patch may contain: nulls, bare values, parts."""
    text = (
        "gavel: v1\ntests: a.yaml\ndefaults: {producer: null, expect: {rule_id: x}, facts: {a: 1, b: {age_ms: 3}, c: null, d: [1]}}\n"
        "cases: [{name: x, facts: {b: {value: x}}, proposal: {risk: null}, earlier: [{}], "
        "expect: {outcome: APPROVED, hint: [], rule_id: null}}]\n"
        "tables: [{name: y, columns: [name, params.a.b, facts.a.age_ms, params], rows: [[a, 1, 2, {}]]}]\n"
    )
    assert valid("test", text)
