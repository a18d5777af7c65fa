"""The program `gavel` with the modules that `gavel mcp proxy` imports when it runs, for forks of it."""

from __future__ import annotations

import gavel_client.mcp.proxy
import gavel_client.mcp.server
import gavel_client.mcp.transports  # noqa: F401  # a fork finds them imported
from gavel_server.cli.main import main

__all__ = ["main"]
