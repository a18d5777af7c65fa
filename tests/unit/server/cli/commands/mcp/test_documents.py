"""The documents that `gavel mcp scaffold` writes."""

from __future__ import annotations

import pytest
from gavel_client.mcp.configuration import ServerSettings
from gavel_client.mcp.upstreams.definitions import define
from gavel_rules.language.rule_set import compile_rule_set
from gavel_server.cli.commands.mcp.documents import write_documents
from mcp_types import Tool


@pytest.mark.parametrize("hidden", ["\x9b31m", "\u202e", "\ufeff", "\ufffe", "\U000e0041"], ids=ascii)
def test_characters_that_nobody_sees(hidden: str) -> None:
    """Characters that a terminal obeys or a reader does not see are escaped, and keep their meaning."""
    schema = {"type": "object", "properties": {"text": {"enum": [f"a{hidden}b", "\U0001f600"]}}}
    definitions, _ = define("evil", [Tool(name="act", input_schema=schema)])

    rules = write_documents(
        [("evil", ServerSettings(command=["evil"]), list(definitions.values()))], "agent", "rules.yaml", "mcp-tools"
    ).rules

    assert "".join(rules.split("\n")).isprintable()
    assert "\U0001f600" in rules
    assert f"a{hidden}b" in compile_rule_set(rules).canonical_json
