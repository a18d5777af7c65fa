"""The evidence store, on a directory and on object stores through fsspec."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import fsspec
import pytest
from gavel_client.evidence import EvidenceStore
from gavel_client.evidence.pruning import prune
from gavel_client.evidence.store import EvidenceAlteredError, EvidenceError, EvidenceMissingError

CONTENT = b'{"n":8}'
HASH = "sha256:" + sha256(CONTENT).hexdigest()


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The URL of a bucket of a local object store."""
    from moto.server import ThreadedMotoServer  # takes a while, and only here

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as environment:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            environment.setenv(name, "testing")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        environment.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        fsspec.filesystem("s3").mkdir("evidence")
        yield "s3://evidence/kept"
    server.stop()


@pytest.fixture(params=["directory", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    match request.param:
        case "directory":
            return str(tmp_path / "evidence")
        case "memory":
            return f"memory://{tmp_path.name}"
    return f"{request.getfixturevalue('bucket')}/{tmp_path.name}"


def test_content_is_stored_by_its_hash(url: str) -> None:
    """Content is read by its hash, also through another store at the URL; its place is its hash; equal content is stored once."""
    content_hash, uri = EvidenceStore(url).put(CONTENT)
    assert (HASH, True) == (content_hash, uri.endswith(f"/sha256/{HASH[7:9]}/{HASH[9:]}"))
    store = EvidenceStore(url)
    assert CONTENT == store.get(HASH)
    store.put(CONTENT)
    assert [(HASH, uri, len(CONTENT))] == [(entry.hash, entry.uri, entry.size_bytes) for entry in store]


def test_missing_evidence(url: str) -> None:
    """Unknown hashes are missing, and what is no hash is refused."""
    store = EvidenceStore(url)
    assert [] == list(store)
    with pytest.raises(EvidenceMissingError, match=HASH):
        store.get(HASH)
    for text in ("sha256:..", HASH[:-1], HASH.upper(), "../../etc/passwd"):
        with pytest.raises(ValueError, match="64 lower-case hexadecimal digits"):
            store.get(text)


def test_pruning_keeps_what_is_recent(url: str) -> None:
    """Only what was last written before the time is removed, and it is named."""
    store = EvidenceStore(url)
    store.put(CONTENT)
    now = datetime.now(UTC)
    assert [] == list(prune(store, now - timedelta(days=1)))
    assert [HASH] == [entry.hash for entry in prune(store, now + timedelta(days=1), dry_run=True)]
    assert CONTENT == store.get(HASH)
    assert [HASH] == [entry.hash for entry in prune(store, now + timedelta(days=1))]
    assert [] == list(store)


def test_altered_evidence_is_not_given_out(tmp_path: Path) -> None:
    """Bytes with another hash are an error; keeping the content again mends them."""
    store = EvidenceStore(str(tmp_path))
    store.put(CONTENT)
    path = tmp_path / "sha256" / HASH[7:9] / HASH[9:]
    path.write_bytes(b"forged")
    with pytest.raises(EvidenceAlteredError, match=HASH):
        store.get(HASH)
    store.put(CONTENT)
    assert CONTENT == store.get(HASH)


def test_a_store_that_fails(tmp_path: Path) -> None:
    """A store that cannot be written to is an error that names no path of the process."""
    (tmp_path / "file").write_text("")
    with pytest.raises(EvidenceError, match="cannot be stored"):
        EvidenceStore(str(tmp_path / "file")).put(CONTENT)
    with pytest.raises(ValueError, match="no-such-scheme"):
        EvidenceStore("no-such-scheme://evidence")


def test_pruning_beside_writers(tmp_path: Path) -> None:
    """Evidence that is written again while it is pruned stays: what `put` has returned is there, and younger than the limit."""
    store = EvidenceStore(str(tmp_path))
    store.put(CONTENT)
    path = tmp_path / "sha256" / HASH[7:9] / HASH[9:]
    ended = threading.Event()

    def remove_the_old() -> None:
        while not ended.is_set():
            list(prune(EvidenceStore(str(tmp_path)), datetime.now(UTC) - timedelta(hours=1)))

    pruning = threading.Thread(target=remove_the_old)
    pruning.start()
    try:
        for _ in range(200):
            if path.exists():
                os.utime(path, (0, 0))
            store.put(CONTENT)
            assert CONTENT == store.get(HASH)
    finally:
        ended.set()
        pruning.join()
