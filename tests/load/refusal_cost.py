"""The cost of a refused call: from the frame of the native front to the frame of the status, without gRPC, core or Redis.

    .venv/bin/python -m tests.load.refusal_cost --calls 20000 invalid

prints the processor time per call, in which both ends of the link are included. Under `valgrind --tool=callgrind`, the difference of two
runs with different counts gives instructions per call, which do not depend on other load.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import time
from pathlib import Path
from typing import Final

import gavel_server
from gavel.v1.arbitration_service_pb2 import BatchSubmitProposalsRequest, SubmitProposalRequest
from gavel.v1.common_pb2 import PRODUCER_TYPE_EXECUTOR
from gavel.v1.envelope_pb2 import Envelope
from gavel_server.bus.registry import BusRegistry
from gavel_server.bus.sequencer import Sequencer
from gavel_server.compile.compiler import Compiler
from gavel_server.front.backend import Backend
from gavel_server.front.frames import METHODS, NO_DEADLINE, REQUEST_HEADER
from gavel_server.front.link import Link
from gavel_server.process.garbage_collection import collect_less
from gavel_server.process.logging import Logging
from gavel_server.rpc.interceptor import Interceptor
from gavel_server.rpc.service_descriptors import ARBITRATION
from gavel_server.services.arbitration import Arbitration

PEER: Final = b"192.0.2.1:50000"
# Calls that arrive in one read of the link.
CALLS_AT_ONCE: Final = 100


def requests() -> dict[str, tuple[str, bytes]]:
    """Return requests that are refused, by name: the method and the message."""
    invalid = Envelope(event_id="no uuid")
    invalid.proposal.action_type = "no action"
    forbidden = Envelope()
    forbidden.proposal.action_type = "refund"
    forbidden.producer.id, forbidden.producer.type = "executor-1", PRODUCER_TYPE_EXECUTOR
    return {
        "malformed": ("SubmitProposal", b"\xff\xff\xff"),
        "empty": ("SubmitProposal", b""),
        "invalid": ("SubmitProposal", SubmitProposalRequest(envelope=invalid).SerializeToString()),
        "forbidden": ("SubmitProposal", SubmitProposalRequest(envelope=forbidden).SerializeToString()),
        "batch": ("BatchSubmitProposals", BatchSubmitProposalsRequest(envelopes=[invalid] * 50).SerializeToString()),
    }


class Front:
    """The front's end of the link, which sends calls and counts their answers."""

    def __init__(self) -> None:
        self._missing = 0
        self._complete = asyncio.Event()
        self._link: Link | None = None

    async def connect(self, end: socket.socket) -> None:
        """Take the front's end of the socket pair."""
        loop = asyncio.get_running_loop()
        _, self._link = await loop.create_unix_connection(lambda: Link(self._take, self._complete.set), sock=end)

    async def call(self, method: str, message: bytes) -> None:
        """Send CALLS_AT_ONCE calls, and wait for their answers."""
        assert self._link is not None
        self._complete.clear()
        self._missing = CALLS_AT_ONCE
        caller = bytes([len(PEER)]) + PEER
        content = REQUEST_HEADER.pack(len(caller), NO_DEADLINE, 0, 0) + caller + message
        for number in range(CALLS_AT_ONCE):
            self._link.send(METHODS.index(method), number, content)
        await self._complete.wait()
        assert not self._missing

    def _take(self, _: int, __: int, ___: bytes) -> None:
        self._missing -= 1
        if not self._missing:
            self._complete.set()


async def measure(method: str, message: bytes, calls: int) -> float:
    """Refuse calls; return the microseconds of one."""

    async def no_bus(_: str) -> Sequencer:
        raise AssertionError("a refused call opens no bus")

    async def exists(_: str) -> bool:
        return False

    arbitration = Arbitration(BusRegistry(no_bus, exists), Compiler())
    backend, front = Backend(Interceptor().intercept(ARBITRATION, arbitration.methods)), Front()
    own_end, front_end = socket.socketpair()
    await backend.connect(own_end)
    await front.connect(front_end)
    rounds = calls // CALLS_AT_ONCE
    started_s = time.process_time()
    for _ in range(rounds):
        await front.call(method, message)
    return (time.process_time() - started_s) / (rounds * CALLS_AT_ONCE) * 1_000_000


def main() -> int:
    """Refuse calls of each kind that is named, and print the cost of one."""
    known = requests()
    parser = argparse.ArgumentParser(description="Measure the cost of a refused call in the server.")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"{', '.join(known)} (default: all)")
    parser.add_argument("--calls", type=int, default=20_000, help="how many calls of each kind to refuse (default: 20,000)")
    options = parser.parse_args()
    logging = Logging(level="info", as_json=True)
    logging.start()
    collect_less()  # as a server does
    for kind in options.kinds or known:
        method, message = known[kind]
        print(f"{kind}: {asyncio.run(measure(method, message, options.calls)):.1f} µs per call, {Path(gavel_server.__file__).parent}")
    logging.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
