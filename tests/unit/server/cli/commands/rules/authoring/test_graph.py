"""`gavel rules graph`."""

from __future__ import annotations

import json
from pathlib import Path

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


COUNTED = """\
gavel: v2
rule_set: budgets
version: 1
actions:
  refund.create:
    params: {type: object, required: [amount], properties: {amount: {type: number}}}
    facts: {customer: {key: order.customer_id, type: string, max_length: 64, max_age_ms: 60000}}
counters:
  spent: {of: approvals, action: refund.create, by: subject, sum: params.amount, window_ms: 3600000}
  unread: {of: approvals, action: refund.create, window_ms: 3600000}
rules:
  - {id: over, action: refund.create, priority: 2, when: 'history.spent(facts.customer) > 9.0', effect: reject, reason_code: OVER}
  - {id: rest, action: refund.create, priority: 1, when: 'true', effect: approve}
"""


def test_counters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Diagrams and JSON have the counters that rules read, and the facts in their keys."""
    path = tmp_path / "budgets.yaml"
    path.write_text(COUNTED, encoding="utf-8")
    for arguments, reads in (([], "  a0c0 --> a0r0\n"), (["--format", "dot"], "  a0c0 -> a0r0\n")):
        assert 0 == run(["rules", "graph", str(path), *arguments])
        text = capsys.readouterr().out
        assert "sum of approvals" in text
        assert reads in text
        assert reads.replace("a0c0", "a0f0") in text
        assert "unread" not in text
    assert 0 == run(["rules", "graph", str(path), "--json"])
    (action,) = json.loads(capsys.readouterr().out)["actions"]
    assert [{"name": "spent", "of": "approvals", "aggregate": "sum"}] == action["counters"]
    assert [(["customer"], ["spent"]), ([], [])] == [(rule["reads"], rule["counters"]) for rule in action["rules"]]


def test_reviews(versions: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Diagrams and JSON say who resolves the reviews of an action, and of a rule with a review of its own."""
    path = Path(versions[0])
    text = path.read_text(encoding="utf-8")
    action = "    decision_ttl_ms:"
    assert action in text
    review = "{quorum: 2, groups: [risk, 'a\"b'], separation: true, escalate_after_ms: 60000, escalate_to: [leads]}"
    document = text.replace(action, f"    review: {review}\n{action}", 1)
    rule = "effect: review"
    assert rule in document
    path.write_text(document.replace(rule, f"{rule}\n    review: {{quorum: 3}}", 1), encoding="utf-8")
    for arguments in ([], ["--format", "dot"]):
        assert 0 == run(["rules", "graph", versions[0], *arguments])
        text = capsys.readouterr().out
        assert "review by 2 of a_b or risk, not the proposer, after 60000 ms also leads" in text
        assert "review by 3" in text
    assert 0 == run(["rules", "graph", versions[0], "--json"])
    (action_data,) = json.loads(capsys.readouterr().out)["actions"]
    assert (2, ["leads"]) == (action_data["review"]["quorum"], action_data["review"]["escalate_to"])
    assert [3] == [one["review"]["quorum"] for one in action_data["rules"] if one["review"] is not None]
