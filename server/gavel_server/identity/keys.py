"""A public key of an issuer of JWTs."""

from __future__ import annotations

from typing import Any, NamedTuple


class Key(NamedTuple):
    """A public key of the cryptography package; `algorithm` is the one that it is restricted to, or ""."""

    key: Any
    algorithm: str
