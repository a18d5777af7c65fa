"""How Redis confirms that replicas and disks have a write: the commands WAIT and WAITAOF."""

from __future__ import annotations

from typing import Any, Final

from gavel_server.log.acknowledgement import Acknowledgement
from gavel_server.log.redis.replies import reason
from gavel_server.log.redis.resp import Command

# The oldest Redis with WAITAOF. Valkey has it from its first release, and calls itself 7.2 or later.
WAITAOF_VERSION_MIN: Final = (7, 2)

_UPGRADE: Final = "--ack aof:N needs Redis 7.2 or later, or Valkey: upgrade it, or use --ack replicas:N"


def wait_commands(acknowledgement: Acknowledgement, timeout_ms: int) -> tuple[Command, ...]:
    """Return the command that waits for the writes of its own connection, or nothing."""
    if acknowledgement.is_synced:
        return (("WAITAOF", 1, acknowledgement.replicas, timeout_ms),)
    return (("WAIT", acknowledgement.replicas, timeout_ms),) if acknowledgement.replicas else ()


def shortfall(acknowledgement: Acknowledgement, replies: list[Any], timeout_ms: int, server: str) -> str:
    """Return what is missing at the Redis named `server`, or "". `replies` holds the reply of the command, if it arrived."""
    if not replies:
        return f"{server} did not report whether replicas have them"
    if isinstance(replies[0], Exception):
        remedy = f"; {_UPGRADE}" if acknowledgement.is_synced and "unknown command" in str(replies[0]).lower() else ""
        return f"{server} refuses to wait for replicas: {reason(replies[0])}{remedy}"
    local, count = map(int, replies[0]) if acknowledgement.is_synced else (1, int(replies[0]))
    if not local:
        return f"{server} did not write them to its disk within {timeout_ms} ms"
    if count < acknowledgement.replicas:
        how = "wrote them to their disks, for which they need appendonly yes," if acknowledgement.is_synced else "confirmed"
        return f"only {count} of {acknowledgement.replicas} replicas {how} within {timeout_ms} ms"
    return ""


def version_problem(acknowledgement: Acknowledgement, version: tuple[int, ...]) -> str:
    """Return why a Redis of this version cannot acknowledge so, or ""."""
    return _UPGRADE if acknowledgement.is_synced and version < WAITAOF_VERSION_MIN else ""
