"""The gate: it lets a framework run a tool with an effect only for an approved decision (constitution §2, §6, §7).

    call ─▶ proposal with a stable event_id ─▶ decision ─▶ BeginExecution ─▶ the framework runs the tool ─▶ report

The event_id follows from the call, so a node that a framework runs again repeats nothing, and two equal calls in one turn run once. A
gate trusts no value with which a framework resumes: approval, parameters and evidence are what BeginExecution finds in the log. A gate
that cannot reach the server refuses.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

import grpc
from gavel.v1.arbitration_service_pb2 import DECISION_PHASE_EXECUTED, WaitDecisionResponse
from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, PRODUCER_TYPE_EXECUTOR, EventReference, Producer
from gavel.v1.decision_pb2 import OUTCOME_REJECTED
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_service_pb2 import BeginExecutionResponse
from gavel.v1.projection_service_pb2 import GetProjectionResponse, ListPendingReviewsResponse, ProjectedFact, ProjectedObservation
from gavel.v1.reason_code_pb2 import REASON_CODE_ALREADY_FINISHED, REASON_CODE_ALREADY_RUNNING

from gavel_client.agents.citations import CITATIONS_MAX
from gavel_client.agents.deadline import Deadline
from gavel_client.agents.loop_results import LoopResult, LoopStoppedError, StopReason
from gavel_client.agents.proposal_loop import ProposalLoop
from gavel_client.agents.providers import FactProviders
from gavel_client.agents.recorded_steps import WORK
from gavel_client.agents.recorded_steps import work as work_of
from gavel_client.agents.run_ids import first_event_id
from gavel_client.agents.threaded_client import LoopClient, ThreadedClient
from gavel_client.blocking import run_blocking
from gavel_client.envelopes import content_hash, new_event_id, proposal_envelope
from gavel_client.executor.executor import REVIEW_REFUSALS
from gavel_client.executor.reports import now
from gavel_client.gate.actions import Action, Call, ToolActions, trace_id
from gavel_client.gate.allowed import Allowed, Attempt, SyncAllowed
from gavel_client.gate.answers import Finished, Pending, Refused
from gavel_client.rpc.backoff import Backoff, is_unopened_bus
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.deadlines import READ_TIMEOUT_MS, WRITE_TIMEOUT_MS
from gavel_client.rpc.errors import GavelError, describe_error
from gavel_client.rpc.paging import pages
from gavel_client.rpc.sync import SyncGavelClient

LEASE_MS_DEFAULT: Final = 60_000
DEADLINE_MS_DEFAULT: Final = 60_000
# The shortest wait for another attempt of the same call.
RECHECK_MS_MIN: Final = 100
# The time that such a wait leaves of the deadline, to ask once more.
ANSWER_MS: Final = 2_000
# Lapsed approvals of one call that `SyncGate.ask_anew` passes over.
LAPSES_MAX: Final = 64
# New proposals of one call, in one answer of the gate, that are refused because of the reviews of others.
HOLDS_MAX: Final = 64
# The reason of a call that cannot be proposed.
CALL_INVALID: Final = "CALL_INVALID"
# What the function of an action raises for arguments that it cannot use. Any other error is not the model's.
_ARGUMENT_ERRORS: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
# The fields of requests, with those below them, that follow from the arguments of a call.
_ARGUMENT_FIELDS: Final = ("subject.", "envelope.subject.", "envelope.proposal.")

_logger = logging.getLogger(__name__)

Answer = Allowed | Refused | Pending | Finished
SyncAnswer = SyncAllowed | Refused | Pending | Finished
Response = TypeVar("Response")


class _Work(NamedTuple):
    """What a call proposes: the proposal, with the citations of the action only, and the key of its run."""

    proposal: Envelope
    run_key: str


class Gate:
    """Answers calls of tools: `answer = await gate(call)`. One gate may answer any number of calls, also concurrently.

    `agent` proposes and `executor` reports; both act with the client's credentials. `providers` get the evidence that hints require.
    `lease_ms` is the time that a tool has, and `deadline_ms` that of an answer.
    """

    def __init__(
        self,
        client: GavelClient,
        actions: ToolActions,
        *,
        agent: str,
        executor: str,
        providers: FactProviders | None = None,
        lease_ms: int = LEASE_MS_DEFAULT,
        deadline_ms: int = DEADLINE_MS_DEFAULT,
    ) -> None:
        if isinstance(client, SyncGavelClient):
            raise TypeError("a SyncGavelClient would block the event loop; use SyncGate, or a GavelClient")
        self._client: LoopClient = client
        self._actions = actions
        self._agent = Producer(type=PRODUCER_TYPE_AGENT, id=agent)
        self._executor = Producer(type=PRODUCER_TYPE_EXECUTOR, id=executor)
        self._loop = ProposalLoop(client, providers or FactProviders(), deadline_ms=deadline_ms)
        self._lease_ms = lease_ms
        self._deadline_ms = deadline_ms

    def reads(self, tool: str) -> bool:
        """Report whether a tool has no effect."""
        return self._actions.reads(tool)

    async def __call__(self, call: Call) -> Answer:
        """Propose the call and, if it is approved, begin its execution.

        Raises GavelError if the server refuses to decide (e.g. PERMISSION_DENIED), and RunKeyError. The tool must not run then.
        """
        if self._actions.reads(call.tool):
            return Allowed(None)
        work = self._work(call)
        if isinstance(work, Refused):
            return work
        deadline = Deadline(self._deadline_ms, Backoff())
        try:
            decision = await self._decide(deadline, work)
            return await self._begin(deadline, decision, work.proposal) if isinstance(decision, Envelope) else decision
        except LoopStoppedError as stop:
            return Refused(stop.reason.name, stop.detail)

    async def check(self, call: Call) -> Refused | Pending | None:
        """Propose the call without beginning its execution, for a framework that asks first whether a person has to approve.

        Return None if the call is approved or its tool has no effect, otherwise the refusal or the open review.
        """
        if self._actions.reads(call.tool):
            return None
        work = self._work(call)
        if isinstance(work, Refused):
            return work
        try:
            decision = await self._decide(Deadline(self._deadline_ms, Backoff()), work)
        except LoopStoppedError as stop:
            return Refused(stop.reason.name, stop.detail)
        return None if isinstance(decision, Envelope) else decision

    async def begin(self, decision_id: str, call: Call) -> Answer:
        """Begin the execution of a decision that exists, if it approves exactly what `call` proposes."""
        if self._actions.reads(call.tool):
            return Allowed(None)
        work = self._work(call)
        if isinstance(work, Refused):
            return work
        deadline = Deadline(self._deadline_ms, Backoff())
        try:
            decision = (await self._ask(deadline, lambda ms: self._client.get_event(event_id=decision_id, timeout_ms=ms))).envelope
            return await self._begin(deadline, decision, work.proposal)
        except LoopStoppedError as stop:
            return Refused(stop.reason.name, stop.detail)

    def _work(self, call: Call) -> _Work | Refused:
        """Return what a call proposes, or the refusal of one that proposes nothing: a model may call any tool with any arguments."""
        if call.tool not in self._actions:
            return Refused(
                "UNKNOWN_TOOL", f"the tool {call.tool} is not registered with the gate; register its action, or name it in reads"
            )
        try:
            action = self._actions.action(call)
            return _Work(self._proposal(call, action), run_key(call, action))
        except _ARGUMENT_ERRORS as error:
            _logger.warning("tool=%s a call has no usable action: %s", call.tool, describe_error(error))
            return Refused(CALL_INVALID, f"its arguments give no usable action ({describe_error(error)})")

    async def _decide(self, deadline: Deadline, work: _Work) -> Envelope | Refused | Pending:
        """Return the approved decision on a call, or the answer if it is not approved. Raises LoopStoppedError."""
        proposal = work.proposal
        try:
            if not proposal.proposal.based_on_events:
                proposal.proposal.based_on_events.extend(await self._citations(deadline, proposal.subject))
            result = await self._run(deadline, work)
        except GavelError as error:
            if not _is_about_arguments(error):
                raise
            _logger.warning("subject=%s Gavel does not take the proposal of a call: %s", proposal.subject, describe_error(error))
            problems = [f"{violation.field}: {violation.description}" for violation in error.violations]
            return Refused(CALL_INVALID, "; ".join([f"Gavel refuses the proposal as invalid ({describe_error(error)})", *problems]))
        decision = result.decision
        if decision is None:
            return Refused(result.reason.name, result.detail)
        if result.approved:
            return decision
        if result.reason is StopReason.REVIEW:
            return Pending(decision.event_id, decision.decision.reason_code, decision)
        return Refused(decision.decision.reason_code or result.reason.name, result.detail, decision)

    async def _run(self, deadline: Deadline, work: _Work) -> LoopResult:
        """Run the loop of a call. A call that is refused because another one is under review is proposed anew once that has ended.

        The key of the new run follows from the refusal, so every process comes to the same proposal.
        """
        proposal, key = work
        proposals = 0
        while True:
            result = await self._loop.run(proposal, run_key=key, deadline_ms=max(int(deadline.ms_left()), 1))
            refusal = result.decision
            if result.reason is not StopReason.REVIEW or refusal is None or refusal.decision.outcome != OUTCOME_REJECTED:
                return result
            key = content_hash([key, refusal.event_id])
            proposal.causation_id = refusal.event_id
            try:
                if not await self._is_recorded(deadline, first_event_id(self._agent, key)):
                    proposals += 1
                    if proposals == HOLDS_MAX or await self._is_held(deadline, proposal.trace_id):
                        return result
            except (GavelError, LoopStoppedError) as error:
                _logger.warning("decision=%s may still be held by a review: %s", refusal.event_id, describe_error(error))
                return result

    async def _is_held(self, deadline: Deadline, trace_id: str) -> bool:
        """Report whether a trace has an open review. A preflight would tell, too, but needs a right of its own."""

        async def read(page_token: str = "") -> ListPendingReviewsResponse:
            return await self._ask(
                deadline, lambda ms: self._client.list_pending_reviews(page_token=page_token, timeout_ms=ms), READ_TIMEOUT_MS
            )

        async for page in pages(read):
            if any(review.trace_id == trace_id for review in page.reviews):
                return True
        return False

    async def _is_recorded(self, deadline: Deadline, event_id: str) -> bool:
        try:
            await self._ask(deadline, lambda ms: self._client.get_event(event_id=event_id, timeout_ms=ms), READ_TIMEOUT_MS)
        except GavelError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise
            return False
        return True

    def _proposal(self, call: Call, action: Action) -> Envelope:
        return proposal_envelope(
            action.subject,
            self._agent,
            action_type=action.action_type,
            params=action.params,
            max_fact_age_ms=action.max_fact_age_ms,
            based_on_events=action.based_on_events,
            cost=action.cost,
            risk=action.risk,
            confidence=action.confidence,
            # One trace for a task, so that its rejections count together.
            trace_id=trace_id(call.task),
        )

    async def _citations(self, deadline: Deadline, subject: str) -> list[EventReference]:
        """Return references to the events behind the first page of a subject's projection."""

        async def read(timeout_ms: int) -> GetProjectionResponse:
            return await self._client.get_projection(subject, timeout_ms=timeout_ms)

        try:
            projection = (await self._ask(deadline, read, READ_TIMEOUT_MS)).projection
        except GavelError as error:
            if is_unopened_bus(error):
                return []
            raise
        rows: list[ProjectedFact | ProjectedObservation] = [*projection.facts, *projection.observations]
        return list({row.source_event.event_id: row.source_event for row in rows}.values())[:CITATIONS_MAX]

    async def _begin(self, deadline: Deadline, decision: Envelope, proposal: Envelope) -> Answer:
        """Begin an attempt. While another attempt of the same decision runs, wait for its end, at most until the deadline."""
        differences = _differences(decision, proposal)
        if differences:
            return Refused("CALL_DIFFERS", f"decision {decision.event_id} approves another {' and '.join(differences)}")
        decision_id, request_id, requested_at = decision.event_id, "", 0.0

        async def begin(timeout_ms: int) -> BeginExecutionResponse:
            # A repetition of the request gets the attempt of the first one, whose lease counts from then: at least half of it is left.
            nonlocal request_id, requested_at
            present = time.monotonic()
            if not request_id or present - requested_at > self._lease_ms / 1000 / 2:
                request_id, requested_at = new_event_id(), present
            return await self._client.begin_execution(
                decision_id, producer=self._executor, lease_ms=self._lease_ms, request_id=request_id, timeout_ms=timeout_ms
            )

        while True:
            request_id, began_at = "", now()
            response = await self._ask(deadline, begin)
            if response.HasField("started"):
                return Allowed(Attempt(self._client, self._executor, response.started, requested_at, began_at))
            refusal = response.refusal
            if refusal.reason in REVIEW_REFUSALS:
                return Pending(decision_id, refusal.reason_code)
            if refusal.reason == REASON_CODE_ALREADY_RUNNING:
                ms_left = deadline.ms_left() - ANSWER_MS
                if ms_left <= RECHECK_MS_MIN:
                    return Pending(decision_id, refusal.reason_code, decision)
                await self._wait(deadline, decision_id, int(min(max(refusal.retry_after_ms, RECHECK_MS_MIN), ms_left)))
                continue
            if refusal.reason == REASON_CODE_ALREADY_FINISHED:
                finished = await self._wait(deadline, decision_id, 0)
                if finished.HasField("execution"):
                    return Finished(finished.execution)
            return Refused(refusal.reason_code, f"{refusal.reason_code}: {refusal.message}", decision)

    async def _wait(self, deadline: Deadline, decision_id: str, at_most_ms: int) -> WaitDecisionResponse:
        """Wait until the last attempt of a decision has been reported, or `at_most_ms` have passed."""
        wait_ms = int(max(0, min(at_most_ms, deadline.ms_left())))
        return await self._ask(
            deadline, lambda _: self._client.wait_decision(decision_id, phase=DECISION_PHASE_EXECUTED, timeout_ms=wait_ms)
        )

    async def _ask(self, deadline: Deadline, call: Callable[[int], Awaitable[Response]], at_most_ms: int = WRITE_TIMEOUT_MS) -> Response:
        """Call the server with the time that is left, until it answers. Raises LoopStoppedError at the deadline."""
        return await deadline.call(lambda: call(deadline.call_ms(at_most_ms)))


class SyncGate:
    """The gate for the synchronous client: `answer = gate(call)`. Takes the arguments of Gate; threads may share it."""

    def __init__(
        self,
        client: SyncGavelClient,
        actions: ToolActions,
        *,
        agent: str,
        executor: str,
        providers: FactProviders | None = None,
        lease_ms: int = LEASE_MS_DEFAULT,
        deadline_ms: int = DEADLINE_MS_DEFAULT,
    ) -> None:
        if isinstance(client, GavelClient):
            raise TypeError("a GavelClient belongs to an event loop; use Gate, or a SyncGavelClient")
        self._gate = Gate(
            ThreadedClient(client),  # type: ignore[arg-type]  # the calls that a gate makes
            actions,
            agent=agent,
            executor=executor,
            providers=providers,
            lease_ms=lease_ms,
            deadline_ms=deadline_ms,
        )

    def __call__(self, call: Call) -> SyncAnswer:
        """Propose the call and, if it is approved, begin its execution; see Gate."""
        return _as_sync(run_blocking(lambda: self._gate(call)))

    def ask_anew(self, call: Call) -> SyncAnswer:
        """Ask about a call without a turn. Where its approval has lapsed before an attempt began, ask again, as the turn of that decision.

        The log tells which approvals have lapsed, so every process comes to the same turn, and a call that has acted is not repeated.
        """
        turn = ""
        answer = self(call)
        for _ in range(LAPSES_MAX):
            lapsed = answer.lapsed_decision_id if isinstance(answer, (Refused, Finished)) else ""
            if lapsed in ("", turn):  # none, or the call has an idempotency_key, which has no turns
                break
            turn = lapsed
            answer = self(replace(call, turn=turn))
        return answer

    def check(self, call: Call) -> Refused | Pending | None:
        """Propose the call without beginning its execution; see Gate.check."""
        return run_blocking(lambda: self._gate.check(call))

    def begin(self, decision_id: str, call: Call) -> SyncAnswer:
        """Begin the execution of a decision that exists; see Gate.begin."""
        return _as_sync(run_blocking(lambda: self._gate.begin(decision_id, call)))


def _as_sync(answer: Answer) -> SyncAnswer:
    return SyncAllowed(answer) if isinstance(answer, Allowed) else answer


def _is_about_arguments(error: GavelError) -> bool:
    """Report whether the server refuses nothing but fields that follow from the arguments of a call."""
    fields = [violation.field for violation in error.violations]
    are_arguments = all(f"{field}.".startswith(_ARGUMENT_FIELDS) for field in fields)
    return error.code is grpc.StatusCode.INVALID_ARGUMENT and bool(fields) and are_arguments


def run_key(call: Call, action: Action) -> str:
    """Return the key of the proposal's run: equal calls of one task and turn have the same, and calls with one idempotency key."""
    if call.idempotency_key:
        return content_hash([call.idempotency_key])
    return content_hash([call.task, call.turn, action.action_type, action.subject, dict(action.params)])


def _differences(decision: Envelope, proposal: Envelope) -> list[str]:
    """Return the parts of an approved action that differ from those of a proposal."""
    approved = decision.subject, decision.decision.action_type, decision.decision.params
    return [name for name, one, other in zip(WORK, approved, work_of(proposal), strict=True) if one != other]
