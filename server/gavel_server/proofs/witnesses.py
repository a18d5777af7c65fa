"""Cosignatures of witnesses: the client of the C2SP protocol tlog-witness.

A witness cosigns a checkpoint only if the tree begins with the one that it cosigned before, so a notary cannot show different logs to
different readers. Nothing is retried here; the notary asks again with its next checkpoint.
"""

from __future__ import annotations

import base64
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from gavel_server.errors import GavelServerError
from gavel_server.proofs.verifier import (
    ED25519_COSIGNATURE,
    Checkpoint,
    Key,
    NotVerifiedError,
    Signature,
    UnreadableError,
    check_signature,
    parse_signatures,
)

TIMEOUT_SECONDS: Final = 10.0
RESPONSE_BYTES_MAX: Final = 64 * 1024
# A first request names the size that the notary remembers, a second one the size that the witness answers with.
REQUESTS_MAX: Final = 2

ProofBetween = Callable[[int, int], list[bytes]]
"""Returns the consistency proof between two sizes."""


class WitnessError(GavelServerError):
    """A witness did not cosign; the message says why."""


class OtherHistoryError(WitnessError):
    """A witness has cosigned, or says that it has, a tree that the log does not begin with."""


class Witness(NamedTuple):
    """A witness: the prefix of its URL for submissions, and its key."""

    url: str
    key: Key


def parse_witness(url: str, key: Key) -> Witness:
    """Return a witness. Raises ValueError if the URL is not of HTTP, or the key not one of cosignatures."""
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise ValueError(f"{url!r} is not the URL of a witness, e.g. https://witness.example/w1")
    if key.algorithm != ED25519_COSIGNATURE:
        raise ValueError(f"the key {key.name} is not the key of a witness: its type is {key.algorithm}, not {ED25519_COSIGNATURE}")
    return Witness(url.rstrip("/"), key)


def request_cosignature(witness: Witness, checkpoint: Checkpoint, from_size: int, proof_between: ProofBetween) -> Signature:
    """Return the cosignature of a witness, which last cosigned `from_size` events, as far as the notary knows. Blocking.

    Raises WitnessError; OtherHistoryError if the witness knows a tree that this one does not begin with.
    """
    for _ in range(REQUESTS_MAX):
        hashes = proof_between(from_size, checkpoint.size) if 0 < from_size < checkpoint.size else []
        lines = [f"old {from_size}", *(base64.b64encode(one).decode() for one in hashes), ""]
        status, content_type, body = _post(f"{witness.url}/add-checkpoint", "\n".join(lines) + f"\n{checkpoint}")
        if status == 200:
            return _cosignature(witness, checkpoint, body)
        if status == 409 and content_type == "text/x.tlog.size" and re.fullmatch(r"[0-9]{1,18}\n", body) and int(body) != from_size:
            from_size = int(body)
            if from_size <= checkpoint.size:
                continue
            message = f"witness {witness.key.name} has cosigned {from_size} events, the log has {checkpoint.size}: events are lost"
            raise OtherHistoryError(message)
        if status in (409, 422):
            message = (
                f"witness {witness.key.name} refuses: the log does not begin with the {from_size} events that it cosigned (HTTP {status})"
            )
            raise OtherHistoryError(message)
        raise WitnessError(f"witness {witness.key.name} refuses with HTTP {status}: {body[:200]!r}{_ADVICE.get(status, '')}")
    raise WitnessError(f"witness {witness.key.name} has cosigned another checkpoint meanwhile")


_ADVICE: Final = {
    403: "; it does not know the notary's key",
    404: "; it does not know the log, or the URL is wrong",
}


def _cosignature(witness: Witness, checkpoint: Checkpoint, body: str) -> Signature:
    try:
        for signature in parse_signatures(body):
            if (signature.name, signature.key_id) == (witness.key.name, witness.key.key_id):
                check_signature(checkpoint.text, signature, witness.key)
                return signature
    except (UnreadableError, NotVerifiedError) as error:
        raise WitnessError(f"the answer of witness {witness.key.name} is not a cosignature: {error}") from error
    raise WitnessError(f"witness {witness.key.name} signed with another key than {witness.key}")


def _post(url: str, body: str) -> tuple[int, str, str]:
    """Return status, content type and body of the response. Raises WitnessError."""
    request = urllib.request.Request(url, body.encode(), {"Content-Type": "text/plain; charset=utf-8"})  # noqa: S310  # parse_witness checks it
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310
            content = response.read(RESPONSE_BYTES_MAX)
            return response.status, response.headers.get_content_type(), content.decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers.get_content_type(), error.read(RESPONSE_BYTES_MAX).decode(errors="replace")
    except (OSError, HTTPException) as error:
        raise WitnessError(f"cannot reach witness {url}: {error}") from error
