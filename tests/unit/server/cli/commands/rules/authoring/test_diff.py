"""`gavel rules diff`: its output and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gavel_server.cli.main import run


def test_text(versions: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """A changed threshold is exit status 1; the output has the rule, both values, and a case with both decisions."""
    assert 1 == run(["rules", "diff", *versions])
    out, err = capsys.readouterr()
    assert "~ rule large\n" in out
    assert "rules.large.threshold: 500 -> 750\n" in out
    assert "  before: NEEDS_HUMAN_REVIEW LARGE_REFUND by large\n  after:  APPROVED by delivered\n" in out
    assert err == "gavel: kinds of cases decided differently: 3\n"


def test_json(versions: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has the rule ids, and cases with params, facts by declared name, and both decisions."""
    assert 1 == run(["rules", "diff", *versions, "--json"])
    output = json.loads(capsys.readouterr().out)
    assert (output["added"], output["removed"], output["changed"]) == ([], [], ["large"])
    cases = {case["after"]["rule_id"]: case for case in output["cases"]}
    assert {"not-received", "delivered", ""} == set(cases)
    case = cases["delivered"]
    assert {"action", "params", "facts", "before", "after"} <= case.keys()
    assert 500 < case["params"]["amount"] <= 750
    assert case["facts"]["order_status"] == "delivered"
    assert case["before"] == {"outcome": "NEEDS_HUMAN_REVIEW", "reason_code": "LARGE_REFUND", "rule_id": "large"}


def test_equal_versions(versions: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Two equal versions are exit status 0, with a note only."""
    assert 0 == run(["rules", "diff", versions[0], versions[0]])
    assert capsys.readouterr() == ("", "gavel: the two versions make the same decisions\n")


BUDGET = """gavel: v2
rule_set: mail
version: 1
actions:
  mail.send: {params: {type: object, required: [cost], properties: {cost: {type: number, minimum: 0}}}}
counters:
  sent: {of: approvals, action: mail.send, window_ms: 3600000}
rules:
  - {id: often, action: mail.send, priority: 2, when: history.sent() >= 1, effect: reject, reason_code: OFTEN}
  - {id: rest, action: mail.send, priority: 1, when: 'true', effect: approve}
derivations:
  - {id: cost, version: 1, on: {action: mail.send, status: SUCCESS}, key: mail.cost, value: params.cost}
"""


def test_histories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An edited counter and an edited derivation have a history each, as text and as JSON."""
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(BUDGET)
    new.write_text(BUDGET.replace("window_ms: 3600000", "window_ms: 7200000").replace("value: params.cost", "value: params.cost * 2.0"))
    assert 1 == run(["rules", "diff", str(old), str(new)])
    out, err = capsys.readouterr()
    assert "history of mail.send:\n" in out
    assert "  before: APPROVED by rest" in out
    assert "  after:  REJECTED OFTEN by often\n" in out
    assert ", derives mail.cost = " in out
    assert "not-analysed" not in out
    assert "histories: " in err
    assert 1 == run(["rules", "diff", str(old), str(new), "--json"])
    output = json.loads(capsys.readouterr().out)
    earlier = next(one["earlier"] for one in output["histories"] if one["after"]["reason_code"] == "OFTEN")
    assert (1, True) == (earlier["proposals"], 3_600_000 <= earlier["age_ms"] < 7_200_000)
    assert {"mail.cost"} == {fact["key"] for one in output["histories"] for fact in one["derived_after"]}
    assert [] == output["not_analysed"]


def test_versions_of_different_rule_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A note tells that the two documents have different names, which is easily a mistake."""
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(BUDGET)
    new.write_text(BUDGET.replace("rule_set: ", "rule_set: other-"))
    run(["rules", "diff", str(old), str(new)])
    assert "gavel: these are versions of different rule sets, " in capsys.readouterr().err


def test_a_suite_of_several_rule_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The cases of a suite show an edit of any rule set that the suite tests; a suite that tests none of them is exit status 2."""
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(BUDGET)
    new.write_text(BUDGET.replace("window_ms: 3600000", "window_ms: 7200000"))
    rule = "{id: all, action: mail.send, priority: 1, when: 'true', effect: approve}"
    params = "{type: object, required: [cost], properties: {cost: {type: number, minimum: 0}}}"
    (tmp_path / "company.yaml").write_text(
        f"gavel: v2\nrule_set: company\nversion: 1\nactions:\n  mail.send: {{params: {params}}}\nrules:\n  - {rule}\n"
    )
    suite = tmp_path / "mail_test.yaml"
    case = "{name: later, params: {cost: 1}, facts: {n: {key: a.b, value: 1}}, earlier: [{age_ms: 3600000}], expect: {outcome: APPROVED}}"
    for tests in ("[old.yaml, company.yaml]", "[company.yaml, old.yaml]"):
        suite.write_text(f"gavel: v1\ntests: {tests}\ncases:\n  - {case}\n")
        assert 1 == run(["rules", "diff", str(old), str(new), "--suite", str(suite)])
        _, _, of_case = capsys.readouterr().out.partition(f"case 'later' of {suite}\n")
        assert of_case.startswith("  before: APPROVED by ")
        assert of_case.endswith("\n  after:  REJECTED OFTEN by often\n")
    suite.write_text(f"gavel: v1\ntests: company.yaml\ncases:\n  - {case}\n")
    assert 2 == run(["rules", "diff", str(old), str(new), "--suite", str(suite)])
    assert f"{suite} tests company, not mail; give a suite that names a version of it under tests" in capsys.readouterr().err


def test_histories_of_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An edited counter of facts shows with earlier facts, as text and as JSON; one without a history has a reason."""
    text = BUDGET.replace("of: approvals, action: mail.send", "of: facts, fact: mail.bounced, where: value == true")
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(text)
    new.write_text(text.replace("value == true", "value == false"))
    assert 1 == run(["rules", "diff", str(old), str(new)])
    out, _ = capsys.readouterr()
    assert "  30 min before, 1 x fact mail.bounced = false of subject/1 from test-source\n  then at 2026-01-15T12:00:00.000Z params " in out
    assert "  before: APPROVED by rest\n  after:  REJECTED OFTEN by often\n" in out
    assert 1 == run(["rules", "diff", str(old), str(new), "--json"])
    output = json.loads(capsys.readouterr().out)
    (history,) = output["histories"]
    fact = {
        "facts": 1,
        "age_ms": 1_800_000,
        "key": "mail.bounced",
        "subject": "subject/1",
        "source": "test-source",
        "tier": 1,
        "value": False,
    }
    assert (None, [fact], []) == (history["earlier"], history["earlier_facts"], output["not_analysed"])

    new.write_text(text.replace("window_ms: 3600000", "window_ms: 3600000, entries_max: 1000"))
    assert 1 == run(["rules", "diff", str(old), str(new)])
    reason = "only its limits differ, which no generated history reaches"
    assert f"not-analysed: no history shows the edit of counters.sent: {reason}; it may still" in capsys.readouterr().out
    assert 1 == run(["rules", "diff", str(old), str(new), "--json"])
    output = json.loads(capsys.readouterr().out)
    assert (["counters.sent"], {"counters.sent": reason}) == (output["not_analysed"], output["reasons"])


@pytest.mark.parametrize(("window_ms", "age"), [(3_600_000, "30 min before"), (93_783_000, "13 h 1 min 31 s 500 ms before")])
def test_ages(window_ms: int, age: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The age of an earlier proposal is exact, in as many units as that takes."""
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    text = BUDGET[: BUDGET.index("derivations:")].replace("3600000", str(window_ms))
    old.write_text(text)
    new.write_text(text.replace("action: mail.send, window", "action: mail.send, where: params.cost > 5.0, window"))
    assert 1 == run(["rules", "diff", str(old), str(new)])
    assert f"  {age}, 1 x params " in capsys.readouterr().out
