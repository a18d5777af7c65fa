"""Free ports, for servers that restart on the same address and for programs that cannot choose a port themselves."""

from __future__ import annotations

import random
import socket
from typing import Final

# Below the ports of outgoing connections (net.ipv4.ip_local_port_range), which could take a server's port while it restarts; even the
# connection of a client to that server could.
PORTS: Final = range(20_000, 32_000)
_random: Final = random.SystemRandom()


def free_port() -> int:
    """Return a free port of the loopback interface."""
    while True:
        port = _random.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
