"""`gavel rules explain`: its output and exit statuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from gavel_server.cli.main import run

RULES = """gavel: v2
rule_set: mail
version: 1
actions:
  mail.send: {params: {type: object}, contest_window_ms: 1000}
rules:
  - {id: all, action: mail.send, priority: 1, when: 'true', effect: approve}
"""
SUITE = """gavel: v1
tests: mail.yaml
defaults: {facts: {n: {key: a.b, value: 1}}, expect: {outcome: APPROVED}}
cases:
  - {name: "a\\e[2Jb"}
  - {name: too early, earlier: [{execution: {status: SUCCESS}}]}
"""


@pytest.fixture
def suite(tmp_path: Path) -> str:
    """A suite with a case whose name clears a terminal, and one that cannot be run."""
    (tmp_path / "mail.yaml").write_text(RULES)
    (tmp_path / "mail_test.yaml").write_text(SUITE)
    return str(tmp_path / "mail_test.yaml")


def test_control_characters_of_a_name(suite: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters of a case's name do not reach the terminal."""
    assert 0 == run(["rules", "explain", suite, "--case", "a\x1b[2Jb"])
    out = capsys.readouterr().out
    assert ("\x1b" in out, "a\\x1b[2Jb" in out) == (False, True)


def test_a_case_that_cannot_be_run(suite: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A case that cannot be run is exit status 2 of `explain`, with the reason, and a failed case of `test` beside the others."""
    assert 2 == run(["rules", "explain", suite, "--case", "too early"])
    assert "the case cannot be run: the contest of earlier.0 closes too late" in capsys.readouterr().err
    junit = Path(suite).with_name("junit.xml")
    assert 1 == run(["rules", "test", suite, "--junit", str(junit)])
    out = capsys.readouterr().out
    assert f"{suite}:6:5: failed: too early\n  decision: expected one, found none: the contest of earlier.0 " in out
    assert f"{suite}: 1 of 2 passed\n" in out
    assert 'tests="2" failures="1"' in junit.read_text()
