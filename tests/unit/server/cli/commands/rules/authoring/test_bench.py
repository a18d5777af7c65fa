"""`gavel rules bench`."""

from __future__ import annotations

import json

import pytest
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set
from gavel_server.cli.main import run


def test_bench(versions: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each action is measured with both engines and with each alone; an empty call is the fastest."""
    assert 0 == run(["rules", "bench", versions[0], "--json"])
    (action,) = json.loads(capsys.readouterr().out)["actions"]
    assert (action["action"], action["rules"]) == ("refund.create", shipped_rule_set("refunds").count("effect:"))
    assert action["cases"] > 10
    assert 0 < action["empty_call_us"] < min(action["both_us"], action["rete_us"], action["reference_us"])
    assert min(action["read_us"], action["count_us"]) > 0
    assert 0 == run(["rules", "bench", versions[0]])
    assert "refund.create" in capsys.readouterr().out
