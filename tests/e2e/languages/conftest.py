"""A server with TLS and tokens, and the programs in other languages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gavel_server.log.redis.embedded import EmbeddedRedis

from tests.e2e.identity.world import SecureServer
from tests.e2e.languages import toolchains
from tests.support.fronts import ANY_FRONT


@pytest.fixture(scope="package")
def secure_server(redis_server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    """A server that requires a token over TLS; `token` is in the file `token`."""
    server = SecureServer(tmp_path_factory.mktemp("secure"), ANY_FRONT, redis_url=redis_server.url)
    server.file("token").write_text(server.token)
    with server.running():
        yield server


@pytest.fixture(scope="session")
def go_programs() -> Path:
    """The folder with the Go programs."""
    return toolchains.build_go()
