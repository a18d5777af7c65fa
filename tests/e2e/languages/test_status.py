"""Programs in Go, TypeScript and Java whose stubs come from `proto/` call a real server over TLS."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from gavel_client import GavelClient
from gavel_client.rpc.credentials import Tls

from tests.e2e.identity.world import CALL_SECONDS_MAX, SecureServer
from tests.e2e.languages import toolchains

pytestmark = [pytest.mark.long, pytest.mark.timeout(toolchains.BUILD_SECONDS_MAX)]
MISSING = "no-such-bus"


async def expected_of(server: SecureServer, bus: str) -> dict[str, object]:
    """Open a bus; return what every program must print, but for the name of the code, which each library spells in its own way."""
    async with GavelClient(server.server.address, tls=Tls(ca=server.file("ca.pem")), credentials=server.token) as client:
        await client.create_bus(bus=bus)
        head = (await client.get_status(bus=bus)).head_sequence_number
    assert head > 0
    return {"head": head, "domain": "gavel", "reason": "BUS_NOT_FOUND"}


def printed_by(command: list[str]) -> dict[str, object]:
    """Run a program; return its line of JSON without the code, which must be NOT_FOUND."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GAVEL_")}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=10 * CALL_SECONDS_MAX)
    assert 0 == run.returncode, run.stderr
    answer: dict[str, object] = json.loads(run.stdout)
    assert "notfound" == str(answer.pop("code")).replace("_", "").lower()
    return answer


async def test_go(secure_server: SecureServer, bus: str, go_programs: Path) -> None:
    """The stubs of protoc-gen-go and protoc-gen-go-grpc compile, and a program gets a status and the detail of an error."""
    expected = await expected_of(secure_server, bus)
    arguments = ["-server", secure_server.server.address, "-ca", str(secure_server.file("ca.pem"))]
    arguments += ["-token-file", str(secure_server.file("token")), "-bus", bus, "-missing", MISSING]
    assert expected == printed_by([str(go_programs / "status"), *arguments])


@pytest.mark.parametrize("build", [toolchains.build_typescript, toolchains.build_java], ids=["typescript", "java"])
async def test_typescript_and_java(secure_server: SecureServer, bus: str, build: toolchains.Build) -> None:
    """The stubs compile strictly, and a program gets a status and the detail of an error."""
    command = build()
    expected = await expected_of(secure_server, bus)
    files = [str(secure_server.file("ca.pem")), str(secure_server.file("token"))]
    assert expected == printed_by([*command, secure_server.server.address, *files, bus, MISSING])
