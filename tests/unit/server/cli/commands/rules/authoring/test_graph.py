"""`gavel rules graph`."""

from __future__ import annotations

import json

import pytest
from gavel_server.cli.main import run


def test_diagram(versions: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """A diagram has every action, fact and rule, in both languages, and is deterministic."""
    diagrams = []
    for arguments in ([], ["--format", "mermaid"], ["--format", "dot"]):
        assert 0 == run(["rules", "graph", versions[0], *arguments])
        diagrams.append(capsys.readouterr().out)
    assert diagrams[0] == diagrams[1]
    assert diagrams[0].startswith("flowchart LR\n")
    assert diagrams[2].startswith('digraph "refunds" {\n')
    for text in diagrams:
        for name in ("refund.create", "order_status", "fraud_score?", "600 large", "review LARGE_REFUND"):
            assert name in text
    assert "  a0f0 --> a0f4\n" in diagrams[0], "the subject of fraud_score takes order_customer"
    assert 2 == run(["rules", "graph", versions[0], "--format", "svg"])


def test_json(versions: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has what each rule reads, and what the subject of each fact is computed from."""
    assert 0 == run(["rules", "graph", versions[0], "--json"])
    (action,) = json.loads(capsys.readouterr().out)["actions"]
    facts = {fact["name"]: fact for fact in action["facts"]}
    fraud_score = {"name": "fraud_score", "key": "customer.fraud_score", "optional": True, "subject_reads": ["order_customer"]}
    assert fraud_score == facts["fraud_score"]
    rules = {rule["id"]: rule for rule in action["rules"]}
    large = rules["large"]
    assert (600, "review", ["fraud_score"]) == (large["priority"], large["effect"], large["reads"])
    assert ["order_status"] == rules["delivered"]["reads"]
