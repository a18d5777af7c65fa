"""The memory of this machine, or of its container."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

# The limit of a control group, of version 2 and of version 1, as a container sees its own.
_CGROUP_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_bytes() -> int:
    """Return the memory of the machine, or of the container if that has less."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine_bytes, *filter(None, map(_limit_bytes, _CGROUP_LIMITS))])


def _limit_bytes(path: Path) -> int | None:
    """Return the limit in a file of the kernel; None if there is no such file or limit."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
