"""Errors of callers whose credentials are missing or invalid, and of invalid identity files. They name the check, never a secret."""

from __future__ import annotations

from gavel.v1 import error_pb2

from gavel_server.errors import ServiceError


def unauthenticated(message: str) -> ServiceError:
    """Return the error of a call without valid credentials. `message` holds nothing of the credentials."""
    return ServiceError(error_pb2.ERROR_REASON_UNAUTHENTICATED, message)


class IdentityFileError(Exception):
    """A file of certificates, keys or tokens is invalid; the message says which one, where and why."""
