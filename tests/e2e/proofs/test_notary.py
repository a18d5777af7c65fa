"""`gavel notary`, witnesses, and `gavel verify --log`: what a log that was rewritten cannot get past."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import SyncGavelClient, fact_envelope
from gavel_server.proofs.verifier import parse_checkpoint, parse_key

from tests.e2e.cli.programs import LOG_KEY, copy_of, gavel, rewrite
from tests.e2e.proofs.conftest import Notarized, make_key
from tests.e2e.runs import forker
from tests.e2e.world import DEPOT, Server, run_servers


class Witness(NamedTuple):
    """A running witness of Go's libraries."""

    url: str
    vkey: str

    @property
    def options(self) -> tuple[str, ...]:
        """The options of `gavel notary` for it."""
        return "--witness", self.url, "--witness-key", self.vkey


@pytest.fixture
def witness(go_programs: Path, own_notarized: Notarized) -> Iterator[Witness]:
    """A witness that knows the notary's key and has cosigned nothing."""
    with subprocess.Popen(
        [go_programs / "witness", own_notarized.vkey], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield Witness(process.stdout.readline().strip(), process.stdout.readline().strip())
        process.communicate()


def publish_fact(server: Server, subject: str = "parcel/more") -> Envelope:
    """Append a fact to the default bus."""
    with SyncGavelClient(server.address) as client:
        return client.publish_event(fact_envelope(subject, DEPOT, key="parcel.status", value="ready")).envelope


def fork(notarized: Notarized, folder: Path) -> Server:
    """Return a server, not running, whose log has another time in an early event and is consistent in itself."""
    notarized.server.terminate()
    data = copy_of(notarized.server.data, folder / "fork")

    def change(event: Envelope) -> None:
        if event.sequence_number == 5:  # a proposal; when an agent says that it made it decides nothing
            event.occurred_at.nanos ^= 1_000_000

    asyncio.run(rewrite(data, change, rechain=True))
    (data / "checkpoint.json").unlink()
    return Server(data)


@pytest.mark.long
def test_growing_log(own_notarized: Notarized, tmp_path: Path, go_programs: Path) -> None:
    """A log that only grew is signed again; old and new checkpoint are shown to be consistent, also by Go's library."""
    old = (own_notarized.state / "checkpoint").read_text(encoding="utf-8")
    assert "signed and published 13 events of gavel/default\n" == own_notarized.sign().stdout
    assert old == (own_notarized.state / "checkpoint").read_text(encoding="utf-8")
    for _ in range(20):
        publish_fact(own_notarized.server)
    assert "signed and published 33 events of gavel/default\n" == own_notarized.sign().stdout
    since = tmp_path / "old.checkpoint"
    since.write_text(old, encoding="utf-8")

    options = ("--log", "--since", since, "--save", tmp_path / "new.checkpoint", "--key", own_notarized.vkey)
    result = gavel("verify", *options, server=own_notarized.server)

    expected = f"verified: the notary signed 33 events of gavel/default; it begins with the 13 events of {since}\n"
    assert (0, expected, "") == (result.returncode, result.stdout, result.stderr)
    new = (tmp_path / "new.checkpoint").read_text(encoding="utf-8")
    assert (own_notarized.state / "checkpoint").read_text(encoding="utf-8") == new
    with SyncGavelClient(own_notarized.server.address) as client:
        hashes = client.get_consistency_proof(13, 33).hashes
    document = tmp_path / "consistency.json"
    for listed, status in ((list(hashes), 0), (list(hashes)[:-1], 3)):
        document.write_text(json.dumps({"from": old, "to": new, "hashes": [base64.b64encode(one).decode() for one in listed]}))
        check: list[str | Path] = [go_programs / "check", "consistency", document, own_notarized.vkey]
        assert status == subprocess.run(check, capture_output=True, check=False, timeout=60).returncode


@pytest.mark.long
def test_forked_log_is_refused_by_the_notary(own_notarized: Notarized, tmp_path: Path) -> None:
    """A log whose early event was changed, consistently, is not signed by the notary that signed it before: exit status 3."""
    server = fork(own_notarized, tmp_path)
    with run_servers(server):
        forked = own_notarized._replace(server=server)
        for option in ("--replay", "--no-replay"):
            result = forked.sign(option)
            assert (3, "", True) == (result.returncode, result.stdout, "gavel/default was rewritten: its first 13 events" in result.stderr)


@pytest.mark.long
def test_forked_log_is_refused_by_a_witness(own_notarized: Notarized, tmp_path: Path, witness: Witness) -> None:
    """A notary that forgets what it signed cannot get a rewritten log cosigned by a witness that saw the log before."""
    assert (0, "") == (own_notarized.sign(*witness.options).returncode, own_notarized.sign(*witness.options).stderr)
    server = fork(own_notarized, tmp_path)
    with run_servers(server):
        forked = own_notarized._replace(server=server)
        same = forked.sign(*witness.options, state=tmp_path / "forgetful")
        assert (3, True) == (same.returncode, "the log does not begin with the 13 events that it cosigned" in same.stderr)
        publish_fact(server)
        longer = forked.sign(*witness.options, state=tmp_path / "forgetful")
        assert (3, True) == (longer.returncode, "the log does not begin with the 13 events that it cosigned" in longer.stderr)


@pytest.mark.long
def test_forked_log_is_refused_by_an_auditor(own_notarized: Notarized, tmp_path: Path) -> None:
    """An auditor with an old checkpoint notices a rewritten log, even if the notary is one with the server: exit status 3."""
    since = tmp_path / "old.checkpoint"
    since.write_text((own_notarized.state / "checkpoint").read_text(encoding="utf-8"), encoding="utf-8")
    server = fork(own_notarized, tmp_path)
    with run_servers(server):
        publish_fact(server)
        # The published checkpoint was copied with the log's Redis, so that of the rewritten log is larger.
        assert 0 == own_notarized._replace(server=server).sign(state=tmp_path / "accomplice").returncode
        result = gavel("verify", "--log", "--since", since, "--key", own_notarized.vkey, server=server)
        assert (3, "not verified: the tree of 14 leaves does not begin with the tree of 13 leaves\n") == (result.returncode, result.stderr)


@pytest.mark.parametrize("options", [("--once",), ("--interval", "0.2")])
def test_broken_chain_ends_the_notary(own_notarized: Notarized, options: tuple[str, ...]) -> None:
    """A log whose stored chain is broken behind what was signed is not signed, and the notary says so and ends: exit status 3."""
    server = own_notarized.server
    changed = publish_fact(server).sequence_number
    publish_fact(server)
    with redis.Redis.from_url(server.redis_url, protocol=2) as connection, connection.pipeline() as transaction:
        rows: Any = connection.xrange(LOG_KEY)
        transaction.delete(LOG_KEY)
        for number, (entry_id, fields) in enumerate(rows, 1):
            content = fields[b"e"] + (Envelope(subject="changed").SerializeToString() if number == changed else b"")
            transaction.xadd(LOG_KEY, {"e": content, "h": fields[b"h"]}, id=entry_id.decode())
        transaction.execute()
    arguments: tuple[str | Path, ...] = ("--key", own_notarized.key, "--state", own_notarized.state, "--redis", server.redis_url, *options)
    result = gavel("notary", *arguments, server=server)
    assert (3, "") == (result.returncode, result.stdout), result
    assert f"gavel/default is not proved, so nothing is signed: the chain breaks at event {changed}" in result.stderr
    assert 13 == parse_checkpoint((own_notarized.state / "checkpoint").read_text(encoding="utf-8")).size


def test_cosigned_proof(own_notarized: Notarized, tmp_path: Path, witness: Witness) -> None:
    """A cosignature travels in the proof file, and `gavel verify` can require it."""
    publish_fact(own_notarized.server)
    assert 0 == own_notarized.sign(*witness.options).returncode
    publish_fact(own_notarized.server)
    assert 0 == own_notarized.sign(*witness.options).returncode
    path = tmp_path / "parcel.proof"
    path.write_text(own_notarized.proof(), encoding="utf-8")
    keys = ("--key", own_notarized.vkey, "--witness-key", witness.vkey)
    result = gavel("verify", path, *keys)
    assert (0, True) == (result.returncode, result.stdout.endswith("signed by gavel/default, witness.example/w1\n"))
    other = parse_key(witness.vkey)
    stranger = other._replace(key_id=b"none")
    assert 2 == gavel("verify", path, "--key", own_notarized.vkey, "--witness-key", str(stranger)).returncode


def test_quorum(own_notarized: Notarized, witness: Witness, tmp_path: Path) -> None:
    """Without the quorum nothing is published; a quorum of one suffices if it is asked for."""
    dead = ("--witness", "http://127.0.0.1:9", "--witness-key", witness.vkey)
    publish_fact(own_notarized.server)
    result = own_notarized.sign(*dead)
    assert (1, True) == (result.returncode, "0 of 1 witnesses cosigned 14 events: cannot reach witness" in result.stderr)
    with SyncGavelClient(own_notarized.server.address) as client:
        assert 13 == client.get_checkpoint().tree_size
    assert 0 == own_notarized.sign(*witness.options, *dead, "--witnesses", "1").returncode
    checkpoint = parse_checkpoint((own_notarized.state / "checkpoint").read_text(encoding="utf-8"))
    assert (14, ["gavel/default", "witness.example/w1"]) == (checkpoint.size, [one.name for one in checkpoint.signatures])


def test_unknown_log_of_a_witness(own_notarized: Notarized, go_programs: Path, tmp_path: Path) -> None:
    """A witness that does not know the notary's key cosigns nothing; the message says which witness refuses."""
    command: list[str | Path] = [go_programs / "witness", make_key(tmp_path)[1]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        stranger = Witness(process.stdout.readline().strip(), process.stdout.readline().strip())
        result = own_notarized.sign(*stranger.options)
        process.communicate()
    assert (1, True) == (result.returncode, "witness witness.example/w1 refuses with HTTP" in result.stderr)


def test_key_rotation(own_notarized: Notarized, tmp_path: Path) -> None:
    """While keys change, both sign; then the new key alone goes on, and the old one is no longer needed."""
    (tmp_path / "new").mkdir()
    key, vkey = make_key(tmp_path / "new")
    alone = own_notarized._replace(key=key, vkey=vkey)
    refused = alone.sign()
    assert (3, True) == (refused.returncode, "is not signed by any of the given keys; give the old key too" in refused.stderr)
    publish_fact(own_notarized.server)
    assert 0 == own_notarized.sign("--key", key).returncode
    path = tmp_path / "parcel.proof"
    path.write_text(own_notarized.proof(), encoding="utf-8")
    assert [0, 0] == [gavel("verify", path, "--key", one).returncode for one in (own_notarized.vkey, vkey)]
    publish_fact(own_notarized.server)
    assert 0 == alone.sign().returncode
    path.write_text(alone.proof(), encoding="utf-8")
    assert [3, 0] == [gavel("verify", path, "--key", one).returncode for one in (own_notarized.vkey, vkey)]


def test_stolen_key(own_notarized: Notarized, tmp_path: Path) -> None:
    """After a theft the new key alone goes on, with the old public key, from what the stolen key signed, though nothing is appended."""
    (tmp_path / "new").mkdir()
    key, vkey = make_key(tmp_path / "new")
    alone = own_notarized._replace(key=key, vkey=vkey)
    signed = alone.sign("--old-key", own_notarized.vkey)
    assert (0, "signed and published 13 events of gavel/default\n") == (signed.returncode, signed.stdout)
    path = tmp_path / "parcel.proof"
    path.write_text(alone.proof(), encoding="utf-8")
    assert 0 == gavel("verify", path, "--key", vkey).returncode
    assert 0 == alone.sign().returncode
    wrong = alone.sign("--old-key", "old.vkey")
    assert (2, True) == (wrong.returncode, "old.vkey" in wrong.stderr)


def test_unusable_directory(notarized: Notarized) -> None:
    """A notary whose directory cannot be used says which and why, in the operating system's words."""
    place = notarized.key / "state"
    result = notarized.sign(state=place)
    assert (1, f"gavel: {place}: Not a directory\n") == (result.returncode, result.stderr)


def test_running_notary(own_notarized: Notarized) -> None:
    """A notary that keeps running signs what is appended, is alone in its directory, and ends on SIGTERM."""
    options = ("--key", own_notarized.key, "--state", own_notarized.state, "--redis", own_notarized.server.redis_url)
    command: list[str | Path] = [*forker().command(), "notary", *options, "--interval", "0.2", "--server", own_notarized.server.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as notary:
        assert notary.stdout is not None
        assert "signed and published 13 events of gavel/default\n" == notary.stdout.readline()
        publish_fact(own_notarized.server)
        assert "signed and published 14 events of gavel/default\n" == notary.stdout.readline()
        other = own_notarized.sign()
        assert (3, True) == (other.returncode, "another notary uses" in other.stderr)
        notary.send_signal(signal.SIGTERM)
        assert 0 == notary.wait(30)
