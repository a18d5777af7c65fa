"""Servers that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gavel_server.front.programs import FrontSetting

from tests.e2e.identity.granted import GrantedServer
from tests.support.fronts import TRANSPORTS


@pytest.fixture(scope="module", params=TRANSPORTS)
def granted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrantedServer]:
    """A server with a caller for each right, on each transport."""
    front: FrontSetting = request.param
    with GrantedServer(tmp_path_factory.mktemp("granted"), front).running() as running:
        yield running
