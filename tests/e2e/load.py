"""Load: agents that propose as fast as they are answered, on few parcels, and an exact account of what each of them heard."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping

from gavel.v1 import decision_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelClient, GavelError

from tests.e2e.ledger import Ledger
from tests.e2e.world import WAIT_SECONDS_MAX, proposal

BATCH_SIZES = (1, 1, 7, 25)
TOO_HEAVY = 100.0


class Load:
    """Agents and what they heard. `facts` are the parcels' statuses, by subject; every choice comes from `randomness`.

    Proposals fight for the parcels: most of them meet an approval that holds the parcel, some are too heavy.
    """

    def __init__(self, randomness: random.Random, facts: Mapping[str, Envelope]) -> None:
        self.heard: dict[str, Envelope] = {}
        """The decision that was answered, by the proposal's event_id."""
        self.unheard: dict[str, Envelope] = {}
        """The proposals that were sent and not answered with a decision."""
        self.failures: list[GavelError] = []
        """Why not."""
        self._sent: dict[str, Envelope] = {}
        self._randomness = randomness
        self._facts = facts
        self._subjects = sorted(facts)
        self._stopping = False
        self._agents: list[asyncio.Task[None]] = []
        self._waiting: list[tuple[int, asyncio.Event]] = []

    @property
    def approvals(self) -> list[Envelope]:
        """The decisions heard so far that approve."""
        return [decision for decision in self.heard.values() if decision.decision.outcome == decision_pb2.OUTCOME_APPROVED]

    def start(self, clients: Iterable[GavelClient], sizes: Iterable[int] = BATCH_SIZES) -> None:
        """Start an agent for each client and size of batch (1: by SubmitProposal). It ends with its first failed call."""
        self._stopping = False
        sizes = tuple(sizes)
        self._agents += [asyncio.create_task(self._agent(client, size)) for client in clients for size in sizes]

    async def hears(self, count: int) -> None:
        """Return once `count` more decisions were answered."""
        event = asyncio.Event()
        self._waiting.append((len(self.heard) + count, event))
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            await event.wait()

    async def stop(self) -> None:
        """Let every agent end with the call that it is making, whatever comes of that."""
        self._stopping = True
        await self.ended()

    async def ended(self) -> None:
        """Return once every agent has ended."""
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            await asyncio.gather(*self._agents)
        self._agents.clear()

    async def repeat(self, client: GavelClient, count: int) -> None:
        """Send again everything that went unheard, and some that was heard; what was heard must come back as it was."""
        for envelope in list(self.unheard.values()):
            await self._submit(client, [envelope])
        for event_id in self._randomness.sample(sorted(self.heard), min(count, len(self.heard))):
            response = await client.submit_proposal(self._sent[event_id])
            assert self.heard[event_id] == response.decision

    def check(self, ledger: Ledger) -> None:
        """Assert that every decision that was heard is in the log, to the last bit."""
        assert self.heard == {event_id: ledger.first_decisions.get(event_id) for event_id in self.heard}

    async def _agent(self, client: GavelClient, size: int) -> None:
        while not self._stopping:
            envelopes = [self._propose() for _ in range(size)]
            for envelope in envelopes:
                self._sent[envelope.event_id] = self.unheard[envelope.event_id] = envelope
            try:
                await self._submit(client, envelopes)
            except GavelError as error:
                self.failures.append(error)
                return

    def _propose(self) -> Envelope:
        fact = self._facts[self._randomness.choice(self._subjects)]
        return proposal(fact, self._randomness.choice((1.0, 2.5, 30.0, TOO_HEAVY)))

    async def _submit(self, client: GavelClient, envelopes: list[Envelope]) -> None:
        """Submit proposals; note what each was answered. Raises GavelError if one of them was not decided."""
        if len(envelopes) == 1:
            self._hear(envelopes[0], (await client.submit_proposal(envelopes[0])).decision)
            return
        response = await client.batch_submit_proposals(envelopes)
        errors = [result.error for result in response.results if result.HasField("error")]
        for envelope, result in zip(envelopes, response.results, strict=True):
            if result.HasField("decision"):
                self._hear(envelope, result.decision)
        if errors:
            raise GavelError.from_status(errors[0])

    def _hear(self, envelope: Envelope, decision: Envelope) -> None:
        assert envelope.event_id == decision.decision.proposal_id
        del self.unheard[envelope.event_id]
        self.heard[envelope.event_id] = decision
        for count, event in self._waiting:
            if len(self.heard) >= count:
                event.set()
