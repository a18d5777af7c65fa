"""JSON Web Tokens (RFC 7519) of configured issuers.

A token names its issuer and its key; everything else about the verification is the server's own setting (RFC 8725). Keys, addresses of keys
and certificates in a token's header are never looked at. A header that asks for an extension (`crit`) is refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args

import jwt
from gavel_rules.identity.principal import Principal
from jwt.utils import base64url_decode

from gavel_server.errors import ServiceError
from gavel_server.identity.errors import unauthenticated
from gavel_server.identity.key_set import KeySet
from gavel_server.identity.names import NAME_CHARACTERS_MAX, checked_groups, checked_name
from gavel_server.identity.sessions import EXPIRED, Session, Source
from gavel_server.identity.settings import Algorithm, JwtIssuer

ACTORS_MAX: Final = 8
KEY_ID_CHARACTERS_MAX: Final = 256
_ALGORITHMS: Final = frozenset(get_args(Algorithm))
_MALFORMED: Final = "the token is not a JSON Web Token"


class JwtAuthenticator:
    """Makes sessions of JSON Web Tokens."""

    def __init__(self, issuers: Sequence[JwtIssuer]) -> None:
        self._issuers: Final = {issuer.issuer: issuer for issuer in issuers}
        self.key_sets: Final[Mapping[str, KeySet]] = {
            issuer.issuer: KeySet(issuer.issuer, url=issuer.jwks_url, file=issuer.jwks_file) for issuer in issuers
        }

    async def session(self, token: str) -> Session:
        """Return the session of a token. Raises ServiceError UNAUTHENTICATED."""
        algorithm, key_id = _header(token)
        issuer = self._issuer(token)
        if algorithm not in issuer.algorithms:
            raise unauthenticated(f"the token's algorithm is not one that issuer {issuer.issuer} may use: {', '.join(issuer.algorithms)}")
        key = await self.key_sets[issuer.issuer].key(key_id)
        if key.algorithm and key.algorithm != algorithm:
            raise unauthenticated("the token's algorithm is not the one of its key")
        claims = _verified_claims(token, key.key, algorithm, issuer)
        principal = Principal(
            name=issuer.name_prefix + checked_name(claims.get(issuer.name_claim), f"the token's claim {issuer.name_claim}"),
            method="jwt",
            issuer=issuer.issuer,
            groups=_groups(claims, issuer),
            actors=_actors(claims.get("act"), issuer.name_prefix),
            credential_id=_credential_id(claims.get("jti"), key_id),
        )
        expires_at = _seconds(claims["exp"]) + issuer.leeway_seconds
        if time.time() >= expires_at:
            raise unauthenticated(EXPIRED)
        return Session(principal, expires_at, Source(issuer=issuer.issuer, key_id=key_id, key=key))

    def problem(self, session: Session) -> str:
        """Return why a session of a token is accepted no longer, or ""."""
        if self.key_sets[session.source.issuer].has(session.source.key_id, session.source.key):
            return ""
        return f"the token's key (kid) is no longer among the keys of issuer {session.source.issuer}"

    def _issuer(self, token: str) -> JwtIssuer:
        try:
            name = jwt.decode(token, options={"verify_signature": False}).get("iss")
        except (jwt.PyJWTError, RecursionError):  # old versions of PyJWT let claims nest without a limit
            raise unauthenticated(_MALFORMED) from None
        issuer = self._issuers.get(name) if isinstance(name, str) else None
        if issuer is None:
            raise unauthenticated("the server's settings do not have the token's issuer (iss)")
        return issuer


def is_json_web_token(token: str) -> bool:
    """Whether a token has the three parts of a signed JSON Web Token."""
    return token.count(".") == 2


def _header(token: str) -> tuple[str, str]:
    """Return algorithm and key id of a token. Raises ServiceError UNAUTHENTICATED."""
    try:
        header = json.loads(base64url_decode(token.partition(".")[0]))
    except (ValueError, RecursionError):  # also bytes that are not base64 or not UTF-8
        raise unauthenticated(_MALFORMED) from None
    if not isinstance(header, dict):
        raise unauthenticated(_MALFORMED)
    if "crit" in header or "b64" in header:
        raise unauthenticated("the token's header asks for extensions (crit), which this server does not have")
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
        raise unauthenticated("the token's algorithm (alg) is not an asymmetric signature")
    if not isinstance(key_id, str) or not 0 < len(key_id) <= KEY_ID_CHARACTERS_MAX:
        raise unauthenticated("the token's header names no key (kid)")
    return algorithm, key_id


def _verified_claims(token: str, key: Any, algorithm: str, issuer: JwtIssuer) -> dict[str, Any]:
    try:
        return jwt.decode(
            token,
            key=key,
            algorithms=[algorithm],
            audience=list(issuer.audiences),
            issuer=issuer.issuer,
            leeway=issuer.leeway_seconds,
            options={"require": ["exp", "aud", "iss"], "enforce_minimum_key_length": True},
        )
    except jwt.PyJWTError as error:
        raise _refusal(error, issuer) from None
    except (TypeError, ValueError):  # a key of another kind than the algorithm's
        raise unauthenticated("the token's signature is not by a key of its issuer") from None


def _seconds(moment: Any) -> float:
    """Return a time of expiry that the verification has accepted; it may be an integer of any length."""
    try:
        return float(moment)
    except (ValueError, OverflowError):
        raise unauthenticated("the token's time of expiry (exp) is malformed") from None


def _refusal(error: jwt.PyJWTError, issuer: JwtIssuer) -> ServiceError:
    match error:
        case jwt.ExpiredSignatureError():
            return unauthenticated(EXPIRED)
        case jwt.ImmatureSignatureError():
            return unauthenticated("the token is not valid yet (nbf, iat); compare the clocks of the issuer and of this server")
        case jwt.InvalidAudienceError():
            return unauthenticated(f"the token's audience (aud) is not one of: {', '.join(issuer.audiences)}")
        case jwt.MissingRequiredClaimError():
            return unauthenticated(f"the token has no claim {error.claim}")
        case jwt.InvalidSignatureError() | jwt.InvalidKeyError():
            return unauthenticated("the token's signature is not by a key of its issuer")
        case jwt.InvalidIssuerError():
            return unauthenticated("the server's settings do not have the token's issuer (iss)")
    return unauthenticated("a claim of the token is malformed")


def _groups(claims: Mapping[str, Any], issuer: JwtIssuer) -> tuple[str, ...]:
    groups = checked_groups(_claim(claims, issuer.groups_claim), f"the token's claim {issuer.groups_claim}")
    return tuple(issuer.groups_prefix + group for group in groups)


def _claim(claims: Mapping[str, Any], path: str) -> Any:
    """Return the claim of this name or, if there is none, at this path of names with dots between them; None without one."""
    if not path:
        return None
    if path in claims:
        return claims[path]
    value: Any = claims
    for name in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _actors(act: Any, name_prefix: str) -> tuple[str, ...]:
    """Return the chain of delegation (RFC 8693 §4.1), nearest first. Raises ServiceError UNAUTHENTICATED.

    An actor has the name that its own token would give it, behind the issuer's prefix: separation of duties compares names.
    """
    actors: list[str] = []
    while act is not None:
        if not isinstance(act, dict) or len(actors) == ACTORS_MAX:
            raise unauthenticated(f"the token's claim act is not a chain of at most {ACTORS_MAX} actors")
        actors.append(name_prefix + checked_name(act.get("sub"), "the sub of an actor in the token's claim act"))
        act = act.get("act")
    return tuple(actors)


def _credential_id(token_id: Any, key_id: str) -> str:
    """Return the token's `jti`, or the id of its key if it has none."""
    if isinstance(token_id, str) and 0 < len(token_id) <= NAME_CHARACTERS_MAX and token_id.isprintable():
        return token_id
    return f"kid:{key_id}" if key_id.isprintable() else "kid"
