"""The canonical form of a document, and its digest.

A digest is SHA-256 over canonical JSON (RFC 8785). Layout, comments and the order of keys do not change it.
"""

from __future__ import annotations

import hashlib

import rfc8785


def to_canonical_json(data: object) -> str:
    """Return JSON data as canonical JSON."""
    return rfc8785.dumps(data).decode()  # type: ignore[arg-type]  # `Source` lets nothing but JSON through


def is_same(one: object, other: object) -> bool:
    """Report whether two JSON values are equal. Python's own equality takes true for 1."""
    return to_canonical_json(one) == to_canonical_json(other)


def compute_digest(canonical_json: str) -> str:
    """Return the digest of canonical JSON: "sha256:" and 64 hex digits."""
    return "sha256:" + hashlib.sha256(canonical_json.encode()).hexdigest()
