"""`gavel rules zones`: what it prints can be pasted into a rule set."""

from __future__ import annotations

import json

import pytest
from gavel_rules.language.document.diagnostics import Messages
from gavel_rules.language.document.source import Source
from gavel_rules.language.rule_set import compile_rule_set
from gavel_server.cli.main import run


def test_keys_can_be_used_in_expressions(capsys: pytest.CaptureFixture[str]) -> None:
    """Each zone gets a key of its own, by which an expression can name it, whatever the zone is called."""
    names = ["Etc/GMT+1", "Etc/GMT-1", "Europe/Berlin", "Europe/Berlin", "America/Port-au-Prince"]
    assert 0 == run(["rules", "zones", *names, "--from", "2025", "--until", "2026"])
    data = Source(capsys.readouterr().out, Messages()).data
    assert isinstance(data, dict)
    assert {"gmt_1": "Etc/GMT+1", "gmt_1_2": "Etc/GMT-1", "berlin": "Europe/Berlin", "port_au_prince": "America/Port-au-Prince"} == {
        key: zone["name"] for key, zone in data["zones"].items()
    }
    hours = " + ".join(f"now.getHours(zones.{key})" for key in data["zones"])
    rule = {"id": "late", "action": "thing.do", "priority": 1, "when": f"{hours} > 20", "effect": "approve"}
    actions = {"thing.do": {"params": {"type": "object"}}}
    compile_rule_set(json.dumps({"gavel": "v2", "rule_set": "r", "version": 1, **data, "actions": actions, "rules": [rule]}))


def test_offsets_with_seconds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """An offset with seconds is refused with the zone and the time, and nothing is printed; later years of the zone are printed."""
    assert 2 == run(["rules", "zones", "Europe/Berlin", "Africa/Monrovia", "--from", "1970", "--until", "1975"])
    printed = capsys.readouterr()
    assert "" == printed.out
    assert "Africa/Monrovia has the offset -00:44:30 at 1970-01-01T00:00:00Z, and no rule set can declare seconds" in printed.err
    assert 0 == run(["rules", "zones", "Africa/Monrovia", "--from", "1973", "--until", "1975"])
