"""One run of a proposal loop: its rounds, from the first proposal to the reason to stop (see `proposal_loop`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from gavel.v1.decision_pb2 import (
    FACT_REQUIREMENT_STATE_SUPERSEDED,
    OUTCOME_APPROVED,
    OUTCOME_NEEDS_HUMAN_REVIEW,
    OUTCOME_REJECTED,
    REMEDY_CITE_AGAIN,
    REMEDY_REVISE_PARAMS,
    REMEDY_WAIT,
    Decision,
)
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.projection_service_pb2 import GetProjectionResponse, ProjectedFact, ProjectedObservation, Projection
from gavel.v1.proposal_pb2 import Proposal

from gavel_client.agents.citations import Citations, Statement, is_repetition
from gavel_client.agents.deadline import Deadline, call_function
from gavel_client.agents.evidence_collection import EvidenceCollector
from gavel_client.agents.loop_results import LoopResult, LoopStoppedError, Round, StopReason
from gavel_client.agents.providers import FactProviders
from gavel_client.agents.recorded_steps import EVENT_ID_REUSED, WORK, RecordedSteps, work
from gavel_client.agents.remedies import EVIDENCE_REMEDIES, first_remedy, is_under_review, remedies_of
from gavel_client.agents.run_ids import next_event_id
from gavel_client.agents.threaded_client import LoopClient
from gavel_client.rpc.deadlines import READ_TIMEOUT_MS
from gavel_client.rpc.errors import GavelError, RunKeyError
from gavel_client.rpc.paging import whole_projection

# An agent's answer to a refusal that evidence cannot mend. Takes the last proposal and its decision; returns the next proposal, or None
# to give up.
Revise = Callable[[Envelope, Envelope], Awaitable[Proposal | None] | Proposal | None]

SUBMIT_TIMEOUT_MS: Final = 60_000


class LoopRun:
    """One run. `run_key` is the key that names it, or "" if the first proposal's event_id is the caller's own."""

    def __init__(
        self, client: LoopClient, providers: FactProviders, revise: Revise | None, proposals_max: int, deadline: Deadline, run_key: str
    ) -> None:
        self._client = client
        self._providers = providers
        self._revise = revise
        self._proposals_max = proposals_max
        self._deadline = deadline
        self._run_key = run_key
        self._steps = RecordedSteps(client, deadline)
        self._rounds: list[Round] = []
        self._examined: set[str] = set()
        self._adopted = 0

    async def play(self, proposal: Envelope) -> LoopResult:
        """Play rounds until the loop ends."""
        is_recorded = True  # the citations of the first proposal are the agent's own
        try:
            while True:
                if is_recorded:
                    self._citations = Citations(proposal.proposal.based_on_events)
                proposal, is_recorded = await self._play_round(proposal)
        except LoopStoppedError as stop:
            return LoopResult(stop.reason, stop.detail, tuple(self._rounds))

    async def _play_round(self, proposal: Envelope) -> tuple[Envelope, bool]:
        """Submit one proposal; return the next one, and whether the log has it already. Raises LoopStoppedError at the end of the loop."""
        current = Round(proposal)
        self._rounds.append(current)
        recorded = current.decision = await self._submit(current)
        if recorded.decision.outcome == OUTCOME_NEEDS_HUMAN_REVIEW:
            recorded = current.decision = await self._steps.verdict(recorded)
        decision = recorded.decision
        _stop_if_final(decision)
        next_proposal = Envelope()
        next_proposal.CopyFrom(current.proposal)
        next_proposal.event_id = next_event_id(recorded.event_id)
        next_proposal.ClearField("occurred_at")
        next_proposal.trace_id = recorded.trace_id
        next_proposal.causation_id = recorded.event_id
        step = await self._steps.step(next_proposal)
        if step is None:
            step = await self._same_work(decision, next_proposal)
        if step is not None:
            return self._take(step, next_proposal), True
        if len(self._rounds) - self._adopted >= self._proposals_max:
            raise LoopStoppedError(
                StopReason.BUDGET, f"{self._proposals_max} proposals were made, the last one refused with {decision.reason_code}"
            )
        step = await self._respond(current, decision, next_proposal)
        return (next_proposal, False) if step is None else (self._take(step, next_proposal), True)

    def _take(self, step: Envelope, next_proposal: Envelope) -> Envelope:
        """Return a recorded step. An adopted proposal does not count towards `proposals_max`."""
        self._adopted += step.event_id != next_proposal.event_id
        return step

    async def _submit(self, current: Round) -> Envelope:
        """Return the decision on the round's proposal, or on the one that the log has in its place."""
        try:
            return await self._decide(current.proposal)
        except GavelError as error:
            if error.reason != EVENT_ID_REUSED:
                raise
            step = await self._step_in_place_of(current.proposal)
            if step is None:
                raise
        current.proposal = step
        self._citations = Citations(step.proposal.based_on_events)
        return await self._decide(step)

    async def _step_in_place_of(self, proposal: Envelope) -> Envelope | None:
        """Return the proposal with which another process, or an earlier run of the same `run_key`, made this step."""
        if len(self._rounds) > 1:
            return await self._steps.step(proposal)
        recorded = await self._steps.proposal(proposal.event_id) if self._run_key else None
        if recorded is not None:
            differences = [name for name, was, now in zip(WORK, work(recorded), work(proposal), strict=True) if was != now]
            if differences:
                raise RunKeyError(self._run_key, differences)
        return recorded

    async def _decide(self, proposal: Envelope) -> Envelope:
        response = await self._deadline.call(
            lambda: self._client.submit_proposal(proposal, timeout_ms=self._deadline.call_ms(SUBMIT_TIMEOUT_MS))
        )
        return response.decision

    async def _respond(self, current: Round, decision: Decision, next_proposal: Envelope) -> Envelope | None:
        """Meet the requirements of a rejection in `next_proposal`. Return a recorded proposal if the run continues with that one."""
        remedies = remedies_of(decision)
        if _waits_for_others(decision):
            return await self._wait_until_free(current, decision, next_proposal)
        needs_evidence = not EVIDENCE_REMEDIES.isdisjoint(remedies)
        needs_revision = REMEDY_REVISE_PARAMS in remedies
        if not needs_evidence and not needs_revision:
            raise LoopStoppedError(StopReason.NOT_RETRYABLE, f"the producer cannot help: {decision.reason_code}")
        if needs_evidence and not decision.retry_hint.fact_requirements:
            # Nothing in particular is missing: what has come into the projection since may help.
            if await self._cite_anew(decision, next_proposal):
                return None
            needs_revision = True
        if needs_revision and self._revise is None:
            raise LoopStoppedError(StopReason.NEEDS_REVISION, f"refused with {decision.reason_code}; only a revised proposal can pass")
        progress = await self._collect(current, decision, next_proposal)
        if needs_revision:
            progress = await self._apply_revision(current, next_proposal)
        self._citations.cite_in(next_proposal.proposal)
        # A repetition would be refused as a duplicate, unless only the projection was outdated.
        is_later = next_proposal.proposal.projection_version > current.proposal.proposal.projection_version
        if (is_repetition(next_proposal, current.proposal) and not is_later) or not progress:
            raise LoopStoppedError(StopReason.NO_PROGRESS, f"refused with {decision.reason_code}, and there is no new evidence or revision")
        return None

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
        return await self._cite_projection(decision, next_proposal) or progress

    async def _same_work(self, decision: Decision, next_proposal: Envelope) -> Envelope | None:
        """Return a proposal for the work of `next_proposal`, in its trace, that the refusal names; None if it names none.

        A run with a run_key takes none: equal work under another key is other work.
        """
        if self._run_key:
            return None
        for proposal_id in decision.conflict_with_proposal_ids:
            if proposal_id in self._examined:
                continue
            self._examined.add(proposal_id)
            recorded = await self._steps.proposal(proposal_id)
            if recorded is not None and recorded.trace_id == next_proposal.trace_id and work(recorded) == work(next_proposal):
                return recorded
        return None

    async def _cite_anew(self, decision: Decision, next_proposal: Envelope) -> bool:
        """Cite evidence of the projection that `next_proposal` lacks; return whether that can help."""
        if decision.previous_decision_id:
            # A person has opened the trace again, which may accept even the same proposal.
            await self._cite_projection(decision, next_proposal)
            self._citations.cite_in(next_proposal.proposal)
            return True
        # An agent that named a version of the projection wants to read the newer one before it proposes again.
        if next_proposal.proposal.HasField("projection_version") or not await self._cite_projection(decision, next_proposal):
            return False
        self._citations.cite_in(next_proposal.proposal)
        preflight = await self._preflight(next_proposal)
        is_same = preflight.outcome == OUTCOME_REJECTED and preflight.reason_code == decision.reason_code
        return preflight.outcome == OUTCOME_APPROVED or not (is_same or REMEDY_REVISE_PARAMS in remedies_of(preflight))

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

    async def _cite_projection(self, decision: Decision, next_proposal: Envelope) -> bool:
        """Cite the projection's newer versions of outdated or missing citations; return whether any is new."""
        requirements = decision.retry_hint.fact_requirements
        self._citations.require(requirements)
        rows = [row for row in requirements if row.state == FACT_REQUIREMENT_STATE_SUPERSEDED]
        required = {(row.subject, row.key) for row in rows}
        subjects = [row.subject for row in rows]
        cites_subject = not requirements or (not rows and REMEDY_CITE_AGAIN in remedies_of(decision))
        if cites_subject:
            subjects.append(next_proposal.subject)
        progress = False
        for subject in dict.fromkeys(subjects):
            projection = await self._projection(subject)
            projected: list[ProjectedFact | ProjectedObservation] = [*projection.facts, *projection.observations]
            for row in projected:
                if cites_subject or (subject, row.key) in required:
                    progress = self._citations.add(row.source_event, [Statement.of_row(subject, row)]) or progress
        return progress

    async def _projection(self, subject: str) -> Projection:
        async def read(page_token: str = "") -> GetProjectionResponse:
            return await self._deadline.call(
                lambda: self._client.get_projection(subject, page_token=page_token, timeout_ms=self._deadline.call_ms(READ_TIMEOUT_MS))
            )

        return (await whole_projection(read)).projection

    async def _wait_until_free(self, current: Round, refusal: Decision, next_proposal: Envelope) -> Envelope | None:
        """Wait until a preflight no longer meets a conflict, because a proposal would count as another rejection.

        Return a recorded proposal for the same work if one has been approved or competes meanwhile. A preflight checks the evidence
        before the conflict key. Evidence that is too old by then is collected again.
        """
        failures = 0
        while True:
            failures += 1
            await self._pause_after_conflict(current, refusal, failures)
            preflight = await self._preflight(next_proposal)
            if first_remedy(preflight) in EVIDENCE_REMEDIES and await self._collect(current, preflight, next_proposal):
                self._citations.cite_in(next_proposal.proposal)
                preflight = await self._preflight(next_proposal)
            other = await self._same_work(preflight, next_proposal)
            if other is not None:
                # A preflight leaves no trace in the log, and a repeated run must adopt the same proposal.
                return other if await self._steps.adopt(next_proposal, other.event_id) else await self._steps.step(next_proposal)
            if not _waits_for_others(preflight):
                return None
            refusal = preflight

    async def _pause_after_conflict(self, current: Round, refusal: Decision, failures: int) -> None:
        """Pause until another try may succeed: after `retry_after_ms`, or once the conflicting work has ended."""
        retry_after_ms = refusal.retry_hint.retry_after_ms
        if retry_after_ms and refusal.conflict_with_proposal_ids:
            current.paused_ms += await self._steps.wait_for_end(refusal.conflict_with_proposal_ids[0], retry_after_ms)
            if self._deadline.ms_left() <= 0:
                raise LoopStoppedError(StopReason.DEADLINE, f"the deadline passed before the conflicting work ended: {refusal.reason_code}")
            retry_after_ms = 0
        await self._deadline.pause(current, self._deadline.backoff.pause_ms(failures, retry_after_ms))

    async def _preflight(self, next_proposal: Envelope) -> Decision:
        response = await self._deadline.call(
            lambda: self._client.preflight(next_proposal, timeout_ms=self._deadline.call_ms(READ_TIMEOUT_MS))
        )
        return response.decision


def _waits_for_others(decision: Decision) -> bool:
    """Return whether a refusal ends with other work: a conflict, or an equal proposal of the trace that still competes."""
    return first_remedy(decision) == REMEDY_WAIT or bool(decision.outcome == OUTCOME_REJECTED and decision.conflict_with_proposal_ids)


def _stop_if_final(decision: Decision) -> None:
    """Raise LoopStoppedError unless the decision is a retryable refusal."""
    if decision.outcome == OUTCOME_APPROVED:
        raise LoopStoppedError(StopReason.APPROVED, "approved")
    if decision.terminal:
        raise LoopStoppedError(StopReason.TERMINAL, f"no proposal can succeed in the present state: {decision.reason_code}")
    if is_under_review(decision):
        raise LoopStoppedError(StopReason.REVIEW, f"a person has to decide: {decision.reason_code}")
    if decision.outcome != OUTCOME_REJECTED or not decision.retry_hint.retryable:
        raise LoopStoppedError(StopReason.NOT_RETRYABLE, f"another try cannot help: {decision.reason_code}")
