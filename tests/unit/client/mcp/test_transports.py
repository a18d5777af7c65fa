"""The sockets on which the proxy listens."""

from __future__ import annotations

import socket

import pytest
from gavel_client.mcp.transports import is_loopback


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.1", True), ("127.0.0.2", True), ("localhost", True), ("0.0.0.0", False)])  # noqa: S104
def test_loopback(host: str, expected: bool) -> None:
    """The address of the socket decides whether other machines reach it, not the name that was given for it."""
    with socket.create_server((host, 0)) as listener:
        assert expected == is_loopback(listener)
