"""`gavel rules bench`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set
from gavel_server.cli.main import run


@pytest.mark.long
def test_bench(versions: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each action is measured with both engines and with each alone; an empty call is the fastest."""
    assert 0 == run(["rules", "bench", versions[0], "--json"])
    (action,) = json.loads(capsys.readouterr().out)["actions"]
    assert (action["action"], action["rules"]) == ("refund.create", shipped_rule_set("refunds").count("effect:"))
    assert action["cases"] > 10
    assert 0 < action["empty_call_us"] < min(action["both_us"], action["rete_us"], action["reference_us"])
    assert min(action["read_us"], action["count_us"], action["derive_us"]) > 0
    assert 0 == action["counters"]
    assert 0 == run(["rules", "bench", versions[0]])
    assert "refund.create" in capsys.readouterr().out


@pytest.mark.long
def test_a_hundred_counters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rule set with a hundred counters of all events of decisions is measured: they are read, counted, and derived from."""
    sources = ("approvals", "executions", "proposals")
    counters = [
        f"  c{number}: {{of: {sources[number % 3]}, action: mail.send, by: params.to, sum: params.cost, window_ms: {60_000 + number}}}"
        for number in range(100)
    ]
    conditions = " || ".join(f"history.c{number}(params.to) > {number + 1e6}" for number in range(100))
    file = tmp_path / "mail.yaml"
    file.write_text(
        "\n".join(
            [
                "gavel: v2",
                "rule_set: mail",
                "version: 1",
                "actions:",
                "  mail.send:",
                "    params: {type: object, required: [to, cost], properties: {to: {type: string}, cost: {type: number, minimum: 0}}}",
                "counters:",
                *counters,
                "rules:",
                f"  - {{id: over, action: mail.send, priority: 2, when: '{conditions}', effect: reject, reason_code: OVER}}",
                "  - {id: rest, action: mail.send, priority: 1, when: 'true', effect: approve}",
                "derivations:",
                "  - {id: sum, version: 1, on: {action: mail.send, status: SUCCESS}, key: mail.sum, value: history.c1(params.to)}",
            ]
        )
    )
    assert 0 == run(["rules", "bench", str(file), "--json"])
    (action,) = json.loads(capsys.readouterr().out)["actions"]
    assert 100 == action["counters"]
    assert action["empty_call_us"] < min(action["read_us"], action["count_us"], action["derive_us"])
