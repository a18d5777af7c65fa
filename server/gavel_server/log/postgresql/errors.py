"""The errors of PostgreSQL as errors of a log."""

from __future__ import annotations

from typing import Final

import psycopg

from gavel_server.log.postgresql.schema import INSTALLATION
from gavel_server.log.protocol import LogCorruptError, LogUnavailableError, LogUnreachableError

# SQLSTATEs (PostgreSQL manual, appendix A) of a server that starts, stops, fails over or is busy, by prefix.
_TRANSIENT: Final = ("08", "57P", "53300", "25006", "40", "55P03", "57014")
_DAMAGE: Final = ("XX001", "XX002", "23")
_NO_SCHEMA: Final = ("3F000", "42P01", "42883", "42703", "42804")
_NO_RIGHT: Final = ("42501",)
# libpq reports a server's refusal of a connection as text only. These refusals do not pass by themselves.
_REFUSALS: Final = ("authentication failed", "pg_hba.conf", "does not exist", "no password supplied", "certificate", "SSL")


def describe(error: BaseException) -> str:
    """Return the first line of an error; it never holds a password."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def is_known_refusal(error: BaseException) -> bool:
    """Return whether PostgreSQL refused the statement: it has no effect, now or later.

    An error that ends the connection is not such a refusal: the statement may have been committed before.
    """
    return isinstance(error, psycopg.Error) and error.sqlstate is not None and error.diag.severity_nonlocalized == "ERROR"


def error_of(error: BaseException, address: str) -> LogUnavailableError | LogCorruptError:
    """Return the error of a log for an error of the database at `address`."""
    state = getattr(error, "sqlstate", None) or ""
    text = describe(error)
    if state.startswith(_DAMAGE):
        return LogCorruptError(f"PostgreSQL at {address} contradicts the log: {text}; restore it from a backup or standby")
    if state in _NO_SCHEMA:
        return LogUnavailableError(f"PostgreSQL at {address} has no schema for logs of this format ({text}); install it: {INSTALLATION}")
    if state in _NO_RIGHT:
        return LogUnavailableError(f"PostgreSQL at {address} refuses: {text}; give the role the rights of {INSTALLATION}")
    if not state and any(part in text for part in _REFUSALS):
        return LogUnavailableError(f"PostgreSQL at {address} refuses the connection: {text}")
    if not state or state.startswith(_TRANSIENT):
        return LogUnreachableError(f"PostgreSQL at {address} does not answer: {text}")
    return LogUnavailableError(f"PostgreSQL at {address} refuses: {text}")
