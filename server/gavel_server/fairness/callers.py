"""The keys under which limits count callers.

A caller is a connection: its peer ("HOST:PORT", or "unix:" for all Unix sockets). It belongs to an address: its host, or "unix:" for all
callers on Unix sockets. The hosts of an IPv6 network of 64 bits are one address, because they usually belong to one caller. A caller
that was authenticated belongs to its principal instead, whatever hosts the principal calls from.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address
from typing import Final

from gavel_rules.identity.principal import ANONYMOUS, Principal

# The caller of commands that come from the server itself.
INTERNAL: Final = ""
_PRINCIPAL: Final = "principal:"
# Between a principal and the peer. No peer has one.
_SEPARATOR: Final = "\n"
_NETWORK_BITS: Final = 64
# Hosts whose networks are remembered.
_NETWORKS_MAX: Final = 4096


def caller_of(peer: str, principal: Principal) -> str:
    """Return the key of a caller."""
    if principal is ANONYMOUS or principal.is_anonymous:
        return peer
    return f"{_PRINCIPAL}{principal.method}:{principal.issuer}:{principal.name}{_SEPARATOR}{peer}"


def address_of(caller: str) -> str:
    """Return the address that a caller belongs to: its host or IPv6 network, "unix:", or its principal."""
    if caller.startswith("unix:"):
        return caller
    if caller.startswith(_PRINCIPAL):
        return caller.rpartition(_SEPARATOR)[0]
    host = caller.rpartition(":")[0]
    return _network_of(host) if host.startswith("[") else host


@lru_cache(_NETWORKS_MAX)
def _network_of(host: str) -> str:
    """Return the network of an IPv6 host "[HOST]", or the host itself if it is an IPv4 host or no router reaches it."""
    try:
        address = IPv6Address(host[1:-1])
    except AddressValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_link_local or address.is_loopback:
        return host
    return f"{IPv6Address(int(address) >> _NETWORK_BITS << _NETWORK_BITS)}/{_NETWORK_BITS}"
