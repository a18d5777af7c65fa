"""`gavel rules diff`, `graph` and `bench`: what they print, and their exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gavel_rules.authoring.shipped import shipped_rule_set
from gavel_server.cli.main import run

REFUNDS = shipped_rule_set("refunds")


@pytest.fixture
def written(tmp_path: Path) -> tuple[str, str]:
    """Two files: the shipped refunds, and the same with another threshold under the next version."""
    older, newer = tmp_path / "older.yaml", tmp_path / "newer.yaml"
    older.write_text(REFUNDS, encoding="utf-8")
    newer.write_text(REFUNDS.replace("params.amount > 500", "params.amount > 750"), encoding="utf-8")
    return str(older), str(newer)


def test_diff_for_people(written: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """A changed threshold is status 1: the rule, both values, and a case with what it is before and after."""
    assert 1 == run(["rules", "diff", *written])
    out, err = capsys.readouterr()
    assert "~ rule large\n" in out
    assert "rules.large.threshold: 500 -> 750\n" in out
    assert "  before: NEEDS_HUMAN_REVIEW LARGE_REFUND by large\n  after:  APPROVED by delivered\n" in out
    assert err == "gavel: kinds of cases that the two decide differently: 3\n"


def test_diff_for_machines(written: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has the rule ids, and cases of params, facts by declared name, and both decisions."""
    assert 1 == run(["rules", "diff", *written, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["added"], found["removed"], found["changed"]) == ([], [], ["large"])
    cases = {case["after"]["rule_id"]: case for case in found["cases"]}
    assert {"not-received", "delivered", ""} == set(cases)
    case = cases["delivered"]
    assert {"action", "params", "facts", "before", "after"} <= case.keys()
    assert 500 < case["params"]["amount"] <= 750
    assert case["facts"]["order_status"] == "delivered"
    assert case["before"] == {"outcome": "NEEDS_HUMAN_REVIEW", "reason_code": "LARGE_REFUND", "rule_id": "large"}


def test_diff_of_the_same(written: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Two files that decide the same are status 0 and print nothing but that."""
    assert 0 == run(["rules", "diff", written[0], written[0]])
    assert capsys.readouterr() == ("", "gavel: the two decide the same\n")


@pytest.mark.parametrize("command", [["diff", "{good}", "{bad}"], ["graph", "{bad}"], ["bench", "{bad}"]])
def test_invalid_documents(command: list[str], written: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A document with mistakes is status 2, with each mistake at its place, and none of them where a diagram or JSON belongs."""
    bad = tmp_path / "bad.yaml"
    bad.write_text(REFUNDS.replace("params.amount > 500", "params.amuont > 500"), encoding="utf-8")
    assert 2 == run(["rules", *(part.format(good=written[0], bad=bad) for part in command)])
    printed = capsys.readouterr()
    assert ("", True) == (
        printed.out,
        printed.err.startswith(f"gavel: {bad} is not a valid rule set; mend what follows and try again\n{bad}:"),
    )
    assert "unknown-name" in printed.err


def test_graph(written: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """A diagram has every action, fact and rule, in both languages, and is the same every time."""
    drawn = []
    for arguments in ([], ["--format", "mermaid"], ["--format", "dot"]):
        assert 0 == run(["rules", "graph", written[0], *arguments])
        drawn.append(capsys.readouterr().out)
    assert drawn[0] == drawn[1]
    assert drawn[0].startswith("flowchart LR\n")
    assert drawn[2].startswith('digraph "refunds" {\n')
    for text in drawn:
        for name in ("refund.create", "order_status", "fraud_score?", "600 large", "review LARGE_REFUND"):
            assert name in text
    assert "  a0f0 --> a0f4\n" in drawn[0], "the subject of fraud_score takes order_customer"
    assert 2 == run(["rules", "graph", written[0], "--format", "svg"])


def test_graph_for_machines(written: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON a graph says what each rule reads, and what the subject of each fact takes."""
    assert 0 == run(["rules", "graph", written[0], "--json"])
    (action,) = json.loads(capsys.readouterr().out)["actions"]
    facts = {fact["name"]: fact for fact in action["facts"]}
    fraud_score = {"name": "fraud_score", "key": "customer.fraud_score", "optional": True, "subject_reads": ["order_customer"]}
    assert fraud_score == facts["fraud_score"]
    rules = {rule["id"]: rule for rule in action["rules"]}
    large = rules["large"]
    assert (600, "review", ["fraud_score"]) == (large["priority"], large["effect"], large["reads"])
    assert ["order_status"] == rules["delivered"]["reads"]


def test_bench(written: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each action is measured with both engines and with each alone; an empty call is the shortest."""
    assert 0 == run(["rules", "bench", written[0], "--json"])
    (action,) = json.loads(capsys.readouterr().out)["actions"]
    assert (action["action"], action["rules"]) == ("refund.create", REFUNDS.count("effect:"))
    assert action["cases"] > 10
    assert 0 < action["empty_call_us"] < min(action["both_us"], action["rete_us"], action["reference_us"])
    assert 0 == run(["rules", "bench", written[0]])
    assert "refund.create" in capsys.readouterr().out
