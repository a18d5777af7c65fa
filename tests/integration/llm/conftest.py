"""The server of transcripts, one for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.llm.transcripts import TranscriptServer


@pytest.fixture(scope="module")
def transcript_server() -> Iterator[TranscriptServer]:
    """A server for the module."""
    with TranscriptServer() as server:
        yield server


@pytest.fixture
def server(transcript_server: TranscriptServer) -> TranscriptServer:
    """The module's server without the requests of earlier tests."""
    transcript_server.requests.clear()
    transcript_server.replies.clear()
    return transcript_server
