"""`gavel rules diff`: its output and exit statuses."""

from __future__ import annotations

import json

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
