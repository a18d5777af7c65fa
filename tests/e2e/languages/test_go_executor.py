"""An executor in Go that has nothing but the stubs of the contract and a connection to the server."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from gavel.v1.execution_pb2 import EXECUTION_STATUS_STARTED, EXECUTION_STATUS_SUCCESS
from gavel_client import GavelClient
from gavel_client.rpc.credentials import Certificate, Tls

from tests.e2e.cli.programs import gavel
from tests.e2e.identity.world import SecureServer
from tests.e2e.languages.program import run_program
from tests.e2e.languages.toolchains import BUILD_SECONDS_MAX
from tests.e2e.world import Server, approve, open_bus, poll, prove, wait_for_events
from tests.support.fronts import TRANSPORTS

pytestmark = [pytest.mark.long, pytest.mark.timeout(BUILD_SECONDS_MAX)]

PRODUCER = "courier-go"
GRANTS = f"""
gavel: v1
name: main
version: 1
grants:
  - {{to: [alice], may: [propose, read], produce: {{types: [agent], ids: [agent-1]}}}}
  - {{to: [alice], may: [publish], produce: {{types: [database_snapshot], ids: [depot]}}}}
  - {{to: [alice], may: [deploy, activate, grant, operate, subscribe, replay]}}
  - {{to: [{PRODUCER}], may: [execute], produce: {{types: [executor], ids: [{PRODUCER}]}}, actions: ["parcel.*"]}}
"""
LEASE_MS = 1_500


@dataclass(frozen=True)
class Depot:
    """A server with TLS, client certificates, grants and an embedded Redis, on which only `PRODUCER` may execute."""

    server: SecureServer
    client: GavelClient

    def work_list(self, certificate: str) -> subprocess.CompletedProcess[str]:
        """Run `gavel work list` with a certificate."""
        files = {"--tls-ca": "ca.pem", "--tls-cert": f"{certificate}.pem", "--tls-key": f"{certificate}-key.pem"}
        options = [part for option, name in files.items() for part in (option, self.server.file(name))]
        return gavel("work", "list", *options, server=self.server.server)

    def executor(self, programs: Path, certificate: str, work_ms: int) -> list[str | Path]:
        """Return the command of an executor with a certificate."""
        self.server.issue_client_certificate(certificate)
        files = {"-ca": "ca.pem", "-cert": f"{certificate}.pem", "-key": f"{certificate}-key.pem"}
        options = [part for option, name in files.items() for part in (option, self.server.file(name))]
        return [*command(programs, self.server.server), *options, "-work-ms", str(work_ms)]


def command(programs: Path, server: Server) -> list[str | Path]:
    """Return the command of an executor."""
    return [programs / "executor", "-server", server.address, "-producer", PRODUCER, "-lease-ms", str(LEASE_MS)]


@pytest.fixture(scope="module", params=TRANSPORTS)
def guarded_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    """A server of this module with an embedded Redis."""
    with SecureServer(tmp_path_factory.mktemp("guarded"), request.param, client_certificates=True).running() as server:
        yield server


@pytest.fixture
async def depot(guarded_server: SecureServer) -> AsyncIterator[Depot]:
    """The server with the rule set and the grants of the tests."""
    guarded_server.issue_client_certificate("alice")
    certificate = Certificate(guarded_server.file("alice.pem"), guarded_server.file("alice-key.pem"))
    tls = Tls(ca=guarded_server.file("ca.pem"))
    async with GavelClient(guarded_server.server.address, tls=tls, credentials=certificate) as client:
        await open_bus(client)
        await client.deploy_grants(GRANTS)
        yield Depot(guarded_server, client)


async def test_a_killed_executor_is_replaced(depot: Depot, go_programs: Path, tmp_path: Path) -> None:
    """After SIGKILL between BeginExecution and ReportExecution another executor takes over: one final report, no way to Redis."""
    stranger = depot.executor(go_programs, "stranger", 0)
    with run_program(stranger, tmp_path / "stranger.log") as refused:
        assert 1 == refused.process.wait(60)
        assert "PermissionDenied" in (tmp_path / "stranger.log").read_text()

    decision = await approve(depot.client, "parcel/1")
    item = str(decision.sequence_number)
    with run_program(depot.executor(go_programs, PRODUCER, 600_000), tmp_path / "first.log") as first:
        assert ["began", item, "1"] == first.await_line("began")
        first.await_line("renewed")
        assert {f"tcp:{depot.server.server.address.rpartition(':')[2]}"} == first.peers()
        assert_private(depot.server.server)
        first.kill()

    with run_program(depot.executor(go_programs, PRODUCER, LEASE_MS), tmp_path / "second.log") as second:
        assert ["reported", item, "2"] == second.await_line("reported")
        second.terminate()

    executions = [event for event in (await depot.client.list_events()).envelopes if event.HasField("execution")]
    attempts = [(event.execution.attempt, event.execution.status) for event in executions if event.event_name != "ExecutionRenewed"]
    assert [(1, EXECUTION_STATUS_STARTED), (2, EXECUTION_STATUS_STARTED), (2, EXECUTION_STATUS_SUCCESS)] == attempts
    lease = [event for event in executions if event.execution.attempt == 1][-1].execution.lease_until
    takeover = next(event for event in executions if event.execution.attempt == 2)
    assert lease.ToNanoseconds() <= takeover.recorded_at.ToNanoseconds()
    assert {(PRODUCER, "mtls")} == {(event.attestation.principal, event.attestation.method) for event in executions}
    await await_settled(depot.client)
    await prove(depot.client)
    shown = depot.work_list("alice")
    assert re.search(r"decisions +executors +0 +0 +0", shown.stdout), shown
    assert 1 == depot.work_list(PRODUCER).returncode  # to operate is another right


async def test_poison_is_parked(
    pair: tuple[Server, Server], clients: tuple[GavelClient, GavelClient], bus: str, go_programs: Path, tmp_path: Path
) -> None:
    """An item that no executor can process is parked, and other items are not held up; an operator retries or discards it."""
    poison, sound = await approve(clients[0], "parcel/poison"), await approve(clients[0], "parcel/sound")
    item = str(poison.sequence_number)
    broken = [*command(go_programs, pair[0]), "-bus", bus, "-poison", "parcel/poison", "-deliveries-max", "3"]

    def work(*arguments: str) -> str:
        run = gavel("work", *arguments, "--bus", bus, server=pair[1])
        assert 0 == run.returncode, run.stderr
        return run.stdout

    async def parked() -> list[dict[str, Any]] | None:
        items: list[dict[str, Any]] = json.loads(work("parked", "decisions", "executors", "--json")).get("items", [])
        return items or None

    with run_program(broken, tmp_path / "broken.log") as program:
        assert ["1", "2", "3"] == [program.await_line(f"rejected {item}")[2] for _ in range(3)]
        [parked_item] = await poll(parked)
        assert (item, poison.event_id, 3, "the parcel is broken") == tuple(
            parked_item[key] for key in ("itemId", "eventId", "deliveries", "reason")
        )
        assert re.search(r"decisions +executors +0 +\d +1 +1", work("list")), work("list")
        assert "1 item of decisions" in work("retry", "decisions", "executors", item)
        assert ["1", "2", "3"] == [program.await_line(f"rejected {item}")[2] for _ in range(3)]
        await poll(parked)
        program.terminate()
    assert "1 item of decisions" in work("retry", "decisions", "executors", "--all")
    with run_program([*command(go_programs, pair[0]), "-bus", bus], tmp_path / "mended.log") as program:
        assert ["reported", item, "1"] == program.await_line("reported")
        program.terminate()
    assert "No item is parked" in work("parked", "decisions", "executors")
    successes = await wait_for_events(clients[0], lambda event: event.execution.status == EXECUTION_STATUS_SUCCESS, 2)
    assert {sound.event_id, poison.event_id} == {event.execution.decision_id for event in successes}

    other = await approve(clients[0], "parcel/poison")
    with run_program(broken, tmp_path / "broken.log") as program:
        [parked_item] = await poll(parked)
        assert str(other.sequence_number) == parked_item["itemId"]
        assert "1 item of decisions" in work("discard", "decisions", "executors", "--all")
        program.terminate()
    assert "No item is parked" in work("parked", "decisions", "executors")
    assert re.search(r"decisions +executors +0 +0 +0", work("list")), work("list")


def assert_private(server: Server) -> None:
    """Assert that the Redis of a server listens on no port, and that only the server's user can open its socket."""
    socket = Path(server.redis_url.removeprefix("unix://").partition("?")[0])
    assert stat.S_ISSOCK(socket.stat().st_mode)
    assert 0 == stat.S_IMODE(socket.stat().st_mode) & 0o077
    assert os.getuid() == socket.stat().st_uid
    with redis.Redis.from_url(server.redis_url, protocol=2) as connection:
        assert {"port": "0"} == connection.config_get("port")


async def await_settled(client: GavelClient) -> None:
    """Return once no item of the queue of decisions waits or is pending."""

    async def settled() -> bool | None:
        groups = (await client.list_consumers()).consumers
        return not any(group.lag or group.pending for group in groups if group.group == "executors") or None

    await poll(settled)
