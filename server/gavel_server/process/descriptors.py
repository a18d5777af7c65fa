"""The limit of open descriptors: each connection of a caller takes one."""

from __future__ import annotations

import resource
from typing import Final

# Some systems allow a billion. A million connections are more than a server can serve, and a larger limit makes some programs slow.
DESCRIPTORS_MAX: Final = 1 << 20


def raise_limit() -> int:
    """Raise this process's soft limit of descriptors to its hard limit, at most to DESCRIPTORS_MAX; return the limit then."""
    soft, hard = (DESCRIPTORS_MAX if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    limit = max(soft, min(hard, DESCRIPTORS_MAX))
    if limit > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return limit
