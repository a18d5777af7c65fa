"""Helpers of the command line's tests: run the program, and make logs for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis.asyncio
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import SyncGavelClient, fact_envelope
from gavel_server.log import chain, genesis_hash
from gavel_server.log.redis.embedded import EmbeddedRedis
from google.protobuf.json_format import MessageToJson

from tests.e2e.runs import RUN_SECONDS_MAX, run_gavel
from tests.e2e.world import DEPOT, GAVEL, PATIENT_MS, Server, proposal, rule_set

LOG_KEY = "gavel:{default}:log"
HEAD_KEY = "gavel:{default}:head"


def gavel(*arguments: str | Path, server: Server | None = None, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `gavel` to its end, on `server` if given, with `text` as standard input."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GAVEL_") and name != "COLUMNS"}
    if server is not None:
        clean["GAVEL_SERVER"] = server.address
    return run_gavel(arguments, clean | environment, text)


def gavel_into_closed_pipe(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the installed `gavel`, with a pipe as standard output whose reader is gone. The output is buffered, as by default."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        command = [GAVEL, *arguments]
        return subprocess.run(
            command, env=buffered, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=RUN_SECONDS_MAX, check=False
        )
    finally:
        os.close(write_end)


def send(fact: Envelope, weight: float, trace_id: str = "") -> Envelope:
    """Return a proposal to send the parcel of `fact`, in the fact's trace unless another is given."""
    envelope = proposal(fact, weight)
    envelope.trace_id = trace_id or fact.trace_id
    return envelope


def as_text(envelope: Envelope) -> str:
    """Return an envelope as protobuf JSON."""
    return MessageToJson(envelope, preserving_proto_field_name=True)


def play(address: str) -> dict[str, Envelope]:
    """Fill a server's default bus with the decisions on a light, a heavy and a lost parcel; return them."""
    decisions = {}
    with SyncGavelClient(address) as client:
        client.deploy_rule_set(rule_set(), timeout_ms=PATIENT_MS)
        client.activate_rule_set("parcels", 1, timeout_ms=PATIENT_MS)
        for name, status, weight in (("light", "ready", 5), ("heavy", "ready", 50), ("lost", "lost", 5)):
            fact = client.publish_event(
                fact_envelope(f"parcel/{name}", DEPOT, key="parcel.status", value=status, trace_id=f"trace-{name}"),
                timeout_ms=PATIENT_MS,
            ).envelope
            decisions[name] = client.submit_proposal(send(fact, weight), timeout_ms=PATIENT_MS).decision
    return decisions


def copy_of(data: Path, target: Path) -> Path:
    """Copy the data directory of a stopped server."""
    return shutil.copytree(data, target, ignore=shutil.ignore_patterns("*.sock"))


async def rewrite(data: Path, change: Callable[[Envelope], bytes | None], *, rechain: bool) -> None:
    """Rewrite the log of the default bus; `rechain` recomputes the chain hashes.

    `change` changes an event in place, or returns the bytes to write for it.
    """
    async with EmbeddedRedis(data) as embedded, redis.asyncio.Redis.from_url(embedded.url, protocol=2) as connection:
        rows: Any = await connection.xrange(LOG_KEY)
        await connection.delete(LOG_KEY)
        previous = genesis_hash("default")
        for entry_id, fields in rows:
            event = Envelope.FromString(fields[b"e"])
            content = change(event) or event.SerializeToString()
            previous = chain(previous, content) if rechain else fields[b"h"]
            await connection.xadd(LOG_KEY, {"e": content, "h": previous}, id=entry_id.decode())
        await connection.hset(HEAD_KEY, "chain_hash", previous)


def flip_byte(data: Path, of: bytes, position: int) -> None:
    """Flip the byte at `position` of the first occurrence of `of` in the append-only file."""
    (file,) = [*data.glob("appendonly.aof"), *data.glob("appendonlydir/*.incr.aof")]
    content = bytearray(file.read_bytes())
    place = content.index(of) + position
    content[place] ^= 1
    file.write_bytes(content)
