"""`gavel demo`: one governed trace on a real server, and the proof of it."""

from __future__ import annotations

from gavel_server.cli.options import Debug


def demo(debug: Debug = False) -> None:
    """."""
