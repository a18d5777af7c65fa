"""Bundling of imported documents."""

from __future__ import annotations

import json

import pytest
from gavel_rules.authoring.bundle import BundleError, bundle
from gavel_rules.language.document.composition import library_digest
from gavel_rules.language.document.diagnostics import Messages
from gavel_rules.language.document.source import Source
from gavel_rules.language.rule_set import DocumentError, compile_rule_set

LIBRARY = "---\n# Limits of the company.\ngavel: v2\nlibrary: company\nconstants:\n  limit: 100\n\n  note: |\n    two\n    lines\n"
DATA = {"gavel": "v2", "library": "company", "constants": {"limit": 100, "note": "two\nlines\n"}}
DIGEST = library_digest(DATA)
RULES = {
    "gavel": "v2",
    "rule_set": "refunds",
    "version": 1,
    "imports": [{"file": "company.yaml", "digest": DIGEST}],
    "actions": {"refund.create": {"params": {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "number"}}}}},
    "rules": [
        {
            "id": "small",
            "action": "refund.create",
            "priority": 1,
            "when": "params.amount < constants.limit && constants.note != ''",
            "effect": "approve",
        }
    ],
}
YAML = f"""\
gavel: v2  # the second version
rule_set: refunds
version: 1
imports: [{{file: company.yaml, digest: "{DIGEST}"}}]
actions: {json.dumps(RULES["actions"])}
rules: {json.dumps(RULES["rules"])}"""


def unreadable(file: str) -> str:
    """Fail: nothing may be read."""
    raise AssertionError(file)


@pytest.mark.parametrize("text", [YAML, json.dumps(RULES)])
@pytest.mark.parametrize("library", [LIBRARY, json.dumps(DATA)])
def test_a_bundle_holds_everything(text: str, library: str) -> None:
    """A bundled document compiles alone and is the same rule set in either notation; bundling it again changes nothing."""
    bundled = bundle(text, {"company.yaml": library}.__getitem__)
    rule_set = compile_rule_set(bundled)
    assert compile_rule_set(bundle(json.dumps(RULES), lambda file: json.dumps(DATA))).digest == rule_set.digest
    assert bundle(bundled, unreadable) == bundled
    if text == YAML:
        assert bundled.startswith(text)


FLOW = f"{{gavel: v2, rule_set: refunds, version: 1, imports: [{{file: company.yaml, digest: '{DIGEST}'}}]}}"
NOTE = json.dumps({**DATA, "constants": {"limit": 100, "note": "a\x7f\U0001f600"}})


@pytest.mark.parametrize(
    "text",
    [YAML, f"---\n{YAML}\n...\n", YAML.replace("\n", "\r\n"), f"{YAML}\ndescription: |\n  text", FLOW],
)
@pytest.mark.parametrize(
    "library",
    [
        LIBRARY,
        f"--- # company\n{LIBRARY[4:]}",
        f"{LIBRARY}...\n",
        f"%YAML 1.2\n{LIBRARY}",
        LIBRARY.replace("\n", "\r\n"),
        f"# flow\n{json.dumps(DATA)}",
        NOTE,
    ],
)
@pytest.mark.parametrize("head", ["", "# rules of refunds\n"])
def test_a_bundle_in_any_layout(text: str, library: str, head: str) -> None:
    """A bundle holds the document and its imports, whatever the layout of both."""
    data = Source(library, Messages()).data
    text = (head + text).replace(DIGEST, library_digest(data))
    expected = {**_mapping(Source(text, Messages()).data), "documents": {library_digest(data): data}}
    assert expected == Source(bundle(text, lambda file: library), Messages()).data


def _mapping(data: object) -> dict[str, object]:
    assert isinstance(data, dict)
    return data


def test_documents_without_imports_stay_as_they_are() -> None:
    """A document without imports, and one that cannot be read, are returned unchanged."""
    for text in ("gavel: v2\n", "imports: 5\n", "a: [", "- 1\n", ""):
        assert text == bundle(text, unreadable)


@pytest.mark.parametrize(
    ("library", "message"),
    [
        (LIBRARY.replace("100", "200"), "company.yaml has the digest sha256:"),
        ("a: [", "company.yaml:1:"),
        ("- 1\n", "company.yaml is not a mapping"),
    ],
)
def test_documents_that_cannot_be_bundled(library: str, message: str) -> None:
    """Another content than the digest names, and a file that is no document, are refused with the reason."""
    with pytest.raises(BundleError, match=message):
        bundle(YAML, lambda file: library)


TWICE = YAML.replace("rule_set: refunds", "rule_set: refunds\nrule_set: others")


@pytest.mark.parametrize("text", [TWICE, f"{TWICE}\n...\n", FLOW.replace("version: 1", "version: 1, version: 2"), f"{YAML}\n1: a\n"])
def test_mistakes_are_left_to_the_compiler(text: str) -> None:
    """A document with mistakes that end in other data, such as a key twice, is returned unchanged, and the compiler reports them."""
    assert text == bundle(text, lambda file: LIBRARY)
    with pytest.raises(DocumentError, match=r"duplicate-key|non-string-key"):
        compile_rule_set(bundle(text, lambda file: LIBRARY))
