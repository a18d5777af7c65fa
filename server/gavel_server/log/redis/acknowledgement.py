"""Which servers must have a write before its caller is answered: the master alone, N replicas, or the disks of both."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from gavel_server.log.redis.replies import reason
from gavel_server.log.redis.resp import Command

REPLICAS_MAX: Final = 16
# The oldest Redis with WAITAOF. Valkey has it from its first release, and calls itself 7.2 or later.
WAITAOF_VERSION_MIN: Final = (7, 2)

_SETTING: Final = re.compile(r"(replicas|aof):([0-9]{1,2})")


class Acknowledgement(NamedTuple):
    """`replicas` must confirm a write. `is_synced`: they and the master have written it to their append-only files on disk."""

    replicas: int = 0
    is_synced: bool = False

    @classmethod
    def parse(cls, setting: str) -> Acknowledgement:
        """Return the value of a setting `replicas:N` or `aof:N`. Raises ValueError."""
        match = _SETTING.fullmatch(setting)
        if match is None or int(match[2]) > REPLICAS_MAX:
            forms = f"use replicas:N or aof:N, with N from 0 to {REPLICAS_MAX}"
            raise ValueError(f"{setting!r} is not a number of replicas; {forms}")
        return cls(int(match[2]), match[1] == "aof")

    @property
    def is_needed(self) -> bool:
        """Whether an answer has to wait."""
        return self.is_synced or self.replicas > 0

    def commands(self, timeout_ms: int) -> tuple[Command, ...]:
        """Return the command that waits for the writes of its own connection, or nothing."""
        if self.is_synced:
            return (("WAITAOF", 1, self.replicas, timeout_ms),)
        return (("WAIT", self.replicas, timeout_ms),) if self.replicas else ()

    def shortfall(self, waited: list[Any], timeout_ms: int, where: str) -> str:
        """Return what is missing at the Redis named `where`, or "". `waited` holds the reply of the command, if it arrived."""
        if not waited:
            return f"{where} did not report whether replicas have them"
        if isinstance(waited[0], Exception):
            return f"{where} refuses to wait for replicas: {reason(waited[0])}{self._remedy(waited[0])}"
        local, count = map(int, waited[0]) if self.is_synced else (1, int(waited[0]))
        if not local:
            return f"{where} did not write them to its disk within {timeout_ms} ms"
        if count < self.replicas:
            how = "wrote them to their disks, for which they need appendonly yes," if self.is_synced else "confirmed"
            return f"only {count} of {self.replicas} replicas {how} within {timeout_ms} ms"
        return ""

    def _remedy(self, refusal: Exception) -> str:
        if self.is_synced and "unknown command" in str(refusal).lower():
            return "; --ack aof:N needs Redis 7.2 or later, or Valkey: upgrade it, or use --ack replicas:N"
        return ""

    def problem(self, version: tuple[int, ...]) -> str:
        """Return why a Redis of this version cannot acknowledge so, or ""."""
        if self.is_synced and version < WAITAOF_VERSION_MIN:
            return "--ack aof:N needs Redis 7.2 or later, or Valkey: upgrade it, or use --ack replicas:N"
        return ""
