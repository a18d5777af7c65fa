"""The keys under which limits count callers.

A caller is a connection: its peer ("HOST:PORT", or "unix:" for all Unix sockets). It belongs to an address: its host, or "unix:" for all
callers on Unix sockets. A caller that was authenticated belongs to its principal instead, whatever hosts the principal calls from.
"""

from __future__ import annotations

from typing import Final

from gavel_rules.identity.principal import ANONYMOUS, Principal

# The caller of commands that come from the server itself.
INTERNAL: Final = ""
_PRINCIPAL: Final = "principal:"
# Between a principal and the peer. No peer has one.
_SEPARATOR: Final = "\n"


def caller_of(peer: str, principal: Principal) -> str:
    """Return the key of a caller."""
    if principal is ANONYMOUS or principal.is_anonymous:
        return peer
    return f"{_PRINCIPAL}{principal.method}:{principal.issuer}:{principal.name}{_SEPARATOR}{peer}"


def address_of(caller: str) -> str:
    """Return the address that a caller belongs to: its host, "unix:", or its principal."""
    if caller.startswith("unix:"):
        return caller
    return caller.rpartition(_SEPARATOR)[0] if caller.startswith(_PRINCIPAL) else caller.rpartition(":")[0]
