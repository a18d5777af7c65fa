"""A fixture that repeats a test on every Redis of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.redis.programs import redis_programs

PROGRAMS = redis_programs()


@pytest.fixture(scope="module", params=list(PROGRAMS.values()), ids=list(PROGRAMS))
def redis_program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The path of one Redis program, first on PATH for the embedded Redis."""
    directory = tmp_path_factory.mktemp("program")
    (directory / "redis-server").symlink_to(request.param)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
        yield request.param
