"""The private socket of a server and the users of Unix sockets."""

from __future__ import annotations

import os
import re
from pathlib import Path

import grpc
import pytest
from gavel_server.front.programs import FrontSetting
from gavel_server.identity.tokens import add_token

from tests.e2e.identity.world import HEALTH, METHODS, SUBSCRIBE, attempt, bearer, refusal
from tests.e2e.world import Server, run_servers
from tests.support.fronts import FRONTS, TRANSPORTS


def private_socket(server: Server) -> str:
    """Return the address of the private socket behind a front."""
    arguments = Path(f"/proc/{server.front_process_id()}/cmdline").read_text().split("\0")
    (descriptor,) = [match[1] for argument in arguments if (match := re.fullmatch(r"unix:/proc/self/fd/([0-9]+)", argument))]
    return f"unix:/proc/{server.running.pid}/fd/{descriptor}"


@pytest.mark.parametrize("authentication", ["none", "required"])
@pytest.mark.parametrize("front", FRONTS)
def test_private_socket_needs_the_secret(tmp_path: Path, front: FrontSetting, authentication: str, redis_url: str) -> None:
    """The socket behind the front refuses every call without the secret of this start, also of the same user, with or without handle."""
    tokens = tmp_path / "tokens.toml"
    tokens.touch()
    options = ["--front", front, *(["--authentication", "required", "--token-file", str(tokens)] if authentication == "required" else [])]
    server = Server(tmp_path / "data", redis_url=redis_url, options=options)
    with run_servers(server), grpc.insecure_channel(private_socket(server)) as channel:
        for metadata in ((), (("gavel-secret", "0" * 64),), (("gavel-secret", ""), ("gavel-handle", "0")), (("gavel-handle", "1"),)):
            for method in (*METHODS, HEALTH, SUBSCRIBE):
                assert "this socket is private to the server" in refusal(channel, method, metadata)


@pytest.mark.parametrize("front", FRONTS)
def test_the_secret_is_nowhere(tmp_path: Path, front: FrontSetting, redis_url: str) -> None:
    """The secret of this start is on no command line and in no environment."""
    server = Server(tmp_path / "data", redis_url=redis_url, options=["--front", front])
    with run_servers(server):
        for process_id in (server.running.pid, server.front_process_id()):
            for name in ("cmdline", "environ"):
                assert not re.search(r"[0-9a-f]{64}", Path(f"/proc/{process_id}/{name}").read_text(errors="replace"))


@pytest.mark.parametrize("front", TRANSPORTS)
def test_users_of_unix_sockets(tmp_path: Path, front: FrontSetting, redis_url: str) -> None:
    """On a Unix socket the caller is the user at its other end, and needs nothing else. An invalid token is refused all the same."""
    path = tmp_path / "s.sock"
    config = tmp_path / "gavel.toml"
    config.write_text(f'authentication = "required"\nadmins = ["the tests"]\nunix_users = {{ {os.getuid()} = "the tests" }}\n')
    server = Server(tmp_path / "data", redis_url=redis_url, listen=f"unix:{path}", options=["--front", front, "--config", str(config)])
    with run_servers(server), grpc.insecure_channel(f"unix:{path}") as channel:
        for method in METHODS:
            assert attempt(channel, method) is None
            assert "the server has no token_file" in refusal(channel, method, (("authorization", "Bearer x"),))
        if front == "none":
            assert 0o600 == os.stat(path).st_mode & 0o777


def test_a_socket_for_all_users_names_nobody(tmp_path: Path, redis_url: str) -> None:
    """Without a front, callers of a socket to which other users may connect are not taken for the server's user; a token still counts."""
    path = tmp_path / "s.sock"
    config = tmp_path / "gavel.toml"
    token = add_token(tmp_path / "tokens.toml", "ada", (), None)
    config.write_text(f'authentication = "required"\ntoken_file = "{tmp_path}/tokens.toml"\nadmins = ["ada", "uid:{os.getuid()}"]\n')
    server = Server(tmp_path / "data", redis_url=redis_url, listen=f"unix:{path}", options=["--front", "none", "--config", str(config)])
    with run_servers(server), grpc.insecure_channel(f"unix:{path}") as channel:
        for mode, is_shared in ((0o600, False), (0o620, True), (0o666, True), (0o600, False)):
            path.chmod(mode)
            for method in METHODS:
                assert attempt(channel, method, bearer(token)) is None
                if is_shared:
                    assert f"other users may connect to {path}" in refusal(channel, method)
                else:
                    assert attempt(channel, method) is None
            assert attempt(channel, HEALTH) is None
