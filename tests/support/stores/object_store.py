"""An S3-compatible object store on this machine: the server of moto, with a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

BUCKET = "archives"


@contextmanager
def object_store() -> Iterator[dict[str, str]]:
    """Yield the environment with which clients find the store."""
    from moto.server import ThreadedMotoServer  # takes a while, and only here

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        yield environment
    finally:
        server.stop()


def create_bucket(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Point this process to the store, and create the bucket."""
    import s3fs

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    with suppress(FileExistsError):
        s3fs.S3FileSystem(use_listings_cache=False).mkdir(BUCKET)
