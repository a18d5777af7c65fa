"""The vectors of proto/testdata/hashing.json, from which implementations in other languages are tested."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from typing import Any, Final

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel_client.envelopes import content_hash
from gavel_client.values import from_struct, to_struct
from gavel_rules.events.hash_chain import chain, genesis_hash
from gavel_rules.events.ids import derived_event_id, execution_id_of, tool_execution_id
from gavel_rules.language.document.canonical_form import compute_digest, to_canonical_json
from gavel_server.intake.formats import SCHEMA_SHA256, SHA256

from tests.support.paths import ROOT

VECTORS: Final[dict[str, Any]] = json.loads((ROOT / "proto/testdata/hashing.json").read_text(encoding="utf-8"))
DOCUMENTS: Final = [*VECTORS["canonical_json"], *VECTORS["schemas"]]


@pytest.mark.parametrize("vector", DOCUMENTS, ids=lambda vector: vector["name"])
def test_canonical_json(vector: dict[str, str]) -> None:
    """Core and client give the canonical form and the hash of each document; the hash covers the UTF-8 bytes of that form."""
    value = json.loads(vector["json"])
    assert vector["canonical"] == to_canonical_json(value)
    assert vector["hash"] == f"sha256:{hashlib.sha256(vector['canonical'].encode()).hexdigest()}"
    assert vector["hash"] == compute_digest(to_canonical_json(value))
    assert vector["hash"] == content_hash(value)
    assert SHA256.match(vector["hash"])


# A Struct of the client holds no number beyond 2^53.
PARAMS: Final = [one for one in DOCUMENTS if one["canonical"].startswith("{") and "1e+30" not in one["canonical"]]


@pytest.mark.parametrize("vector", PARAMS, ids=lambda vector: vector["name"])
def test_params_keep_their_hash(vector: dict[str, str]) -> None:
    """An object has the same hash before and after it travels as a Struct, whose numbers are doubles."""
    assert vector["hash"] == content_hash(from_struct(to_struct(json.loads(vector["json"]))))


def test_short_hashes_of_schemas() -> None:
    """The short hash of a schema is the start of its full one."""
    for vector in VECTORS["schemas"]:
        assert vector["hash"][: len("sha256:") + 32] == vector["short"]
        assert SCHEMA_SHA256.match(vector["short"])
        assert not SHA256.match(vector["short"])


def test_chain() -> None:
    """The chain starts with the bus's name and covers the stored bytes of each envelope, in order."""
    vector = VECTORS["chain"]
    previous = genesis_hash(vector["bus"])
    assert vector["genesis"] == previous.hex() == hashlib.sha256(f"gavel.v1/{vector['bus']}".encode()).hexdigest()
    for number, event in enumerate(vector["events"], 1):
        stored = base64.b64decode(event["envelope_base64"])
        assert (number, b"") == (Envelope.FromString(stored).sequence_number, Envelope.FromString(stored).chain_hash)
        assert event["chain_hash"] == hashlib.sha256(previous + stored).hexdigest()
        previous = chain(previous, stored)
        assert event["chain_hash"] == previous.hex()


def test_event_ids() -> None:
    """A derived event_id is the UUIDv8 of its cause, kind and ordinal."""
    for vector in VECTORS["event_ids"]:
        cause = (vector["cause_event_id"], vector["cause_sequence_number"], vector["kind"], vector["ordinal"])
        bits = int.from_bytes(hashlib.sha256("\n".join(map(str, cause)).encode()).digest()[:16], "big")
        bits = bits & ~(0xF << 76) & ~(0b11 << 62) | 0x8 << 76 | 0b10 << 62
        assert vector["event_id"] == str(uuid.UUID(int=bits)) == derived_event_id(*cause)


def test_execution_ids() -> None:
    """An execution_id is the hash of the decision and the attempt."""
    for vector in VECTORS["execution_ids"]:
        digest = hashlib.sha256(f"{vector['decision_id']}\n{vector['attempt']}".encode()).hexdigest()
        assert vector["execution_id"] == f"exec_{digest[:12]}" == execution_id_of(vector["decision_id"], vector["attempt"])


def test_execution_ids_of_tool_calls() -> None:
    """The execution_id of a tool call that its producer gave none is the hash of its event_id."""
    for vector in VECTORS["tool_execution_ids"]:
        digest = hashlib.sha256(f"{vector['event_id']}\ntool-call".encode()).hexdigest()
        assert vector["execution_id"] == f"exec_{digest[:12]}" == tool_execution_id(vector["event_id"])
