"""Nothing is allowed beyond the table of rights: every RPC that reflection finds, without, with wrong and with each credential."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from gavel.v1.projection_service_pb2 import GetStatusRequest, GetStatusResponse
from gavel_client import GavelError
from gavel_rules.identity.rights import RIGHT_OF_RPC, RIGHTS, RPCS_WITHOUT_RIGHT
from gavel_server.cli.main import run
from gavel_server.identity.tokens import PREFIX
from grpc import StatusCode

from tests.e2e.identity.granted import ADMIN, GrantedServer, Methods
from tests.e2e.identity.world import bearer
from tests.e2e.runs import forker
from tests.e2e.world import rule_set

HEALTH = {"grpc.health.v1.Health/Check", "grpc.health.v1.Health/List", "grpc.health.v1.Health/Watch"}
# Callers that the server does not know, by kind.
STRANGERS = {
    "no credentials": (),
    "an unknown token": bearer(PREFIX + "x" * 43),
    "a malformed token": bearer("eyJhbGciOiJub25lIn0.e30."),
    "another scheme": (("authorization", "Basic YWRhOmFkYQ=="),),
    "two headers": (*bearer(PREFIX + "x" * 43), *bearer(PREFIX + "y" * 43)),
    "keys of the front": (("gavel-secret", "0" * 64), ("gavel-handle", "1")),
}
BUS_HEALTH = "gavel.v1.ArbitrationService/"


@pytest.fixture(scope="module")
def methods(granted: GrantedServer) -> Iterator[Methods]:
    """The methods of the server."""
    with granted.channel() as channel:
        yield Methods(channel, granted.by(ADMIN))


def outcomes(methods: Methods, metadata: tuple[tuple[str, str], ...]) -> dict[str, tuple[StatusCode, str]]:
    """Return how a caller's call of each method ends."""
    requests = {"gavel.v1.AdministrationService/CreateBus": {"bus": "made-by-a-test"}}
    return {name: methods.code(name, metadata, **requests.get(name, {})) for name in methods.by_name}


def opened(ends: dict[str, tuple[StatusCode, str]]) -> set[str]:
    """Return the methods that do not refuse the caller."""
    return {name for name, (code, _) in ends.items() if code not in (StatusCode.PERMISSION_DENIED, StatusCode.UNAUTHENTICATED)}


def test_reflection_finds_the_table(methods: Methods) -> None:
    """The server describes exactly the RPCs of the table of rights and those that need none."""
    assert RIGHT_OF_RPC.keys() | RPCS_WITHOUT_RIGHT == methods.by_name.keys()


@pytest.mark.parametrize("stranger", STRANGERS)
def test_strangers(methods: Methods, stranger: str) -> None:
    """A caller without valid credentials may ask for the server's health and nothing else; every other RPC answers UNAUTHENTICATED."""
    ends = outcomes(methods, STRANGERS[stranger])
    assert HEALTH == opened(ends)
    assert {(StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")} == {ends[name] for name in ends.keys() - HEALTH}


@pytest.mark.parametrize("right", RIGHTS)
def test_each_right_alone(granted: GrantedServer, methods: Methods, right: str) -> None:
    """A right opens exactly its RPCs, beside those that need none."""
    expected = {name for name, needed in RIGHT_OF_RPC.items() if needed == right}
    assert expected == opened(outcomes(methods, granted.by(f"may-{right}"))) - RPCS_WITHOUT_RIGHT


def test_no_right(granted: GrantedServer, methods: Methods) -> None:
    """An authenticated caller without grants has only the RPCs that need no right, and is denied, not unauthenticated."""
    ends = outcomes(methods, granted.by("nobody"))
    assert RPCS_WITHOUT_RIGHT == opened(ends)
    assert {StatusCode.PERMISSION_DENIED} == {ends[name][0] for name in RIGHT_OF_RPC}


@pytest.mark.parametrize("rpc", ["Check", "Watch"])
@pytest.mark.parametrize("stranger", STRANGERS)
def test_the_health_of_a_bus_needs_credentials(methods: Methods, stranger: str, rpc: str) -> None:
    """A stranger gets the same answer for a bus that exists and for one that does not."""
    answers = [
        methods.code(f"grpc.health.v1.Health/{rpc}", STRANGERS[stranger], service=BUS_HEALTH + bus) for bus in ("default", "none", "")
    ]
    assert [(StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")] * 3 == answers


def test_the_health_of_a_bus_needs_the_right_to_read(granted: GrantedServer, methods: Methods) -> None:
    """A caller with the right to read learns the health of a bus; only those who may create a bus learn that it does not exist."""
    check = "grpc.health.v1.Health/Check"
    assert StatusCode.OK == methods.code(check, granted.by("may-read"), service=BUS_HEALTH + "default")[0]
    assert StatusCode.NOT_FOUND == methods.code(check, granted.by("may-operate"), service=BUS_HEALTH + "none")[0]
    for caller, bus in (("may-propose", "default"), ("may-propose", "none"), ("may-read", "none")):
        denied = methods.code(check, granted.by(caller), service=BUS_HEALTH + bus)
        assert (StatusCode.PERMISSION_DENIED, "RIGHT_LACKING") == denied


def test_unknown_buses_are_not_opened_by_events(granted: GrantedServer) -> None:
    """A caller that may create a bus is told to create the one that it names: no event opens it."""
    with pytest.raises(grpc.RpcError) as caught:
        granted.call("gavel.v1.ProjectionService/GetStatus", ADMIN, GetStatusRequest(bus="none"), GetStatusResponse)
    failure = GavelError.from_rpc_error(caught.value)
    assert ("BUS_NOT_FOUND", True) == (failure.reason, "create it first: `gavel bus create`" in failure.message), failure


def test_commands_need_their_right_alone(granted: GrantedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`gavel rules deploy` works with the right `deploy` alone, `activate` with its own; the log names both callers and reasons."""
    file = tmp_path / "parcels.yaml"
    file.write_text(rule_set())

    def command(right: str, *arguments: str) -> int:
        token = tmp_path / right
        token.write_text(granted.tokens[f"may-{right}"])
        return run([*arguments, "--server", granted.server.address, "--token-file", str(token)])

    assert 0 == command("deploy", "rules", "deploy", str(file), "--reason", "first version"), capsys.readouterr()
    assert 0 == command("activate", "rules", "activate", "parcels", "1", "--reason", "tested"), capsys.readouterr()
    capsys.readouterr()
    assert 0 == command("read", "log", "list", "--subject", "rule-set/parcels")
    output = capsys.readouterr().out
    assert "rule set parcels 1 deployed, by may-deploy: first version, sha256:" in output
    assert "rule set parcels 1 in force, by may-activate: tested\n" in output


def test_following_needs_the_right_to_subscribe_alone(granted: GrantedServer, tmp_path: Path) -> None:
    """`gavel log tail --follow --from N` works with the right `subscribe` alone."""
    token = tmp_path / "token"
    token.write_text(granted.tokens["may-subscribe"])
    options = ("--server", granted.server.address, "--token-file", str(token))
    with subprocess.Popen(
        [*forker().command(), "log", "tail", "--follow", "--from", "1", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as follower:
        assert follower.stdout is not None
        try:
            assert "BusOpened" in follower.stdout.readline()
        finally:
            follower.kill()
