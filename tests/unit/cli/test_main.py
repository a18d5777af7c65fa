"""The program `gavel` where it needs no server: usage, exit statuses, offline commands, and how quickly it starts."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from gavel_client import GavelError, Violation
from gavel_server.build import build
from gavel_server.cli import options
from gavel_server.cli.errors import CommandError
from gavel_server.cli.main import run
from gavel_server.cli.options import explained
from grpc import StatusCode

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
NOBODY = "127.0.0.1:9"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["log"],
        ["nonsense"],
        ["status", "--nonsense"],
        ["projection"],
        ["log", "list", "--limit", "0"],
        ["log", "list", "--category", "guess"],
        ["log", "get", "0"],
        ["log", "get", "9" * 5000],
        ["log", "list", "--from", str(2**63)],
        ["log", "list", "--limit", str(2**63)],
        ["log", "tail", "--from", str(2**63)],
        ["rules", "get", "refunds", str(2**63)],
        ["rules", "activate", "refunds", str(2**63)],
        ["replay", "--to", str(2**63)],
        ["status", "--server", ""],
        ["status", "--server", "localhost"],
        ["status", "--server", "http://localhost:9090"],
        ["status", "--server", "localhost:70000"],
        ["status", "--server", "::1:9090"],
        ["status", "--server", "unix:"],
        ["replay", "--server", "localhost:0"],
        ["executor", "json", "--lease-ms", "86400001"],
        ["rules", "activate", "refunds", "zero"],
        ["replay", "--archive", "somewhere"],
        ["replay", "--data", "here", "--redis", "redis://there"],
        ["replay", "--server", NOBODY, "--rules", "file"],
        ["replay", "--redis", "nonsense"],
        ["fdr", "--redis", "redis://there/orders"],
        ["replay", "--rules", "nowhere.yaml"],
        ["propose", "nowhere.yaml"],
        ["serve", "--listen", "0.0.0.0:9090"],
        ["serve", "--ack", "everybody"],
        ["serve", "--config", "nowhere.toml"],
        ["executor", "no_such_module"],
        ["executor", "nowhere.py"],
        ["executor", "json"],
        ["executor", "json:dumps"],
        ["executor", "json", "--id", "a b"],
        ["executor", "json", "--id", ""],
        ["executor", "json", "--id", "gavel"],
        ["executor", "json", "--group", " "],
        ["fdr", "--bus", "A B"],
        ["status", "--bus", "x" * 64],
    ],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage is exit status 2, with a sentence on stderr or the help, and never a traceback."""
    assert 2 == run(arguments)
    out, err = capsys.readouterr()
    assert err.startswith("gavel: ") or "Usage" in out
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["status"],
            f"gavel: no server answers at {NOBODY}; start one with `gavel serve`, or name another with --server or GAVEL_SERVER\n",
        ),
        (["replay", "--server", NOBODY], f"gavel: no server answers at {NOBODY}; "),
        (["replay", "--data", "/nonexistent"], "gavel: there is no log in /nonexistent; give the data directory"),
        (["fdr", "--data", "/nonexistent"], "gavel: no server has used /nonexistent; give"),
    ],
)
def test_failures(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other failure is exit status 1 and one sentence that says what to do."""
    monkeypatch.setenv("GAVEL_SERVER", NOBODY)
    assert 1 == run(arguments)
    out, err = capsys.readouterr()
    assert "" == out
    assert err.startswith(sentence)


def test_an_option_before_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Who gives an option of a command to the program, or to a group, is told where it belongs."""
    for arguments, of in ((["--server", NOBODY, "status"], "gavel"), (["rules", "--json", "list"], "gavel rules")):
        assert 2 == run(arguments)
        option = next(word for word in arguments if word.startswith("--"))
        assert f"gavel: No such option: {option}; a command's options follow it (see {of} --help)\n" == capsys.readouterr().err


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --debug a failure leaves as it is, for the interpreter to show."""
    monkeypatch.setattr(options, "_debugging", False)
    with pytest.raises(CommandError, match="there is no log"):
        run(["replay", "--data", "/nonexistent", "--debug"])


def test_bugs_are_said_to_be_bugs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What nobody foresaw is said in one line too, and asks for --debug."""

    def broken(name: str) -> str:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("gavel_server.cli.documents.read_document", broken)
    assert 1 == run(["rules", "lint", "file"])
    assert (
        "gavel: failed unexpectedly: ZeroDivisionError: by zero; this is a bug, repeat the command with --debug" in capsys.readouterr().err
    )


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    """Help and version are exit status 0; the version says which build it is."""
    assert 0 == run(["--version"])
    assert f"gavel {version('gavel')} ({build()})\n" == capsys.readouterr().out
    assert 0 == run(["log", "tail", "--help"])
    assert "--follow" in capsys.readouterr().out


def test_lint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A valid rule set is exit status 0 with its digest, in words and as JSON."""
    file = tmp_path / "tiny.yaml"
    file.write_text(RULE_SET)
    assert 0 == run(["rules", "lint", str(file)])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"{file}: tiny version 1 is valid, sha256:")
    assert 0 == run(["rules", "lint", str(file), "--json"])
    (response,) = json.loads(capsys.readouterr().out)["files"]
    assert (True, [], last.split()[-1]) == (response["valid"], response["errors"], response["digest"])


def test_lint_of_an_invalid_rule_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every mistake stands on a line as file:line:column: code: message, in order; exit status 2."""
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


def test_what_a_document_holds_is_no_order_to_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters and line ends in names of a document are spelled out in mistakes, which stay one line each."""
    file = tmp_path / "tiny.yaml"
    file.write_text(RULE_SET + '"a\\e[31m\\nb": 1\n')
    assert 2 == run(["rules", "lint", str(file)])
    (line,) = capsys.readouterr().out.splitlines()
    assert "no such key here: a\\x1b[31m\\nb " in line
    assert 2 == run(["rules", "lint", "x\x1b.yaml"])
    assert "x\\x1b.yaml" in capsys.readouterr().err


def test_violations_of_a_rule_set_have_their_places() -> None:
    """What a server says of a rule set is shown like the compiler's own messages."""
    violations = (Violation("document:3:9", "wrong-type: no"), Violation("document:7:1", "unknown-key: no"))
    error = GavelError(StatusCode.INVALID_ARGUMENT, "INVALID_RULE_SET", "document:3:9: no", violations)
    shown = explained(error, "here", "tiny.yaml")
    assert (2, ["tiny.yaml:3:9: wrong-type: no", "tiny.yaml:7:1: unknown-key: no"]) == (shown.exit_status, str(shown).splitlines()[1:])


def test_every_violation_is_shown() -> None:
    """All that is wrong with a request is shown, each thing with its field."""
    violations = (Violation("proposal.risk", "must be 0..1"), Violation("subject", "is required"))
    error = GavelError(StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", "proposal.risk must be 0..1 (and 1 more)", violations)
    shown = explained(error, "here")
    assert 2 == shown.exit_status
    assert ["  proposal.risk: must be 0..1", "  subject: is required"] == str(shown).splitlines()[1:]


def test_starts_without_what_it_does_not_need() -> None:
    """Finding a command loads none of the libraries that only commands need."""
    script = "import sys, gavel_server.cli.main; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"grpc", "rich", "pydantic", "google.protobuf", "redis", "ruamel.yaml"}.intersection(loaded)
