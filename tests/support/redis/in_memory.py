"""A Redis for tests that do not examine the disk: durable by its settings, on files in memory.

With `appendfsync always` each append waits for the disk. Hundreds of servers write to it while the tests run, and now and then a sync took
longer than a server waits for an answer.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from gavel_server.log.redis.embedded import EmbeddedRedis

_MEMORY: Final = Path("/dev/shm")  # noqa: S108  # the directory in it has a random name
# Far more than the tests of a process write. Containers often have only 64 MB there; then the files are on disk.
_FREE_BYTES_MIN: Final = 1024**3


@asynccontextmanager
async def redis_in_memory() -> AsyncIterator[EmbeddedRedis]:
    """Run a Redis, with the settings of the embedded one, until the end of the block."""
    has_room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _FREE_BYTES_MIN
    with tempfile.TemporaryDirectory(prefix="gavel-tests-", dir=_MEMORY if has_room else None) as directory:
        async with EmbeddedRedis(directory) as redis:
            yield redis
