"""Hashes as the contract writes them."""

from __future__ import annotations

import hashlib


def sha256_of(text: str) -> str:
    """Return the hash of a text: "sha256:" and 64 hexadecimal digits."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
