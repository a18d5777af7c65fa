"""The settings of authentication (`gavel_server.config` reads them)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Authentication = Literal["none", "required"]
MtlsName = Literal["spiffe", "dns", "cn"]
ClientCertificate = Literal["required", "optional"]
# Only signatures with a private key. A symmetric algorithm would let everyone who verifies tokens make them.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]

LEEWAY_SECONDS_MAX: Final = 300
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class JwtIssuer(BaseModel):
    """An issuer of JSON Web Tokens that the server accepts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: str = Field(min_length=1)
    """The claim `iss`, exactly."""
    audience: str | tuple[str, ...] = Field(min_length=1)
    """The claim `aud` must hold one of these."""
    algorithms: tuple[Algorithm, ...] = Field(("RS256", "ES256"), min_length=1)
    """The signature algorithms that are accepted."""
    jwks_url: str | None = None
    """The URL of the issuer's keys. Either this or `jwks_file`."""
    jwks_file: Path | None = None
    """A file with the issuer's keys, a JSON Web Key Set."""
    leeway_seconds: int = Field(30, ge=0, le=LEEWAY_SECONDS_MAX)
    """How far the clocks of the issuer and of this server may differ."""
    name_claim: str = Field("sub", min_length=1)
    """The claim that holds the principal's name."""
    name_prefix: str = ""
    """Put in front of the name, so that two issuers cannot give one name."""
    groups_claim: str = "groups"
    """The claim that holds the groups: its name, or a path such as realm_access.roles. Empty: no groups."""
    groups_prefix: str = ""
    """Put in front of each group, so that a group of one issuer is not taken for that of another."""

    @field_validator("jwks_url")
    @classmethod
    def _is_secure(cls, url: str | None) -> str | None:
        if url is not None:
            parts = urlsplit(url)
            if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)):
                raise ValueError("jwks_url is not an https URL; without TLS others could replace the keys and sign tokens")
            if parts.username is not None or parts.password is not None:
                raise ValueError("jwks_url holds a user or a password, which would not be sent; key sets are public: give the URL without")
        return url

    @model_validator(mode="after")
    def _has_keys(self) -> JwtIssuer:
        if (self.jwks_url is None) == (self.jwks_file is None):
            raise ValueError(f"issuer {self.issuer} needs either jwks_url or jwks_file")
        return self

    @property
    def audiences(self) -> tuple[str, ...]:
        """The accepted audiences."""
        return (self.audience,) if isinstance(self.audience, str) else self.audience


class IdentitySettings(NamedTuple):
    """How callers are authenticated, and the server's own certificate."""

    authentication: Authentication = "none"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tls_client_certificate: ClientCertificate = "required"
    mtls_name: tuple[MtlsName, ...] = ("spiffe", "dns", "cn")
    token_file: Path | None = None
    issuers: tuple[JwtIssuer, ...] = ()
    unix_users: Mapping[str, str] = {}
    """Names by user id or login name."""

    @property
    def files(self) -> list[Path]:
        """The files of certificates, keys and tokens, which a server loads again when they change, and after SIGHUP."""
        paths = [self.tls_cert, self.tls_key, self.tls_client_ca, self.token_file]
        return [path for path in (*paths, *(issuer.jwks_file for issuer in self.issuers)) if path is not None]

    @property
    def is_watched(self) -> bool:
        """Whether there is anything to load again."""
        return bool(self.files or self.issuers)


def shared_names(settings: IdentitySettings) -> list[str]:
    """Return a warning for each kind of names, of callers and of groups, that different callers can have.

    Several issuers give them, or an issuer beside client certificates, tokens and users of Unix sockets.
    """
    issuers = settings.issuers
    problems: list[str] = []
    for kind, key, prefixed in (
        ("names", "name_prefix", [(issuer.name_prefix, issuer.issuer) for issuer in issuers]),
        ("groups", "groups_prefix", [(issuer.groups_prefix, issuer.issuer) for issuer in issuers if issuer.groups_claim]),
    ):
        for prefix in sorted({prefix for prefix, _ in prefixed}):
            sharing = [issuer for own, issuer in prefixed if own == prefix]
            if len(sharing) > 1:
                problems.append(f"the issuers {', '.join(sharing)} share one space of {kind}; give each a {key} of its own")
    others = [
        kind
        for kind, is_accepted in (
            ("client certificates", settings.tls_client_ca is not None),
            ("tokens", settings.token_file is not None),
            ("unix_users", bool(settings.unix_users)),
        )
        if is_accepted
    ]
    unprefixed = [issuer.issuer for issuer in issuers if not issuer.name_prefix]
    if unprefixed and others:
        problems.append(f"{', '.join(unprefixed)} and {', '.join(others)} share one space of names; give issuers a name_prefix")
    return problems
