"""Ports for servers that have to come back to the same address, and for programs that cannot choose one themselves."""

from __future__ import annotations

import random
import socket
from typing import Final

# Below those that Linux gives to outgoing connections (net.ipv4.ip_local_port_range): any of these could take the port while its
# server is away, even the very connection that a client tries to make to it.
PORTS: Final = range(20_000, 32_000)
_random: Final = random.SystemRandom()


def free_port() -> int:
    """Return a port of the loopback interface that nobody uses now."""
    while True:
        port = _random.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
