"""Verifies proof files and checkpoints offline.

This file is also a program of its own, for auditors: it needs Python 3.11 and the package cryptography, and nothing of Gavel.

    python verifier.py refund.proof --key 'gavel/default+5f8d9c3a+AbC…'

A proof file shows that a decision, its proposal and the facts that it rests on are events of a log whose notary has signed a checkpoint.
docs/proofs.md describes the file. The formats below it are public: RFC 6962 §2.1 (Merkle tree), C2SP signed-note, tlog-checkpoint and
tlog-cosignature. Exit status: 0 verified, 3 not verified, 2 unreadable.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

EXIT_VERIFIED: Final = 0
EXIT_UNREADABLE: Final = 2
EXIT_NOT_VERIFIED: Final = 3

FORMAT: Final = "gavel-proof/1"
ORIGIN_PREFIX: Final = "gavel/"
HASH_BYTES: Final = 32
# Algorithms of keys: the byte before the public key in a vkey, and in the hash that makes its id.
ED25519: Final = 0x01
ED25519_COSIGNATURE: Final = 0x04
SIGNATURES_MAX: Final = 100
FILE_BYTES_MAX: Final = 64 * 1024 * 1024
SIZE_MAX: Final = 2**63 - 1

_SIGNATURE_LINE: Final = re.compile(r"— ([^\s+]+) ([A-Za-z0-9+/=]+)")
PRIVATE_KEY_PREFIX: Final = "PRIVATE+KEY+"
_VKEY: Final = re.compile(r"([^\s+]+)\+([0-9a-f]{8})\+([A-Za-z0-9+/=]+)")
_OUTCOMES: Final = ("UNSPECIFIED", "APPROVED", "REJECTED", "NEEDS_HUMAN_REVIEW", "EXPIRED", "REVOKED")

# Field numbers of the contract's messages (proto/gavel/v1/envelope.proto, decision.proto, proposal.proto).
_SEQUENCE_NUMBER, _EVENT_ID, _RECORDED_AT, _SUBJECT, _BUS = 2, 3, 7, 11, 12
_PROPOSAL, _DECISION = 21, 22
_PAYLOADS: Final = range(20, 28)
_DECISION_ID, _PROPOSAL_ID, _OUTCOME, _REASON_CODE, _ACTION_TYPE, _PINNED_FACTS = 1, 2, 5, 6, 17, 24
_PINNED_KEY, _PINNED_EVENT_ID, _PINNED_SEQUENCE_NUMBER = 1, 3, 4

_Value = TypeVar("_Value")


class UnreadableError(Exception):
    """The input is not a proof file, checkpoint or key; the message says what is wrong."""


class NotVerifiedError(Exception):
    """The input is readable but does not prove its claim; the message names the failed check."""


# The Merkle tree: RFC 6962 §2.1


def entry_of(envelope: bytes) -> bytes:
    """Return the entry of an event: the SHA-256 of its envelope's bytes, exactly as the log stores them."""
    return sha256(envelope).digest()


def leaf_hash(entry: bytes) -> bytes:
    """Return the hash of a leaf (RFC 6962 §2.1)."""
    return sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node (RFC 6962 §2.1)."""
    return sha256(b"\x01" + left + right).digest()


EMPTY_ROOT: Final = sha256(b"").digest()


def check_inclusion(leaf: bytes, index: int, size: int, hashes: Sequence[bytes], root: bytes) -> None:
    """Check that the tree of `size` leaves with this root has this leaf at this index (RFC 9162 §2.1.3.2). Raises NotVerifiedError."""
    if not 0 <= index < size:
        raise NotVerifiedError(f"leaf {index} is not in a tree of {size} leaves")
    first, last, result = index, size - 1, leaf
    for sibling in hashes:
        if last == 0:
            raise NotVerifiedError(f"the inclusion proof of leaf {index} is too long")
        if first & 1 or first == last:
            result = node_hash(sibling, result)
            while first and not first & 1:
                first, last = first >> 1, last >> 1
        else:
            result = node_hash(result, sibling)
        first, last = first >> 1, last >> 1
    if last or result != root:
        raise NotVerifiedError(f"the inclusion proof of leaf {index} does not lead to the root of the tree of {size} leaves")


def check_consistency(from_size: int, from_root: bytes, to_size: int, to_root: bytes, hashes: Sequence[bytes]) -> None:
    """Check that a tree begins with an earlier one (RFC 9162 §2.1.4.2). Raises NotVerifiedError."""
    failure = NotVerifiedError(f"the tree of {to_size} leaves does not begin with the tree of {from_size} leaves")
    if from_size > to_size:
        raise NotVerifiedError(f"the later tree has {to_size} leaves, the earlier one {from_size}: leaves are lost")
    if from_size == to_size or from_size == 0:
        if hashes or (from_root != to_root if from_size == to_size else from_root != EMPTY_ROOT):
            raise failure
        return
    path = list(hashes)
    if from_size & (from_size - 1) == 0:
        path.insert(0, from_root)
    if not path:
        raise failure
    first, last = from_size - 1, to_size - 1
    while first & 1:
        first, last = first >> 1, last >> 1
    earlier = later = path[0]
    for sibling in path[1:]:
        if last == 0:
            raise failure
        if first & 1 or first == last:
            earlier, later = node_hash(sibling, earlier), node_hash(sibling, later)
            while first and not first & 1:
                first, last = first >> 1, last >> 1
        else:
            later = node_hash(later, sibling)
        first, last = first >> 1, last >> 1
    if last or earlier != from_root or later != to_root:
        raise failure


# Keys and checkpoints: C2SP signed-note, tlog-checkpoint, tlog-cosignature


class Key(NamedTuple):
    """A public key as a vkey states it; `algorithm` is ED25519 of a notary or ED25519_COSIGNATURE of a witness."""

    name: str
    key_id: bytes
    algorithm: int
    public: bytes

    def __str__(self) -> str:
        """Return the vkey."""
        material = base64.b64encode(bytes([self.algorithm]) + self.public).decode()
        return f"{self.name}+{self.key_id.hex()}+{material}"


def new_key(name: str, algorithm: int, public: bytes) -> Key:
    """Return a public key with its id: the first four bytes of SHA-256(name ‖ newline ‖ algorithm ‖ public key)."""
    return Key(name, sha256(name.encode() + b"\n" + bytes([algorithm]) + public).digest()[:4], algorithm, public)


def parse_key(text: str) -> Key:
    """Return the key of a vkey, e.g. "gavel/default+5f8d9c3a+AbC…". Raises UnreadableError."""
    match = _VKEY.fullmatch(text.strip())
    if text.strip().startswith(PRIVATE_KEY_PREFIX):
        raise UnreadableError("this is the private key of a notary; give the public key, which gavel notary keygen has printed")
    if match is None:
        raise UnreadableError(f"{text.strip()[:80]!r} is not a verifier key; its form is NAME+ID+BASE64")
    name, key_id, material = match[1], match[2], _decode(match[3], "the verifier key")
    if len(material) != 1 + HASH_BYTES or material[0] not in (ED25519, ED25519_COSIGNATURE):
        raise UnreadableError(f"verifier key {name} is not an Ed25519 key of a notary (type 1) or a witness (type 4)")
    key = new_key(name, material[0], material[1:])
    if key.key_id.hex() != key_id:
        raise UnreadableError(f"verifier key {name} has id {key_id}, but its name and key give {key.key_id.hex()}; copy it again")
    return key


class Signature(NamedTuple):
    """A line of signature of a checkpoint."""

    name: str
    key_id: bytes
    content: bytes

    def __str__(self) -> str:
        """Return the line, without its newline."""
        return f"— {self.name} {base64.b64encode(self.key_id + self.content).decode()}"


class Checkpoint(NamedTuple):
    """A checkpoint: the root of a log's tree at a size, and its signatures."""

    origin: str
    size: int
    root: bytes
    signatures: tuple[Signature, ...] = ()

    @property
    def text(self) -> str:
        """The lines that are signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"

    def __str__(self) -> str:
        """Return the signed note."""
        return self.text + "\n" + "".join(f"{signature}\n" for signature in self.signatures)

    @property
    def bus(self) -> str:
        """The bus whose log this is; "" if the origin is not one of Gavel."""
        return self.origin.removeprefix(ORIGIN_PREFIX) if self.origin.startswith(ORIGIN_PREFIX) else ""


def parse_checkpoint(note: str) -> Checkpoint:
    """Return the checkpoint of a signed note. Its signatures are not verified. Raises UnreadableError."""
    text, blank, lines = note.partition("\n\n")
    parts = text.split("\n")
    if not blank or len(parts) != 3 or not parts[0] or not re.fullmatch(r"0|[1-9][0-9]{0,18}", parts[1]):
        raise UnreadableError("the checkpoint does not have the lines origin, size and root hash, and a blank line before its signatures")
    checkpoint = Checkpoint(parts[0], int(parts[1]), _decode(parts[2], "the root hash"), tuple(parse_signatures(lines)))
    if len(checkpoint.root) != HASH_BYTES or checkpoint.size > SIZE_MAX or not checkpoint.signatures or str(checkpoint) != note:
        raise UnreadableError("the checkpoint is not a signed note in its one form")
    return checkpoint


def parse_signatures(lines: str) -> list[Signature]:
    """Return the signatures of lines that each end in a newline. Raises UnreadableError."""
    signatures = []
    *complete, rest = lines.split("\n")
    if rest or len(complete) > SIGNATURES_MAX:
        raise UnreadableError(f"the lines of signatures do not end in a newline, or there are more than {SIGNATURES_MAX}")
    for line in complete:
        match = _SIGNATURE_LINE.fullmatch(line)
        content = _decode(match[2], "a signature") if match else b""
        if match is None or len(content) < 5:
            raise UnreadableError(f"{line[:80]!r} is not a line of a signature")
        signatures.append(Signature(match[1], content[:4], content[4:]))
    return signatures


def check_signature(text: str, signature: Signature, key: Key) -> None:
    """Check a signature of a note's text, or a witness's cosignature of it (tlog-cosignature). Raises NotVerifiedError."""
    signed, content = text.encode(), signature.content
    if key.algorithm == ED25519_COSIGNATURE:
        signed = b"cosignature/v1\ntime %d\n" % int.from_bytes(content[:8], "big") + signed
        content = content[8:]
    try:
        Ed25519PublicKey.from_public_bytes(key.public).verify(content, signed)
    except InvalidSignature:
        raise NotVerifiedError(f"the signature of {key.name} is not valid") from None


def is_signed(checkpoint: Checkpoint, key: Key) -> bool:
    """Return whether a checkpoint has a valid signature of this key. Raises NotVerifiedError if a signature in its name is invalid."""
    own = [one for one in checkpoint.signatures if (one.name, one.key_id) == (key.name, key.key_id)]
    for signature in own:
        check_signature(checkpoint.text, signature, key)
    return bool(own)


def check_signatures(checkpoint: Checkpoint, keys: Sequence[Key], witness_keys: Sequence[Key] = (), quorum: int | None = None) -> None:
    """Check that one of the notary's keys and `quorum` of the witnesses (None: all) signed. Raises NotVerifiedError."""
    signed = [key for key in keys if key.algorithm == ED25519 and key.name == checkpoint.origin and is_signed(checkpoint, key)]
    if not signed:
        trusted = " or ".join(sorted({f"{key.name}+{key.key_id.hex()}" for key in keys}))
        named = ", ".join(f"{one.name}+{one.key_id.hex()}" for one in checkpoint.signatures)
        raise NotVerifiedError(
            f"the checkpoint of {checkpoint.origin} has no valid signature of key {trusted}; its signatures are of {named}"
        )
    needed = len(witness_keys) if quorum is None else quorum
    witnesses = {key.public for key in witness_keys if key.algorithm == ED25519_COSIGNATURE and is_signed(checkpoint, key)}
    if len(witnesses) < needed:
        raise NotVerifiedError(f"{len(witnesses)} of the given witnesses signed the checkpoint, {needed} must")


# Proof files


class ProvedEvent(NamedTuple):
    """An event of a proof file: its number in the log, its envelope as logged, its inclusion proof."""

    sequence_number: int
    envelope: bytes
    hashes: tuple[bytes, ...]


class Proof(NamedTuple):
    """A proof file. The first event is the decision, the second its proposal, the others the facts that it pins."""

    decision_id: str
    events: tuple[ProvedEvent, ...]
    checkpoint: Checkpoint

    def __str__(self) -> str:
        """Return the proof file: JSON in its one form, whose last member is the SHA-256 of the file without that member."""
        content: dict[str, object] = {
            "format": FORMAT,
            "decision_id": self.decision_id,
            "events": [
                {
                    "sequence_number": event.sequence_number,
                    "envelope": base64.b64encode(event.envelope).decode(),
                    "inclusion_proof": [base64.b64encode(one).decode() for one in event.hashes],
                }
                for event in self.events
            ],
            "checkpoint": str(self.checkpoint),
        }
        return _render({**content, "sha256": sha256(_render(content).encode()).hexdigest()})


def parse_proof(content: bytes) -> Proof:
    """Return the proof of a file's bytes. Raises UnreadableError, also if the file is not in its one form."""
    try:
        document: Any = json.loads(content)
        if document["format"] != FORMAT:
            raise UnreadableError(f"the file's format is {document['format']!r:.40}, this program reads {FORMAT}")
        events = tuple(
            ProvedEvent(
                int(event["sequence_number"]),
                _decode(event["envelope"], "an envelope"),
                tuple(_decode(one, "an inclusion proof") for one in event["inclusion_proof"]),
            )
            for event in document["events"]
        )
        proof = Proof(str(document["decision_id"]), events, parse_checkpoint(str(document["checkpoint"])))
        rendered = str(proof).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise UnreadableError(f"the file is damaged, or not JSON of format {FORMAT} ({type(error).__name__})") from error
    if rendered != content:
        raise UnreadableError("the file was changed: its bytes do not match its SHA-256, or it is not in its one form")
    return proof


def check_proof(proof: Proof, keys: Sequence[Key], witness_keys: Sequence[Key] = (), quorum: int | None = None) -> list[str]:
    """Check everything that a proof claims; return what it proves, a line each. Raises NotVerifiedError, UnreadableError."""
    checkpoint = proof.checkpoint
    check_signatures(checkpoint, keys, witness_keys, quorum)
    signers = sorted({key.name for key in (*keys, *witness_keys) if is_signed(checkpoint, key)})
    return [*check_events(proof), f"checkpoint {checkpoint.size} events, signed by {', '.join(signers)}"]


def check_events(proof: Proof) -> list[str]:
    """Check everything but the signatures of the checkpoint; return what is in the log, a line each. Raises as `check_proof` does."""
    checkpoint = proof.checkpoint
    for event in proof.events:
        index = event.sequence_number - 1
        check_inclusion(leaf_hash(entry_of(event.envelope)), index, checkpoint.size, event.hashes, checkpoint.root)
    if len(proof.events) < 2:
        raise NotVerifiedError("the file lacks the decision or its proposal")
    envelopes = [_Fields(event.envelope) for event in proof.events]
    for event, envelope in zip(proof.events, envelopes, strict=True):
        if (envelope.number(_SEQUENCE_NUMBER), envelope.text(_BUS)) != (event.sequence_number, checkpoint.bus):
            raise NotVerifiedError(f"event {event.sequence_number} is not this event of bus {checkpoint.bus}")
        if sum(map(envelope.count, _PAYLOADS)) != 1:
            raise NotVerifiedError(f"event {event.sequence_number} does not have exactly one payload")
    decided, proposed, *facts = envelopes
    decision = decided.message(_DECISION)
    if decision is None or {proof.decision_id} != {decision.text(_DECISION_ID), decided.text(_EVENT_ID)}:
        raise NotVerifiedError(f"the first event is not decision {proof.decision_id}")
    if proposed.message(_PROPOSAL) is None or proposed.text(_EVENT_ID) != decision.text(_PROPOSAL_ID):
        raise NotVerifiedError(f"the second event is not the proposal {decision.text(_PROPOSAL_ID)} that the decision answers")
    pinned = {(fact.number(_PINNED_SEQUENCE_NUMBER), fact.text(_PINNED_EVENT_ID)): fact for fact in decision.messages(_PINNED_FACTS)}
    facts_in_proof = [(fact.number(_SEQUENCE_NUMBER), fact.text(_EVENT_ID)) for fact in facts]
    if sorted(pinned) != sorted(facts_in_proof):
        raise NotVerifiedError("the other events are not the facts that the decision pins")
    outcome = decision.number(_OUTCOME)
    return [
        f"verified: decision {proof.decision_id} is event {decided.number(_SEQUENCE_NUMBER)} of {checkpoint.origin}",
        f"outcome    {_OUTCOMES[outcome] if outcome < len(_OUTCOMES) else outcome} {decision.text(_REASON_CODE)}".rstrip(),
        f"action     {decision.text(_ACTION_TYPE)} of {decided.text(_SUBJECT)}",
        f"recorded   {decided.time(_RECORDED_AT)}",
        f"proposal   event {proposed.number(_SEQUENCE_NUMBER)} {proposed.text(_EVENT_ID)}",
        *(f"fact       event {number} {event_id} {pinned[number, event_id].text(_PINNED_KEY)}" for number, event_id in facts_in_proof),
    ]


def _render(content: dict[str, object]) -> str:
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def _decode(text: str, name: str) -> bytes:
    """Return the bytes of canonical standard base64. Raises UnreadableError."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnreadableError(f"{name} is not base64") from error
    if base64.b64encode(content).decode() != text:
        raise UnreadableError(f"{name} is not canonical base64")
    return content


class _Fields:
    """The fields of a protobuf message, by number (https://protobuf.dev/programming-guides/encoding/).

    A field that is read as one value and occurs twice is refused. A parser would merge the occurrences, and no server of Gavel writes them.
    A field of another wire type than its own is ignored, as parsers do.
    """

    def __init__(self, content: bytes) -> None:
        self._numbers: dict[int, list[int]] = {}
        self._contents: dict[int, list[bytes]] = {}
        for number, value in _fields(content):
            if isinstance(value, bytes):
                self._contents.setdefault(number, []).append(value)
            else:
                self._numbers.setdefault(number, []).append(value)

    def count(self, field: int) -> int:
        return len(self._contents.get(field, []))

    def number(self, field: int) -> int:
        return _only(field, self._numbers.get(field, [])) or 0

    def content(self, field: int) -> bytes:
        return _only(field, self._contents.get(field, [])) or b""

    def text(self, field: int) -> str:
        return self.content(field).decode(errors="replace")

    def messages(self, field: int) -> list[_Fields]:
        return [_Fields(value) for value in self._contents.get(field, [])]

    def message(self, field: int) -> _Fields | None:
        return _only(field, self.messages(field))

    def time(self, field: int) -> str:
        moment = self.message(field)
        seconds = 0 if moment is None else moment.number(1)
        return datetime.fromtimestamp(min(seconds, 253402300799), UTC).isoformat()


def _only(field: int, values: Sequence[_Value]) -> _Value | None:
    """Return the value of a field that occurs at most once; None if it does not occur. Raises NotVerifiedError."""
    if len(values) > 1:
        raise NotVerifiedError(f"field {field} occurs {len(values)} times in its message; it may occur once")
    return values[0] if values else None


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each varint and each field with a length, the latter as bytes. Raises UnreadableError.

    Fields of fixed width are skipped: the verifier reads none.
    """
    position = 0
    try:
        while position < len(content):
            tag, position = _varint(content, position)
            kind = tag & 7
            if kind == 0:
                value, position = _varint(content, position)
                yield tag >> 3, value
                continue
            if kind == 2:
                length, position = _varint(content, position)
            else:
                length = {1: 8, 5: 4}[kind]
            field = content[position : position + length]
            if len(field) != length:
                raise IndexError
            position += length
            if kind == 2:
                yield tag >> 3, field
    except (IndexError, KeyError) as error:
        raise UnreadableError("an envelope is not a protobuf message") from error


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError


# The program


def verify_file(path: str, keys: Sequence[str], witness_keys: Sequence[str] = (), quorum: int | None = None) -> tuple[int, list[str]]:
    """Verify a proof file. Return the exit status and the lines to print: the proved facts, or the reason of the failure."""
    status, lines = _verify_file(path, keys, witness_keys, quorum)
    return status, [escape(line) for line in lines]


def escape(text: str) -> str:
    """Return a text without the characters that a terminal obeys: a file that is not verified must not look as if it were."""
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _verify_file(path: str, keys: Sequence[str], witness_keys: Sequence[str], quorum: int | None) -> tuple[int, list[str]]:
    try:
        notary_keys, witnesses = [read_key(text) for text in keys], [read_key(text) for text in witness_keys]
        return EXIT_VERIFIED, check_proof(parse_proof(_read(path)), notary_keys, witnesses, quorum)
    except OSError as error:
        return EXIT_UNREADABLE, [f"unreadable: {error.filename or path}: {error.strerror}"]
    except UnreadableError as error:
        return EXIT_UNREADABLE, [f"unreadable: {error}"]
    except NotVerifiedError as error:
        return EXIT_NOT_VERIFIED, [f"not verified: {error}"]


def _read(path: str) -> bytes:
    with open(path, "rb") if path != "-" else nullcontext(sys.stdin.buffer) as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise UnreadableError(f"the file has more than {FILE_BYTES_MAX} bytes")
    return content


def read_key(text: str) -> Key:
    """Return the key that a vkey, or a file that holds one, states. Raises UnreadableError, OSError."""
    is_key = _VKEY.fullmatch(text) or text.startswith(PRIVATE_KEY_PREFIX)
    return parse_key(text if is_key else Path(text).read_text(encoding="utf-8", errors="replace"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Verify the file that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description="Verify a proof of a decision offline.")
    parser.add_argument("file", help="the proof file; - is standard input")
    parser.add_argument("--key", action="append", required=True, metavar="VKEY", help="the notary's key, or a file with it; repeatable")
    parser.add_argument("--witness-key", action="append", default=[], metavar="VKEY", help="a witness's key; repeatable")
    parser.add_argument("--witnesses", type=int, metavar="N", help="how many of the witnesses must have signed; default: all")
    options = parser.parse_args(arguments)
    status, lines = verify_file(options.file, options.key, options.witness_key, options.witnesses)
    print("\n".join(lines), file=sys.stderr if status else sys.stdout)
    return status


if __name__ == "__main__":
    sys.exit(main())
