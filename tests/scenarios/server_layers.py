"""The layers on a server: plain requests, both clients, and proposals on a stream.

The server is real and in this process: servicers, sequencer and gRPC on a Redis. Only its clock and the store's are set by the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
from gavel.v1 import (
    arbitration_service_pb2,
    arbitration_service_pb2_grpc,
    event_service_pb2,
    event_service_pb2_grpc,
    execution_service_pb2,
    execution_service_pb2_grpc,
    projection_service_pb2,
    projection_service_pb2_grpc,
    replay_service_pb2,
    replay_service_pb2_grpc,
    rule_set_service_pb2,
    rule_set_service_pb2_grpc,
    tool_service_pb2,
    tool_service_pb2_grpc,
)
from gavel.v1.arbitration_service_pb2 import ResolveReviewRequest, ResolveReviewResponse, RevokeDecisionRequest
from gavel.v1.common_pb2 import Producer, VersionBinding
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import GetTraceResponse
from gavel.v1.execution_service_pb2 import BeginExecutionResponse
from gavel.v1.fact_pb2 import ACTIVATION_MODE_ACTIVE, ACTIVATION_MODE_SHADOW
from gavel.v1.projection_service_pb2 import PendingDecision, PendingReview, Projection
from gavel.v1.tool_pb2 import ToolContract
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.errors import GavelError
from gavel_client.rpc.sync import SyncGavelClient
from gavel_rules.commands import DeployRuleSet, Tick
from gavel_rules.state.state import State
from gavel_server.bus.sequencer import Sequencer
from gavel_server.intake.event_ids import new_event_id
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status

from tests.scenarios.layers import ANSWER_MS_MAX, TIMERS_MAX, CallError
from tests.scenarios.reader import RuleSet

_MODE: Final = {False: ACTIVATION_MODE_ACTIVE, True: ACTIVATION_MODE_SHADOW}


class _Remote:
    """The base of the layers on a server: its clock, and the steps that need no request. `sequencer` is the sequencer of the bus."""

    def __init__(self, channel: grpc.aio.Channel, sequencer: Sequencer, set_time: Callable[[int], None]) -> None:
        self.bus = sequencer.bus
        self._sequencer = sequencer
        self._set_time = set_time
        self._projections = projection_service_pb2_grpc.ProjectionServiceStub(channel)

    async def set_time(self, now_ms: int) -> None:
        """See Layer."""
        self._set_time(now_ms)

    async def tick(self) -> None:
        """See Layer. The server cannot notice by itself that the test has moved its clock."""
        await self._sequencer.execute(Tick(TIMERS_MAX))

    async def deploy(self, rule_set: RuleSet) -> None:
        """See Layer. Without the compiler process, which would take longer than a whole scenario."""
        await self._sequencer.execute(DeployRuleSet(new_event_id(), rule_set.compiled, rule_set.text))

    async def prove(self, *, engines_agree: bool) -> None:
        """See Layer. Rebuilds the state from the log; only one layer requests a replay, because the logs of all are equal."""
        status = await self._projections.GetStatus(projection_service_pb2.GetStatusRequest(bus=self.bus, include_projection_digest=True))
        rebuilt = State(self.bus)
        for record in await self._sequencer.log.read(1, status.head_sequence_number):
            rebuilt.apply(Envelope.FromString(record.envelope))
        assert rebuilt.digest() == status.projection_digest


class ServerLayer(_Remote):
    """A server, called with the contract's requests."""

    def __init__(self, channel: grpc.aio.Channel, sequencer: Sequencer, set_time: Callable[[int], None]) -> None:
        super().__init__(channel, sequencer, set_time)
        self._arbitration = arbitration_service_pb2_grpc.ArbitrationServiceStub(channel)
        self._events = event_service_pb2_grpc.EventServiceStub(channel)
        self._executions = execution_service_pb2_grpc.ExecutionServiceStub(channel)
        self._rule_sets = rule_set_service_pb2_grpc.RuleSetServiceStub(channel)
        self._replays = replay_service_pb2_grpc.ReplayServiceStub(channel)
        self._tools = tool_service_pb2_grpc.ToolServiceStub(channel)

    async def prove(self, *, engines_agree: bool) -> None:
        """See Layer. The core layer also replays with the second engine."""
        await super().prove(engines_agree=engines_agree)
        request = replay_service_pb2.VerifyReplayRequest(bus=self.bus)
        *_, last = [response async for response in self._replays.VerifyReplay(request)]
        assert last.verdict.proved, last

    async def activate(self, policy_id: str, version: int, *, shadow: bool = False) -> None:
        """See Layer."""
        request = rule_set_service_pb2.ActivateRuleSetRequest(bus=self.bus, policy_id=policy_id, version=version, mode=_MODE[shadow])
        await _call(self._rule_sets.ActivateRuleSet(request))

    async def deactivate(self, policy_id: str) -> None:
        """See Layer."""
        await _call(self._rule_sets.DeactivateRuleSet(rule_set_service_pb2.DeactivateRuleSetRequest(bus=self.bus, policy_id=policy_id)))

    async def publish(self, envelope: Envelope) -> Envelope:
        """See Layer."""
        request = event_service_pb2.PublishEventRequest(bus=self.bus, envelope=envelope)
        return (await _call(self._events.PublishEvent(request))).envelope  # type: ignore[no-any-return]

    async def propose(self, envelope: Envelope) -> Envelope:
        """See Layer."""
        request = arbitration_service_pb2.SubmitProposalRequest(bus=self.bus, envelope=envelope)
        return (await _call(self._arbitration.SubmitProposal(request))).decision  # type: ignore[no-any-return]

    async def preflight(self, envelope: Envelope) -> Decision:
        """See Layer."""
        request = arbitration_service_pb2.PreflightRequest(bus=self.bus, envelope=envelope)
        return (await _call(self._arbitration.Preflight(request))).decision  # type: ignore[no-any-return]

    async def register(self, contract: ToolContract) -> None:
        """See Layer."""
        await _call(self._tools.RegisterContract(tool_service_pb2.RegisterContractRequest(bus=self.bus, contract=contract)))

    async def trace(self, trace_id: str) -> GetTraceResponse:
        """See Layer."""
        request = event_service_pb2.GetTraceRequest(bus=self.bus, trace_id=trace_id)
        return await _call(self._events.GetTrace(request))  # type: ignore[no-any-return]

    async def begin(self, decision_id: str, producer: Producer, lease_ms: int, binding: VersionBinding | None) -> BeginExecutionResponse:
        """See Layer."""
        request = execution_service_pb2.BeginExecutionRequest(
            bus=self.bus,
            decision_id=decision_id,
            producer=producer,
            lease_ms=lease_ms,
            request_id=new_event_id(),
            version_binding=binding,
        )
        return await _call(self._executions.BeginExecution(request))  # type: ignore[no-any-return]

    async def renew(self, decision_id: str, execution_id: str, producer: Producer, lease_ms: int) -> None:
        """See Layer."""
        request = execution_service_pb2.RenewExecutionRequest(
            bus=self.bus,
            decision_id=decision_id,
            execution_id=execution_id,
            producer=producer,
            lease_ms=lease_ms,
            request_id=new_event_id(),
        )
        await _call(self._executions.RenewExecution(request))

    async def report(self, envelope: Envelope) -> Envelope:
        """See Layer."""
        request = execution_service_pb2.ReportExecutionRequest(bus=self.bus, envelope=envelope)
        return (await _call(self._executions.ReportExecution(request))).envelope  # type: ignore[no-any-return]

    async def resolve(self, request: ResolveReviewRequest) -> Envelope:
        """See Layer."""
        request.bus = self.bus
        return _answer(await _call(self._arbitration.ResolveReview(request)))

    async def revoke(self, request: RevokeDecisionRequest) -> Envelope:
        """See Layer."""
        request.bus = self.bus
        return (await _call(self._arbitration.RevokeDecision(request))).decision  # type: ignore[no-any-return]

    async def events(self, after: int) -> list[Envelope]:
        """See Layer."""
        request = event_service_pb2.ListEventsRequest(bus=self.bus, from_sequence_number=after + 1, page_size=1_000)
        return list((await _call(self._events.ListEvents(request))).envelopes)

    async def projection(self, subject: str) -> Projection:
        """See Layer."""
        request = projection_service_pb2.GetProjectionRequest(bus=self.bus, subject=subject)
        return (await _call(self._projections.GetProjection(request))).projection  # type: ignore[no-any-return]

    async def pending(self) -> list[PendingDecision]:
        """See Layer."""
        request = projection_service_pb2.ListPendingDecisionsRequest(bus=self.bus)
        return list((await _call(self._projections.ListPendingDecisions(request))).decisions)

    async def reviews(self) -> list[PendingReview]:
        """See Layer."""
        request = projection_service_pb2.ListPendingReviewsRequest(bus=self.bus)
        return list((await _call(self._projections.ListPendingReviews(request))).reviews)


async def _call(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        status = rpc_status.from_call(error)  # type: ignore[arg-type]  # it reads the trailers, which this has
        info = ErrorInfo()
        for detail in status.details if status is not None else ():
            detail.Unpack(info)
        raise CallError(info.reason, str(error.details())) from error


class ClientLayer(_Remote):
    """A server, called through a client, blocking or not."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        sequencer: Sequencer,
        set_time: Callable[[int], None],
        client: GavelClient | SyncGavelClient,
    ) -> None:
        super().__init__(channel, sequencer, set_time)
        self._client = client

    async def _request(self, method: str, *arguments: object, **named: object) -> Any:
        call = getattr(self._client, method)
        try:
            if isinstance(self._client, SyncGavelClient):
                return await asyncio.to_thread(call, *arguments, bus=self.bus, timeout_ms=ANSWER_MS_MAX, **named)
            return await call(*arguments, bus=self.bus, timeout_ms=ANSWER_MS_MAX, **named)
        except GavelError as error:
            raise CallError(error.reason, error.message) from error

    async def activate(self, policy_id: str, version: int, *, shadow: bool = False) -> None:
        """See Layer."""
        await self._request("activate_rule_set", policy_id, version, mode=_MODE[shadow])

    async def deactivate(self, policy_id: str) -> None:
        """See Layer."""
        await self._request("deactivate_rule_set", policy_id)

    async def publish(self, envelope: Envelope) -> Envelope:
        """See Layer."""
        return (await self._request("publish_event", envelope)).envelope  # type: ignore[no-any-return]

    async def propose(self, envelope: Envelope) -> Envelope:
        """See Layer."""
        return (await self._request("submit_proposal", envelope)).decision  # type: ignore[no-any-return]

    async def preflight(self, envelope: Envelope) -> Decision:
        """See Layer."""
        return (await self._request("preflight", envelope)).decision  # type: ignore[no-any-return]

    async def register(self, contract: ToolContract) -> None:
        """See Layer."""
        await self._request("register_contract", contract)

    async def trace(self, trace_id: str) -> GetTraceResponse:
        """See Layer."""
        return await self._request("get_trace", trace_id)  # type: ignore[no-any-return]

    async def begin(self, decision_id: str, producer: Producer, lease_ms: int, binding: VersionBinding | None) -> BeginExecutionResponse:
        """See Layer."""
        details = {"producer": producer, "lease_ms": lease_ms, "version_binding": binding}
        return await self._request("begin_execution", decision_id, **details)  # type: ignore[no-any-return]

    async def renew(self, decision_id: str, execution_id: str, producer: Producer, lease_ms: int) -> None:
        """See Layer."""
        await self._request("renew_execution", decision_id, execution_id, producer=producer, lease_ms=lease_ms)

    async def report(self, envelope: Envelope) -> Envelope:
        """See Layer."""
        return (await self._request("report_execution", envelope)).envelope  # type: ignore[no-any-return]

    async def resolve(self, request: ResolveReviewRequest) -> Envelope:
        """See Layer."""
        details = {"reviewer": request.reviewer, "reason": request.reason, "event_id": request.event_id}
        return _answer(await self._request("resolve_review", request.decision_id, request.verdict, **details))

    async def revoke(self, request: RevokeDecisionRequest) -> Envelope:
        """See Layer."""
        details = {"revoked_by": request.revoked_by, "reason": request.reason, "event_id": request.event_id}
        return (await self._request("revoke_decision", request.decision_id, **details)).decision  # type: ignore[no-any-return]

    async def events(self, after: int) -> list[Envelope]:
        """See Layer."""
        return list((await self._request("list_events", from_sequence_number=after + 1, page_size=1_000)).envelopes)

    async def projection(self, subject: str) -> Projection:
        """See Layer."""
        return (await self._request("get_projection", subject)).projection  # type: ignore[no-any-return]

    async def pending(self) -> list[PendingDecision]:
        """See Layer."""
        return list((await self._request("list_pending_decisions")).decisions)

    async def reviews(self) -> list[PendingReview]:
        """See Layer."""
        return list((await self._request("list_pending_reviews")).reviews)


class StreamLayer(ClientLayer):
    """A server, called through the async client, with proposals on one stream. Answers are matched by request_id."""

    def __init__(self, channel: grpc.aio.Channel, sequencer: Sequencer, set_time: Callable[[int], None], client: GavelClient) -> None:
        super().__init__(channel, sequencer, set_time, client)
        self._stream_client = client
        self._requests: asyncio.Queue[tuple[str, Envelope] | None] = asyncio.Queue()
        self._answers: dict[str, asyncio.Future[Envelope]] = {}
        self._reader = asyncio.ensure_future(self._read())

    async def propose(self, envelope: Envelope) -> Envelope:
        """See Layer."""
        request_id = f"request-{len(self._answers)}"
        answer = self._answers[request_id] = asyncio.get_running_loop().create_future()
        self._requests.put_nowait((request_id, envelope))
        await asyncio.wait((answer, self._reader), return_when=asyncio.FIRST_COMPLETED)
        assert answer.done(), f"the stream ended without an answer: {self._reader}"
        decision: Envelope = answer.result()
        return decision

    async def close(self) -> None:
        """End the stream, on which every request has been answered."""
        self._requests.put_nowait(None)
        await self._reader

    async def _read(self) -> None:
        async for response in self._stream_client.stream_proposals(self._pending_requests(), bus=self.bus):
            answer = self._answers[response.request_id]
            if response.HasField("error"):
                error = GavelError.from_status(response.error)
                answer.set_exception(CallError(error.reason, error.message))
            else:
                answer.set_result(response.decision)

    async def _pending_requests(self) -> AsyncIterator[tuple[str, Envelope]]:
        while (request := await self._requests.get()) is not None:
            yield request


def _answer(response: ResolveReviewResponse) -> Envelope:
    """Return the decision that follows from a verdict, else the vote."""
    return response.decision if response.HasField("decision") else response.vote
