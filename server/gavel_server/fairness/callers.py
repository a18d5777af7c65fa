"""The keys under which limits count callers.

A caller is a connection, named by its peer ("HOST:PORT", or "unix:" for all Unix sockets), and belongs to an address, its host. With
authentication, limits would count by principal; only this module would change.
"""

from __future__ import annotations

from typing import Final

# The caller of commands that come from the server itself.
INTERNAL: Final = ""


def address_of(caller: str) -> str:
    """Return the address that a caller belongs to: its host, or "unix:" for all callers on Unix sockets."""
    return caller if caller.startswith("unix:") else caller.rpartition(":")[0]
