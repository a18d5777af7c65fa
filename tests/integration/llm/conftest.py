"""The server of transcripts, one for all tests of a module, and clients without certificates."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.llm.transcripts import TranscriptServer


@pytest.fixture(scope="package", autouse=True)
def no_certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An empty store of trusted certificates. Each client of an SDK reads the whole store, and these tests speak no TLS."""
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("SSL_CERT_FILE", raising=False)
        environment.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("certificates")))
        yield


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
