"""Clients of a bus under faults: they propose, publish, claim, report, repeat themselves, read and follow, and record every call."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import grpc
from gavel.v1 import execution_pb2
from gavel.v1.common_pb2 import Producer, ProducerType
from gavel.v1.decision_pb2 import Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import Execution
from gavel_client import GavelClient, GavelError, execution_envelope, fact_envelope

from tests.campaigns.faults.history import OVER_BUDGET, History, claim_id, now
from tests.e2e.world import ACTION, DEPOT, Server, proposal, rule_set

# The weight that all approvals of a bus may have together.
WEIGHT_MAX: Final = 150.0
RULES: Final = (
    rule_set()
    .replace("gavel: v1", "gavel: v2")
    .replace(
        "rules:\n",
        f"counters:\n  sent: {{of: approvals, action: {ACTION}, sum: params.weight, window_ms: 86400000, keep: reserved}}\nrules:\n"
        f"  - {{id: budget, action: {ACTION}, priority: 900, when: history.sent() + params.weight > {WEIGHT_MAX}, effect: reject,"
        f" reason_code: {OVER_BUDGET}}}\n",
        1,
    )
)
SUBJECTS: Final = [f"parcel/{number}" for number in range(150)]
# A call of a campaign is short: what it does not answer in time counts as unanswered.
CALL_MS: Final = 3_000
PAUSE_SECONDS_MAX: Final = 0.04
# No lease ends before its campaign.
LEASE_MS: Final = 3_600_000
# A tail that a client reads begins at most so many events before the last one that it knows.
TAIL_EVENTS: Final = 60
# How many events a follower waits for before it records a read.
FOLLOWED_EVENTS: Final = 15
# Errors of a server that cannot answer now. Any other one is a finding.
_PASSING: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED}
)
# Refusals of a claim that follow from another claim.
_CLAIMED: Final = ("ALREADY_RUNNING", "ALREADY_FINISHED")

# A request: the id of its entry, and the call. The call returns the event; True if the answer does not show it, False if there is none.
Request = tuple[str, Callable[[GavelClient], Awaitable[Envelope | bool]]]


@dataclass
class Board:
    """The knowledge that the clients of one bus share."""

    bus: str
    facts: dict[str, Envelope]
    sent: list[Request] = field(default_factory=list)
    approved: list[str] = field(default_factory=list)
    claimed: list[tuple[str, str, str]] = field(default_factory=list)
    """Decision, attempt and executor of attempts that nobody has reported on."""
    started: set[str] = field(default_factory=set)
    """The decisions of all attempts."""
    last: int = 0
    """The largest number of an event that somebody was answered with."""
    calls: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)


class Caller:
    """One client of a bus, which does one call after the other at any of the servers."""

    def __init__(self, number: int, board: Board, servers: Sequence[Server], history: History, seed: str) -> None:
        self._number = number
        self._board = board
        self._history = history
        self._randomness = random.Random(f"{seed}/{number}")
        self._executor = Producer(type=ProducerType.PRODUCER_TYPE_EXECUTOR, id=f"courier-{number}")
        self._clients = [server.client(board.bus, tries_max=1) for server in servers]

    async def run(self, stopping: asyncio.Event) -> None:
        """Call until `stopping`, then close."""
        actions = (self._propose, self._publish, self._claim, self._report, self._repeat, self._read_tail, self._read_event)
        while not stopping.is_set():
            (action,) = self._randomness.choices(actions, (30, 6, 12, 12, 10, 14, 8))
            client = self._randomness.choice(self._clients)
            try:
                await action(client)
            except GavelError as error:
                self._board.calls[error.code.name] += 1
                if error.code not in _PASSING:
                    self._board.findings.append(f"{action.__name__.strip('_')}: {error}")
            else:
                self._board.calls["answered"] += 1
            await asyncio.sleep(self._randomness.uniform(0, PAUSE_SECONDS_MAX))
        for client in self._clients:
            await client.close()

    async def _propose(self, client: GavelClient) -> None:
        fact = self._board.facts[self._randomness.choice(SUBJECTS)]
        envelope = proposal(fact, self._randomness.choice((0.5, 1.0, 2.5, 100.0)))

        async def submit(client: GavelClient) -> Envelope:
            return (await client.submit_proposal(envelope, timeout_ms=CALL_MS)).decision

        decision = await self._write(client, (envelope.event_id, submit))
        if isinstance(decision, Envelope) and decision.decision.outcome == Outcome.Value("OUTCOME_APPROVED"):
            self._board.approved.append(decision.event_id)

    async def _publish(self, client: GavelClient) -> None:
        envelope = fact_envelope("depot/note", DEPOT, key="depot.note", value=self._randomness.random())

        async def publish(client: GavelClient) -> Envelope:
            return (await client.publish_event(envelope, timeout_ms=CALL_MS)).envelope

        await self._write(client, (envelope.event_id, publish))

    async def _claim(self, client: GavelClient) -> None:
        """Claim an approval, which another client may claim at the same time."""
        if not self._board.approved:
            return
        decision_id = self._board.approved[-1]
        request_id = str(uuid.uuid4())

        async def begin(client: GavelClient) -> bool:
            called = now()
            try:
                response = await client.begin_execution(
                    decision_id, producer=self._executor, lease_ms=LEASE_MS, request_id=request_id, timeout_ms=CALL_MS
                )
            except GavelError as error:
                if error.reason != "WRONG_STATE":
                    raise
                # The request was answered before, and its attempt has ended.
                self._history.add_refused_claim(self._number, self._board.bus, decision_id, called)
                return False
            if response.WhichOneof("result") == "refusal":
                if response.refusal.reason_code in _CLAIMED:
                    self._history.add_refused_claim(self._number, self._board.bus, decision_id, called)
                return False
            if decision_id not in self._board.started:
                self._board.started.add(decision_id)
                self._board.claimed.append((decision_id, response.started.execution_id, self._executor.id))
            return True

        await self._write(client, (claim_id(decision_id, self._executor.id), begin))
        if decision_id in self._board.approved:
            self._board.approved.remove(decision_id)

    async def _report(self, client: GavelClient) -> None:
        if not self._board.claimed:
            return
        decision_id, execution_id, executor = self._board.claimed.pop(self._randomness.randrange(len(self._board.claimed)))
        execution = Execution(decision_id=decision_id, execution_id=execution_id, status=execution_pb2.EXECUTION_STATUS_SUCCESS)
        producer = Producer(type=ProducerType.PRODUCER_TYPE_EXECUTOR, id=executor)
        envelope = execution_envelope("", producer, execution, event_id=str(uuid.uuid4()))

        async def report(client: GavelClient) -> Envelope:
            return (await client.report_execution(envelope, timeout_ms=CALL_MS)).envelope

        await self._write(client, (envelope.event_id, report))

    async def _repeat(self, client: GavelClient) -> None:
        """Send a request again: it was answered, or nobody knows what became of it."""
        if self._board.sent:
            await self._write(client, self._randomness.choice(self._board.sent), is_new=False)

    async def _write(self, client: GavelClient, request: Request, *, is_new: bool = True) -> Envelope | bool:
        entry_id, call = request
        board = self._board
        if is_new:
            self._history.announce_write(board.bus, entry_id)
            board.sent.append(request)
        called = now()
        try:
            event = await call(client)
        except GavelError:
            self._history.add_write(self._number, board.bus, entry_id, called, answered=False)
            raise
        if isinstance(event, Envelope):
            self._history.add_write(self._number, board.bus, entry_id, called, event)
            board.last = max(board.last, event.sequence_number)
        elif event:
            self._history.add_write(self._number, board.bus, entry_id, called)
        return event

    async def _read_tail(self, client: GavelClient) -> None:
        after = max(0, self._board.last - self._randomness.randrange(TAIL_EVENTS))
        called = now()
        page = await client.list_events(from_sequence_number=after + 1, page_size=1000, timeout_ms=CALL_MS)
        self._history.add_read(self._number, self._board.bus, called, after, page.envelopes, complete=not page.next_page_token)

    async def _read_event(self, client: GavelClient) -> None:
        if self._board.last:
            number = self._randomness.randint(1, self._board.last)
            called = now()
            event = (await client.get_event(sequence_number=number, timeout_ms=CALL_MS)).envelope
            self._history.add_read(self._number, self._board.bus, called, number - 1, [event], complete=False)


async def follow(number: int, board: Board, servers: Sequence[Server], history: History, stopping: asyncio.Event) -> None:
    """Follow the log of a bus from the events that are known now, at one server after the other, until `stopping`."""
    last = board.last
    turn = 0
    while not stopping.is_set():
        turn += 1
        async with servers[turn % len(servers)].client(board.bus, tries_max=1) as client:
            events: list[Envelope] = []
            called = now()
            try:
                async for item in client.subscribe_events(from_sequence_number=last + 1):
                    if item.WhichOneof("item") == "envelope":
                        events.append(item.envelope)
                    if len(events) >= FOLLOWED_EVENTS or stopping.is_set():
                        history.add_read(number, board.bus, called, last, events, complete=False)
                        last, events, called = last + len(events), [], now()
                    if stopping.is_set():
                        break
            except GavelError as error:
                if error.code not in _PASSING:
                    board.findings.append(f"follow: {error}")
            if [last + 1 + index for index in range(len(events))] != [event.sequence_number for event in events]:
                board.findings.append(f"a follower of {board.bus} got {[event.sequence_number for event in events]} after {last}")
            await asyncio.sleep(PAUSE_SECONDS_MAX)
