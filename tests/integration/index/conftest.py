"""Fixtures of the tests of the index."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gavel_server.index import event_index
from gavel_server.index import worker as index_worker

from tests.e2e.runs import forker


@pytest.fixture(scope="package", autouse=True)
def forked_workers() -> Iterator[None]:
    """Workers are forks that do not wait for idle time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(event_index, "_COMMAND", forker().command(index_worker.__name__))
        yield
