"""The program `gavel` without a server: usage, exit statuses, and its imports at start."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest
from gavel_server.cli import options
from gavel_server.cli.app import select_commands
from gavel_server.cli.errors import CommandError
from gavel_server.cli.main import run
from gavel_server.process.build import VERSION, build
from typer.main import get_command

UNUSED_ADDRESS = "127.0.0.1:9"


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
        ["replay", "--archive", "somewhere", "--server", "127.0.0.1:9"],
        ["replay", "--data", "here", "--redis", "redis://there"],
        ["replay", "--server", UNUSED_ADDRESS, "--rules", "file"],
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
    """Wrong usage is exit status 2, with a sentence on stderr or the help, without a traceback."""
    assert 2 == run(arguments)
    out, err = capsys.readouterr()
    assert err.startswith("gavel: ") or "Usage" in out
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["log", "list", "--limit", str(2**63 - 1)], "--limit"),
        (["log", "search", "--limit", str(2**63 - 1)], "--limit"),
        (["log", "search", "--since", "0001-01-01T00:00:00+01:00"], "--since"),
        (["log", "search", "--until", "9999-12-31T23:59:59-01:00"], "--until"),
        (["propose", "nowhere.yaml", "--wait", "inf"], "--wait"),
        (["propose", "nowhere.yaml", "--wait", "nan"], "--wait"),
        (["propose", "nowhere.yaml", "--wait", "1e300"], "--wait"),
        (["tools", "call", "read", "--timeout-ms", str(2**63)], "--timeout-ms"),
        (["notary", "--interval", "inf"], "--interval"),
        (["evidence", "prune", "--store", ".", "--keep", "999999d"], "--keep"),
    ],
)
def test_values_beyond_any_use(arguments: list[str], option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A number or a time that nothing can be computed with is wrong usage, and the message names its option."""
    assert 2 == run(arguments)
    assert option in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["replay", "--server", UNUSED_ADDRESS, "--snapshots", "here"], "a server replays without snapshots; "),
        (["replay", "--data", "here", "--rules", "nowhere.yaml", "--engine", "reference"], "--rules lists the decisions "),
        (["replay", "--data", "here", "--rules", "nowhere.yaml", "--snapshots", "there"], "--rules lists the decisions "),
        (["verify", "nowhere.proof", "--key", "none", "--since", "here"], "--since and --save belong to --log; "),
        (["verify", "nowhere.proof", "--key", "none", "--save", "here"], "--since and --save belong to --log; "),
        (["archive", "--to", "there", "--data", "here", "--log", "redis://there"], "--data and --log name two different logs; "),
        (["backup", "--to", "there", "--data", "here", "--log", "redis://there"], "--data and --log name two different logs; "),
        (["notary", "--key", "none", "--data", "here", "--redis", "redis://there"], "--data and --log name two different logs; "),
        (["fdr", "--data", "here", "--redis", "redis://there"], "--data and --redis name two different Redis; "),
    ],
)
def test_options_that_contradict_each_other(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Options of which one would be ignored are wrong usage."""
    assert 2 == run(arguments)
    assert capsys.readouterr().err.startswith(f"gavel: {sentence}")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["status"],
            f"gavel: no server answers at {UNUSED_ADDRESS}; start one with `gavel serve`, or name another with --server or GAVEL_SERVER\n",
        ),
        (["replay", "--server", UNUSED_ADDRESS], f"gavel: no server answers at {UNUSED_ADDRESS}; "),
        (["replay", "--data", "/nonexistent"], "gavel: there is no log in /nonexistent; give the data directory"),
        (
            ["fdr", "--data", "/nonexistent"],
            "gavel: /nonexistent has no embedded Redis with work queues; omit --data to",
        ),
    ],
)
def test_failures(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other failure is exit status 1 and one sentence that says what to do."""
    monkeypatch.setenv("GAVEL_SERVER", UNUSED_ADDRESS)
    assert 1 == run(arguments)
    out, err = capsys.readouterr()
    assert "" == out
    assert err.startswith(sentence)


def test_option_before_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The message on a command's option that precedes the command says where it belongs."""
    for arguments, group in ((["--server", UNUSED_ADDRESS, "status"], "gavel"), (["rules", "--json", "list"], "gavel rules")):
        assert 2 == run(arguments)
        option = next(word for word in arguments if word.startswith("--"))
        assert f"gavel: No such option: {option}; a command's options follow it (see {group} --help)\n" == capsys.readouterr().err


def test_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --debug an exception propagates, so that the interpreter prints its traceback."""
    monkeypatch.setattr(options, "_debugging", False)
    with pytest.raises(CommandError, match="there is no log"):
        run(["replay", "--data", "/nonexistent", "--debug"])


def test_unexpected_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An unexpected exception is reported in one line that asks for --debug."""

    def broken(name: str) -> str:
        raise ZeroDivisionError("by zero")

    import_module("gavel_server.cli.rule_files")  # if it were imported meanwhile, it would keep `broken`
    monkeypatch.setattr("gavel_server.cli.documents.read_document", broken)
    assert 1 == run(["rules", "lint", "file"])
    assert (
        "gavel: failed unexpectedly: ZeroDivisionError: by zero; this is a bug, repeat the command with --debug" in capsys.readouterr().err
    )


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    """Help and version are exit status 0; the version names the build."""
    assert 0 == run(["--version"])
    assert f"gavel {VERSION} ({build()})\n" == capsys.readouterr().out
    assert 0 == run(["log", "tail", "--help"])
    assert "--follow" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "usage", "row"),
    [
        ("propose", "Usage: gavel propose [OPTIONS] FILE\n", "\n  FILE  An Envelope"),
        ("rules lint", "Usage: gavel rules lint [OPTIONS] PATH…\n", "\n  PATH…  Rule sets"),
        ("rules get", "Usage: gavel rules get [OPTIONS] POLICY_ID [VERSION]\n", "\n  VERSION    The version."),
        ("completion", "Usage: gavel completion [OPTIONS] bash|zsh|fish\n", "\n  bash|zsh|fish  The shell."),
    ],
)
def test_arguments_in_help(capsys: pytest.CaptureFixture[str], command: str, usage: str, row: str) -> None:
    """Help shows an argument by its name, in brackets if it is optional."""
    assert 0 == run([*command.split(), "--help"])
    out = capsys.readouterr().out
    assert out.startswith(usage)
    assert row in out


def test_selected_commands() -> None:
    """Each command is the same whether it is built alone or with all others, and its group then has no other command."""
    paths = []

    def check(command: Any, path: list[str]) -> None:
        for name, part in getattr(command, "commands", {}).items():
            check(part, [*path, name])
        if not hasattr(command, "commands"):
            paths.append(path)
            alone: Any = get_command(select_commands([*path, "FILE"]))
            for name in path:
                assert {name} == set(alone.commands)
                alone = alone.commands[name]
            assert _description(command) == _description(alone), path

    check(get_command(select_commands()), [])
    assert ["status"] in paths
    assert ["rules", "lint"] in paths
    assert len(paths) > 50


def _description(command: Any) -> list[object]:
    parameters = [(type(one), one.name, one.opts, one.default, one.envvar, getattr(one, "help", "")) for one in command.params]
    return [type(command), command.name, command.help, *parameters]


def test_unknown_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt command gets the likely ones, of the program and of a group."""
    for arguments, likely in ((["statu"], "status"), (["rules", "lnt"], "lint")):
        assert 2 == run(arguments)
        assert f"Did you mean '{likely}'?" in capsys.readouterr().err


def test_commands_of_groups(capsys: pytest.CaptureFixture[str]) -> None:
    """A command that only groups have is suggested with its groups, in place of one that is only spelt alike."""
    assert 2 == run(["explain", "--json"])
    assert "gavel: No such command 'explain'. Did you mean 'rules explain' or 'grants explain'? (see" in capsys.readouterr().err


def test_imports_at_start() -> None:
    """Starting the program imports no library that only commands need."""
    script = "import sys, gavel_server.cli.main; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"grpc", "rich", "pydantic", "google.protobuf", "redis", "ruamel.yaml"}.intersection(loaded)
