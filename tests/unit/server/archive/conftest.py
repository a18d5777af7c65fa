"""Segments that few events fill."""

from __future__ import annotations

import pytest
from gavel_server.archive import archive_run

from tests.support.stores.archives import SEGMENT


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of five events."""
    monkeypatch.setattr(archive_run, "SEGMENT_EVENTS", SEGMENT)
