"""An issuer of JSON Web Tokens for tests: its keys, its key set, and tokens of any kind, valid or not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

ISSUER: Final = "https://login.example"
AUDIENCE: Final = "gavel"


class Issuer:
    """An issuer with one key."""

    def __init__(self, key_id: str = "key-1") -> None:
        self.key_id = key_id
        self.key = ec.generate_private_key(ec.SECP256R1())

    def key_set(self) -> str:
        """Return the JSON Web Key Set with the public key."""
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key()))
        return json.dumps({"keys": [{**public, "kid": self.key_id, "use": "sig", "alg": "ES256"}]})

    def write(self, path: Path) -> None:
        """Replace the file of the key set."""
        new = path.with_suffix(".new")
        new.write_text(self.key_set())
        new.replace(path)

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Return valid claims with some changes; None removes a claim."""
        now = int(time.time())
        claims: dict[str, Any] = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 600, "jti": "token-1"}
        return {name: value for name, value in {**claims, **changes}.items() if value is not None}

    def token(self, headers: dict[str, Any] | None = None, **changes: Any) -> str:
        """Return a token; `headers` change its header, others its claims."""
        return jwt.encode(self.claims(**changes), self.key, algorithm="ES256", headers={"kid": self.key_id, **(headers or {})})

    def forged(self, headers: dict[str, Any], **changes: Any) -> str:
        """Return a token that no library makes: without a signature, or signed with the public key as a shared secret if alg is HS256."""
        signed = f"{_part({'kid': self.key_id, 'typ': 'JWT', **headers})}.{_part(self.claims(**changes))}"
        if headers.get("alg") != "HS256":
            return f"{signed}."
        public = self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return f"{signed}.{_base64(hmac.new(public, signed.encode(), hashlib.sha256).digest())}"

    def private_text(self) -> str:
        """Return the private key in PEM, to look for it in places where it must not be."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _part(content: dict[str, Any]) -> str:
    return _base64(json.dumps(content).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
