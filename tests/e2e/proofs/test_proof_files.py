"""Proof files: `gavel proof` and `gavel verify`, the verifier as a file of its own, and Go's libraries."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from gavel_server.proofs import verifier
from gavel_server.proofs.verifier import NotVerifiedError, UnreadableError, check_proof, parse_key, parse_proof

from tests.e2e.cli.programs import gavel, gavel_into_closed_pipe
from tests.e2e.proofs.conftest import Notarized, make_key

VERIFIER = Path(verifier.__file__)


def test_verified(notarized: Notarized, proof_file: Path) -> None:
    """A proof is verified offline with the public key alone; the output says what is proved."""
    result = gavel("verify", proof_file, "--key", notarized.vkey)
    decision = notarized.decisions["light"]
    assert (0, "") == (result.returncode, result.stderr)
    first, *lines = result.stdout.splitlines()
    assert f"verified: decision {decision.event_id} is event {decision.sequence_number} of gavel/default" == first
    assert ["outcome    APPROVED", f"action     parcel.send of {decision.subject}"] == lines[:2]
    fact = decision.decision.pinned_facts[0]
    assert f"fact       event {fact.sequence_number} {fact.event_id} {fact.key}" in lines
    assert "checkpoint 13 events, signed by gavel/default" == lines[-1]


def test_verified_into_a_closed_pipe(notarized: Notarized, proof_file: Path) -> None:
    """When the reader of the output is gone, `gavel verify` ends silently with 141."""
    result = gavel_into_closed_pipe("verify", proof_file, "--key", notarized.vkey)
    assert (141, "") == (result.returncode, result.stderr)


def test_the_number_of_a_decision(notarized: Notarized) -> None:
    """A decision may be named by its number; another event has no proof of a decision."""
    number = notarized.decisions["light"].sequence_number
    assert notarized.proof() == gavel("proof", str(number), server=notarized.server).stdout
    proposal = gavel("proof", str(number - 1), server=notarized.server)
    assert (1, True) == (proposal.returncode, "is not a decision; gavel log search" in proposal.stderr)


def test_key_in_a_file(notarized: Notarized, proof_file: Path, tmp_path: Path) -> None:
    """--key takes a file with the public key, and the proof comes from standard input."""
    (tmp_path / "notary.vkey").write_text(notarized.vkey + "\n", encoding="utf-8")
    result = gavel("verify", "-", "--key", tmp_path / "notary.vkey", text=proof_file.read_text(encoding="utf-8"))
    assert (0, "") == (result.returncode, result.stderr)


def test_other_key(notarized: Notarized, proof_file: Path, tmp_path: Path) -> None:
    """Without a signature of the given key nothing is verified: exit status 3."""
    vkey = make_key(tmp_path)[1]
    result = gavel("verify", proof_file, "--key", vkey)
    expected_key, signer = ("+".join(text.split("+")[:2]) for text in (vkey, notarized.vkey))
    problem = (
        f"not verified: the checkpoint of gavel/default has no valid signature of key {expected_key}; its signatures are of {signer}\n"
    )
    assert (3, "", problem) == (result.returncode, result.stdout, result.stderr)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"format": "gavel-proof/9"}', "[" * 100_000])
def test_unreadable(notarized: Notarized, tmp_path: Path, content: str) -> None:
    """A file that is not a proof is unreadable: exit status 2."""
    path = tmp_path / "refund.proof"
    path.write_text(content, encoding="utf-8")
    result = gavel("verify", path, "--key", notarized.vkey)
    assert (2, "", "unreadable: ") == (result.returncode, result.stdout, result.stderr[:12])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("verify", "absent.proof", "--key", "KEY"), "absent.proof: No such file"),
        (("verify", "--key", "KEY"), "give a FILE of gavel proof, or --log"),
        (("verify", "a", "--log", "--key", "KEY"), "give a FILE of gavel proof, or --log"),
    ],
)
def test_usage(notarized: Notarized, arguments: tuple[str, ...], problem: str) -> None:
    """Wrong usage and absent files exit with 2 and say what to do."""
    result = gavel(*(notarized.vkey if one == "KEY" else one for one in arguments))
    assert (2, True) == (result.returncode, problem in result.stderr)


def fails(content: bytes, vkey: str) -> bool:
    """Return whether a proof file is refused."""
    try:
        check_proof(parse_proof(content), [parse_key(vkey)])
    except (UnreadableError, NotVerifiedError):
        return True
    return False


def test_flipped_bits(notarized: Notarized, proof_file: Path) -> None:
    """One flipped bit anywhere in a proof file fails: one bit of each byte, another one from byte to byte."""
    content = proof_file.read_bytes()
    assert not fails(content, notarized.vkey)
    for place, byte in enumerate(content):
        changed = content[:place] + bytes([byte ^ (1 << place % 8)]) + content[place + 1 :]
        assert fails(changed, notarized.vkey), f"byte {place}"


@pytest.mark.long
def test_every_flipped_bit(notarized: Notarized, proof_file: Path) -> None:
    """Each single flipped bit of a proof file fails."""
    content = proof_file.read_bytes()
    for place, byte in enumerate(content):
        for bit in range(8):
            changed = content[:place] + bytes([byte ^ (1 << bit)]) + content[place + 1 :]
            assert fails(changed, notarized.vkey), f"bit {bit} of byte {place}"


def forge(content: bytes, **changes: object) -> bytes:
    """Return a proof file with some members changed and its SHA-256 made right, as a forger would."""
    document = json.loads(content) | changes
    proof = verifier.Proof(
        document["decision_id"],
        tuple(
            verifier.ProvedEvent(
                one["sequence_number"],
                base64.b64decode(one["envelope"]),
                tuple(base64.b64decode(item) for item in one["inclusion_proof"]),
            )
            for one in document["events"]
        ),
        verifier.parse_checkpoint(document["checkpoint"]),
    )
    return str(proof).encode()


def test_forgeries(notarized: Notarized, proof_file: Path) -> None:
    """A file whose parts are all genuine proves only the decision that they belong to."""
    content, other = proof_file.read_bytes(), json.loads(notarized.proof("heavy"))
    events, others = json.loads(content)["events"], other["events"]
    assert not fails(forge(content), notarized.vkey)
    forgeries = {
        "another id": forge(content, decision_id=other["decision_id"]),
        "another proposal": forge(content, events=[events[0], others[1], *events[2:]]),
        "another fact": forge(content, events=[*events[:2], others[1]]),
        "a fact less": forge(content, events=events[:2]),
        "a fact more": forge(content, events=[*events, others[1]]),
        "a fact twice": forge(content, events=[*events, *events[2:]]),
        "no proposal": forge(content, events=events[:1]),
        "nothing": forge(content, events=[]),
        "another number": forge(content, events=[events[0] | {"sequence_number": 1}, *events[1:]]),
        "another envelope": forge(content, events=[events[0] | {"envelope": others[0]["envelope"]}, *events[1:]]),
        "another size": forge(content, checkpoint=json.loads(content)["checkpoint"].replace("\n13\n", "\n14\n")),
        "another bus": forge(content, checkpoint=json.loads(content)["checkpoint"].replace("gavel/default\n13", "gavel/other\n13")),
    }
    assert [] == [name for name, forged in forgeries.items() if not fails(forged, notarized.vkey)]


def test_file_of_its_own(notarized: Notarized, proof_file: Path, tmp_path: Path) -> None:
    """The verifier runs from one file, in an environment with the package cryptography and without Gavel."""
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False)
    packages = next(environment.glob("lib/python*/site-packages"))
    installed = Path(sysconfig.get_path("platlib"))
    for path in [*installed.glob("cryptography*"), *installed.glob("*cffi*"), *installed.glob("pycparser*")]:
        (packages / path.name).symlink_to(path)
    shutil.copy(VERIFIER, tmp_path / "gavel_verify.py")
    python = str(environment / "bin/python")

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([python, "-I", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path)

    assert 1 == run("-c", "import gavel_server").returncode
    verified = run("gavel_verify.py", proof_file, "--key", notarized.vkey)
    assert (0, "") == (verified.returncode, verified.stderr)
    assert gavel("verify", proof_file, "--key", notarized.vkey).stdout == verified.stdout
    assert 3 == run("gavel_verify.py", proof_file, "--key", make_key(tmp_path)[1]).returncode
    assert 2 == run("gavel_verify.py", VERIFIER, "--key", notarized.vkey).returncode


def test_imports_of_the_file() -> None:
    """The file imports the standard library and cryptography only."""
    lines = [
        line.split()[1].partition(".")[0]
        for line in VERIFIER.read_text(encoding="utf-8").splitlines()
        if line.startswith(("import ", "from "))
    ]
    assert set() == {*lines} - {*sys.stdlib_module_names} - {"cryptography"}


@pytest.mark.long
def test_libraries_of_go(notarized: Notarized, proof_file: Path, go_programs: Path, tmp_path: Path) -> None:
    """Go's note and transparency-dev's merkle verify signature and inclusion proofs, and refuse changed ones."""

    def check(path: Path, vkey: str = notarized.vkey) -> int:
        return subprocess.run([go_programs / "check", "proof", path, vkey], capture_output=True, check=False, timeout=60).returncode

    assert 0 == check(proof_file)
    assert 3 == check(proof_file, make_key(tmp_path)[1])
    document = json.loads(proof_file.read_bytes())
    document["events"][0]["sequence_number"] += 1
    (tmp_path / "changed.proof").write_text(json.dumps(document), encoding="utf-8")
    assert 3 == check(tmp_path / "changed.proof")


def test_decision_after_the_checkpoint(own_notarized: Notarized) -> None:
    """A decision that the newest checkpoint does not cover has no proof yet, and none without a notary at all."""
    from gavel_client import SyncGavelClient, fact_envelope

    from tests.e2e.cli.programs import send
    from tests.e2e.world import DEPOT

    with SyncGavelClient(own_notarized.server.address) as client:
        fact = client.publish_event(fact_envelope("parcel/new", DEPOT, key="parcel.status", value="ready")).envelope
        decision = client.submit_proposal(send(fact, 1)).decision
        client.create_bus(bus="unsigned")
    early = gavel("proof", decision.event_id, server=own_notarized.server)
    assert (1, True) == (early.returncode, "the newest checkpoint covers 13 events, and the decision is event 16" in early.stderr)
    unsigned = gavel("proof", decision.event_id, "--bus", "unsigned", server=own_notarized.server)
    assert (1, True) == (unsigned.returncode, "no notary has published a checkpoint of bus unsigned" in unsigned.stderr)
    assert 0 == own_notarized.sign().returncode
    assert 0 == gavel("proof", decision.event_id, server=own_notarized.server).returncode
