"""Mutated requests to the compiled path of a decision, in one process: `python -m tests.campaigns.mutations SEED COUNT`.

Valid proposals, alone and in batches, have fields and bytes changed, removed and repeated, and go to the methods that both transports
call. Each is answered or refused; an internal error ends the program with status 1. While some calls are under way, the log fails.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import sys
from collections.abc import Callable, Sequence
from typing import Final

import structlog
from gavel.v1 import error_pb2
from gavel.v1.arbitration_service_pb2 import (
    DESCRIPTOR,
    BatchPreflightRequest,
    BatchSubmitProposalsRequest,
    PreflightRequest,
    SubmitProposalRequest,
)
from gavel.v1.envelope_pb2 import Envelope
from gavel_server.bus.registry import BusRegistry
from gavel_server.bus.sequencer import Sequencer
from gavel_server.compile.compiler import Compiler
from gavel_server.errors import ServiceError
from gavel_server.log import LogUnavailableError
from gavel_server.rpc.callback_methods import Method, call
from gavel_server.rpc.interceptor import Interceptor
from gavel_server.services.arbitration import Arbitration
from google.protobuf.message import Message

from tests.support.calls import call_context
from tests.support.driver import BUS, event_id, proposal_envelope
from tests.support.simulation.servers import CountingLog, Servers, record_event, with_servers

AT_ONCE: Final = 16
EDITS_MAX: Final = 4
# The share of requests whose bytes are mutated; most of these are not messages of the contract.
BYTES_SHARE: Final = 0.2
OUTAGE_EVERY: Final = 20
ODD_TEXTS: Final = ("", " ", "\0", "\u202e", "x" * 5000, "order/1", "é", "1e999", "{}")
ODD_NUMBERS: Final = (math.nan, math.inf, -math.inf, -0.0, 1e308, 2.0**63, -1.0)
_SERVICE: Final = DESCRIPTOR.services_by_name["ArbitrationService"]


def mutate_fields(message: Message, randomness: random.Random) -> None:
    """Clear a field of the message or of a message in it, or give it an odd value."""
    fields = message.ListFields()
    if not fields:
        return
    field, value = randomness.choice(fields)
    if isinstance(value, Message) and randomness.random() < 0.8:
        mutate_fields(value, randomness)
    elif isinstance(value, str):
        setattr(message, field.name, randomness.choice(ODD_TEXTS))
    elif isinstance(value, float):
        setattr(message, field.name, randomness.choice(ODD_NUMBERS))
    elif isinstance(value, Sequence) and value and isinstance(value[0], Message):
        mutate_fields(randomness.choice(value), randomness)
    else:
        message.ClearField(field.name)


def mutate_bytes(data: bytes, randomness: random.Random) -> bytes:
    """Return the bytes with a few of them changed, removed, added or repeated."""
    edited = bytearray(data)
    for _ in range(randomness.randrange(1, EDITS_MAX + 1)):
        at = randomness.randrange(len(edited) + 1)
        length = randomness.choice((1, 1, 2, 8, 100))
        edit = randomness.randrange(4)
        if edit == 0:
            edited[at : at + length] = randomness.randbytes(length)
        elif edit == 1:
            del edited[at : at + length]
        elif edit == 2:
            edited[at:at] = randomness.randbytes(length)
        else:
            edited[at:at] = edited[at : at + length] * randomness.choice((1, 2, 50))
    return bytes(edited)


def request_of(fact: Envelope, randomness: random.Random) -> tuple[str, bytes]:
    """Return a method and a request for it, with new event_ids: valid, or with mutated fields or bytes."""

    def proposal() -> Envelope:
        envelope = proposal_envelope([fact], event_id=event_id(randomness.randrange(10**6, 10**9)))
        for _ in range(randomness.choice((0, 0, 1, 1, 3))):
            mutate_fields(envelope, randomness)
        return envelope

    batch = [proposal() for _ in range(randomness.choice((1, 3, 20)))]
    name, request = randomness.choice(
        (
            ("SubmitProposal", SubmitProposalRequest(envelope=batch[0]).SerializeToString()),
            ("Preflight", PreflightRequest(envelope=batch[0]).SerializeToString()),
            ("BatchSubmitProposals", BatchSubmitProposalsRequest(envelopes=batch).SerializeToString()),
            ("BatchPreflight", BatchPreflightRequest(envelopes=batch).SerializeToString()),
        )
    )
    return name, mutate_bytes(request, randomness) if randomness.random() < BYTES_SHARE else request


class Mutations:
    """A server on a log in memory, and mutated calls to it."""

    def __init__(self, methods: dict[str, Method], log: CountingLog, randomness: random.Random) -> None:
        self._methods = methods
        self._log = log
        self._randomness = randomness

    async def run(self, fact: Envelope, count: int) -> None:
        """Make the calls, a few at once. Raises AssertionError at an internal error."""
        for number in range(0, count, AT_ONCE):
            if number // AT_ONCE % OUTAGE_EVERY == 0:
                self._log.errors_before = [LogUnavailableError("the log is away") for _ in range(self._randomness.randrange(4))]
            calls = [self._call(*request_of(fact, self._randomness)) for _ in range(AT_ONCE)]
            for result in await asyncio.gather(*calls):
                internal = isinstance(result, ServiceError) and result.reason == error_pb2.ERROR_REASON_INTERNAL
                assert not internal, result

    async def _call(self, name: str, request: bytes) -> bytes | ServiceError:
        context = call_context(f"{_SERVICE.full_name}/{name}")
        return await call(self._methods[name], request, context)


def mutations(seed: int, count: int) -> Callable[[], None]:
    """Return a run of `count` calls with every choice from a seed."""

    @with_servers
    async def run(servers: Servers) -> None:
        sequencer, log = await servers.start_with_rules()
        fact = await record_event(sequencer, servers.fact())

        async def opened(_: str) -> Sequencer:
            return sequencer

        async def exists(_: str) -> bool:
            return True

        buses = BusRegistry(opened, exists)
        await buses.open(BUS)
        methods = Interceptor().intercept(_SERVICE, Arbitration(buses, Compiler()).methods)
        await Mutations(methods, log, random.Random(seed)).run(fact, count)
        await servers.prove()

    return run


def main(arguments: Sequence[str]) -> None:
    """Run the command line."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    seed, count = map(int, arguments)
    mutations(seed, count)()


if __name__ == "__main__":
    main(sys.argv[1:])
