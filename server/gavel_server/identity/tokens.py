"""Opaque tokens: random texts whose SHA-256 digests are in a file. The file gives away no token.

    [[tokens]]
    id = "5c1d0a2be1f04b6f"
    name = "orders-agent"
    groups = ["refund-agents"]
    sha256 = "…"
    expires_at = 2027-01-31T00:00:00Z     # optional

`gavel token create` adds an entry and prints its token once. A deleted entry revokes its token within a second.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import re
import secrets
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from gavel_rules.identity.principal import Principal
from gavel_rules.limits import PRINCIPAL_GROUPS_MAX

from gavel_server.identity.errors import IdentityFileError, unauthenticated
from gavel_server.identity.names import name_problem
from gavel_server.identity.sessions import EXPIRED, Session, Source
from gavel_server.process.private_files import open_private

# Marks a token as Gavel's, for people and for scanners of leaked secrets.
PREFIX: Final = "gvl_"
_RANDOM_BYTES: Final = 32
_ID_BYTES: Final = 8
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_KEYS: Final = frozenset({"id", "name", "groups", "sha256", "created_at", "expires_at"})


class TokenEntry(NamedTuple):
    """An entry of the token file."""

    id: str
    name: str
    groups: tuple[str, ...]
    digest: bytes
    expires_at: float


class TokenAuthenticator:
    """Makes sessions of opaque tokens. `use` replaces the entries."""

    def __init__(self, entries: tuple[TokenEntry, ...]) -> None:
        self._entries = entries

    def use(self, entries: tuple[TokenEntry, ...]) -> None:
        """Take the entries that tokens are compared with from now on."""
        self._entries = entries

    def session(self, token: str) -> Session:
        """Return the session of a token. Raises ServiceError UNAUTHENTICATED."""
        entry = self._find(token_digest(token))
        if entry is None:
            raise unauthenticated("the token is unknown or was revoked")
        if datetime.now(UTC).timestamp() >= entry.expires_at:
            raise unauthenticated(EXPIRED)
        principal = Principal(entry.name, "token", groups=entry.groups, credential_id=entry.id)
        return Session(principal, entry.expires_at, Source(token_digest=entry.digest))

    def problem(self, session: Session) -> str:
        """Return why a session of a token is accepted no longer, or ""."""
        entry = self._find(session.source.token_digest)
        if entry is None:
            return "the token was revoked"
        if (entry.name, entry.groups, entry.expires_at) != (session.principal.name, session.principal.groups, session.expires_at):
            return "the entry of the token was changed; call again"
        return ""

    def _find(self, digest: bytes) -> TokenEntry | None:
        match = None
        for entry in self._entries:  # to the end: the time tells nothing about the place
            if hmac.compare_digest(entry.digest, digest):
                match = entry
        return match


def token_digest(token: str) -> bytes:
    """Return the digest under which a token is stored."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def read_token_file(path: Path) -> tuple[TokenEntry, ...]:
    """Return the entries of a token file. Raises IdentityFileError."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        remedy = "; gavel token create makes it" if isinstance(error, FileNotFoundError) else ""
        raise IdentityFileError(f"token_file {path} cannot be read: {error.strerror}{remedy}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise IdentityFileError(f"{path} is not TOML: {error}") from None
    unknown = sorted(document.keys() - {"tokens"})
    tables = document.get("tokens", [])
    if unknown or not isinstance(tables, list):
        raise IdentityFileError(f"{path} holds {', '.join(unknown) or 'tokens'}; it may hold [[tokens]] tables only")
    entries = tuple(_entry(table, f"{path}: token {number}") for number, table in enumerate(tables, 1))
    for what, values in (("id", [entry.id for entry in entries]), ("sha256", [entry.digest for entry in entries])):
        if len({*values}) < len(values):
            raise IdentityFileError(f"{path}: two tokens have the same {what}")
    return entries


def add_token(path: Path, name: str, groups: tuple[str, ...], expires_at: datetime | None) -> str:
    """Add an entry to a token file, which is created if it does not exist, and return its token. Raises OSError, IdentityFileError."""
    problem = name_problem(name)
    if problem:
        raise IdentityFileError(f"the name {problem}")
    if path.exists():
        read_token_file(path)
    token = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    lines = [
        "[[tokens]]",
        f"id = {json.dumps(secrets.token_hex(_ID_BYTES))}",
        f"name = {json.dumps(name, ensure_ascii=False)}",
        f"groups = {json.dumps(sorted({*groups}), ensure_ascii=False)}",
        f'sha256 = "{token_digest(token).hex()}"',
        f"created_at = {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    ]
    if expires_at is not None:
        lines.append(f"expires_at = {expires_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}")
    # A file with an entry that cannot be read would let no other token be revoked.
    try:
        (table,) = tomllib.loads("\n".join(lines))["tokens"]
    except tomllib.TOMLDecodeError:
        raise IdentityFileError("a group holds a control character") from None
    _entry(table, "the token")
    with open(path, "a", encoding="utf-8", opener=open_private) as file:
        file.write(("\n" if file.tell() else "") + "\n".join(lines) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return token


def _entry(table: Any, place: str) -> TokenEntry:
    if not isinstance(table, dict):
        raise IdentityFileError(f"{place} is not a table; make entries with gavel token create")
    unknown = sorted(table.keys() - _KEYS)
    if unknown:
        raise IdentityFileError(f"{place} holds unknown keys ({', '.join(unknown)}); known are: {', '.join(sorted(_KEYS))}")
    name, groups, digest, expires_at = (table.get(key) for key in ("name", "groups", "sha256", "expires_at"))
    problem = name_problem(name)
    if problem or not isinstance(name, str):
        raise IdentityFileError(f"{place}: name {problem}")
    if not isinstance(groups or [], list) or not all(isinstance(group, str) and group for group in groups or []):
        raise IdentityFileError(f"{place}: groups is not a list of texts")
    if len(groups or []) > PRINCIPAL_GROUPS_MAX:
        raise IdentityFileError(f"{place}: groups has more than {PRINCIPAL_GROUPS_MAX} items")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise IdentityFileError(f"{place}: sha256 is not 64 lower-case hexadecimal digits; make entries with gavel token create")
    if not isinstance(table.get("id"), str) or not table["id"]:
        raise IdentityFileError(f"{place}: id is missing; make entries with gavel token create")
    if expires_at is not None and (not isinstance(expires_at, datetime) or expires_at.tzinfo is None):
        raise IdentityFileError(f"{place}: expires_at is not a date and time with a time zone, e.g. 2027-01-31T00:00:00Z")
    seconds = math.inf if expires_at is None else expires_at.timestamp()
    return TokenEntry(table["id"], name, tuple(sorted({*(groups or [])})), bytes.fromhex(digest), seconds)
