"""Fixtures of the tests of telemetry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.telemetry.otlp import Collector, running_collector


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector."""
    with running_collector() as running:
        yield running
