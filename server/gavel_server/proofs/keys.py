"""The key of a notary: an Ed25519 key in a file, in the form of Go's signed notes, and the signatures that it makes."""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gavel_server.errors import GavelServerError
from gavel_server.proofs.verifier import ED25519, HASH_BYTES, PRIVATE_KEY_PREFIX, Checkpoint, Key, Signature, new_key

_SECRET: Final = re.compile(re.escape(PRIVATE_KEY_PREFIX) + r"([^\s+]+)\+([0-9a-f]{8})\+([A-Za-z0-9+/=]+)\n?")


class KeyFileError(GavelServerError):
    """The file of a key cannot be used; the message says why and what to do."""


class NotaryKey:
    """A private key with its name, which is the origin of the checkpoints that it signs, e.g. "gavel/default"."""

    def __init__(self, name: str, private: Ed25519PrivateKey) -> None:
        self._private: Final = private
        self.public: Final[Key] = new_key(name, ED25519, private.public_key().public_bytes_raw())

    def __str__(self) -> str:
        """Return the content of the key's file: PRIVATE+KEY+NAME+ID+BASE64."""
        material = base64.b64encode(bytes([ED25519]) + self._private.private_bytes_raw()).decode()
        return f"{PRIVATE_KEY_PREFIX}{self.public.name}+{self.public.key_id.hex()}+{material}"

    def sign(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint with this key's signature after those that it has."""
        content = self._private.sign(checkpoint.text.encode())
        signature = Signature(self.public.name, self.public.key_id, content)
        return checkpoint._replace(signatures=(*checkpoint.signatures, signature))


def generate_key(name: str) -> NotaryKey:
    """Return a new key."""
    return NotaryKey(name, Ed25519PrivateKey.generate())


def write_key(path: Path, key: NotaryKey) -> None:
    """Write a new key to a file that only its owner may read. Raises KeyFileError if there is such a file."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR)
    except FileExistsError as error:
        raise KeyFileError(f"{path} exists; a key is never overwritten, name another file") from error
    except OSError as error:
        raise KeyFileError(f"cannot write {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{key}\n")
        file.flush()
        os.fsync(file.fileno())


def read_key(path: Path) -> NotaryKey:
    """Return the key of a file. Raises KeyFileError, also if others than its owner may read it."""
    try:
        mode, content = path.stat().st_mode, path.read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise KeyFileError(f"cannot read the key {path}: {error}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeyFileError(f"other users may read or write the key {path}; run: chmod 600 {path}")
    match = _SECRET.fullmatch(content)
    try:
        material = base64.b64decode(match[3], validate=True) if match else b""
    except binascii.Error:
        material = b""
    if match is None or len(material) != 1 + HASH_BYTES or material[0] != ED25519:
        raise KeyFileError(f"{path} is not a key of gavel notary keygen")
    key = NotaryKey(match[1], Ed25519PrivateKey.from_private_bytes(material[1:]))
    if key.public.key_id.hex() != match[2]:
        raise KeyFileError(f"the id of the key {path} does not match its name and key; restore the file")
    return key
