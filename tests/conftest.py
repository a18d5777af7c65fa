"""The check of the build under test, and fixtures for all tests: a real Redis for the whole run, and a bus of its own for a test."""

from __future__ import annotations

from tests.support import grpc_log  # noqa: F401  # before the other imports load gRPC

# isort: split
import gc
import os
import runpy
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec
from pathlib import Path

import gavel_rules
import pytest
import pytest_asyncio
import structlog
from gavel_server.log.redis.embedded import EmbeddedRedis
from hypothesis import HealthCheck, settings

from tests.support.paths import ROOT
from tests.support.postgresql.cluster import Cluster, directories, new_cluster
from tests.support.redis.cluster import RunningCluster, running_cluster
from tests.support.redis.in_memory import redis_in_memory

# No deadlines: on a busy machine an example may take long to generate and to run.
settings.register_profile("gavel", settings(), max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gavel")

# The contexts of whoever runs the tests (gavel context) must not lead commands to another server.
os.environ["XDG_CONFIG_HOME"] = "/nonexistent"


# By default structlog colours the source of every frame of a traceback, which takes longer than the test that logs it. Configuring it would
# change what the server does (gavel_server.process.logging), so its default renderer is changed in place.
for processor in structlog.get_config()["processors"]:
    if isinstance(processor, structlog.dev.ConsoleRenderer):
        processor.exception_formatter = structlog.dev.plain_traceback


# Collecting imports everything and drops nothing: the garbage collector would take a third of the time.
gc.disable()


def pytest_collection_finish() -> None:
    """Let the garbage collector work, on what the tests make."""
    gc.enable()
    gc.freeze()


# Servers and commands that tests start inherit ignored signals, such as that of nohup.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_sessionstart() -> None:
    """Refuse to test another build than TEST_BUILD names: `compiled`, or by default `interpreted`."""
    builder = runpy.run_path(str(ROOT / "server/hatch_build.py"))
    expected = os.environ.get("TEST_BUILD", "interpreted")
    # Importing all of them would take each process seconds.
    specs = [find_spec(name) for name in builder["module_names"]()]
    kinds = {"compiled" if isinstance(spec and spec.loader, ExtensionFileLoader) else "interpreted" for spec in specs}
    if {expected} != kinds:
        pytest.exit(
            f"TEST_BUILD is {expected}, and the imported build is {' and '.join(sorted(kinds))}; use make test-compiled", returncode=3
        )
    if expected == "compiled" and not builder["is_current"](Path(gavel_rules.__file__).parents[1]):
        pytest.exit("the compiled tree was built from other source; use make test-compiled", returncode=3)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def redis_server() -> AsyncIterator[EmbeddedRedis]:
    """A Redis for all tests, with the settings of the embedded one. Tests that stop or pause a Redis start their own."""
    async with redis_in_memory() as redis:
        yield redis


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> str:
    """The URL of the Redis that all tests share. A test uses a `bus` of its own on it."""
    return redis_server.url


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningCluster]:
    """A Redis Cluster of three masters for all tests that only read and write. Tests that stop a node start their own."""
    async with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster_url(redis_cluster: RunningCluster) -> str:
    """The URL of the Redis Cluster that all tests share. A test uses a `bus` of its own on it."""
    return redis_cluster.url


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Cluster]:
    """A PostgreSQL for all tests of this process that ask for one. Tests that stop it, or change its settings, start their own."""
    with directories() as directory, new_cluster(directory / "shared") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def postgresql_url(postgresql_server: Cluster) -> str:
    """The URL of the PostgreSQL that all tests share. A test uses a `bus` of its own on it."""
    return postgresql_server.url


@pytest.fixture
def bus() -> str:
    """The name of a bus that no other test uses."""
    return f"test-{uuid.uuid4().hex[:12]}"
