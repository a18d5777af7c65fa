"""The participants of a call, as its attestation names them."""

from __future__ import annotations

from gavel.v1.identity_pb2 import Attestation

from gavel_rules.identity.principal import ANONYMOUS


def participants(attestation: Attestation | None) -> tuple[str, ...]:
    """Return the names of everybody who took part in a call: the principal and its chain of actors; none without authentication.

    Names are compared without method and issuer: callers of one name cannot vote twice, and cannot be each other's witness.
    """
    if attestation is None or not _is_authenticated(attestation):
        return ()
    return (attestation.principal, *attestation.actors)


def caller_identity(attestation: Attestation | None) -> tuple[str, ...]:
    """Return what tells callers apart: name, method and issuer; () without authentication."""
    if attestation is None or not _is_authenticated(attestation):
        return ()
    return (attestation.principal, attestation.method, attestation.issuer)


def _is_authenticated(attestation: Attestation) -> bool:
    return bool(attestation.principal) and attestation.method != ANONYMOUS.method
