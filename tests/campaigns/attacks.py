"""Attacks of strangers and greedy callers on a server, each a coroutine.

`python -m tests.campaigns.attacks HOST:PORT SECONDS SEED [ATTACK…]`

The program runs attacks at random, a few at once, and prints as JSON how often each ran, which of its events were accepted, and how many
bytes its unusual clients sent. Without names it runs all of them.

Attackers have machines of their own. The program therefore takes only the processor time that nobody else wants (`give_way`): otherwise
the campaign would measure how the kernel shares out two cores, and not what the server does.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final

import grpc
from gavel.v1 import arbitration_service_pb2 as arbitration
from gavel.v1 import event_service_pb2 as events
from gavel.v1 import projection_service_pb2 as projection
from gavel.v1 import rule_set_service_pb2 as rule_sets
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient, GavelError, fact_envelope, new_event_id

from tests.campaigns.canary import TRACE as CANARY_TRACE
from tests.campaigns.target import (
    GZIP,
    LIST,
    LIST_CATEGORY,
    MIB,
    PREFLIGHT,
    PREFLIGHT_BATCH,
    PROJECTION,
    PUBLISH,
    REFLECTION,
    REPLAY,
    SIMULATE,
    STATUS,
    STREAM,
    SUBMIT,
    SUBMIT_BATCH,
    SUBSCRIBE,
    SUBSCRIBE_CATEGORY,
    TRACE,
    VALIDATE,
    WATCH_HEALTH,
    Target,
    cited_event,
    connections,
    costly_rule_set,
    encode_field,
    refused_batch,
)
from tests.e2e.world import DEPOT, proposal
from tests.support.http2 import CONTINUATION, HEADERS, PING, SETTINGS, WINDOW_UPDATE, call_headers, frame, header_block, message

AT_ONCE: Final = 3
# An attack that has not ended by itself is abandoned.
ATTACK_SECONDS_MAX: Final = 12.0


Attack = Callable[[Target], Awaitable[None]]


async def malformed_paths(target: Target) -> None:
    """Call methods whose names are not UTF-8, empty or very long."""
    async with connections(target, 3) as opened:
        for connection, path in zip(opened, (b"/\xff\xfe/\x80", b"", b"/" + b"a" * 60_000), strict=False):
            connection.start_call(path)
            await connection.drain()
        await asyncio.sleep(0.5)


async def random_bytes(target: Target) -> None:
    """Send bytes that are not HTTP/2, or not HTTP/2 from some byte on."""
    for _ in range(20):
        with suppress(OSError):
            _, writer = await asyncio.open_connection(target.host, target.port)
            writer.write(target.randomness.randbytes(target.randomness.randrange(1, 4000)))
            await writer.drain()
            writer.close()


async def compressed_bombs(target: Target) -> None:
    """Send 16 KB that unpack to 16 MB, of each kind of request with repeated fields, on many streams."""
    bombs = [
        (SUBMIT_BATCH, gzip.compress(b"\x0a\x00" * (8 * MIB))),
        (LIST, gzip.compress(LIST_CATEGORY * (16 * MIB // len(LIST_CATEGORY)))),
        (SUBSCRIBE, gzip.compress(SUBSCRIBE_CATEGORY * (16 * MIB // len(SUBSCRIBE_CATEGORY)))),
        (PUBLISH, gzip.compress(b"\0" * (16 * MIB))),
    ]
    async with connections(target, 4) as opened:
        for connection in opened:
            for path, bomb in bombs * 4:
                connection.send_data(connection.start_call(path, GZIP), message(bomb, compressed=True))
            with suppress(ConnectionError):
                await connection.drain()
        await asyncio.sleep(3)


async def many_empty_fields(target: Target) -> None:
    """Send a proposal of a megabyte of empty required facts, and batches of empty envelopes, uncompressed."""
    facts = proposal(cited_event())
    facts.proposal.required_facts.extend([""] * (MIB // 2))
    async with connections(target, 2) as opened:
        for connection in opened:
            request = arbitration.SubmitProposalRequest(envelope=facts).SerializeToString()
            connection.send_data(connection.start_call(SUBMIT), message(request))
            connection.send_data(connection.start_call(SUBMIT_BATCH), message(b"\x0a\x00" * (2 * MIB - 10)))
            with suppress(ConnectionError):
                await connection.drain()
        await asyncio.sleep(2)


async def unfinished_messages(target: Target) -> None:
    """Announce large messages, send most of them, and wait."""
    async with connections(target, 20) as opened:
        for connection in opened:
            for _ in range(100):
                connection.send_data(connection.start_call(SUBMIT), message(b"x" * 60_000, length=MIB), end=False)
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(1):
                    await connection.drain()
        await asyncio.sleep(4)


async def answers_not_read(target: Target) -> None:
    """Ask for pages, subscriptions and answers to batches on hundreds of streams and read none of them."""
    batch = refused_batch()
    page = events.ListEventsRequest(page_size=1000).SerializeToString()
    subscription = events.SubscribeEventsRequest(from_sequence_number=1).SerializeToString()
    async with connections(target, 4, window_bytes=0) as opened:
        for connection in opened:
            for _ in range(50):
                connection.send_data(connection.start_call(LIST), message(page))
                connection.send_data(connection.start_call(SUBSCRIBE), message(subscription))
            for _ in range(20):
                connection.send_data(connection.start_call(SUBMIT_BATCH), message(batch))
            with suppress(ConnectionError):
                await connection.drain()
        await asyncio.sleep(8)


async def answers_read_slowly(target: Target) -> None:
    """Ask for pages, traces, subscriptions and replays on hundreds of streams, and read two bytes a second of each."""
    requests = [
        (LIST, events.ListEventsRequest(page_size=1000).SerializeToString()),
        (TRACE, events.GetTraceRequest(trace_id="large-0").SerializeToString()),
        (SUBSCRIBE, events.SubscribeEventsRequest(from_sequence_number=1).SerializeToString()),
        (PROJECTION, projection.GetProjectionRequest(subject="parcel/wide").SerializeToString()),
        (REPLAY, b""),
        (WATCH_HEALTH, b""),
    ]
    async with connections(target, 8, window_bytes=1) as opened:
        streams = []
        for connection in opened:
            for path, request in requests * 5:
                streams.append((connection, connection.start_call(path)))
                connection.send_data(streams[-1][1], message(request))
        for _ in range(8):
            for connection, stream in streams:
                connection.send(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", 2)))
            await asyncio.sleep(1)


async def busy_connections(target: Target) -> None:
    """Open a stream of proposals on each of more connections than the server admits, and say nothing on it."""
    async with connections(target, 1100) as opened:
        for connection in opened:
            connection.start_call(STREAM)
        await asyncio.sleep(2)


async def idle_connections(target: Target) -> None:
    """Open more connections than the server admits, and say nothing."""
    async with connections(target, 1100):
        await asyncio.sleep(2)


async def rapid_resets(target: Target) -> None:
    """Propose and cancel at once, thousands of times."""
    async with connections(target, 1) as opened:
        for connection in opened:
            with suppress(ConnectionError):
                for _ in range(5000):
                    request = arbitration.SubmitProposalRequest(envelope=proposal(cited_event()))
                    stream = connection.start_call(SUBMIT)
                    connection.send_data(stream, message(request.SerializeToString()))
                    connection.reset(stream)
                    await connection.drain()


async def large_and_cancelled(target: Target) -> None:
    """Send batches of 3 MB, of proposals and of preflights, and cancel each while the server works on it."""
    envelope = Envelope(subject="parcel/1", trace_id="large-cancelled")
    envelope.proposal.params.update({f"key-{number}": "y" * 150 for number in range(40)})
    # A request for preflights has the same fields.
    batch = arbitration.BatchSubmitProposalsRequest(envelopes=[envelope] * 500).SerializeToString()

    async def cancel_forever(method: Any) -> None:
        while True:
            call = method(batch)
            await asyncio.sleep(0.25)
            call.cancel()

    async with grpc.aio.insecure_channel(target.address, compression=grpc.Compression.Gzip) as channel, asyncio.timeout(5):
        methods: list[Any] = [channel.unary_unary(path.decode()) for path in (SUBMIT_BATCH, PREFLIGHT_BATCH)]
        await asyncio.gather(*(cancel_forever(method) for method in methods * 4))


async def calls_that_wait(target: Target) -> None:
    """Wait for an event that never comes, from several addresses, and wait again as soon as the calls could have left their places."""
    request = message(projection.GetProjectionRequest(subject="parcel/wide", min_sequence_number=1 << 40).SerializeToString())
    async with connections(target, 4, local_hosts=[f"127.0.1.{number}" for number in range(1, 5)]) as opened:
        for _ in range(30):
            streams = [(connection, connection.start_call(PROJECTION)) for connection in opened for _ in range(5)]
            for connection, stream in streams:
                connection.send_data(stream, request)
            await asyncio.sleep(0.12)
            for connection, stream in streams:
                connection.reset(stream)


async def calls_without_messages(target: Target) -> None:
    """End calls before their message, and call methods that do not exist, with malformed metadata."""
    odd = ((b"grpc-timeout", b"-1x"), (b"x-odd", b"\xff\xfe"), (b"x-bin-bin", b"!!"))
    async with connections(target, 2) as opened:
        for connection in opened:
            for number in range(200):
                path = (SUBMIT, b"/no.such.Service/Method", b"/grpc.health.v1.Health/Check", b"/gavel.v1.EventService/No")[number % 4]
                connection.send_data(connection.start_call(path, odd[number % len(odd)]), b"")
            with suppress(ConnectionError):
                await connection.drain()
        await asyncio.sleep(0.5)


async def large_headers(target: Target) -> None:
    """Send metadata up to the limit and beyond it, headers that never end, and thousands of pings and settings."""
    async with connections(target, 4) as opened:
        for connection in opened:
            with suppress(ConnectionError):
                for number in range(100):
                    size = 14_000 if number % 4 else 40_000
                    connection.send_data(connection.start_call(PROJECTION, (b"x-large", b"h" * size)), message(b""))
                for _ in range(5000):
                    connection.send(frame(PING, 0, 0, b"pingping") + frame(SETTINGS, 0, 0))
                await connection.drain()
                connection.start_call(PROJECTION)
                connection.send(frame(HEADERS, 0, 9999, call_headers(PROJECTION)))
                for _ in range(500):
                    connection.send(frame(CONTINUATION, 0, 9999, header_block([(b"x-more", b"h" * 8000)])))
                await connection.drain()
        await asyncio.sleep(1)


async def streams_not_read(target: Target) -> None:
    """Stream proposals of a megabyte, refused ones and some that never end, and read no answer."""
    large = proposal(cited_event())
    large.proposal.expected_outcome = "x" * (MIB - 2000)
    refused = Envelope(event_id="not an id", subject="?" * 2000)
    async with connections(target, 4, window_bytes=0) as opened:
        for connection in opened:
            for envelope in (large, refused):
                request = message(arbitration.StreamProposalsRequest(envelope=envelope).SerializeToString())
                for _ in range(10):
                    stream = connection.start_call(STREAM)
                    for _ in range(2 if envelope is large else 40):
                        connection.send_data(stream, request, end=False)
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(5):
                    await connection.drain()
        await asyncio.sleep(2)


async def health_and_reflection(target: Target) -> None:
    """Watch health on hundreds of streams, and ask reflection for garbage."""
    async with connections(target, 4, window_bytes=0) as opened:
        for connection in opened:
            for _ in range(100):
                connection.send_data(connection.start_call(WATCH_HEALTH), message(b""))
                garbage = target.randomness.randbytes(200)
                connection.send_data(connection.start_call(REFLECTION), message(garbage))
            with suppress(ConnectionError):
                await connection.drain()
        await asyncio.sleep(2)


async def unknown_fields(target: Target) -> None:
    """Publish facts with fields that the contract does not know, at every depth."""
    async with GavelClient(target.address) as client:
        for number in (16, 30, 1000):
            fact = fact_envelope("parcel/unknown", DEPOT, key="parcel.note", value="x")
            content = target.randomness.randbytes(20_000)
            fact.MergeFromString(encode_field(number, content))
            fact.producer.MergeFromString(encode_field(9, content))
            fact.fact.MergeFromString(encode_field(1000, content))
            await _publish(target, client, fact)


async def foreign_traces(target: Target) -> None:
    """Submit refused proposals, as another agent, in the trace of a well-behaved caller."""
    async with GavelClient(target.address) as client:
        for _ in range(20):
            envelope = proposal(cited_event())
            envelope.producer.id = "agent-foreign"
            envelope.trace_id = CANARY_TRACE
            with suppress(GavelError):
                await client.submit_proposal(envelope, timeout_ms=5000)
                target.accepted.add(envelope.event_id)


async def costly_rules(target: Target) -> None:
    """Ask for 500 decisions at once by rules that search long texts, and for compilations of large rule sets."""
    async with GavelClient(target.address) as client:
        fact = fact_envelope("parcel/costly", DEPOT, key="parcel.status", value="a" * 60_000)
        long = (await client.publish_event(fact, timeout_ms=5000)).envelope
        target.accepted.add(long.event_id)
        with suppress(GavelError):
            await client.batch_preflight([proposal(long) for _ in range(500)], timeout_ms=8000)
    document = costly_rule_set(version=2, rules=500)
    preflight = arbitration.PreflightRequest(envelope=proposal(long), rule_set_override=document).SerializeToString()
    await asyncio.gather(
        _call(target, VALIDATE, rule_sets.ValidateRuleSetRequest(document=document).SerializeToString(), 16),
        _call(target, PREFLIGHT, preflight, 16),
    )


async def replays_not_read(target: Target) -> None:
    """Ask for replays and simulations on many streams and read none of them."""
    simulation = rule_sets.SimulateRuleSetRequest(document=costly_rule_set(version=2)).SerializeToString()
    async with connections(target, 4, window_bytes=0) as opened:
        for connection in opened:
            for _ in range(10):
                connection.send_data(connection.start_call(REPLAY), message(b""))
                connection.send_data(connection.start_call(SIMULATE), message(simulation))
            with suppress(ConnectionError):
                await connection.drain()
        await asyncio.sleep(4)


async def digests(target: Target) -> None:
    """Ask for the digest of the whole projection with many callers."""
    request = projection.GetStatusRequest(include_projection_digest=True).SerializeToString()
    await _call(target, STATUS, request, 64)


async def fan_out(target: Target) -> None:
    """Subscribe on two hundred streams, and record events of 900 KB that each of them receives."""
    async with AsyncExitStack() as stack:
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        channels = [await stack.enter_async_context(grpc.aio.insecure_channel(target.address, options=options)) for _ in range(4)]

        async def follow(channel: grpc.aio.Channel) -> None:
            method: Any = channel.unary_stream(SUBSCRIBE.decode())
            subscription = events.SubscribeEventsRequest(subject_prefix="parcel/fan", from_sequence_number=head)
            with suppress(grpc.RpcError):
                async for _ in method(subscription.SerializeToString(), timeout=8):
                    pass

        client = await stack.enter_async_context(GavelClient(target.address))
        head = (await client.get_status(timeout_ms=5000)).head_sequence_number
        following = [asyncio.create_task(follow(channel)) for channel in channels for _ in range(50)]
        try:
            await asyncio.sleep(1)
            for _ in range(3):
                await _publish(target, client, fact_envelope("parcel/fan", DEPOT, key="parcel.note", value=["n" * 60_000] * 15))
            await asyncio.sleep(4)
        finally:
            for task in following:
                task.cancel()


async def refused_batches(target: Target) -> None:
    """Send large batches in which every item is refused."""
    await _call(target, SUBMIT_BATCH, refused_batch(), 3)


async def unknown_buses(target: Target) -> None:
    """Read from buses that do not exist, and send them invalid writes, as fast as answers come."""
    async with GavelClient(target.address, bus=f"nosuch-{target.randomness.randrange(1000)}") as client:
        for _ in range(300):
            with suppress(GavelError):
                await client.get_status(timeout_ms=2000)
            with suppress(GavelError):
                await client.revoke_decision(new_event_id(), reason="none", revoked_by="nobody", timeout_ms=2000)


async def large_events(target: Target) -> None:
    """Record facts of 200 KB, and read whole traces of them with many callers."""
    async with GavelClient(target.address) as client:
        trace = f"large-{target.randomness.randrange(4)}"
        fact = fact_envelope("parcel/large", DEPOT, key="parcel.note", value="n" * 200_000, trace_id=trace)
        await _publish(target, client, fact)

        async def read() -> None:
            with suppress(GavelError):
                await client.get_trace(trace, timeout_ms=8000)

        await asyncio.gather(*(read() for _ in range(32)))


async def greedy_streams(target: Target) -> None:
    """Propose on many connections at once, as fast as answers come."""
    async with GavelClient(target.address) as client:
        fact = fact_envelope("parcel/greedy", DEPOT, key="parcel.status", value="ready")
        cited = (await client.publish_event(fact, timeout_ms=5000)).envelope
        target.accepted.add(cited.event_id)

    async def propose(client: GavelClient) -> None:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            envelopes = [proposal(cited) for _ in range(25)]
            with suppress(GavelError):
                response = await client.batch_submit_proposals(envelopes, timeout_ms=5000)
                for envelope, result in zip(envelopes, response.results, strict=True):
                    if result.HasField("decision"):
                        target.accepted.add(envelope.event_id)

    clients = [GavelClient(target.address) for _ in range(8)]
    try:
        await asyncio.gather(*(propose(client) for client in clients for _ in range(5)))
    finally:
        for client in clients:
            await client.close()


async def large_projections(target: Target) -> None:
    """Record many facts of one subject, and read the subject with many callers."""
    async with GavelClient(target.address) as client:
        facts = [
            fact_envelope("parcel/wide", DEPOT, key=f"parcel.k{target.randomness.randrange(20_000)}", value="v" * 50) for _ in range(400)
        ]
        with suppress(GavelError):
            response = await client.batch_publish_events(facts, timeout_ms=8000)
            target.accepted.update(result.envelope.event_id for result in response.results if result.HasField("envelope"))
    request = projection.GetProjectionRequest(subject="parcel/wide").SerializeToString()
    await _call(target, PROJECTION, request, 16)


ATTACKS: Final[Sequence[Attack]] = (
    malformed_paths,
    random_bytes,
    compressed_bombs,
    many_empty_fields,
    unfinished_messages,
    answers_not_read,
    answers_read_slowly,
    busy_connections,
    idle_connections,
    rapid_resets,
    large_and_cancelled,
    calls_that_wait,
    calls_without_messages,
    large_headers,
    streams_not_read,
    health_and_reflection,
    unknown_fields,
    foreign_traces,
    costly_rules,
    replays_not_read,
    digests,
    fan_out,
    refused_batches,
    unknown_buses,
    large_events,
    greedy_streams,
    large_projections,
)


async def attack(target: Target, seconds: float, attacks: Sequence[Attack] = ATTACKS) -> Counter[str]:
    """Run attacks, a few at once, for a time. Return how often each ran."""
    runs: Counter[str] = Counter()
    end = time.monotonic() + seconds

    async def go_on() -> None:
        while time.monotonic() < end:
            # Each attack runs equally often, in an order from the seed.
            chosen = target.randomness.choice(
                [one for one in attacks if runs[one.__name__] == min(runs[each.__name__] for each in attacks)]
            )
            runs[chosen.__name__] += 1
            with suppress(TimeoutError, OSError, GavelError, grpc.RpcError):
                async with asyncio.timeout(ATTACK_SECONDS_MAX):
                    await chosen(target)

    await asyncio.gather(*(go_on() for _ in range(AT_ONCE)))
    return runs


async def _publish(target: Target, client: GavelClient, fact: Envelope) -> None:
    with suppress(GavelError):
        published = await client.publish_event(fact, timeout_ms=5000)
        target.accepted.add(published.envelope.event_id)


async def _call(target: Target, path: bytes, request: bytes, times: int) -> None:
    """Call a method with raw bytes, at once on one connection, and read the answers."""
    async with grpc.aio.insecure_channel(target.address, options=[("grpc.max_receive_message_length", -1)]) as channel:
        method: Any = channel.unary_unary(path.decode())
        await asyncio.gather(*(method(request, timeout=10) for _ in range(times)), return_exceptions=True)


async def main(address: str, seconds: str, seed: str, *names: str) -> None:
    """Attack, and print what was done."""
    host, _, port = address.rpartition(":")
    chosen = [one for one in ATTACKS if one.__name__ in names] or ATTACKS
    target = Target(host, int(port), random.Random(int(seed)), set(), Counter())
    runs = await attack(target, float(seconds), chosen)
    print(json.dumps({"runs": runs, "accepted": sorted(target.accepted), "sent_bytes": target.sent_bytes.total()}))


def give_way() -> None:
    """Let this process run only while no other one wants the processor."""
    os.setsid()  # Linux shares out the processor among sessions first
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


if __name__ == "__main__":
    give_way()
    asyncio.run(main(*sys.argv[1:]))
