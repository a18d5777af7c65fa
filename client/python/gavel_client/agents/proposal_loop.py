"""The proposal loop of an agent: propose, read the rejection, get the evidence it requires, propose again (constitution §5.6).

    rejected ─▶ retry_hint ─▶ providers (TOOL_CALL, TOOL_RESULT, OBSERVATION, or a FACT) ─▶ new proposal, caused by the rejection

Every rejection counts against its trace. The loop therefore proposes again only with new evidence for every row of the hint, with
a revision by the agent, or once a conflict key may be free, which it learns by preflights, which are not counted. It ends at an
approval, a terminal refusal, a review, or its own limits on proposals and time. The result holds the reason and the history. The
loop raises only GavelError, for failed calls, and errors for invalid arguments.

The only randomness is jitter from `seed`, by default the first proposal's event_id, which is in the log.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypedDict

import grpc
from gavel.v1.decision_pb2 import (
    FACT_REQUIREMENT_STATE_SUPERSEDED,
    OUTCOME_APPROVED,
    OUTCOME_NEEDS_HUMAN_REVIEW,
    OUTCOME_REJECTED,
    Decision,
)
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.projection_service_pb2 import GetProjectionResponse, ProjectedFact, ProjectedObservation, Projection
from gavel.v1.proposal_pb2 import Proposal
from google.protobuf.struct_pb2 import Struct

from gavel_client.agents.citations import Citations, is_repetition
from gavel_client.agents.deadline import Deadline, call_function
from gavel_client.agents.evidence_collection import EvidenceCollector
from gavel_client.agents.loop_results import LoopResult, LoopStoppedError, Round, StopReason
from gavel_client.agents.providers import FactProviders
from gavel_client.agents.threaded_client import LoopClient, ThreadedClient
from gavel_client.envelopes import new_event_id
from gavel_client.rpc.backoff import Backoff
from gavel_client.rpc.calls import READ_TIMEOUT_MS
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.errors import GavelError
from gavel_client.rpc.paging import whole_projection
from gavel_client.rpc.sync import SyncGavelClient

if TYPE_CHECKING:
    from typing_extensions import Unpack

PROPOSALS_MAX_DEFAULT: Final = 5
DEADLINE_MS_DEFAULT: Final = 60_000

# Reason codes of refusals by what can mend them: other citations, a newer projection, or the end of a conflict.
EVIDENCE_REASONS: Final = frozenset(
    {"NO_FACT_INPUT", "NEED_MORE_FACTS", "FACT_TYPE_MISMATCH", "INSUFFICIENT_EVIDENCE_TIER", "STALE_FACTS", "FACT_SUPERSEDED"}
)
PROJECTION_REASON: Final = "PROJECTION_CHANGED"
DUPLICATE_REASON: Final = "DUPLICATE_PROPOSAL"
CONFLICT_REASONS: Final = frozenset({"CONFLICTING_DECISION", "OUTRANKED"})

# An agent's answer to a refusal that evidence cannot mend. Takes the last proposal and its decision; returns the next proposal, or None
# to give up.
Revise = Callable[[Envelope, Envelope], Awaitable[Proposal | None] | Proposal | None]


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
        if deadline_ms < 1:
            raise ValueError(f"deadline_ms is {deadline_ms}; it must be positive")
        self._client: LoopClient = client
        self._providers = providers
        self._revise = revise
        self._proposals_max = proposals_max
        self._deadline_ms = deadline_ms
        self._seed = seed
        self._backoff_initial_ms = backoff_initial_ms
        self._backoff_maximum_ms = backoff_maximum_ms

    async def run(self, proposal: Envelope) -> LoopResult:
        """Take one proposal (see `proposal_envelope`) to its final decision.

        Raises GavelError if the server refuses to decide it (e.g. INVALID_ARGUMENT). Transient errors are retried until the
        deadline.
        """
        first = Envelope()
        first.CopyFrom(proposal)
        first.event_id = first.event_id or new_event_id()
        seed = first.event_id if self._seed is None else self._seed
        backoff = Backoff(self._backoff_initial_ms, 2.0, self._backoff_maximum_ms, random.Random(str(seed)))
        deadline = Deadline(self._deadline_ms, backoff)
        return await _Run(self._client, self._providers, self._revise, self._proposals_max, deadline).play(first)


class LoopSettings(TypedDict, total=False):
    """The arguments of ProposalLoop except client and providers."""

    revise: Revise | None
    proposals_max: int
    deadline_ms: int
    seed: int | str | None
    backoff_initial_ms: int
    backoff_maximum_ms: int


class SyncProposalLoop:
    """The proposal loop for the synchronous client, for threads and scripts. Takes the arguments of ProposalLoop.

    Providers and `revise` may be plain functions, which run in threads. Do not use it inside a running event loop.
    """

    def __init__(self, client: SyncGavelClient, providers: FactProviders, **settings: Unpack[LoopSettings]) -> None:
        if isinstance(client, GavelClient):
            raise TypeError("a GavelClient belongs to an event loop; use ProposalLoop, or a SyncGavelClient")
        self._loop = ProposalLoop(ThreadedClient(client), providers, **settings)  # type: ignore[arg-type]  # the five calls that a loop makes

    def run(self, proposal: Envelope) -> LoopResult:
        """Take one proposal to its final decision; see ProposalLoop.run. Waits for the threads of late providers."""
        return asyncio.run(self._loop.run(proposal))


class _Run:
    """One run of a loop."""

    def __init__(
        self,
        client: LoopClient,
        providers: FactProviders,
        revise: Revise | None,
        proposals_max: int,
        deadline: Deadline,
    ) -> None:
        self._client = client
        self._providers = providers
        self._revise = revise
        self._proposals_max = proposals_max
        self._deadline = deadline
        self._rounds: list[Round] = []
        self._examined: set[str] = set()
        self._joined = 0

    async def play(self, proposal: Envelope) -> LoopResult:
        self._citations = Citations(proposal.proposal.based_on_events)
        try:
            while True:
                proposal = await self._play_round(proposal)
        except LoopStoppedError as stop:
            return LoopResult(stop.reason, stop.detail, tuple(self._rounds))

    async def _play_round(self, proposal: Envelope) -> Envelope:
        """Submit one proposal; return the next one. Raises LoopStoppedError at the end of the loop."""
        current = Round(proposal)
        self._rounds.append(current)
        response = await self._deadline.call(
            lambda: self._client.submit_proposal(proposal, timeout_ms=self._deadline.call_ms(DEADLINE_MS_DEFAULT))
        )
        current.decision = response.decision
        decision = response.decision.decision
        _stop_if_final(decision)
        next_proposal = Envelope()
        next_proposal.CopyFrom(proposal)
        next_proposal.event_id = new_event_id()
        next_proposal.ClearField("occurred_at")
        next_proposal.trace_id = response.decision.trace_id
        next_proposal.causation_id = response.decision.event_id
        if await self._join(decision, next_proposal):
            return next_proposal
        if len(self._rounds) - self._joined == self._proposals_max:
            raise LoopStoppedError(
                StopReason.BUDGET, f"{self._proposals_max} proposals were made, the last one refused with {decision.reason_code}"
            )
        await self._respond(current, decision, next_proposal)
        return next_proposal

    async def _respond(self, current: Round, decision: Decision, next_proposal: Envelope) -> None:
        """Meet the requirements of a rejection in `next_proposal`."""
        if decision.reason_code in CONFLICT_REASONS:
            await self._wait_until_free(current, decision.retry_hint.retry_after_ms, next_proposal)
            return
        if decision.reason_code == DUPLICATE_REASON and await self._resume(decision, next_proposal):
            return
        needs_revision = decision.reason_code not in EVIDENCE_REASONS
        if needs_revision and self._revise is None:
            raise LoopStoppedError(StopReason.NEEDS_REVISION, f"refused with {decision.reason_code}, and the loop has no revise function")
        progress = await self._collect(current, decision, next_proposal)
        if needs_revision:
            progress = await self._apply_revision(current, next_proposal)
        self._citations.cite_in(next_proposal.proposal)
        # A proposal with the same fingerprint would be refused as a duplicate, unless only the projection was outdated.
        unchanged = is_repetition(next_proposal, current.proposal)
        if (unchanged and decision.reason_code != PROJECTION_REASON) or not progress:
            raise LoopStoppedError(StopReason.NO_PROGRESS, f"refused with {decision.reason_code}, and there is no new evidence or revision")

    async def _collect(self, current: Round, decision: Decision, next_proposal: Envelope) -> bool:
        """Collect and cite the evidence that the hint requires; return whether any of it is new."""
        rows = [row for row in decision.retry_hint.fact_requirements if row.state != FACT_REQUIREMENT_STATE_SUPERSEDED]
        needs, unmet = self._providers.assign(rows, next_proposal.trace_id, next_proposal.causation_id)
        if unmet:
            missing = ", ".join(f"{row.key} of {row.subject}" for row in unmet)
            raise LoopStoppedError(StopReason.NO_PROVIDER, f"no provider suits {missing}")
        if decision.retry_hint.retry_after_ms:
            await self._deadline.pause(current, self._deadline.backoff.pause_ms(1, decision.retry_hint.retry_after_ms))
        progress = False
        for event in await EvidenceCollector(self._client, self._deadline, current, next_proposal).collect(needs):
            progress = self._citations.add_event(event) or progress
        return await self._cite_projection(decision, next_proposal.subject) or progress

    async def _join(self, decision: Decision, next_proposal: Envelope) -> bool:
        """Replace `next_proposal` by a proposal of the same work that the refusal names; return whether there is one.

        Submitted again under its own event_id, that proposal returns its decision or waits for it.
        """
        for proposal_id in decision.conflict_with_proposal_ids:
            if proposal_id in self._examined:
                continue
            self._examined.add(proposal_id)
            recorded = await self._get_event(proposal_id)
            if recorded is not None and _work(recorded) == _work(next_proposal):
                self._joined += 1
                next_proposal.CopyFrom(recorded)
                for field in ("sequence_number", "recorded_at", "chain_hash"):
                    next_proposal.ClearField(field)
                next_proposal.proposal.ClearField("contest")
                return True
        return False

    async def _get_event(self, event_id: str) -> Envelope | None:
        """Return an event; None if the bus no longer remembers its id."""
        try:
            response = await self._deadline.call(
                lambda: self._client.get_event(event_id=event_id, timeout_ms=self._deadline.call_ms(READ_TIMEOUT_MS))
            )
        except GavelError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise
            return None
        return response.envelope

    async def _resume(self, decision: Decision, next_proposal: Envelope) -> bool:
        """Continue an interrupted run of this trace with its uncited evidence; return whether that can help."""
        if not await self._cite_projection(decision, next_proposal.subject):
            return False
        self._citations.cite_in(next_proposal.proposal)
        preflight = await self._preflight(next_proposal)
        return preflight.outcome == OUTCOME_APPROVED or preflight.reason_code in EVIDENCE_REASONS | CONFLICT_REASONS

    async def _apply_revision(self, current: Round, next_proposal: Envelope) -> bool:
        """Let the agent revise its proposal; return whether it changed."""
        if self._revise is None or current.decision is None:
            return False
        proposal = await self._deadline.within(call_function(self._revise, current.proposal, current.decision))
        if proposal is None:
            reason_code = current.decision.decision.reason_code
            raise LoopStoppedError(StopReason.NEEDS_REVISION, f"refused with {reason_code}, and the agent gave up")
        if not isinstance(proposal, Proposal):
            raise TypeError(f"revise returned {type(proposal).__name__}; return a Proposal, or None to give up")
        changed = proposal != current.proposal.proposal
        next_proposal.proposal.CopyFrom(proposal)
        self._citations.replace_agent_citations(proposal.based_on_events)
        return changed

    async def _cite_projection(self, decision: Decision, subject: str) -> bool:
        """Cite the projection's newer versions of outdated or missing citations; return whether any is new."""
        rows = [row for row in decision.retry_hint.fact_requirements if row.state == FACT_REQUIREMENT_STATE_SUPERSEDED]
        uncited = decision.reason_code in ("NO_FACT_INPUT", DUPLICATE_REASON)
        required = {(row.subject, row.key) for row in rows}
        progress = False
        for one in dict.fromkeys([row.subject for row in rows] + [subject] * uncited):
            projection = await self._projection(one)
            projected: list[ProjectedFact | ProjectedObservation] = [*projection.facts, *projection.observations]
            for row in projected:
                if (one, row.key) in required or (uncited and one == subject):
                    progress = self._citations.add(row.source_event, [(one, row.key, row.source_event.event_id)]) or progress
        return progress

    async def _projection(self, subject: str) -> Projection:
        async def read(page_token: str = "") -> GetProjectionResponse:
            return await self._deadline.call(
                lambda: self._client.get_projection(subject, page_token=page_token, timeout_ms=self._deadline.call_ms(READ_TIMEOUT_MS))
            )

        return (await whole_projection(read)).projection

    async def _wait_until_free(self, current: Round, retry_after_ms: int, next_proposal: Envelope) -> None:
        """Wait until a preflight no longer meets a conflict, because a proposal would count as another rejection.

        A preflight checks the evidence before the conflict key. Evidence that is too old by then is collected again.
        """
        failures = 0
        while True:
            failures += 1
            await self._deadline.pause(current, self._deadline.backoff.pause_ms(failures, retry_after_ms))
            preflight = await self._preflight(next_proposal)
            if preflight.reason_code in EVIDENCE_REASONS and await self._collect(current, preflight, next_proposal):
                self._citations.cite_in(next_proposal.proposal)
                preflight = await self._preflight(next_proposal)
            if await self._join(preflight, next_proposal) or preflight.reason_code not in CONFLICT_REASONS:
                return
            retry_after_ms = preflight.retry_hint.retry_after_ms

    async def _preflight(self, next_proposal: Envelope) -> Decision:
        response = await self._deadline.call(
            lambda: self._client.preflight(next_proposal, timeout_ms=self._deadline.call_ms(READ_TIMEOUT_MS))
        )
        return response.decision


def _work(proposal: Envelope) -> tuple[str, str, str, Struct]:
    """Return the identity of a proposal's work."""
    return proposal.trace_id, proposal.subject, proposal.proposal.action_type, proposal.proposal.params


def _stop_if_final(decision: Decision) -> None:
    """Raise LoopStoppedError unless the decision is a retryable refusal."""
    if decision.outcome == OUTCOME_APPROVED:
        raise LoopStoppedError(StopReason.APPROVED, "approved")
    if decision.outcome == OUTCOME_NEEDS_HUMAN_REVIEW or decision.reason_code == "UNDER_REVIEW":
        raise LoopStoppedError(StopReason.REVIEW, f"a person has to decide: {decision.reason_code}")
    if decision.terminal:
        raise LoopStoppedError(StopReason.TERMINAL, f"no proposal can succeed in the present state: {decision.reason_code}")
    if decision.outcome != OUTCOME_REJECTED or not decision.retry_hint.retryable:
        raise LoopStoppedError(StopReason.NOT_RETRYABLE, f"another try cannot help: {decision.reason_code}")
