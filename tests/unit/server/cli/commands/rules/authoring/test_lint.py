"""`gavel rules lint`: its output and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gavel_server.cli.main import run

RULE_SET = """gavel: v1
rule_set: tiny
version: 1
actions:
  thing.do:
    params: {type: object, properties: {size: {type: number}}, required: [size]}
    facts:
      state: {key: thing.state, type: string, min_trust: 1, max_age_ms: 1000}
rules:
  - {id: small, action: thing.do, priority: 1, when: params.size < 3, effect: approve}
"""


def test_valid_rule_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A valid rule set is exit status 0; text and JSON have its digest."""
    file = tmp_path / "tiny.yaml"
    file.write_text(RULE_SET)
    assert 0 == run(["rules", "lint", str(file)])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"{file}: tiny version 1 is valid, sha256:")
    assert 0 == run(["rules", "lint", str(file), "--json"])
    (response,) = json.loads(capsys.readouterr().out)["files"]
    assert (True, [], last.split()[-1]) == (response["valid"], response["errors"], response["digest"])


def test_invalid_rule_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every mistake is a line, file:line:column: code: message, in order; exit status 2."""
    file = tmp_path / "tiny.yaml"
    file.write_text(RULE_SET.replace("params.size", "params.sise").replace("version: 1", "version: none"))
    assert 2 == run(["rules", "lint", str(file)])
    lines = capsys.readouterr().out.splitlines()
    places = [line.removeprefix(f"{file}:").split(":")[:2] for line in lines]
    assert {"3", "10"} <= {line for line, _ in places}
    assert sorted(places, key=lambda place: (int(place[0]), int(place[1]))) == places
    assert all(line.startswith(f"{file}:") and line.count(": ") >= 2 for line in lines)
    assert 2 == run(["rules", "lint", str(file), "--json"])
    (response,) = json.loads(capsys.readouterr().out)["files"]
    assert [[str(error["line"]), str(error["column"])] for error in response["errors"]] == places


def test_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters and line ends of a document are escaped in messages, which stay one line each."""
    file = tmp_path / "tiny.yaml"
    file.write_text(RULE_SET + '"a\\e[31m\\nb": 1\n')
    assert 2 == run(["rules", "lint", str(file)])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("no such key here: a\\x1b[31m\\nb")
    assert 2 == run(["rules", "lint", "x\x1b.yaml"])
    assert "x\\x1b.yaml" in capsys.readouterr().err


CODES = """gavel: v1
rule_set: codes
version: 1
actions:
  part.order:
    params: {type: object, properties: {code: {type: string, maxLength: 20}}, required: [code]}
rules:
  - id: known
    action: part.order
    priority: 1
    when: params.code.matches('^[A-Z]{2}[0-9]{4}$') && int(params.code.substring(2)) > 9000
    effect: approve
"""
SUITE = """gavel: v1
tests: codes.yaml
cases:
  - {name: a code, params: {code: AB9001}, facts: {note: {key: part.note, value: seen}}, expect: {outcome: REJECTED}}
"""


def test_suites_beside_the_rule_set(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases of a suite beside a rule set are used, also failing ones; one with mistakes is noted, one of another file is not."""
    file = tmp_path / "codes.yaml"
    file.write_text(CODES)
    monkeypatch.chdir(tmp_path)
    assert 0 == run(["rules", "lint", "codes.yaml"])
    assert "not-analysed" in capsys.readouterr().out
    (tmp_path / "codes_test.yaml").write_text(SUITE)
    (tmp_path / "other_test.yaml").write_text(SUITE.replace("codes.yaml", "other.yaml"))
    for name in ("codes.yaml", "./codes.yaml", str(file)):
        assert 0 == run(["rules", "lint", name])
        out, err = capsys.readouterr()
        assert (1, "") == (len(out.splitlines()), err)
    (tmp_path / "codes_test.yaml").write_text(SUITE.replace("outcome", "outcame"))
    assert 0 == run(["rules", "lint", "codes.yaml"])
    out, err = capsys.readouterr()
    assert "not-analysed" in out
    assert "gavel: codes_test.yaml has mistakes, so its cases were not used; gavel rules lint codes_test.yaml lists them\n" == err
