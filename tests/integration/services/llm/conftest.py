"""Fixtures of the tests of calls of models, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gavel_client import GavelClient

from tests.integration.services.world import World
from tests.support.llm.transcripts import TranscriptServer


@pytest.fixture
def models() -> Iterator[TranscriptServer]:
    """A server of transcripts."""
    with TranscriptServer() as server:
        yield server


@pytest.fixture
def client(world: World) -> GavelClient:
    """A client of the server."""
    return GavelClient(world.channel)
