"""The context of a call on grpc.aio."""

from __future__ import annotations

from typing import Any

import pytest
from gavel_server.rpc.call_context import CallContext, Metadata, grpc_call_context


class Call:
    """gRPC's own context of a call."""

    def __init__(self, peer: str = "unix:", metadata: Metadata = (), remaining_seconds: float | None = None) -> None:
        self._peer = peer
        self._metadata = metadata
        self._remaining_seconds = remaining_seconds
        self.reads = 0
        self.headers: list[object] = []

    def peer(self) -> str:
        """gRPC's name of the caller."""
        self.reads += 1
        return self._peer

    def invocation_metadata(self) -> Metadata:
        """All metadata of the call."""
        return self._metadata

    def time_remaining(self) -> float | None:
        """The time until the deadline, in seconds."""
        return self._remaining_seconds

    async def send_initial_metadata(self, metadata: object) -> None:
        """Record that the headers were sent."""
        self.headers.append(metadata)


def context_of(call: Any, *, behind_front: bool = False) -> CallContext:
    """Return the context of a call."""
    return grpc_call_context("gavel.v1.EventService/GetEvent", call, behind_front=behind_front)


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("ipv4:127.0.0.1:4711", "127.0.0.1:4711"),
        ("ipv6:%5B::1%5D:4711", "[::1]:4711"),
        ("ipv6:[fe80::1%25eth0]:4711", "[fe80::1%eth0]:4711"),
        ("unix:", "unix:"),
        ("unix:/run/gavel.sock", "unix:"),
    ],
)
def test_addresses(name: str, peer: str) -> None:
    """gRPC's name of a caller becomes an address."""
    assert peer == context_of(Call(name)).peer


def test_metadata_of_the_transport_is_left_out() -> None:
    """Keys of gRPC and of the front are left out; the others are sorted, repeated keys in their order."""
    metadata: Metadata = (
        ("te", "trailers"),
        ("b", "2"),
        ("grpc-trace-bin", b"x"),
        ("b", "1"),
        ("gavel-peer", "1.2.3.4:5"),
        ("gavel-received", "1"),
        ("a-bin", b"\xff"),
    )
    assert (("a-bin", b"\xff"), ("b", "2"), ("b", "1")) == context_of(Call(metadata=metadata)).metadata


def test_the_front_s_address_is_trusted_on_the_private_socket_only() -> None:
    """`gavel-peer` names the caller of a forwarded call; elsewhere a caller could have written it."""
    call = Call("ipv4:10.0.0.9:80", (("gavel-peer", "1.2.3.4:5"),))
    assert ("native", "1.2.3.4:5") == (context_of(call, behind_front=True).transport, context_of(call, behind_front=True).peer)
    assert ("grpc.aio", "10.0.0.9:80") == (context_of(call).transport, context_of(call).peer)


def test_the_remaining_time() -> None:
    """The remaining time is in milliseconds, never negative, and None without a deadline."""
    assert context_of(Call()).remaining_ms() is None
    assert 0 == context_of(Call(remaining_seconds=-1.0)).remaining_ms()
    remaining_ms = context_of(Call(remaining_seconds=60.0)).remaining_ms()
    assert remaining_ms is not None
    assert 50_000 < remaining_ms <= 60_000


async def test_a_context_is_decoded_once_when_it_is_read() -> None:
    """Nothing is decoded for a method that does not read the caller, and nothing twice for one that does."""
    call = Call("ipv4:10.0.0.9:80")
    context = context_of(call)
    assert "gavel.v1.EventService/GetEvent" == context.method
    await context.send_headers()
    assert (0, [()]) == (call.reads, call.headers)
    assert "10.0.0.9:80" == context.peer == context.peer
    assert 1 == call.reads


def test_trace_context() -> None:
    """The trace context is the caller's last `traceparent` in the form of version 00, or "" if that one is not valid."""
    first, second = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b8-01-x"
    assert context_of(Call()).traceparent == ""
    assert first == context_of(Call(metadata=(("traceparent", first),))).traceparent
    both = context_of(Call(metadata=(("traceparent", first), ("traceparent", second))))
    assert both.traceparent == "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b8-01"
    assert context_of(Call(metadata=(("traceparent", first), ("traceparent", "no context")))).traceparent == ""


def test_time_of_receipt() -> None:
    """The front names the time at which it received a forwarded call; elsewhere a caller could have written it."""
    metadata = (("gavel-peer", "1.2.3.4:5"), ("gavel-received", "17"))
    assert [17, 0] == [context_of(Call(metadata=metadata), behind_front=behind_front).received_ns for behind_front in (True, False)]
    assert context_of(Call(metadata=(("gavel-peer", "1.2.3.4:5"),)), behind_front=True).received_ns == 0
    assert context_of(Call(metadata=(("gavel-peer", "1.2.3.4:5"), ("gavel-received", "soon"))), behind_front=True).received_ns == 0
