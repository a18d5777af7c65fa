"""Rule sets as files: what a client deploys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gavel_client import RuleSetFileError, load_rule_set
from gavel_rules.language.document.composition import library_digest
from gavel_rules.language.rule_set import compile_rule_set

LIBRARY = {"gavel": "v2", "library": "company", "constants": {"limit": 100}}
RULES = {
    "gavel": "v2",
    "rule_set": "refunds",
    "version": 1,
    "imports": [{"file": "shared/company.json", "digest": library_digest(LIBRARY)}],
    "actions": {"refund.create": {"params": {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "number"}}}}},
    "rules": [{"id": "small", "action": "refund.create", "priority": 1, "when": "params.amount < constants.limit", "effect": "approve"}],
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A rule set that imports a document in another folder."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "company.json").write_text(json.dumps(LIBRARY))
    (tmp_path / "refunds.json").write_text(json.dumps(RULES))
    return tmp_path / "refunds.json"


def test_a_file_is_read_with_its_imports(file: Path) -> None:
    """The text holds the imported documents, and compiles alone."""
    assert json.loads(compile_rule_set(load_rule_set(file)).canonical_json)["documents"] == {library_digest(LIBRARY): LIBRARY}


def test_a_file_without_imports_is_read_as_it_is(tmp_path: Path) -> None:
    """A document without imports is the text of its file."""
    (tmp_path / "plain.yaml").write_text("\ufeffgavel: v1\n", encoding="utf-8")
    assert "gavel: v1\n" == load_rule_set(str(tmp_path / "plain.yaml"))


def test_files_that_cannot_be_used(file: Path) -> None:
    """A changed, an absent and an unreadable import are errors that name the file."""
    imported = file.parent / "shared" / "company.json"
    imported.write_text(json.dumps({**LIBRARY, "constants": {"limit": 200}}))
    with pytest.raises(RuleSetFileError, match=f"{file}: shared/company.json has the digest sha256:"):
        load_rule_set(file)
    imported.write_bytes(b"a\xff")
    with pytest.raises(RuleSetFileError, match=f"{imported} is not UTF-8 at byte 1"):
        load_rule_set(file)
    imported.unlink()
    with pytest.raises(FileNotFoundError, match=imported.name):
        load_rule_set(file)
