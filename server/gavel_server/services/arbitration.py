"""ArbitrationService, the hot path: callback methods from the request's bytes to a command, and from the log's bytes to the answer's.

grpc.aio and the native front call the same functions through the interceptor (`rpc/callback_methods`). They validate, queue a command and
frame its answer; the core decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from gavel.v1 import error_pb2
from gavel.v1.arbitration_service_pb2 import (
    BatchSubmitProposalsRequest,
    ResolveReviewRequest,
    RevokeDecisionRequest,
    StreamProposalsRequest,
    SubmitProposalRequest,
)
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import EventAnswer, ResolveReview, RevokeDecision
from gavel_rules.identity.principal import Principal
from gavel_rules.limits import MESSAGE_BYTES_MAX, REQUEST_ID_LENGTH_MAX
from google.protobuf.message import Message

from gavel_server.bus.registry import BUS_DEFAULT, BusRegistry
from gavel_server.bus.request import Callback, CommittedAnswer, Request
from gavel_server.bus.sequencer import Sequencer
from gavel_server.compile.compiler import Compiler
from gavel_server.errors import ServiceError, invalid
from gavel_server.fairness.turns import call_slice
from gavel_server.intake.admission import admit_proposal
from gavel_server.intake.envelope_validation import GROWTH_MAX
from gavel_server.intake.human_commands import resolution, revocation
from gavel_server.rpc.call_context import CallContext
from gavel_server.rpc.callback_methods import CallbackMethod, Respond, Tasks
from gavel_server.rpc.decoding import BATCH_BYTES_AT_ONCE, SLICE_ITEMS, RequestDecoder
from gavel_server.rpc.errors import refuse
from gavel_server.rpc.framing import decision_response, stream_response, vote_response
from gavel_server.rpc.identity.access_refusals import AccessRefusals
from gavel_server.rpc.service_descriptors import ARBITRATION
from gavel_server.rpc.wire import text_field
from gavel_server.services.batches.answers import BatchAnswers, record_of
from gavel_server.services.batches.commands import check_batch
from gavel_server.services.preflight import Preflight
from gavel_server.services.waits.wait_decision import WaitDecision

_Request = TypeVar("_Request", bound=Message)
_HumanRequest = TypeVar("_HumanRequest", ResolveReviewRequest, RevokeDecisionRequest)


def _decoder(method: str, request_class: type[_Request]) -> RequestDecoder[_Request]:
    return RequestDecoder(f"{ARBITRATION.full_name}/{method}", request_class)


_SUBMIT: Final = _decoder("SubmitProposal", SubmitProposalRequest)
_BATCH: Final = _decoder("BatchSubmitProposals", BatchSubmitProposalsRequest)
_STREAM: Final = _decoder("StreamProposals", StreamProposalsRequest)
_RESOLVE: Final = _decoder("ResolveReview", ResolveReviewRequest)
_REVOKE: Final = _decoder("RevokeDecision", RevokeDecisionRequest)
_REQUEST_ID: Final = StreamProposalsRequest.REQUEST_ID_FIELD_NUMBER


class Arbitration:
    """The methods of ArbitrationService, by name."""

    def __init__(self, buses: BusRegistry, compiler: Compiler, refusals: AccessRefusals | None = None) -> None:
        """`refusals` counts the proposals of batches and streams that are refused; default: nobody records them."""
        self._buses = buses
        self._refusals: Final = AccessRefusals(buses) if refusals is None else refusals
        self._tasks: Final = Tasks()
        preflight = Preflight(buses, compiler)
        waiting = WaitDecision(buses)
        self.methods: Final[Mapping[str, CallbackMethod]] = {
            "SubmitProposal": self._submit_proposal,
            "BatchSubmitProposals": self._batch_submit_proposals,
            "StreamProposals": self._stream_proposal,
            "ResolveReview": lambda data, context, respond: self._submit_human_command(
                data, _RESOLVE.decode(data), resolution, context, respond
            ),
            "RevokeDecision": lambda data, context, respond: self._submit_human_command(
                data, _REVOKE.decode(data), revocation, context, respond
            ),
            "Preflight": partial(self._tasks.respond, preflight.preflight),
            "BatchPreflight": partial(self._tasks.respond, preflight.batch_preflight),
            "WaitDecision": partial(self._tasks.respond, waiting.wait_decision),
        }

    def _submit_proposal(self, data: bytes, context: CallContext, respond: Respond) -> None:
        """Answer a SubmitProposalRequest with its SubmitProposalResponse."""
        request = _SUBMIT.decode(data)

        def done(result: CommittedAnswer | ServiceError) -> None:
            respond(result if isinstance(result, ServiceError) else decision_response(record_of(result)))

        self._submit(request.bus, request.envelope, done, respond, len(data), context)

    def _batch_submit_proposals(self, data: bytes, context: CallContext, respond: Respond) -> None:
        """Answer a BatchSubmitProposalsRequest; every item succeeds or fails independently."""
        if len(data) > BATCH_BYTES_AT_ONCE:
            self._tasks.serve(self._submit_large_batch(data, context, respond), context)
            return
        request = _BATCH.decode(data)
        check_batch(len(request.envelopes))
        if len(request.envelopes) > SLICE_ITEMS:
            self._tasks.serve(self._submit_in_slices(request, len(data), context, respond), context)
            return
        envelopes = request.envelopes[:]
        answers = BatchAnswers(context.method, len(envelopes), respond, self._note_refused(request.bus, envelopes, context))
        requests = answers.admit(
            envelopes,
            self._bus(request.bus),
            len(data) // len(envelopes),
            context.cancellation,
            context.caller,
            traceparent=context.traceparent,
            principal=context.principal,
        )
        self._submit_all(request.bus, requests, context, respond)

    async def _submit_large_batch(self, data: bytes, context: CallContext, respond: Respond) -> None:
        """Answer a BatchSubmitProposalsRequest. Other tasks run while its proposals are decoded and admitted."""
        try:
            request = await _BATCH.decode_in_turns(data, context)
            check_batch(len(request.envelopes))
        except Exception as error:  # noqa: BLE001  # the interceptor makes a status of it
            respond(error)
            return
        await self._submit_in_slices(request, len(data), context, respond)

    async def _submit_in_slices(
        self, request: BatchSubmitProposalsRequest, size_bytes: int, context: CallContext, respond: Respond
    ) -> None:
        """Answer a request of `size_bytes`. Other tasks run while its proposals are admitted: refusing 500 takes a tenth of a second."""
        try:
            envelopes = request.envelopes[:]
            bus = self._bus(request.bus)
            answers = BatchAnswers(context.method, len(envelopes), respond, self._note_refused(request.bus, envelopes, context))
            # Measuring each proposal takes time: only if one of the batch could exceed the limit.
            share_bytes = size_bytes // len(envelopes) if size_bytes * GROWTH_MAX <= MESSAGE_BYTES_MAX else None
            requests: list[Request] = []
            time_slice = call_slice(SLICE_ITEMS, context.caller)
            for index, envelope in enumerate(envelopes):
                await time_slice.spend(1)
                requests += answers.admit(
                    [envelope],
                    bus,
                    share_bytes,
                    context.cancellation,
                    context.caller,
                    index,
                    context.traceparent,
                    context.principal,
                )
        except Exception as error:  # noqa: BLE001  # the interceptor makes a status of it
            respond(error)
            return
        self._submit_all(request.bus, requests, context, respond)

    def _note_refused(self, bus: str, envelopes: Sequence[Envelope], context: CallContext) -> Callable[[int, Exception], None]:
        """Return what counts the proposals of a batch that are refused."""

        def note(index: int, error: Exception) -> None:
            self._refusals.note(context.method, bus, context.principal, error, envelopes[index])

        return note

    def _submit_all(self, bus: str, requests: list[Request], context: CallContext, respond: Respond) -> None:
        if requests:
            self._with_bus(bus, context, self._buses.open, respond, lambda sequencer: sequencer.submit_all(requests))

    def _stream_proposal(self, data: bytes, context: CallContext, respond: Respond) -> None:
        """Answer one StreamProposalsRequest with its StreamProposalsResponse, which holds the error if there is one.

        An error response ends the stream: bytes that are not a request, or a server that is shutting down.
        """
        limit_error = _STREAM.limit_error(data)
        if limit_error is not None:
            respond(
                stream_response(text_field(data, _REQUEST_ID)[:REQUEST_ID_LENGTH_MAX], refuse(context.method, limit_error).encoded_status())
            )
            return
        request = _STREAM.decode(data)
        done = _StreamAnswer(request, context, respond, self._refusals)
        if len(request.request_id) > REQUEST_ID_LENGTH_MAX:
            done(invalid([("request_id", f"is longer than {REQUEST_ID_LENGTH_MAX} characters")]))
            return
        try:
            self._submit(request.bus, request.envelope, done, done, len(data), context)
        except Exception as error:  # noqa: BLE001  # the error of one request does not end the stream
            done(error)

    def _submit_human_command(
        self,
        data: bytes,
        request: _HumanRequest,
        command_of: Callable[[_HumanRequest, Principal], ResolveReview | RevokeDecision],
        context: CallContext,
        respond: Respond,
    ) -> None:
        """Answer a person's verdict or revocation with the decision that follows, or with the vote if none follows yet."""
        command = command_of(request, context.principal)
        command.envelope.traceparent = context.traceparent

        def done(result: CommittedAnswer | ServiceError) -> None:
            if isinstance(result, ServiceError):
                respond(result)
                return
            answer, record = result.answer, record_of(result)
            is_vote = isinstance(answer, EventAnswer) and answer.envelope.HasField("fact")
            respond(vote_response(record) if is_vote else decision_response(record))

        def proceed(sequencer: Sequencer) -> None:
            sequencer.submit(command, done, request.event_id, len(data), context.cancellation, context.caller, context.principal)

        # Without an event there is nothing to resolve or revoke, so this never opens a bus.
        self._with_bus(request.bus, context, self._buses.existing, respond, proceed)

    def _submit(
        self,
        bus: str,
        envelope: Envelope,
        callback: Callback,
        fail: Callable[[Exception], None],
        size_bytes: int,
        context: CallContext,
    ) -> None:
        """Admit a proposal, and queue it on its bus. Raises ServiceError."""
        command, idempotency_key = admit_proposal(envelope, self._bus(bus), size_bytes, context.traceparent)

        def proceed(sequencer: Sequencer) -> None:
            sequencer.submit(command, callback, idempotency_key, size_bytes, context.cancellation, context.caller, context.principal)

        self._with_bus(bus, context, self._buses.open, fail, proceed)

    def _bus(self, name: str) -> str:
        """Return the name of a bus, open or not. Raises ServiceError if it is not the name of a bus."""
        if self._buses.find_open(name) is None:
            self._buses.check_name(name)
        return name or BUS_DEFAULT

    def _with_bus(
        self,
        name: str,
        context: CallContext,
        get: Callable[[str, str], Awaitable[Sequencer]],
        fail: Callable[[Exception], None],
        proceed: Callable[[Sequencer], None],
    ) -> None:
        """Call `proceed` with the sequencer of a bus: at once if the bus is open, which it nearly always is, else once `get` has it."""
        incarnation = context.bus_incarnation
        try:
            sequencer = self._buses.find_open(name, incarnation)
        except ServiceError as error:
            fail(error)
            return
        if sequencer is not None:
            proceed(sequencer)
            return

        async def wait() -> None:
            try:
                proceed(await get(name, incarnation))
            except Exception as error:  # noqa: BLE001  # the interceptor makes a status of it
                fail(error)

        self._tasks.serve(wait(), context)


class _StreamAnswer:
    """The callback for one request of a stream. A compiled closure would be garbage for the collector, with the request.

    docs/performance.md#garbage-collection
    """

    def __init__(self, request: StreamProposalsRequest, context: CallContext, respond: Respond, refusals: AccessRefusals) -> None:
        self._request: Final = request
        self._context: Final = context
        self._respond: Final = respond
        self._refusals: Final = refusals

    def __call__(self, result: CommittedAnswer | Exception) -> None:
        request = self._request
        if isinstance(result, CommittedAnswer):
            self._respond(stream_response(request.request_id, record_of(result)))
        elif isinstance(result, ServiceError) and result.reason == error_pb2.ERROR_REASON_SHUTTING_DOWN:
            self._respond(result)
        else:
            method = self._context.method
            self._refusals.note(method, request.bus, self._context.principal, result, request.envelope)
            self._respond(stream_response(request.request_id, refuse(method, result).encoded_status()))
