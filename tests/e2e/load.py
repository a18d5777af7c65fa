"""Load: agents that propose as fast as they are answered, on few parcels, and a record of every answer."""

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
    """Agents and their answers. `facts` are the parcels' statuses by subject; every choice comes from `randomness`.

    Proposals conflict: for most an approval already holds the parcel, and some parcels are too heavy.
    """

    def __init__(self, randomness: random.Random, facts: Mapping[str, Envelope]) -> None:
        self.answers: dict[str, Envelope] = {}
        """The decision that answered a proposal, by the proposal's event_id."""
        self.unanswered: dict[str, Envelope] = {}
        """The proposals that were not answered with a decision, by event_id."""
        self.failures: list[GavelError] = []
        """The errors of failed calls."""
        self._sent: dict[str, Envelope] = {}
        self._randomness = randomness
        self._facts = facts
        self._subjects = sorted(facts)
        self._stopping = False
        self._agents: list[asyncio.Task[None]] = []
        self._waiters: list[tuple[int, asyncio.Event]] = []

    @property
    def approvals(self) -> list[Envelope]:
        """The approvals among the answers so far."""
        return [decision for decision in self.answers.values() if decision.decision.outcome == decision_pb2.OUTCOME_APPROVED]

    def start(self, clients: Iterable[GavelClient], sizes: Iterable[int] = BATCH_SIZES) -> None:
        """Start an agent for each client and batch size (1: SubmitProposal). It ends with its first failed call."""
        self._stopping = False
        sizes = tuple(sizes)
        self._agents += [asyncio.create_task(self._agent(client, size)) for client in clients for size in sizes]

    async def wait_for_answers(self, count: int) -> None:
        """Return once `count` more proposals are answered."""
        event = asyncio.Event()
        self._waiters.append((len(self.answers) + count, event))
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            await event.wait()

    async def stop(self) -> None:
        """Let every agent finish its current call, then end."""
        self._stopping = True
        await self.wait()

    async def wait(self) -> None:
        """Return once every agent has ended."""
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            await asyncio.gather(*self._agents)
        self._agents.clear()

    async def repeat(self, client: GavelClient, count: int) -> None:
        """Resubmit everything unanswered and `count` answered proposals; assert that the latter get the same answer."""
        for envelope in list(self.unanswered.values()):
            await self._submit(client, [envelope])
        for event_id in self._randomness.sample(sorted(self.answers), min(count, len(self.answers))):
            response = await client.submit_proposal(self._sent[event_id])
            assert self.answers[event_id] == response.decision

    def check(self, ledger: Ledger) -> None:
        """Assert that every answer is in the log, bit for bit."""
        assert self.answers == {event_id: ledger.first_decisions.get(event_id) for event_id in self.answers}

    async def _agent(self, client: GavelClient, size: int) -> None:
        while not self._stopping:
            envelopes = [self._propose() for _ in range(size)]
            for envelope in envelopes:
                self._sent[envelope.event_id] = self.unanswered[envelope.event_id] = envelope
            try:
                await self._submit(client, envelopes)
            except GavelError as error:
                self.failures.append(error)
                return

    def _propose(self) -> Envelope:
        fact = self._facts[self._randomness.choice(self._subjects)]
        return proposal(fact, self._randomness.choice((1.0, 2.5, 30.0, TOO_HEAVY)))

    async def _submit(self, client: GavelClient, envelopes: list[Envelope]) -> None:
        """Submit proposals and record the answers. Raises GavelError if one is not decided."""
        if len(envelopes) == 1:
            self._record(envelopes[0], (await client.submit_proposal(envelopes[0])).decision)
            return
        response = await client.batch_submit_proposals(envelopes)
        errors = [result.error for result in response.results if result.HasField("error")]
        for envelope, result in zip(envelopes, response.results, strict=True):
            if result.HasField("decision"):
                self._record(envelope, result.decision)
        if errors:
            raise GavelError.from_status(errors[0])

    def _record(self, envelope: Envelope, decision: Envelope) -> None:
        assert envelope.event_id == decision.decision.proposal_id
        del self.unanswered[envelope.event_id]
        self.answers[envelope.event_id] = decision
        for count, event in self._waiters:
            if len(self.answers) >= count:
                event.set()
