"""The wheels in fresh environments: what pip installs with them, and that a client, a server and the command line work there.

pip fetches packages from the index that it is set to, as `make setup` does. A version of Python that the machine lacks is skipped, also
with REQUIRED=1: a distribution carries one version, and package indexes carry none. Before a release a person runs these tests on a
machine that has all versions (docs/contributing.md).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from tests.compiled.installations import DISTRIBUTIONS, Installation, floors, interpreter, locked_versions, new_installation
from tests.e2e.telemetry.otlp import running_collector
from tests.support.fronts import ANY_FRONT
from tests.support.paths import ROOT

pytestmark = pytest.mark.timeout(900)  # packages come over a network

PROGRAM = Path(__file__).with_name("installed_client.py")
# All that gavel-client brings. typing-extensions belongs to grpcio or async-timeout, if at all.
CLIENT_PACKAGES = {"gavel-client", "googleapis-common-protos", "grpcio", "protobuf", "rfc8785"}
CLIENT_FURTHER = {"async-timeout", "typing-extensions"}
# The modules that need gavel-arbiter: for the queues in Redis itself, and for the reactor, which evaluates rules.
NEED_ARBITER = [
    "gavel_client.consumers.fact_derivation gavel_rules",
    "gavel_client.consumers.redis_discovery redis",
    "gavel_client.consumers.work_queue redis",
]

# Modules for which extras of gavel-client bring the packages.
NEED_EXTRAS = ("gavel_client.adapters.", "gavel_client.mcp.")

# The end of the demo: the replay of its log.
PROVED = "decisions recomputed equal"
# The other version of Python that a server runs on.
OTHER_PYTHON = "3.12" if sys.version_info[:2] == (3, 11) else "3.11"


def with_arbiter(
    wheels: dict[str, Path], directory: Path, constraints: list[str], extra: str = "", python: Path = Path(sys.executable)
) -> Installation:
    """Install the three wheels and what they require."""
    installation = new_installation(directory, python)
    installation.install([str(wheels["gavel_client"]), str(wheels["gavel_rules"]), f"{wheels['gavel_arbiter']}{extra}"], constraints)
    return installation


@pytest.fixture(scope="module")
def locked(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The whole at the versions of requirements.lock."""
    return with_arbiter(wheels, tmp_path_factory.mktemp("locked") / "venv", locked_versions())


@pytest.fixture(scope="module")
def least(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The whole, with the server's telemetry, at the least versions that the three pyproject.toml admit."""
    return with_arbiter(wheels, tmp_path_factory.mktemp("least") / "venv", floors(*DISTRIBUTIONS), "[telemetry]")


@pytest.fixture(scope="module")
def address(least: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the least versions, for clients."""
    with least.serve(tmp_path_factory.mktemp("served") / "data") as address:
        yield address


def test_all_of_it_works_without_a_compiler(locked: Installation, tmp_path: Path) -> None:
    """`pip install gavel-arbiter` needs no compiler and no durable-rules; its `gavel` is compiled, and plays and proves the demo."""
    versions = locked.packages()
    assert "durable-rules" not in versions
    pins = dict(one.split("==") for one in locked_versions())
    assert {} == {name: version for name, version in versions.items() if not name.startswith("gavel-") and pins.get(name) != version}
    assert locked.gavel("--version").strip().endswith("(compiled)")
    assert (ANY_FRONT == "native") == (locked.directory / "bin/gavel-front").is_file()
    assert PROVED in locked.gavel("demo", "--data", tmp_path / "data")


def test_all_of_it_works_with_the_least_versions(least: Installation, tmp_path: Path) -> None:
    """The floors are versions that exist, are not withdrawn and work: a server, an executor, a reactor, certificates and a replay."""
    versions = least.packages()
    expected = dict(one.split("==") for one in floors(*DISTRIBUTIONS))
    assert {*expected} - {*versions} <= {"async-timeout"}, "only Python before 3.11.3 needs it, for redis"
    assert {} == {name: versions[name] for name in {*expected} & {*versions} if Version(versions[name]) != Version(expected[name])}
    assert PROVED in least.gavel("demo", "--data", tmp_path / "data")
    least.gavel("certs", "dev", tmp_path / "certificates")


def test_traces_are_exported_with_the_least_versions(least: Installation, tmp_path: Path) -> None:
    """The extra `telemetry` exports spans of calls with its least versions."""
    with running_collector() as collector:
        settings = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.grpc_endpoint, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        with least.serve(tmp_path / "data", settings) as address:
            least.gavel("status", "--server", address)
            collector.wait(lambda: any(span.name.endswith("GetStatus") for span in collector.spans()))


def test_telemetry_without_its_extra(locked: Installation, tmp_path: Path) -> None:
    """A server without the extra `telemetry` works; asked for an export, it does not start, and one line names the extra."""
    assert not any(name.startswith("opentelemetry") for name in locked.packages())
    with locked.serve(tmp_path / "data") as address:
        locked.gavel("status", "--server", address)
    command = [str(locked.directory / "bin/gavel"), "serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "other")]
    environment = {**locked.environment(), "OTEL_TRACES_EXPORTER": "otlp"}
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert 1 == refused.returncode
    assert 1 == sum("install gavel-arbiter[telemetry]" in line for line in refused.stderr.splitlines()), refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_other_python(tmp_path: Path) -> None:
    """On the other supported Python, wheels are built with the Rete engine from its pinned source, and the demo is played and proved."""
    python = interpreter(OTHER_PYTHON)
    if python is None:
        pytest.skip(f"no Python {OTHER_PYTHON} with venv on PATH or below pyenv")
    builder = new_installation(tmp_path / "builder", python)
    builder.install(["hatchling", "pip", "setuptools"], locked_versions())
    for folder in DISTRIBUTIONS:
        build = [str(builder.python), "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "wheels")]
        # Unlike an installation, a build needs the compiler.
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "GAVEL_COMPILE")}
        subprocess.run(build, cwd=ROOT / folder, env=environment, check=True, capture_output=True, timeout=600)
    wheels = {wheel.name.split("-")[0]: wheel for wheel in (tmp_path / "wheels").glob("*.whl")}
    installation = with_arbiter(wheels, tmp_path / "venv", locked_versions(), python=python)
    assert installation.gavel("--version").strip().endswith("(interpreted)")
    assert PROVED in installation.gavel("demo", "--data", tmp_path / "data")


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12"])
def test_the_client_alone(version: str, wheels: dict[str, Path], address: str, tmp_path: Path) -> None:
    """gavel-client with its least versions needs no compiler, no Redis and no rules, and governs a refund on every Python it supports."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} with venv on PATH or below pyenv")
    client = new_installation(tmp_path / "venv", python)
    client.install([str(wheels["gavel_client"])], floors("client/python"))
    packages = {*client.packages()} - {"pip", "setuptools"}
    assert packages - CLIENT_FURTHER == CLIENT_PACKAGES
    told = json.loads(client.run(str(client.python), str(PROGRAM), address, str(ROOT / "rules/sets/refunds.yaml")))
    assert NEED_ARBITER == [one for one in told.pop("lacking") if not one.startswith(NEED_EXTRAS)]
    assert told.pop("events") >= 4
    assert {
        "outcome": "OUTCOME_APPROVED",
        "execution": "EXECUTION_STATUS_SUCCESS",
        "result": "r-42.5",
        "error": "BUS_NOT_FOUND",
    } == told
