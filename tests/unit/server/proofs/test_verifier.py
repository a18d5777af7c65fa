"""Keys, notes and checkpoints: vectors of Go's sumdb/note and of the specifications of C2SP, and malformed input."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from gavel_server.proofs.keys import NotaryKey
from gavel_server.proofs.verifier import (
    ED25519_COSIGNATURE,
    EXIT_NOT_VERIFIED,
    EXIT_UNREADABLE,
    Checkpoint,
    NotVerifiedError,
    Proof,
    Signature,
    UnreadableError,
    check_signature,
    check_signatures,
    is_signed,
    new_key,
    parse_checkpoint,
    parse_key,
    parse_signatures,
    verify_file,
)

# golang.org/x/mod v0.43.0, sumdb/note/example_test.go.
NOTE_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
NOTE_SECRET = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"  # noqa: S105  # published
NOTE_TEXT = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
NOTE_SIGNATURE = "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
# C2SP tlog-checkpoint and tlog-cosignature.
EXAMPLE = (
    "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
    "— example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
    "— witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZqhf5nNo0xUe+mbIUBkBIfZ+qnA==\n"
)
KEY = NotaryKey("gavel/default", Ed25519PrivateKey.from_private_bytes(b"k" * 32))
WITNESS = Ed25519PrivateKey.from_private_bytes(b"w" * 32)
WITNESS_KEY = new_key("witness.example/w1", ED25519_COSIGNATURE, WITNESS.public_key().public_bytes_raw())
SIGNED = KEY.sign(Checkpoint("gavel/default", 7, b"r" * 32))


def cosign(checkpoint: Checkpoint, seconds: int = 1_700_000_000) -> Checkpoint:
    """Return a checkpoint cosigned by WITNESS."""
    content = WITNESS.sign(f"cosignature/v1\ntime {seconds}\n{checkpoint.text}".encode())
    signature = Signature(WITNESS_KEY.name, WITNESS_KEY.key_id, seconds.to_bytes(8, "big") + content)
    return checkpoint._replace(signatures=(*checkpoint.signatures, signature))


def test_vector_of_go() -> None:
    """Go's key verifies Go's signature of Go's text, and no other text; ours has the same bytes."""
    key, (signature,) = parse_key(NOTE_KEY), parse_signatures(NOTE_SIGNATURE)
    assert (NOTE_KEY, NOTE_SIGNATURE) == (str(key), f"{signature}\n")
    check_signature(NOTE_TEXT, signature, key)
    with pytest.raises(NotVerifiedError):
        check_signature(NOTE_TEXT.replace("answer", "question"), signature, key)
    secret = base64.b64decode(NOTE_SECRET.split("+", 4)[4])
    own = NotaryKey("PeterNeumann", Ed25519PrivateKey.from_private_bytes(secret[1:]))
    assert (NOTE_SECRET, NOTE_KEY) == (str(own), str(own.public))


def test_example_of_the_specification() -> None:
    """The example of C2SP is read and written byte for byte, the cosignature's time included."""
    checkpoint = parse_checkpoint(EXAMPLE)
    assert EXAMPLE == str(checkpoint)
    assert ("example.com/behind-the-sofa", 20_852_163) == (checkpoint.origin, checkpoint.size)
    assert 1_679_315_147 == int.from_bytes(checkpoint.signatures[1].content[:8], "big")


def test_signatures() -> None:
    """A checkpoint needs a signature of one of the notary's keys, and as many witnesses as are asked for."""
    cosigned = cosign(SIGNED)
    check_signatures(SIGNED, [KEY.public])
    check_signatures(cosigned, [KEY.public], [WITNESS_KEY])
    check_signatures(SIGNED, [KEY.public], [WITNESS_KEY], 0)
    other = NotaryKey("gavel/default", Ed25519PrivateKey.from_private_bytes(b"o" * 32)).public
    check_signatures(SIGNED, [other, KEY.public])
    for checkpoint, keys, witnesses, quorum in (
        (SIGNED, [other], [], None),
        (SIGNED, [], [], None),
        (SIGNED, [KEY.public], [WITNESS_KEY], None),
        (cosigned, [KEY.public], [WITNESS_KEY, WITNESS_KEY], 2),
        (cosigned, [WITNESS_KEY], [], None),
        (SIGNED._replace(size=8), [KEY.public], [], None),
        (SIGNED._replace(root=b"s" * 32), [KEY.public], [], None),
        (KEY.sign(SIGNED._replace(origin="gavel/other", signatures=())), [KEY.public], [], None),
    ):
        with pytest.raises(NotVerifiedError):
            check_signatures(checkpoint, keys, witnesses, quorum)


def test_time_is_signed() -> None:
    """A cosignature with another time is not valid."""
    (signature,) = cosign(SIGNED._replace(signatures=())).signatures
    changed = signature._replace(content=b"\0" * 8 + signature.content[8:])
    with pytest.raises(NotVerifiedError):
        is_signed(SIGNED._replace(signatures=(changed,)), WITNESS_KEY)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        NOTE_KEY.replace("c74f20a3", "c74f20a4"),
        NOTE_KEY.replace("PeterNeumann", "Peter Neumann"),
        NOTE_KEY[:-4],
        NOTE_KEY.replace("+ARpc", "+AhpC"),
        NOTE_KEY[:-1] + "X",
    ],
)
def test_malformed_keys(text: str) -> None:
    """A key that was copied wrong is unreadable."""
    with pytest.raises(UnreadableError):
        parse_key(text)


@pytest.mark.parametrize(
    "note",
    [
        "",
        str(SIGNED).replace("\n\n", "\n"),
        str(SIGNED).replace("\n7\n", "\n07\n"),
        str(SIGNED).replace("\n7\n", "\n-7\n"),
        str(SIGNED).replace("\n7\n", "\n99999999999999999999\n"),
        str(SIGNED).replace("\n7\n", "\n7\nmore\n"),
        str(SIGNED).removesuffix("\n"),
        str(SIGNED) + "\n",
        str(SIGNED) + "— name\n",
        str(SIGNED).replace("—", "-"),
        SIGNED.text + "\n",
        str(SIGNED).replace("=\n\n", "\n\n"),
        str(SIGNED._replace(root=b"short")),
        "\n" + str(SIGNED),
    ],
)
def test_malformed_checkpoints(note: str) -> None:
    """A checkpoint has one form."""
    with pytest.raises(UnreadableError):
        parse_checkpoint(note)


def test_a_file_that_looks_verified(tmp_path: Path) -> None:
    """What an unverified file says cannot move the cursor of the terminal that shows why it is not verified."""
    checkpoint = Checkpoint("gavel/\x1b[2K\rverified:\x9b8m", 7, b"r" * 32, SIGNED.signatures)
    (tmp_path / "proof").write_bytes(str(Proof("x", (), checkpoint)).encode())

    status, lines = verify_file(str(tmp_path / "proof"), [str(KEY.public)])

    assert (EXIT_NOT_VERIFIED, True) == (status, "".join(lines).isprintable())
    assert "gavel/\\x1b[2K\\rverified:\\x9b8m" in lines[0]


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1e2", '"1"', "[" * 100_000])
def test_numbers_that_are_none(tmp_path: Path, number: str) -> None:
    """A proof file whose numbers are not whole is unreadable, whatever JSON makes of them."""
    document = json.dumps(
        {"format": "gavel-proof/1", "decision_id": "x", "events": [{"sequence_number": 0, "envelope": "", "inclusion_proof": []}]}
    )
    (tmp_path / "proof").write_text(document.replace(": 0,", f": {number},"))

    assert EXIT_UNREADABLE == verify_file(str(tmp_path / "proof"), [str(KEY.public)])[0]


@pytest.mark.parametrize("is_file", [True, False])
def test_a_private_key_is_not_printed(tmp_path: Path, is_file: bool) -> None:
    """A private key in place of the public one is unreadable, and the message does not contain it."""
    (tmp_path / "notary.key").write_text(str(KEY), encoding="utf-8")

    status, lines = verify_file("-", [str(tmp_path / "notary.key") if is_file else str(KEY)])

    problem = "unreadable: this is the private key of a notary; give the public key, which gavel notary keygen has printed"
    assert (EXIT_UNREADABLE, [problem]) == (status, lines)


def test_a_key_that_is_no_text(tmp_path: Path) -> None:
    """A file of a key that holds something else is unreadable."""
    (tmp_path / "key").write_bytes(b"\xff\xfe")

    assert EXIT_UNREADABLE == verify_file("-", [str(tmp_path / "key")])[0]
