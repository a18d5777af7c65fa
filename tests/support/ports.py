"""Free ports, for servers that restart on the same address and for programs that cannot choose a port themselves."""

from __future__ import annotations

import random
import socket
from typing import Final

# Below the ports of outgoing connections (net.ipv4.ip_local_port_range), which could take a server's port while it restarts; even the
# connection of a client to that server could.
PORTS: Final = range(20_000, 32_000)
CLUSTER_BUS_OFFSET: Final = 10_000
_random: Final = random.SystemRandom()


def free_port() -> int:
    """Return a free port of the loopback interface."""
    while True:
        port = _random.choice(PORTS)
        if _is_free(port):
            return port


def free_cluster_port() -> int:
    """Return a free port for a node of a Redis Cluster, whose bus listens 10,000 ports higher. That one is free too, and in PORTS."""
    while True:
        port = _random.choice(range(PORTS.start, PORTS.stop - CLUSTER_BUS_OFFSET))
        if _is_free(port) and _is_free(port + CLUSTER_BUS_OFFSET):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
