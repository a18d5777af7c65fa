"""Snapshots and backups in which somebody has changed callers: none that is damaged is used, and a replay finds forged ones."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import grpc
import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import PublishEventRequest, PublishEventResponse
from gavel_client import fact_envelope
from gavel_rules.events.hash_chain import chain
from gavel_server.archive.segments import Manifest, decode_manifest, decode_segment, encode_manifest, encode_segment
from gavel_server.history.snapshot_files import SnapshotContent, SnapshotFiles
from gavel_server.log import Head, Record

from tests.e2e.cli.programs import gavel
from tests.e2e.identity.granted import GrantedServer
from tests.e2e.world import DEPOT, run_servers
from tests.support.fronts import ANY_FRONT

EVERY = 5
PUBLISH = "gavel.v1.EventService/PublishEvent"
# "nobodx" is no caller's name; one changed byte makes it one.
GRANTS = """
gavel: v1
name: main
version: 2
grants:
  - {to: [ada], may: [grant, read, replay]}
  - {to: [may-publish], may: [publish], produce: {types: [database_snapshot], ids: [depot]}, facts: ["parcel.*"]}
  - {to: [nobodx], may: [publish], produce: {types: [database_snapshot], ids: [depot]}, facts: ["parcel.*"]}
"""


def publish(server: GrantedServer, caller: str, subject: str) -> Envelope:
    """Publish a fact as a caller. Raises grpc.RpcError."""
    request = PublishEventRequest(envelope=fact_envelope(subject, DEPOT, key="parcel.status", value="ready"))
    return server.call(PUBLISH, caller, request, PublishEventResponse).envelope


def played(directory: Path, *options: str) -> GrantedServer:
    """Return a server that has stopped, with some events of an allowed caller in its log."""
    directory.mkdir(exist_ok=True)
    granted = GrantedServer(directory, ANY_FRONT, options=options)
    with granted.running():
        granted.deploy(GRANTS)
        for number in range(2 * EVERY):
            publish(granted, "may-publish", f"parcel/{number}")
        assert 0 == granted.server.terminate()
    return granted


def test_snapshots(tmp_path: Path) -> None:
    """A snapshot in which another caller has a grant gives that caller no right. With a new hash it is a divergence for a replay."""
    granted = played(tmp_path, "--snapshot-every", str(EVERY))
    files = SnapshotFiles(granted.server.data, "default")
    assert files.numbers()
    for number in files.numbers():
        path = files.path(number)
        content = path.read_bytes()
        assert b"nobodx" in content
        path.write_bytes(content.replace(b"nobodx", b"nobody"))
    with run_servers(granted.server):
        with pytest.raises(grpc.RpcError) as denied:
            publish(granted, "nobody", "parcel/x")
        assert grpc.StatusCode.PERMISSION_DENIED == denied.value.code()
        publish(granted, "may-publish", "parcel/y")
        assert "it is damaged: its bytes do not match its hash" in granted.server.log()
        assert 0 == granted.server.terminate()
    assert 0 == gavel("replay", "--data", granted.server.data).returncode

    number = files.numbers()[0]
    if "nobody" in files.path(number).read_bytes().decode(errors="replace"):
        files.remove(number)
        number = files.numbers()[0]
    position = files.read_position(number)
    state = files.read(number)
    state.store.conflict_keys["parcel/1"] = "another decision"
    files.write(SnapshotContent(state, Head(number, position.chain_hash), position.incarnation))
    result = gavel("replay", "--data", granted.server.data)
    assert 3 == result.returncode, result.stdout + result.stderr
    assert f"event {number}" in result.stdout


def rechained(manifest: Manifest, records: list[Record], caller: str) -> tuple[Manifest, bytes]:
    """Return a segment in which the caller of the last event is another one, with new chain hashes."""
    last = Envelope.FromString(records[-1].envelope)
    last.attestation.principal = caller
    content = last.SerializeToString()
    previous = records[-2].chain_hash
    changed = [*records[:-1], Record(records[-1].sequence_number, content, chain(previous, content))]
    return encode_segment(manifest.bus, manifest.chain_hash_before, changed, manifest.file.split("/")[0])


def test_backups(tmp_path: Path) -> None:
    """A backup with a changed caller is not restored; one that was chained and sealed again is restored and not proved."""
    granted = played(tmp_path / "first")
    copies = tmp_path / "copies"
    made = gavel("backup", "--to", copies, "--data", granted.server.data)
    assert 0 == made.returncode, made.stderr
    (segment,) = copies.glob("*/backups/*.zst")
    (description,) = copies.glob("*/backups/*.json")
    document = json.loads(description.read_text())
    manifest = decode_manifest(json.dumps(document["tail"]).encode(), "tail")
    records = decode_segment(manifest, segment.read_bytes())
    assert "may-publish" == Envelope.FromString(records[-1].envelope).attestation.principal
    forged, content = rechained(manifest, records, "nobody")
    segment.write_bytes(content)
    refused = gavel("restore", "--from", copies, "--data", tmp_path / "second", "--prove")
    assert (1, True) == (refused.returncode, "is damaged" in refused.stderr), refused.stderr

    assert hashlib.sha256(content).hexdigest() == forged.sha256
    document |= {"tail": json.loads(encode_manifest(forged)), "chain_hash": forged.chain_hash.hex()}
    description.write_text(json.dumps(document))
    unproved = gavel("restore", "--from", copies, "--data", tmp_path / "third", "--prove")
    assert 3 == unproved.returncode, unproved.stdout + unproved.stderr
    assert "no grant of main version 2 is for 'nobody'" in unproved.stdout + unproved.stderr
