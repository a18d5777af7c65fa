"""The targets of the benchmark: real servers, in plain text or with credentials, and the empty handler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
from gavel.v1 import administration_service_pb2
from gavel.v1 import administration_service_pb2_grpc as administration_grpc
from gavel.v1 import rule_set_service_pb2 as rule_set
from gavel.v1 import rule_set_service_pb2_grpc as rule_set_grpc
from gavel_server.process.build import COMPILED

from tests.load.bench.measurements import EMPTY
from tests.support.paths import ROOT

COMPILED_TREE: Final = ROOT / "build/compiled"
GAVEL: Final = Path(sys.executable).with_name("gavel")
READY: Final = "gavel: ready on "
EMPTY_SERVER: Final = Path(__file__).with_name("bench") / "empty_server.py"
# Idle: no descendant of the benchmark uses more than a tenth of one processor. A waiting server uses 3 %. Facts are stale after 60 s.
IDLE_INTERVAL_SECONDS: Final = 0.5
IDLE_SHARE_MAX: Final = 0.1
IDLE_WAIT_SECONDS_MAX: Final = 30.0


class BenchError(Exception):
    """The benchmark failed, or its result would be wrong."""


@dataclass(frozen=True)
class Access:
    """How a target is called: without `authority` in plain text, else over TLS, with the client certificate and bearer token, if any."""

    authority: Path | None = None
    certificate: tuple[Path, Path] | None = None
    token: Path | None = None
    """A file with the metadata, as ghz reads it, so that no token is on a command line."""


PLAIN: Final = Access()


@dataclass(frozen=True)
class Target:
    """A server under load. `process` and `redis` are process ids; `redis` is 0 if it has none."""

    name: str
    address: str
    process: int
    redis: int = 0
    access: Access = PLAIN

    def channel(self) -> grpc.Channel:
        """Return a channel with the credentials."""
        access = self.access
        if access.authority is None:
            return grpc.insecure_channel(self.address)
        chain, key = (file.read_bytes() for file in access.certificate) if access.certificate else (None, None)
        credentials = grpc.ssl_channel_credentials(access.authority.read_bytes(), key, chain)
        if access.token is not None:
            token = json.loads(access.token.read_text())["authorization"].removeprefix("Bearer ")
            credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(token))
        return grpc.secure_channel(self.address, credentials)

    def ghz_options(self) -> list[str]:
        """Return ghz's options for the same credentials."""
        access = self.access
        if access.authority is None:
            return ["--insecure"]
        options = [f"--cacert={access.authority}"]
        if access.certificate is not None:
            options += [f"--cert={access.certificate[0]}", f"--key={access.certificate[1]}"]
        if access.token is not None:
            options.append(f"--metadata-file={access.token}")
        return options


def environment_of(build: str) -> dict[str, str]:
    """Return the environment in which `gavel` is this build and exports no telemetry. Raises BenchError if it is the other one."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    if build == COMPILED:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(COMPILED_TREE), os.environ.get("PYTHONPATH"))))
    version = subprocess.run([GAVEL, "--version"], env=environment, check=True, capture_output=True, text=True).stdout.strip()
    if not version.endswith(f"({build})"):
        raise BenchError(f"the {build} build is to be measured, and this is {version!r}; use make bench")
    return environment


@contextmanager
def running_gavel(
    name: str,
    document: str,
    directory: Path,
    environment: dict[str, str],
    options: Sequence[str] = (),
    access: Access = PLAIN,
    grants: str = "",
) -> Iterator[Target]:
    """Run a real server on the embedded Redis, with the rule set, and the grants if any, in force."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "server.log").open("w") as log:
        command = [str(GAVEL), "serve", "--listen", "127.0.0.1:0", "--data", str(directory / "data"), *options]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process:
            try:
                assert process.stdout is not None
                address = next((line.removeprefix(READY).strip() for line in process.stdout if line.startswith(READY)), "")
                if not address:
                    raise BenchError(f"gavel serve ended; its log is {directory / 'server.log'}")
                target = Target(name, address, process.pid, _redis_of(process.pid), access)
                with target.channel() as channel:
                    if grants:
                        administration = administration_grpc.AdministrationServiceStub(channel)
                        administration.DeployGrants(administration_service_pb2.DeployGrantsRequest(document=grants))
                    stub = rule_set_grpc.RuleSetServiceStub(channel)
                    deployed = stub.DeployRuleSet(rule_set.DeployRuleSetRequest(document=document))
                    stub.ActivateRuleSet(rule_set.ActivateRuleSetRequest(policy_id=deployed.policy_id, version=deployed.version))
                yield target
            finally:
                process.terminate()


@contextmanager
def running_empty(answer: Path) -> Iterator[Target]:
    """Run the empty handler with the answer in the file."""
    with subprocess.Popen([sys.executable, EMPTY_SERVER, answer], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Target(EMPTY, f"127.0.0.1:{process.stdout.readline().strip()}", process.pid)
        finally:
            process.terminate()


def _redis_of(server: int) -> int:
    """Return the process id of the Redis that the server started."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = status.read_text().rpartition(") ")
        except OSError:
            continue  # the process ended meanwhile
        if int(tail.split()[1]) == server and head.partition("(")[2].startswith(("redis-server", "valkey-server")):
            return int(status.parent.name)
    raise BenchError(f"the server (process {server}) has no Redis of its own")


def wait_until_idle() -> None:
    """Wait until all descendants of this process have done what is left of earlier calls. Raises BenchError if that does not end.

    Servers index events, write snapshots and rewrite Redis's file after they have answered. On machines whose processors share a core this
    slows whatever is measured meanwhile, on any server.
    """
    deadline = time.monotonic() + IDLE_WAIT_SECONDS_MAX
    used = _descendants_cpu_seconds()
    while time.monotonic() < deadline:
        before = used
        time.sleep(IDLE_INTERVAL_SECONDS)
        used = _descendants_cpu_seconds()
        if all(seconds - before.get(process, 0.0) <= IDLE_SHARE_MAX * IDLE_INTERVAL_SECONDS for process, seconds in used.items()):
            return
    raise BenchError(f"the servers were not idle within {IDLE_WAIT_SECONDS_MAX:.0f} s")


def _descendants_cpu_seconds() -> dict[int, float]:
    """Return the processor time so far of each descendant of this process."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(") ")[2].split()
        except OSError:
            continue  # the process ended meanwhile
        children[int(fields[1])].append(int(status.parent.name))
    processes = list(children[os.getpid()])
    for process in processes:
        processes += children[process]
    return {process: _cpu_seconds_if_alive(process) for process in processes}


def _cpu_seconds_if_alive(process: int) -> float:
    try:
        return cpu_seconds(process)
    except OSError:
        return 0.0


def cpu_seconds(process: int) -> float:
    """Return the user and system time of all threads of a process so far; 0 for process 0."""
    if not process:
        return 0.0
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
