"""Which build the tests run on, and fixtures that many share: a real Redis for the whole run, and a bus of one's own on it."""

from __future__ import annotations

import importlib
import os
import runpy
import uuid
from collections.abc import AsyncIterator
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Final

import gavel_rules
import pytest
import pytest_asyncio
from gavel_server.embedded import EmbeddedRedis
from hypothesis import HealthCheck, settings

ROOT: Final = Path(__file__).parents[1]

# On a busy machine any example may take long to make and to run: that is no failure of what is tested.
settings.register_profile("gavel", settings(), max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gavel")


def pytest_sessionstart() -> None:
    """Refuse to test another build than TEST_BUILD says: `compiled`, or `interpreted`, which is the default."""
    builder = runpy.run_path(str(ROOT / "server/hatch_build.py"))
    wanted = os.environ.get("TEST_BUILD", "interpreted")
    loaded = {name: importlib.import_module(name).__spec__ for name in builder["module_names"]()}
    kinds = {"compiled" if isinstance(spec and spec.loader, ExtensionFileLoader) else "interpreted" for spec in loaded.values()}
    if {wanted} != kinds:
        pytest.exit(f"TEST_BUILD is {wanted}, and what is imported is {' and '.join(sorted(kinds))}; use make test-compiled", returncode=3)
    if wanted == "compiled" and not builder["is_current"](Path(gavel_rules.__file__).parents[1]):
        pytest.exit("the compiled tree was built from other source than there is now; use make test-compiled", returncode=3)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def redis_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedRedis]:
    """A Redis for all tests, with the settings of the embedded default. Tests that stop or pause one start their own."""
    async with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as redis:
        yield redis


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> str:
    """The URL of the Redis that all tests share; keep to a `bus` of your own on it."""
    return redis_server.url


@pytest.fixture
def bus() -> str:
    """The name of a bus that nobody else uses."""
    return f"test-{uuid.uuid4().hex[:12]}"
