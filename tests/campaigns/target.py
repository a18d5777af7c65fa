"""The server under attack, connections to it, and requests that several attacks send."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import cycle
from typing import Final, NamedTuple

from gavel.v1 import arbitration_service_pb2 as arbitration
from gavel.v1 import common_pb2
from gavel.v1 import event_service_pb2 as events
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import new_event_id

from tests.e2e.world import ACTION, rule_set
from tests.support.http2 import Http2Connection

MIB: Final = 1024 * 1024
SUBMIT: Final = b"/gavel.v1.ArbitrationService/SubmitProposal"
SUBMIT_BATCH: Final = b"/gavel.v1.ArbitrationService/BatchSubmitProposals"
PREFLIGHT_BATCH: Final = b"/gavel.v1.ArbitrationService/BatchPreflight"
PUBLISH: Final = b"/gavel.v1.EventService/PublishEvent"
LIST: Final = b"/gavel.v1.EventService/ListEvents"
TRACE: Final = b"/gavel.v1.EventService/GetTrace"
SUBSCRIBE: Final = b"/gavel.v1.EventService/SubscribeEvents"
STREAM: Final = b"/gavel.v1.ArbitrationService/StreamProposals"
PREFLIGHT: Final = b"/gavel.v1.ArbitrationService/Preflight"
VALIDATE: Final = b"/gavel.v1.RuleSetService/ValidateRuleSet"
SIMULATE: Final = b"/gavel.v1.RuleSetService/SimulateRuleSet"
REPLAY: Final = b"/gavel.v1.ReplayService/VerifyReplay"
STATUS: Final = b"/gavel.v1.ProjectionService/GetStatus"
WATCH_HEALTH: Final = b"/grpc.health.v1.Health/Watch"
REFLECTION: Final = b"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
PROJECTION: Final = b"/gavel.v1.ProjectionService/GetProjection"
GZIP: Final = (b"grpc-encoding", b"gzip")
# Requests with one category.
LIST_CATEGORY: Final = events.ListEventsRequest(categories=[common_pb2.EVENT_CATEGORY_FACT_EVENT]).SerializeToString()
SUBSCRIBE_CATEGORY: Final = events.SubscribeEventsRequest(categories=[common_pb2.EVENT_CATEGORY_FACT_EVENT]).SerializeToString()


class Target(NamedTuple):
    """The server, the choices of the campaign, and the event_ids that were accepted."""

    host: str
    port: int
    randomness: random.Random
    accepted: set[str]
    sent_bytes: Counter[str]  # by the kind of client

    @property
    def address(self) -> str:
        """The server's address."""
        return f"{self.host}:{self.port}"


@asynccontextmanager
async def connections(
    target: Target, count: int, *, window_bytes: int = 65_535, local_hosts: Sequence[str | None] = (None,)
) -> AsyncIterator[list[Http2Connection]]:
    """Open connections, as many as the server lets in; close them at the end. They come from these addresses in turn."""
    opened: list[Http2Connection] = []
    try:
        for _, local_host in zip(range(count), cycle(local_hosts), strict=False):
            with suppress(OSError):
                opened.append(await Http2Connection.open(target.host, target.port, window_bytes=window_bytes, local_host=local_host))
        yield opened
    finally:
        for connection in opened:
            target.sent_bytes["http2"] += connection.sent_bytes
            await connection.close()


def costly_rule_set(*, version: int = 1, rules: int = 8) -> str:
    """Return the tests' rule set with rules that search its fact, which may be long. Approvals live for 20 s."""
    search = "  - {{id: search-{0}, action: {1}, priority: {2}, when: 'facts.status.contains(\"{0}a\")', effect: approve}}\n"
    document = rule_set(version=version, decision_ttl_ms=20_000)
    return document + "".join(search.format(number, ACTION, 100 + number) for number in range(rules))


def refused_batch() -> bytes:
    """Return a batch of 500 proposals that are refused."""
    envelopes = [Envelope(event_id="not an id", subject="?" * 2000, trace_id="\u202e" * 100) for _ in range(500)]
    return arbitration.BatchSubmitProposalsRequest(envelopes=envelopes).SerializeToString()


def encode_field(number: int, data: bytes) -> bytes:
    """Return a field of bytes as protobuf encodes it."""
    return b"".join(_varint(part) for part in (number << 3 | 2, len(data))) + data


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def cited_event() -> Envelope:
    """Return an event for a proposal to cite; the log has another one in its place."""
    return Envelope(event_id=new_event_id(), sequence_number=1, subject="parcel/1")
