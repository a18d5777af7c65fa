"""Configurations of the proxy: their settings, their mistakes with places, and secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
from gavel_client.mcp.configuration import Configuration, load_configuration
from gavel_client.mcp.errors import ConfigurationError

VALID = """
agent: {id: coding-agent}
servers:
  git:
    command: [mcp-server-git, --repository, .]
    env: {TOKEN: {from_env: GIT_TOKEN}, LEVEL: debug}
    tools:
      git_status:
        mode: read
        subject: '"repository/" + arguments.repo_path'
        fields: {git.clean: 'result.text.contains("clean")'}
  docs:
    url: https://docs.example/mcp
    headers: {Authorization: {from_file: docs.token, prefix: "Bearer "}}
"""


def _load(folder: Path, text: str) -> Configuration:
    path = folder / "proxy.yaml"
    path.write_text(text)
    return load_configuration(path)


def test_a_configuration(tmp_path: Path) -> None:
    """A file gives servers, tools and agents, with defaults; a tool that it does not name is a call with effects."""
    configuration = _load(tmp_path, VALID)

    assert ["git", "docs"] == list(configuration.servers)
    assert ["coding-agent"] == [agent.id for agent in configuration.all_agents]
    assert ("read", "propose") == tuple(configuration.settings("git", name).mode for name in ("git_status", "git_commit"))
    assert 60_000 == configuration.servers["git"].timeout_ms


@pytest.mark.parametrize(
    ("old", "new", "mistake"),
    [
        ("command:", "comand:", "5:5: extra-forbidden: servers.git.comand is not a key here (did you mean command?)"),
        ("mode: read", "mode: write", "9:9: literal-error: servers.git.tools.git_status.mode: input should be 'read' or 'propose'"),
        ("arguments.repo_path'", "argument.repo_path'", "10:9: expression: servers.git.tools.git_status.subject: ERROR"),
        ("  docs:", "  Docs__x:", "12:3: string-pattern-mismatch: servers.Docs__x: string should match pattern"),
        ("https://", "ftp://", "12:3: value-error: servers.docs: url must begin with http:// or https://"),
        (
            "{from_file: docs.token, prefix: ",
            "{prefix: ",
            "14:15: value-error: servers.docs.headers.Authorization: give exactly one of from_env and from_file",
        ),
        ("agent: {id: coding-agent}", "agents: [{id: a}]", "1:1: value-error: each of several agents needs a token"),
        ("agent: {id", "agent: [{id", "syntax: the file is not YAML"),
    ],
)
def test_mistakes_have_places(tmp_path: Path, old: str, new: str, mistake: str) -> None:
    """Each mistake is reported with its line, its column and what to write."""
    with pytest.raises(ConfigurationError) as refused:
        _load(tmp_path, VALID.replace(old, new))

    assert any(mistake in message for message in refused.value.messages), refused.value.messages


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    """All mistakes of a file are reported, in the order of their places."""
    with pytest.raises(ConfigurationError) as refused:
        _load(tmp_path, VALID.replace("command:", "comand:").replace("mode: read", "mode: write"))

    assert ["5:5", "9:9"] == [message.removeprefix(f"{tmp_path}/proxy.yaml:").split(": ")[0] for message in refused.value.messages][:2]


def test_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret comes from the environment or from a file, and a missing one is an error that names where it should be."""
    configuration = _load(tmp_path, VALID)
    header = configuration.servers["docs"].headers["Authorization"]
    token = configuration.servers["git"].env["TOKEN"]
    assert not isinstance(token, str)

    with pytest.raises(ConfigurationError, match=r"docs\.token: FileNotFoundError"):
        header.read(tmp_path)
    with pytest.raises(ConfigurationError, match="the environment variable GIT_TOKEN is not set"):
        token.read(tmp_path)
    (tmp_path / "docs.token").write_text("abc\n")
    monkeypatch.setenv("GIT_TOKEN", "xyz")

    assert ("Bearer abc", "xyz") == (header.read(tmp_path), token.read(tmp_path))


def test_tokens_of_agents(tmp_path: Path) -> None:
    """A token leads to its agent, and two agents cannot have the same token, which would make one of them the other."""
    (tmp_path / "ann").write_text("a\n")
    (tmp_path / "bob").write_text("b")
    agents = "agents: [{id: ann, token: {from_file: ann}}, {id: bob, token: {from_file: bob}}]"
    configuration = _load(tmp_path, VALID.replace("agent: {id: coding-agent}", agents))
    tokens = configuration.tokens(tmp_path)
    (tmp_path / "bob").write_text("a")

    assert {"a": "ann", "b": "bob"} == tokens
    with pytest.raises(ConfigurationError, match="the agents ann and bob have the same token"):
        configuration.tokens(tmp_path)
