"""The proposal loop of an agent: propose, read the rejection, get the evidence it requires, propose again (constitution §5.6).

    rejected ─▶ retry_hint ─▶ providers (TOOL_CALL, TOOL_RESULT, OBSERVATION, or a FACT) ─▶ new proposal, caused by the rejection

Every rejection counts against its trace. The loop therefore proposes again only with new evidence for every row of the hint, with a
revision by the agent, or once a conflict key is free. Until then it waits for the end of the conflicting work; preflights, which do not
count, show whether the key is free. It ends at an approval, a terminal refusal, a review, or its own limits on proposals and time. The
result holds the reason and the history. The loop raises only GavelClientError, for failed calls and misused keys, and errors for invalid
arguments.

A run repeats nothing. The event_id of each further proposal derives from the rejection before it, and that of the first one is the
caller's or derives from `run_key`. A run that is repeated, in any process and at any time within the idempotency window, finds its
steps in the log, takes them as they are, and gets the same decision.

The only randomness is jitter from `seed`, by default the first proposal's event_id, which is in the log.
"""

from __future__ import annotations

import random
from typing import Final

from gavel.v1.envelope_pb2 import Envelope

from gavel_client.agents.deadline import Deadline
from gavel_client.agents.loop_results import LoopResult
from gavel_client.agents.loop_run import LoopRun, Revise
from gavel_client.agents.providers import FactProviders
from gavel_client.agents.run_ids import first_event_id
from gavel_client.agents.threaded_client import LoopClient, ThreadedClient
from gavel_client.blocking import run_blocking
from gavel_client.envelopes import new_event_id
from gavel_client.rpc.backoff import Backoff
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.sync import SyncGavelClient

PROPOSALS_MAX_DEFAULT: Final = 5
DEADLINE_MS_DEFAULT: Final = 60_000


class ProposalLoop:
    """Takes proposals to their final decisions. One loop may run any number of proposals, also concurrently.

    `providers` get the evidence that hints require; `revise` changes a proposal that the rules refused. `proposals_max` limits
    the proposals of one run, the first included, and `deadline_ms` its time. `backoff_initial_ms` and `backoff_maximum_ms` pace
    the pauses, in addition to `retry_hint.retry_after_ms`.
    """

    def __init__(
        self,
        client: GavelClient,
        providers: FactProviders,
        *,
        revise: Revise | None = None,
        proposals_max: int = PROPOSALS_MAX_DEFAULT,
        deadline_ms: int = DEADLINE_MS_DEFAULT,
        seed: int | str | None = None,
        backoff_initial_ms: int = 100,
        backoff_maximum_ms: int = 5_000,
    ) -> None:
        if isinstance(client, SyncGavelClient):
            raise TypeError("a SyncGavelClient would block the event loop; use SyncProposalLoop, or a GavelClient")
        if proposals_max < 1:
            raise ValueError(f"proposals_max is {proposals_max}; a loop makes at least one proposal")
        self._client: LoopClient = client
        self._providers = providers
        self._revise = revise
        self._proposals_max = proposals_max
        self._deadline_ms = _checked_deadline_ms(deadline_ms)
        self._seed = seed
        self._backoff_initial_ms = backoff_initial_ms
        self._backoff_maximum_ms = backoff_maximum_ms

    async def run(self, proposal: Envelope, *, run_key: str = "", deadline_ms: int | None = None) -> LoopResult:
        """Take one proposal (see `proposal_envelope`) to its final decision.

        `run_key` names the run among those of the proposal's producer, e.g. the id of a task; it replaces the proposal's event_id.
        Without it, the event_id names the run. A run that is repeated gets the decisions that are in the log, and continues if the
        last one allows it. `deadline_ms` limits the time of this run; default: that of the loop.

        Raises GavelError if the server refuses to decide the proposal (e.g. INVALID_ARGUMENT), RunKeyError if `run_key` names a run for
        other work, ValueError if the deadline is not positive. Transient errors are retried until the deadline.
        """
        deadline_ms = self._deadline_ms if deadline_ms is None else _checked_deadline_ms(deadline_ms)
        first = Envelope()
        first.CopyFrom(proposal)
        first.event_id = first_event_id(first.producer, run_key) if run_key else first.event_id or new_event_id()
        seed = first.event_id if self._seed is None else self._seed
        backoff = Backoff(self._backoff_initial_ms, 2.0, self._backoff_maximum_ms, random.Random(str(seed)))
        deadline = Deadline(deadline_ms, backoff)
        return await LoopRun(self._client, self._providers, self._revise, self._proposals_max, deadline, run_key).play(first)


class SyncProposalLoop:
    """The proposal loop for the synchronous client: for scripts, threads, notebooks and synchronous nodes of agent frameworks.

    Takes the arguments of ProposalLoop. Providers and `revise` may be plain functions, which run in threads. It also works in a thread
    that runs an event loop, which it blocks meanwhile.
    """

    def __init__(
        self,
        client: SyncGavelClient,
        providers: FactProviders,
        *,
        revise: Revise | None = None,
        proposals_max: int = PROPOSALS_MAX_DEFAULT,
        deadline_ms: int = DEADLINE_MS_DEFAULT,
        seed: int | str | None = None,
        backoff_initial_ms: int = 100,
        backoff_maximum_ms: int = 5_000,
    ) -> None:
        if isinstance(client, GavelClient):
            raise TypeError("a GavelClient belongs to an event loop; use ProposalLoop, or a SyncGavelClient")
        self._loop = ProposalLoop(
            ThreadedClient(client),  # type: ignore[arg-type]  # the calls that a loop makes
            providers,
            revise=revise,
            proposals_max=proposals_max,
            deadline_ms=deadline_ms,
            seed=seed,
            backoff_initial_ms=backoff_initial_ms,
            backoff_maximum_ms=backoff_maximum_ms,
        )

    def run(self, proposal: Envelope, *, run_key: str = "", deadline_ms: int | None = None) -> LoopResult:
        """Take one proposal to its final decision; see ProposalLoop.run. Waits for the threads of late providers."""
        return run_blocking(lambda: self._loop.run(proposal, run_key=run_key, deadline_ms=deadline_ms))


def _checked_deadline_ms(deadline_ms: int) -> int:
    if deadline_ms < 1:
        raise ValueError(f"deadline_ms is {deadline_ms}; it must be positive")
    return deadline_ms
