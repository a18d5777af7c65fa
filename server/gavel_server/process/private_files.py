"""Files that only this user may read and write, whatever the umask."""

from __future__ import annotations

import os
from typing import Final

PRIVATE_MODE: Final = 0o600


def open_private(path: str, flags: int) -> int:
    """Open a file as the `opener` of `open`. A file that exists becomes private too. Raises OSError."""
    descriptor = os.open(path, flags, PRIVATE_MODE)
    try:
        # The umask may have taken bits away, and an earlier release may have left some.
        os.fchmod(descriptor, PRIVATE_MODE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
