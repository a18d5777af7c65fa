"""The loop of an agent: propose, read the rejection, get what it names, propose again (seeds 002 §5.6).

    rejected ─▶ retry_hint ─▶ providers (TOOL_CALL, TOOL_RESULT, OBSERVATION, or a FACT) ─▶ new proposal, caused by the rejection

The loop never goes round without progress, because every rejection counts against its trace: it proposes again only with new
evidence for everything that the hint names, with a proposal that the agent has revised, or once a conflict key may be free,
which it learns by preflights, which count for nothing. It ends at an approval, a terminal refusal, a review, and at limits
of its own: so many proposals, so much time. Why it ended, and everything that happened, is in its result; nothing is raised
but what the server or the way to it could not do (GavelError), and mistakes of the caller's.

All chance is jitter from `seed`; without one, from the first proposal's event_id, which is in the log.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypedDict, Unpack

import grpc
from gavel.v1.decision_pb2 import (
    FACT_REQUIREMENT_STATE_SUPERSEDED,
    OUTCOME_APPROVED,
    OUTCOME_NEEDS_HUMAN_REVIEW,
    OUTCOME_REJECTED,
    Decision,
)
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.projection_service_pb2 import ProjectedFact, ProjectedObservation, Projection
from gavel.v1.proposal_pb2 import Proposal
from gavel_rules.fingerprint import fingerprint
from gavel_rules.proposed import Proposed
from google.protobuf.struct_pb2 import Struct

from gavel_client.backoff import Backoff
from gavel_client.calls import READ_TIMEOUT_MS
from gavel_client.citations import Citations
from gavel_client.client import GavelClient
from gavel_client.consultation import Consultation
from gavel_client.envelopes import new_event_id
from gavel_client.errors import GavelError
from gavel_client.loop_results import LoopResult, LoopStoppedError, Round, StopReason
from gavel_client.patience import Patience, called
from gavel_client.providers import FactProviders
from gavel_client.sync import SyncGavelClient
from gavel_client.threaded import AgentCalls, ThreadedClient

PROPOSALS_MAX_DEFAULT: Final = 5
DEADLINE_MS_DEFAULT: Final = 60_000

# Refusals by stages that only other citations can pass, and those that only time can.
_OF_EVIDENCE: Final = frozenset(
    {"NO_FACT_INPUT", "NEED_MORE_FACTS", "FACT_TYPE_MISMATCH", "INSUFFICIENT_EVIDENCE_TIER", "STALE_FACTS", "FACT_SUPERSEDED"}
)
_OF_PROJECTION: Final = "PROJECTION_CHANGED"
_OF_REPETITION: Final = "DUPLICATE_PROPOSAL"
_OF_CONFLICT: Final = frozenset({"CONFLICTING_DECISION", "OUTRANKED"})

# What an agent makes of a refusal that evidence cannot help: its last proposal and the decision on it. It returns what to
# propose instead, or None to give up.
Revise = Callable[[Envelope, Envelope], Awaitable[Proposal | None] | Proposal | None]


class ProposalLoop:
    """Plays proposals until they are decided for good; one may play any number, also at the same time.

    `providers` get what hints name; `revise` changes a proposal that the rules refused. `proposals_max` counts the proposals of
    one run, the first included; `deadline_ms` bounds its time. `backoff_initial_ms` and `backoff_maximum_ms` pace waiting,
    on top of what `retry_hint.retry_after_ms` advises.
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
            raise TypeError("a SyncGavelClient would hold up the event loop; use SyncProposalLoop, or a GavelClient")
        if proposals_max < 1:
            raise ValueError(f"proposals_max is {proposals_max}; a loop makes at least one proposal")
        if deadline_ms < 1:
            raise ValueError(f"deadline_ms is {deadline_ms}; it must be positive")
        self._client: AgentCalls = client
        self._providers = providers
        self._revise = revise
        self._proposals_max = proposals_max
        self._deadline_ms = deadline_ms
        self._seed = seed
        self._backoff_initial_ms = backoff_initial_ms
        self._backoff_maximum_ms = backoff_maximum_ms

    async def run(self, proposal: Envelope) -> LoopResult:
        """Play one proposal (see `proposal_envelope`) to its end.

        Raises GavelError if the server refuses to decide it (e.g. INVALID_ARGUMENT); what may heal is repeated until the deadline.
        """
        first = Envelope()
        first.CopyFrom(proposal)
        first.event_id = first.event_id or new_event_id()
        seed = first.event_id if self._seed is None else self._seed
        backoff = Backoff(self._backoff_initial_ms, 2.0, self._backoff_maximum_ms, random.Random(str(seed)))
        patience = Patience(self._deadline_ms, backoff)
        return await _Run(self._client, self._providers, self._revise, self._proposals_max, patience).play(first)


class LoopSettings(TypedDict, total=False):
    """What ProposalLoop takes besides its client and providers."""

    revise: Revise | None
    proposals_max: int
    deadline_ms: int
    seed: int | str | None
    backoff_initial_ms: int
    backoff_maximum_ms: int


class SyncProposalLoop:
    """The same for the blocking client, from threads and scripts; takes the arguments of ProposalLoop.

    Providers and `revise` may be plain functions; they run in threads. Not for use where an event loop runs already.
    """

    def __init__(self, client: SyncGavelClient, providers: FactProviders, **settings: Unpack[LoopSettings]) -> None:
        if isinstance(client, GavelClient):
            raise TypeError("a GavelClient belongs to an event loop; use ProposalLoop, or a SyncGavelClient")
        self._loop = ProposalLoop(ThreadedClient(client), providers, **settings)  # type: ignore[arg-type]  # the five calls that a loop makes

    def run(self, proposal: Envelope) -> LoopResult:
        """Play one proposal to its end; see ProposalLoop.run. A provider's thread that is late is waited for."""
        return asyncio.run(self._loop.run(proposal))


class _Run:
    """One run of a loop."""

    def __init__(
        self,
        client: AgentCalls,
        providers: FactProviders,
        revise: Revise | None,
        proposals_max: int,
        patience: Patience,
    ) -> None:
        self._client = client
        self._providers = providers
        self._revise = revise
        self._proposals_max = proposals_max
        self._patience = patience
        self._rounds: list[Round] = []
        self._looked_at: set[str] = set()
        self._joined = 0

    async def play(self, proposal: Envelope) -> LoopResult:
        self._citations = Citations(proposal.proposal.based_on_events)
        try:
            while True:
                proposal = await self._round(proposal)
        except LoopStoppedError as stop:
            return LoopResult(stop.reason, stop.detail, tuple(self._rounds))

    async def _round(self, proposal: Envelope) -> Envelope:
        """Submit one proposal; return the next one."""
        current = Round(proposal)
        self._rounds.append(current)
        submitted = await self._patience.judged(
            lambda: self._client.submit_proposal(proposal, timeout_ms=self._patience.call_ms(DEADLINE_MS_DEFAULT))
        )
        current.decision = submitted.decision
        decision = submitted.decision.decision
        _stop_if_over(decision)
        again = Envelope()
        again.CopyFrom(proposal)
        again.event_id = new_event_id()
        again.ClearField("occurred_at")
        again.trace_id = submitted.decision.trace_id
        again.causation_id = submitted.decision.event_id
        if await self._joins(decision, again):
            return again
        if len(self._rounds) - self._joined == self._proposals_max:
            raise LoopStoppedError(
                StopReason.BUDGET, f"{self._proposals_max} proposals were made, the last one refused with {decision.reason_code}"
            )
        await self._answer(current, decision, again)
        return again

    async def _answer(self, current: Round, decision: Decision, again: Envelope) -> None:
        """Do what the rejection asks for, and put it into the next proposal."""
        if decision.reason_code in _OF_CONFLICT:
            await self._until_free(current, decision.retry_hint.retry_after_ms, again)
            return
        if decision.reason_code == _OF_REPETITION and await self._resumed(decision, again):
            return
        revised = decision.reason_code not in _OF_EVIDENCE
        if revised and self._revise is None:
            raise LoopStoppedError(
                StopReason.NEEDS_REVISION, f"refused with {decision.reason_code}, and nothing was given to revise the proposal"
            )
        progress = await self._fetched(current, decision, again)
        if revised:
            progress = await self._revised(current, again)
        self._citations.cite_in(again.proposal)
        # What the log takes for the same proposal would be refused as a duplicate, unless only the projection was at fault.
        same = decision.reason_code != _OF_PROJECTION and fingerprint(Proposed(again)) == fingerprint(Proposed(current.proposal))
        if same or not progress:
            raise LoopStoppedError(StopReason.NO_PROGRESS, f"refused with {decision.reason_code}, and there is nothing new to say")

    async def _fetched(self, current: Round, decision: Decision, again: Envelope) -> bool:
        """Get what the hint names, to be cited next; return whether there is anything new."""
        rows = [row for row in decision.retry_hint.fact_requirements if row.state != FACT_REQUIREMENT_STATE_SUPERSEDED]
        needs, unanswered = self._providers.assign(rows, again.trace_id, again.causation_id)
        if unanswered:
            wanted = ", ".join(f"{row.key} of {row.subject}" for row in unanswered)
            raise LoopStoppedError(StopReason.NO_PROVIDER, f"no provider suits {wanted}")
        if decision.retry_hint.retry_after_ms:
            await self._patience.pause(current, self._patience.backoff.pause_ms(1, decision.retry_hint.retry_after_ms))
        progress = False
        for event in await Consultation(self._client, self._patience, current, again).answers(needs):
            progress = self._citations.add_event(event) or progress
        return await self._recite(decision, again.subject) or progress

    async def _joins(self, decision: Decision, again: Envelope) -> bool:
        """Put in place of the next proposal the same work of the trace that a refusal names; return whether there is any.

        Sent once more under its own event_id, it has its decision or waits for it.
        """
        for proposal_id in decision.conflict_with_proposal_ids:
            if proposal_id in self._looked_at:
                continue
            self._looked_at.add(proposal_id)
            recorded = await self._recorded(proposal_id)
            if recorded is not None and _work_of(recorded) == _work_of(again):
                self._joined += 1
                again.CopyFrom(recorded)
                for field in ("sequence_number", "recorded_at", "chain_hash"):
                    again.ClearField(field)
                again.proposal.ClearField("contest")
                return True
        return False

    async def _recorded(self, event_id: str) -> Envelope | None:
        """Return an event; None if the bus has forgotten its id."""
        try:
            response = await self._patience.judged(
                lambda: self._client.get_event(event_id=event_id, timeout_ms=self._patience.call_ms(READ_TIMEOUT_MS))
            )
        except GavelError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise
            return None
        return response.envelope

    async def _resumed(self, decision: Decision, again: Envelope) -> bool:
        """Go on where another run of this trace broke off, with the evidence got and not cited; return whether that can help."""
        if not await self._recite(decision, again.subject):
            return False
        self._citations.cite_in(again.proposal)
        looked = await self._preflight(again)
        return looked.outcome == OUTCOME_APPROVED or looked.reason_code in _OF_EVIDENCE | _OF_CONFLICT

    async def _revised(self, current: Round, again: Envelope) -> bool:
        """Let the agent change its proposal; return whether it did."""
        if self._revise is None or current.decision is None:
            return False
        proposal = await self._patience.within(called(self._revise, current.proposal, current.decision))
        if proposal is None:
            refused = current.decision.decision.reason_code
            raise LoopStoppedError(StopReason.NEEDS_REVISION, f"refused with {refused}, and the agent gave up")
        if not isinstance(proposal, Proposal):
            raise TypeError(f"revise returned {type(proposal).__name__}; return a Proposal, or None to give up")
        changed = proposal != current.proposal.proposal
        again.proposal.CopyFrom(proposal)
        self._citations.replace_own(proposal.based_on_events)
        return changed

    async def _recite(self, decision: Decision, subject: str) -> bool:
        """Cite what the projection has of what was cited too old, or not at all; return whether that is anything new."""
        rows = [row for row in decision.retry_hint.fact_requirements if row.state == FACT_REQUIREMENT_STATE_SUPERSEDED]
        uncited = decision.reason_code in ("NO_FACT_INPUT", _OF_REPETITION)
        wanted = {(row.subject, row.key) for row in rows}
        progress = False
        for one in dict.fromkeys([row.subject for row in rows] + [subject] * uncited):
            projection = await self._projection(one)
            held_of_subject: list[ProjectedFact | ProjectedObservation] = [*projection.facts, *projection.observations]
            for held in held_of_subject:
                if (one, held.key) in wanted or (uncited and one == subject):
                    progress = self._citations.add(held.source_event, [(one, held.key, held.source_event.event_id)]) or progress
        return progress

    async def _projection(self, subject: str) -> Projection:
        response = await self._patience.judged(
            lambda: self._client.get_projection(subject, timeout_ms=self._patience.call_ms(READ_TIMEOUT_MS))
        )
        return response.projection

    async def _until_free(self, current: Round, retry_after_ms: int, again: Envelope) -> None:
        """Wait until a preflight no longer meets a conflict: a proposal would count as another rejection.

        Evidence that has become too old meanwhile, of which a preflight hears before it hears of the key, is got anew first.
        """
        failures = 0
        while True:
            failures += 1
            await self._patience.pause(current, self._patience.backoff.pause_ms(failures, retry_after_ms))
            looked = await self._preflight(again)
            if looked.reason_code in _OF_EVIDENCE and await self._fetched(current, looked, again):
                self._citations.cite_in(again.proposal)
                looked = await self._preflight(again)
            if await self._joins(looked, again) or looked.reason_code not in _OF_CONFLICT:
                return
            retry_after_ms = looked.retry_hint.retry_after_ms

    async def _preflight(self, again: Envelope) -> Decision:
        looked = await self._patience.judged(lambda: self._client.preflight(again, timeout_ms=self._patience.call_ms(READ_TIMEOUT_MS)))
        return looked.decision


def _work_of(proposal: Envelope) -> tuple[str, str, str, Struct]:
    """Return what a proposal would have done: the trace is one piece of work."""
    return proposal.trace_id, proposal.subject, proposal.proposal.action_type, proposal.proposal.params


def _stop_if_over(decision: Decision) -> None:
    """Stop unless the decision is a refusal that another try may mend."""
    if decision.outcome == OUTCOME_APPROVED:
        raise LoopStoppedError(StopReason.APPROVED, "approved")
    if decision.outcome == OUTCOME_NEEDS_HUMAN_REVIEW or decision.reason_code == "UNDER_REVIEW":
        raise LoopStoppedError(StopReason.REVIEW, f"a person has to decide: {decision.reason_code}")
    if decision.terminal:
        raise LoopStoppedError(StopReason.TERMINAL, f"nothing can succeed as things stand: {decision.reason_code}")
    if decision.outcome != OUTCOME_REJECTED or not decision.retry_hint.retryable:
        raise LoopStoppedError(StopReason.NOT_RETRYABLE, f"another try cannot help: {decision.reason_code}")
