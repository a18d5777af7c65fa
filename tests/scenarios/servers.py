"""The layers on a server: asked with bare requests, and through both clients, also by a stream of proposals.

The server is real: servicers, sequencer and gRPC, on a Redis, in this process; only its clock is given, and the store's with it.
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
)
from gavel.v1.arbitration_service_pb2 import ResolveReviewRequest, RevokeDecisionRequest
from gavel.v1.common_pb2 import Producer
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_service_pb2 import BeginExecutionResponse
from gavel.v1.fact_pb2 import ACTIVATION_MODE_ACTIVE, ACTIVATION_MODE_SHADOW
from gavel.v1.projection_service_pb2 import PendingDecision, PendingReview, Projection
from gavel_client.client import GavelClient
from gavel_client.errors import GavelError
from gavel_client.sync import SyncGavelClient
from gavel_rules.commands import DeployRuleSet, Tick
from gavel_rules.projection import State
from gavel_server.bus.sequencer import Sequencer
from gavel_server.identifiers import new_event_id
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status

from tests.scenarios.layers import TIMERS_MAX, CallRefusedError
from tests.scenarios.reading import RuleSet

_MODE: Final = {False: ACTIVATION_MODE_ACTIVE, True: ACTIVATION_MODE_SHADOW}


class _Remote:
    """What the layers on a server share: its clock, and what no request is made for. `sequencer` is the bus's own."""

    def __init__(self, channel: grpc.aio.Channel, sequencer: Sequencer, set_time: Callable[[int], None]) -> None:
        self.bus = sequencer.bus
        self._sequencer = sequencer
        self._set_time = set_time
        self._projections = projection_service_pb2_grpc.ProjectionServiceStub(channel)

    async def set_time(self, now_ms: int) -> None:
        """See Layer."""
        self._set_time(now_ms)

    async def tick(self) -> None:
        """See Layer. An idle server looks at its clock when the next timer should be due; here time has jumped behind its back."""
        await self._sequencer.execute(Tick(TIMERS_MAX))

    async def deploy(self, rule_set: RuleSet) -> None:
        """See Layer. Without the child process that compiles what callers send: it takes longer than a whole scenario."""
        await self._sequencer.execute(DeployRuleSet(new_event_id(), rule_set.compiled, rule_set.text))

    async def prove(self, *, engines_agree: bool) -> None:
        """See Layer. The state is rebuilt from the log; one of the layers asks for the replay itself, for their logs are the same."""
        status = await self._projections.GetStatus(projection_service_pb2.GetStatusRequest(bus=self.bus, include_projection_digest=True))
        rebuilt = State(self.bus)
        for record in await self._sequencer.log.read(1, status.head_sequence_number):
            rebuilt.apply(Envelope.FromString(record.envelope))
        assert rebuilt.digest() == status.projection_digest


class ServerLayer(_Remote):
    """A server, asked with the contract's bare requests."""

    def __init__(self, channel: grpc.aio.Channel, sequencer: Sequencer, set_time: Callable[[int], None]) -> None:
        super().__init__(channel, sequencer, set_time)
        self._arbitration = arbitration_service_pb2_grpc.ArbitrationServiceStub(channel)
        self._events = event_service_pb2_grpc.EventServiceStub(channel)
        self._executions = execution_service_pb2_grpc.ExecutionServiceStub(channel)
        self._rule_sets = rule_set_service_pb2_grpc.RuleSetServiceStub(channel)
        self._replays = replay_service_pb2_grpc.ReplayServiceStub(channel)

    async def prove(self, *, engines_agree: bool) -> None:
        """See Layer. The second engine's proof is the core layer's."""
        await super().prove(engines_agree=engines_agree)
        request = replay_service_pb2.VerifyReplayRequest(bus=self.bus)
        *_, last = [response async for response in self._replays.VerifyReplay(request)]
        assert last.verdict.proved, last

    async def activate(self, policy_id: str, version: int, *, shadow: bool = False) -> None:
        """See Layer."""
        request = rule_set_service_pb2.ActivateRuleSetRequest(bus=self.bus, policy_id=policy_id, version=version, mode=_MODE[shadow])
        await _answered(self._rule_sets.ActivateRuleSet(request))

    async def deactivate(self, policy_id: str) -> None:
        """See Layer."""
        await _answered(self._rule_sets.DeactivateRuleSet(rule_set_service_pb2.DeactivateRuleSetRequest(bus=self.bus, policy_id=policy_id)))

    async def publish(self, envelope: Envelope) -> Envelope:
        """See Layer."""
        request = event_service_pb2.PublishEventRequest(bus=self.bus, envelope=envelope)
        return (await _answered(self._events.PublishEvent(request))).envelope  # type: ignore[no-any-return]

    async def propose(self, envelope: Envelope) -> Envelope:
        """See Layer."""
        request = arbitration_service_pb2.SubmitProposalRequest(bus=self.bus, envelope=envelope)
        return (await _answered(self._arbitration.SubmitProposal(request))).decision  # type: ignore[no-any-return]

    async def preflight(self, envelope: Envelope) -> Decision:
        """See Layer."""
        request = arbitration_service_pb2.PreflightRequest(bus=self.bus, envelope=envelope)
        return (await _answered(self._arbitration.Preflight(request))).decision  # type: ignore[no-any-return]

    async def begin(self, decision_id: str, producer: Producer, lease_ms: int) -> BeginExecutionResponse:
        """See Layer."""
        request = execution_service_pb2.BeginExecutionRequest(bus=self.bus, decision_id=decision_id, producer=producer, lease_ms=lease_ms)
        return await _answered(self._executions.BeginExecution(request))  # type: ignore[no-any-return]

    async def renew(self, decision_id: str, execution_id: str, producer: Producer, lease_ms: int) -> None:
        """See Layer."""
        request = execution_service_pb2.RenewExecutionRequest(
            bus=self.bus, decision_id=decision_id, execution_id=execution_id, producer=producer, lease_ms=lease_ms
        )
        await _answered(self._executions.RenewExecution(request))

    async def report(self, envelope: Envelope) -> Envelope:
        """See Layer."""
        request = execution_service_pb2.ReportExecutionRequest(bus=self.bus, envelope=envelope)
        return (await _answered(self._executions.ReportExecution(request))).envelope  # type: ignore[no-any-return]

    async def resolve(self, request: ResolveReviewRequest) -> Envelope:
        """See Layer."""
        request.bus = self.bus
        return (await _answered(self._arbitration.ResolveReview(request))).decision  # type: ignore[no-any-return]

    async def revoke(self, request: RevokeDecisionRequest) -> Envelope:
        """See Layer."""
        request.bus = self.bus
        return (await _answered(self._arbitration.RevokeDecision(request))).decision  # type: ignore[no-any-return]

    async def events(self, after: int) -> list[Envelope]:
        """See Layer."""
        request = event_service_pb2.ListEventsRequest(bus=self.bus, from_sequence_number=after + 1, page_size=1_000)
        return list((await _answered(self._events.ListEvents(request))).envelopes)

    async def projection(self, subject: str) -> Projection:
        """See Layer."""
        request = projection_service_pb2.GetProjectionRequest(bus=self.bus, subject=subject)
        return (await _answered(self._projections.GetProjection(request))).projection  # type: ignore[no-any-return]

    async def pending(self) -> list[PendingDecision]:
        """See Layer."""
        request = projection_service_pb2.ListPendingDecisionsRequest(bus=self.bus)
        return list((await _answered(self._projections.ListPendingDecisions(request))).decisions)

    async def reviews(self) -> list[PendingReview]:
        """See Layer."""
        request = projection_service_pb2.ListPendingReviewsRequest(bus=self.bus)
        return list((await _answered(self._projections.ListPendingReviews(request))).reviews)


async def _answered(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        status = rpc_status.from_call(error)  # type: ignore[arg-type]  # it reads the trailers, which this has
        info = ErrorInfo()
        for detail in status.details if status is not None else ():
            detail.Unpack(info)
        raise CallRefusedError(info.reason, str(error.details())) from error


class ClientLayer(_Remote):
    """A server, asked through a client: `ask` makes one of its calls, by name."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        sequencer: Sequencer,
        set_time: Callable[[int], None],
        client: GavelClient | SyncGavelClient,
    ) -> None:
        super().__init__(channel, sequencer, set_time)
        self._client = client

    async def _ask(self, method: str, *arguments: object, **named: object) -> Any:
        call = getattr(self._client, method)
        try:
            if isinstance(self._client, SyncGavelClient):
                return await asyncio.to_thread(call, *arguments, bus=self.bus, **named)
            return await call(*arguments, bus=self.bus, **named)
        except GavelError as error:
            raise CallRefusedError(error.reason, error.message) from error

    async def activate(self, policy_id: str, version: int, *, shadow: bool = False) -> None:
        """See Layer."""
        await self._ask("activate_rule_set", policy_id, version, mode=_MODE[shadow])

    async def deactivate(self, policy_id: str) -> None:
        """See Layer."""
        await self._ask("deactivate_rule_set", policy_id)

    async def publish(self, envelope: Envelope) -> Envelope:
        """See Layer."""
        return (await self._ask("publish_event", envelope)).envelope  # type: ignore[no-any-return]

    async def propose(self, envelope: Envelope) -> Envelope:
        """See Layer."""
        return (await self._ask("submit_proposal", envelope)).decision  # type: ignore[no-any-return]

    async def preflight(self, envelope: Envelope) -> Decision:
        """See Layer."""
        return (await self._ask("preflight", envelope)).decision  # type: ignore[no-any-return]

    async def begin(self, decision_id: str, producer: Producer, lease_ms: int) -> BeginExecutionResponse:
        """See Layer."""
        return await self._ask("begin_execution", decision_id, producer=producer, lease_ms=lease_ms)  # type: ignore[no-any-return]

    async def renew(self, decision_id: str, execution_id: str, producer: Producer, lease_ms: int) -> None:
        """See Layer."""
        await self._ask("renew_execution", decision_id, execution_id, producer=producer, lease_ms=lease_ms)

    async def report(self, envelope: Envelope) -> Envelope:
        """See Layer."""
        return (await self._ask("report_execution", envelope)).envelope  # type: ignore[no-any-return]

    async def resolve(self, request: ResolveReviewRequest) -> Envelope:
        """See Layer."""
        said = {"reviewer": request.reviewer, "reason": request.reason, "event_id": request.event_id}
        return (await self._ask("resolve_review", request.decision_id, request.verdict, **said)).decision  # type: ignore[no-any-return]

    async def revoke(self, request: RevokeDecisionRequest) -> Envelope:
        """See Layer."""
        said = {"revoked_by": request.revoked_by, "reason": request.reason, "event_id": request.event_id}
        return (await self._ask("revoke_decision", request.decision_id, **said)).decision  # type: ignore[no-any-return]

    async def events(self, after: int) -> list[Envelope]:
        """See Layer."""
        return list((await self._ask("list_events", from_sequence_number=after + 1, page_size=1_000)).envelopes)

    async def projection(self, subject: str) -> Projection:
        """See Layer."""
        return (await self._ask("get_projection", subject)).projection  # type: ignore[no-any-return]

    async def pending(self) -> list[PendingDecision]:
        """See Layer."""
        return list((await self._ask("list_pending_decisions")).decisions)

    async def reviews(self) -> list[PendingReview]:
        """See Layer."""
        return list((await self._ask("list_pending_reviews")).reviews)


class StreamLayer(ClientLayer):
    """The same through the awaiting client, its proposals on one stream; answers are told apart by request_id."""

    def __init__(self, channel: grpc.aio.Channel, sequencer: Sequencer, set_time: Callable[[int], None], client: GavelClient) -> None:
        super().__init__(channel, sequencer, set_time, client)
        self._streaming = client
        self._requests: asyncio.Queue[tuple[str, Envelope] | None] = asyncio.Queue()
        self._answers: dict[str, asyncio.Future[Envelope]] = {}
        self._reading = asyncio.ensure_future(self._read())

    async def propose(self, envelope: Envelope) -> Envelope:
        """See Layer."""
        request_id = f"request-{len(self._answers)}"
        answer = self._answers[request_id] = asyncio.get_running_loop().create_future()
        self._requests.put_nowait((request_id, envelope))
        await asyncio.wait((answer, self._reading), return_when=asyncio.FIRST_COMPLETED)
        assert answer.done(), f"the stream ended without an answer: {self._reading}"
        decided: Envelope = answer.result()
        return decided

    async def close(self) -> None:
        """End the stream; what was sent on it has been answered."""
        self._requests.put_nowait(None)
        await self._reading

    async def _read(self) -> None:
        async for response in self._streaming.stream_proposals(self._sent(), bus=self.bus):
            answer = self._answers[response.request_id]
            if response.HasField("error"):
                error = GavelError.from_status(response.error)
                answer.set_exception(CallRefusedError(error.reason, error.message))
            else:
                answer.set_result(response.decision)

    async def _sent(self) -> AsyncIterator[tuple[str, Envelope]]:
        while (request := await self._requests.get()) is not None:
            yield request
