"""Which servers must have a write before its caller is answered: the primary alone, N replicas, or the disks of both."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

REPLICAS_MAX: Final = 16

_SETTING: Final = re.compile(r"(replicas|aof):([0-9]{1,2})")


class Acknowledgement(NamedTuple):
    """`replicas` must confirm a write. `is_synced`: they and the primary have it on disk."""

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
