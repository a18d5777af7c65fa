"""Keys, notes and checkpoints: vectors of Go's sumdb/note and of the specifications of C2SP, and malformed input."""

from __future__ import annotations

import base64
import json
from operator import itemgetter
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from gavel.v1.decision_pb2 import OUTCOME_APPROVED, OUTCOME_REJECTED, Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import Fact
from gavel.v1.proposal_pb2 import Proposal
from gavel_rules.codec.fields import Field
from gavel_server.proofs.keys import NotaryKey
from gavel_server.proofs.verifier import (
    ED25519_COSIGNATURE,
    EXIT_NOT_VERIFIED,
    EXIT_UNREADABLE,
    Checkpoint,
    NotVerifiedError,
    Proof,
    ProvedEvent,
    Signature,
    UnreadableError,
    check_events,
    check_signature,
    check_signatures,
    entry_of,
    is_signed,
    leaf_hash,
    new_key,
    node_hash,
    parse_checkpoint,
    parse_key,
    parse_signatures,
    verify_file,
)
from google.protobuf.timestamp_pb2 import Timestamp

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


# Envelopes: a log of a proposal and its rejection

PROPOSED = Envelope(sequence_number=1, event_id="p", bus="default", proposal=Proposal())
REJECTION = Decision(decision_id="d", proposal_id="p", outcome=OUTCOME_REJECTED, action_type="refund.create")
DECIDED = Envelope(sequence_number=2, event_id="d", bus="default", subject="order/1", decision=REJECTION)
APPROVAL = Envelope(decision=Decision(decision_id="d", proposal_id="p", outcome=OUTCOME_APPROVED)).SerializeToString()
DECISION, RECORDED_AT = Field(Envelope, "decision"), Field(Envelope, "recorded_at")


def prove(proposed: bytes, decided: bytes) -> list[str]:
    """Return what the verifier reads in a log of these two envelopes."""
    proposal_leaf, decision_leaf = leaf_hash(entry_of(proposed)), leaf_hash(entry_of(decided))
    checkpoint = Checkpoint("gavel/default", 2, node_hash(proposal_leaf, decision_leaf))
    return check_events(Proof("d", (ProvedEvent(2, decided, (proposal_leaf,)), ProvedEvent(1, proposed, (decision_leaf,))), checkpoint))


def decided_with(decision: bytes) -> bytes:
    """Return the envelope of the decision with other bytes as its decision."""
    rest = Envelope()
    rest.CopyFrom(DECIDED)
    rest.ClearField("decision")
    return rest.SerializeToString() + DECISION.content(decision)


def test_outcome() -> None:
    """The outcome of a decision is read from its bytes."""
    assert "outcome    REJECTED" == prove(PROPOSED.SerializeToString(), DECIDED.SerializeToString())[1]


@pytest.mark.parametrize(
    "decided",
    {
        "an approval first": APPROVAL + DECIDED.SerializeToString(),
        "an approval last": DECIDED.SerializeToString() + APPROVAL,
        "two outcomes": decided_with(Decision(outcome=OUTCOME_APPROVED).SerializeToString() + REJECTION.SerializeToString()),
        "two action types": decided_with(REJECTION.SerializeToString() + Decision(action_type="refund.cancel").SerializeToString()),
        "two subjects": DECIDED.SerializeToString() + Envelope(subject="order/2").SerializeToString(),
        "two times": DECIDED.SerializeToString() + RECORDED_AT.content(Timestamp(seconds=1).SerializeToString() * 2),
        "a fact too": DECIDED.SerializeToString() + Envelope(fact=Fact()).SerializeToString(),
    }.items(),
    ids=itemgetter(0),
)
def test_a_decision_that_says_two_things(decided: tuple[str, bytes]) -> None:
    """A decision in whose bytes a field that is read, or a payload, occurs twice proves nothing: parsers read the bytes differently."""
    with pytest.raises(NotVerifiedError, match=r"may occur once|does not have exactly one payload"):
        prove(PROPOSED.SerializeToString(), decided[1])


@pytest.mark.parametrize("payload", [APPROVAL, Envelope(proposal=Proposal()).SerializeToString()], ids=["decision", "proposal"])
def test_a_proposal_that_says_two_things(payload: bytes) -> None:
    """A proposal with a second payload proves nothing."""
    with pytest.raises(NotVerifiedError, match="event 1 does not have exactly one payload"):
        prove(payload + PROPOSED.SerializeToString(), DECIDED.SerializeToString())


def test_fields_of_another_wire_type() -> None:
    """A field of another wire type than its own is unknown to protobuf, and to the verifier."""
    outcome_as_fixed = bytes([5 << 3 | 5]) + OUTCOME_APPROVED.to_bytes(4, "little")
    outcome_as_text = bytes([5 << 3 | 2, 1, 1])
    decision = REJECTION.SerializeToString() + outcome_as_fixed + outcome_as_text
    assert OUTCOME_REJECTED == Decision.FromString(decision).outcome
    assert "outcome    REJECTED" == prove(PROPOSED.SerializeToString(), decided_with(decision))[1]
