"""The error of a server that cannot start."""

from __future__ import annotations

from gavel_server.errors import GavelServerError


class ServeError(GavelServerError):
    """The server cannot start; the message says why and what to do."""
