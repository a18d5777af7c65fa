"""Contexts of the command line: their file, and which server and credentials a command uses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from gavel_client import SyncGavelClient
from gavel_server.cli.app import select_commands
from gavel_server.cli.main import run
from gavel_server.cli.options import SERVER_DEFAULT
from gavel_server.cli.server_options import ServerOptions
from typer.main import get_command

HERE = "127.0.0.1:9"
THERE = "127.0.0.2:9"
ELSEWHERE = "127.0.0.3:9"


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of contexts of a user that has none yet."""
    for name in [name for name in os.environ if name.startswith("GAVEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("gavel_server.cli.connection.TRIES_MAX", 1)  # no server answers, now or later
    monkeypatch.setattr("gavel_client.SyncGavelClient", unreachable)
    return tmp_path / "gavel/contexts.toml"


def unreachable(server: str, **options: Any) -> SyncGavelClient:
    """Return a client that reaches nobody: another program of the machine may listen on the default port."""
    return SyncGavelClient(HERE if server == SERVER_DEFAULT else server, **options)


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that fails, and return its message."""
    capsys.readouterr()
    assert run(arguments) in (1, 2)
    return capsys.readouterr().err


def test_life_of_a_context(file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts are added, used, listed and removed; the file is private from the start and holds absolute paths."""
    (file.parents[1] / "token").write_text("secret")
    monkeypatch.chdir(file.parents[1])
    assert 0 == run(["context", "add", "staging", "--server", HERE, "--token-file", "token", "--bus", "orders"])
    assert 0 == run(["context", "add", "prod.eu", "--server", THERE])
    assert 0o600 == file.stat().st_mode & 0o777
    assert f'token_file = "{file.parents[1] / "token"}"' in file.read_text()
    assert 0 == run(["context", "use", "staging"])
    capsys.readouterr()
    assert 0 == run(["context", "list"])
    lines = capsys.readouterr().out.splitlines()
    assert ["*", "staging", HERE, "orders"] == next(line for line in lines if "staging" in line).split()[:4]
    assert not any("*" in line for line in lines if "prod.eu" in line)
    assert not any("secret" in line for line in lines)
    assert 0 == run(["context", "remove", "staging"])
    assert "no context 'staging'; it has: prod.eu" in failure(capsys, "context", "use", "staging")
    assert "no server answers at 127.0.0.1:9090" in failure(capsys, "status")


def test_precedence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An option comes before the environment, the environment before the context, the context before the default."""
    assert "at 127.0.0.1:9090;" in failure(capsys, "status")
    run(["context", "add", "here", "--server", HERE])
    run(["context", "use", "here"])
    assert f"at {HERE};" in failure(capsys, "status")
    assert "at 127.0.0.1:9090;" in failure(capsys, "status", "--context", "")
    monkeypatch.setenv("GAVEL_SERVER", THERE)
    assert f"at {THERE};" in failure(capsys, "status")
    assert f"at {ELSEWHERE};" in failure(capsys, "status", "--server", ELSEWHERE)


def test_precedence_of_contexts(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """--context comes before GAVEL_CONTEXT, which comes before the one in use; with a slash, GAVEL_CONTEXT names another file."""
    for name, server in (("here", HERE), ("there", THERE)):
        run(["context", "add", name, "--server", server])
    run(["context", "use", "here"])
    monkeypatch.setenv("GAVEL_CONTEXT", "there")
    assert f"at {THERE};" in failure(capsys, "status")
    assert f"at {HERE};" in failure(capsys, "status", "--context", "here")
    monkeypatch.setenv("GAVEL_CONTEXT", str(tmp_path / "other.toml"))
    assert "at 127.0.0.1:9090;" in failure(capsys, "status")
    run(["context", "add", "elsewhere", "--server", ELSEWHERE])
    assert f"at {ELSEWHERE};" in failure(capsys, "status", "--context", "elsewhere")
    assert (tmp_path / "other.toml").exists()


def test_replay_reads_a_log_in_every_context(capsys: pytest.CaptureFixture[str]) -> None:
    """A context does not turn `gavel replay` of a log into a replay on the context's server."""
    run(["context", "add", "here", "--server", HERE])
    run(["context", "use", "here"])
    assert "there is no log in /nonexistent" in failure(capsys, "replay", "--data", "/nonexistent")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_file_that_others_may_read_or_change(file: Path, capsys: pytest.CaptureFixture[str], mode: int) -> None:
    """A file of contexts that other users may read or change is refused, and the message says what to do."""
    run(["context", "add", "here", "--server", HERE])
    file.chmod(mode)
    message = failure(capsys, "status")
    assert f"{file} has the mode 0{mode:o}, so other users may read or change it; run: chmod 600 {file}" in message
    assert str(file) in failure(capsys, "context", "list")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("contexts = [", "is not TOML"),
        ("unknown = 1", "may hold current and [contexts.NAME] tables only"),
        ("current = 1", "may hold current and [contexts.NAME] tables only"),
        ('[contexts.x]\ntoken = "secret"', "context 'x' may hold only texts under server, bus, tls_ca"),
        ("[contexts.x]\nserver = 1", "context 'x' may hold only texts under server, bus, tls_ca"),
        ('current = "y"', "has no context 'y'; it has: none"),
        ('current = "x"\n[contexts.x]\nserver = "http://here"', "'http://here' is not a server's address"),
    ],
)
def test_invalid_file(file: Path, capsys: pytest.CaptureFixture[str], content: str, message: str) -> None:
    """An invalid file of contexts is refused with the place and the mistake, and no value that could be a secret."""
    file.parent.mkdir()
    file.touch(0o600)
    file.write_text(content)
    shown = failure(capsys, "status")
    assert message in shown
    assert "secret" not in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a b", "--server", HERE], "'a b' is not a context's name"),
        (["x", "--server", "nowhere"], "'nowhere' is not a server's address"),
        (["x", "--server", HERE, "--tls-ca", "nowhere.pem"], "there is no file nowhere.pem (--tls-ca)"),
        (["x", "--server", HERE, "--tls-cert", "nowhere.pem"], "--tls-cert and --tls-key belong together"),
        (["x", "--server", "gavel.example:1", "--token-file", __file__], "is not sent to gavel.example:1 without TLS"),
        (["x"], "--server"),
    ],
)
def test_invalid_context(file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    """A context that could not work is not added."""
    assert message in failure(capsys, "context", "add", *arguments)
    assert not file.exists()


def test_every_command_of_a_server_has_the_options() -> None:
    """Every command with --server has the options of TLS, tokens and contexts, with their environment variables."""
    checked = set()

    def check(command: object, path: str) -> None:
        for name, part in getattr(command, "commands", {}).items():
            check(part, f"{path} {name}")
        options = {parameter.name: parameter for parameter in getattr(command, "params", ())}
        if "server" in options and not path.endswith("context add"):
            checked.add(path)
            assert "context" in options, path
            assert {name: f"GAVEL_CLIENT_{name.upper()}" for name in ServerOptions._fields} == {
                name: options[name].envvar for name in ServerOptions._fields
            }

    check(get_command(select_commands()), "gavel")
    assert {"gavel status", "gavel executor", "gavel fdr", "gavel replay", "gavel work list", "gavel review approve"} <= checked
    assert len(checked) > 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tls-ca", "nowhere.pem"], "the file of --tls-ca cannot be read: nowhere.pem: No such file or directory"),
        (["--token-file", "nowhere"], "the file of --token-file cannot be read: nowhere: No such file or directory"),
        (["--tls-cert", "token"], "--tls-cert and --tls-key belong together"),
        (["--tls-ca", "token"], "token holds no certificate in PEM (--tls-ca, --tls-cert, --tls-key)"),
        (["--tls-cert", "token", "--tls-key", "token"], "token is not a certificate in PEM, or token is not"),
        (["--token-file", "two"], "two holds something else than one token"),
        (["--token-file", "empty"], "empty holds no token"),
        (
            ["--server", "gavel.example:9090", "--token-file", "token"],
            "the token of --token-file is not sent to gavel.example:9090 without TLS",
        ),
    ],
)
@pytest.mark.parametrize("command", [["status"], ["fdr"], ["replay", "--server", HERE]])
def test_files_that_cannot_be_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    arguments: list[str],
    message: str,
) -> None:
    """Files and options that cannot work are refused before a connection is opened, with exit status 2 and without their content."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAVEL_SERVER", HERE)
    for name, content in (("token", "gvl_planted"), ("two", "gvl_planted gvl_second"), ("empty", "\n")):
        (tmp_path / name).write_text(content)
    assert 2 == run([*command, *arguments])
    out, err = capsys.readouterr()
    assert message in err
    assert "gvl_" not in out + err
