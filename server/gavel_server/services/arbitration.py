"""ArbitrationService: the hot path. Plain functions from the request's bytes to a command, and from the log's bytes to the
answer's: gRPC wraps them here, the front's link calls them as they are (`front/`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

import grpc
from gavel.v1 import error_pb2
from gavel.v1.arbitration_service_pb2 import (
    BatchPreflightRequest,
    BatchPreflightResponse,
    BatchSubmitProposalsRequest,
    PreflightRequest,
    PreflightResponse,
    PreflightResult,
    ResolveReviewRequest,
    RevokeDecisionRequest,
    StreamProposalsRequest,
    SubmitProposalRequest,
)
from gavel.v1.decision_pb2 import ENGINE_RETE, Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules import limits
from gavel_rules.arbitration import arbitrate, explain
from gavel_rules.commands import ResolveReview, RevokeDecision, Tick
from gavel_rules.decider import handle, judge
from gavel_rules.evidence import Cited
from gavel_rules.language.agreement import described, disagreements
from gavel_rules.language.ruleset import CompiledAction, CompiledRuleSet
from gavel_rules.projection import State
from gavel_rules.proposed import Proposed
from gavel_rules.tables import governing_actions
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status

from gavel_server.admission import GROWTH_MAX, admit_proposal
from gavel_server.bus.planning import TIMERS_PER_COMMIT, Completed
from gavel_server.bus.sequencer import Sequencer
from gavel_server.buses import BUS_DEFAULT, Buses
from gavel_server.compiler import Compiler
from gavel_server.errors import ServiceError, abort, invalid
from gavel_server.framing import envelope_bytes, field_1, named_result
from gavel_server.people import resolution, revocation
from gavel_server.services.answering import BatchAnswers, record_of
from gavel_server.services.batches import check_batch
from gavel_server.services.boundary import fitted, refused, register
from gavel_server.streaming import Ask, streaming

SERVICE: Final = "gavel.v1.ArbitrationService"

Context = grpc.aio.ServicerContext[Any, Any]
Governing = tuple[CompiledAction, ...]
Answer = Callable[[bytes | ServiceError], None]
# A method answers once: at once, or later from the same thread.
Method = Callable[[bytes, Answer], None]
_Heard = Callable[[bytes | Exception], None]
_Request = TypeVar("_Request", bound=Message)
_Word = TypeVar("_Word", ResolveReviewRequest, RevokeDecisionRequest)


class Arbitration:
    """Proposals in, decisions out. `methods` are plain functions, for a transport that hands over bytes and hears bytes."""

    def __init__(self, buses: Buses, compiler: Compiler) -> None:
        self._buses = buses
        self._compiler = compiler
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        methods: dict[str, Callable[[bytes, _Heard], None]] = {
            "SubmitProposal": self._submit_proposal,
            "BatchSubmitProposals": self._batch_submit_proposals,
            "Preflight": lambda data, heard: self._start(_answered(self._preflight(data), heard)),
            "ResolveReview": lambda data, heard: self._say(_parse(ResolveReviewRequest, data), resolution, data, heard),
            "RevokeDecision": lambda data, heard: self._say(_parse(RevokeDecisionRequest, data), revocation, data, heard),
            "BatchPreflight": lambda data, heard: self._start(_answered(self._batch_preflight(data), heard)),
            "StreamProposals": self._stream_proposal,
        }
        self.methods: Mapping[str, Method] = {name: _total(name, method) for name, method in methods.items()}

    def register(self, server: grpc.aio.Server) -> None:
        """Register the service's methods with a gRPC server; they take and answer bytes."""
        unary = dict(self.methods)
        stream = streaming(_asked(unary.pop("StreamProposals")), self._closing)
        handlers: dict[str, Any] = {name: grpc.unary_unary_rpc_method_handler(_awaited(method)) for name, method in unary.items()}
        register(server, SERVICE, {**handlers, "StreamProposals": stream})

    def close_streams(self) -> None:
        """Let streams of proposals end once what is in them has been answered."""
        self._closing.set()

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_bus(self, name: str, failed: Callable[[Exception], None], then: Callable[[Sequencer], None]) -> None:
        """Go on with a bus: at once if it is open, which is nearly always."""
        sequencer = self._buses.opened(name)
        if sequencer is not None:
            then(sequencer)
            return

        async def open_first() -> None:
            try:
                then(await self._buses.get(name))
            except Exception as error:  # noqa: BLE001  # `failed` makes an answer of it
                failed(error)

        self._start(open_first())

    def _submit_proposal(self, data: bytes, heard: _Heard) -> None:
        """Answer a SubmitProposalRequest with its SubmitProposalResponse."""
        _check_size(data)
        request = _parse(SubmitProposalRequest, data)

        def done(result: Completed | ServiceError) -> None:
            heard(result if isinstance(result, ServiceError) else field_1(_decision_bytes(result)))

        self._on_bus(request.bus, heard, lambda sequencer: sequencer.propose(request.envelope, done, len(data)))

    def _batch_submit_proposals(self, data: bytes, heard: _Heard) -> None:
        """Answer a BatchSubmitProposalsRequest; every item succeeds or fails by itself."""
        request = _parse(BatchSubmitProposalsRequest, data)
        envelopes = request.envelopes[:]
        check_batch(len(envelopes), len(data))
        self._on_bus(request.bus, heard, lambda sequencer: _propose_all(sequencer, envelopes, len(data), heard))

    def _stream_proposal(self, data: bytes, heard: _Heard) -> None:
        """Answer one StreamProposalsRequest with its StreamProposalsResponse, whatever is wrong with it.

        An error ends the stream: a request that cannot be read, or a server that answers no more.
        """
        request = _parse(StreamProposalsRequest, data)
        name = request.request_id.encode()

        def done(result: Completed | Exception) -> None:
            if isinstance(result, Completed):
                heard(named_result(name, _decision_bytes(result)))
            elif isinstance(result, ServiceError) and result.reason == error_pb2.ERROR_REASON_SHUTTING_DOWN:
                heard(result)
            else:
                heard(named_result(name, refused(f"{SERVICE}/StreamProposals", result).status()))

        def on_bus(sequencer: Sequencer) -> None:
            try:
                sequencer.propose(request.envelope, done, len(data))
            except ServiceError as error:
                done(error)

        if len(request.request_id) > limits.REQUEST_ID_LENGTH_MAX:
            done(invalid([("request_id", f"is longer than {limits.REQUEST_ID_LENGTH_MAX} characters")]))
            return
        self._on_bus(request.bus, done, on_bus)

    def _say(self, request: _Word, command_of: Callable[[_Word], ResolveReview | RevokeDecision], data: bytes, heard: _Heard) -> None:
        """Answer what a person says with the decision that follows."""
        _check_size(data)
        command = command_of(request)

        def done(result: Completed | ServiceError) -> None:
            heard(result if isinstance(result, ServiceError) else field_1(_decision_bytes(result)))

        self._on_bus(request.bus, heard, lambda sequencer: sequencer.submit(command, done, request.event_id, len(data)))

    async def _preflight(self, data: bytes) -> bytes:
        """Answer a PreflightRequest: the decision that the proposal would get now."""
        _check_size(data, 2 * limits.MESSAGE_BYTES_MAX)
        request = _parse(PreflightRequest, data)
        sequencer = self._buses.opened(request.bus) or await self._buses.get(request.bus)
        override = await self._compiler.compile(request.rule_set_override, "rule_set_override") if request.rule_set_override else None
        envelope = request.envelope
        asked, _ = admit_proposal(envelope, request.bus or BUS_DEFAULT, len(data))
        await _inherit_trace(sequencer, asked)
        known = await _citations(sequencer, [asked])
        state = await sequencer.settled()
        governing = None if override is None else _governing_with(state, override, envelope)
        response = PreflightResponse(evaluated_at_sequence_number=state.head)
        now_ms = sequencer.now_ms()
        response.decision.CopyFrom(would_decide(state, asked, known, now_ms, governing))
        if request.explain:
            response.explanations.extend(explain(state, envelope, now_ms, governing))
        return response.SerializeToString()

    async def _batch_preflight(self, data: bytes) -> bytes:
        """Answer a BatchPreflightRequest; each proposal as if it were the only one."""
        request = _parse(BatchPreflightRequest, data)
        check_batch(len(request.envelopes), len(data))
        sequencer = self._buses.opened(request.bus) or await self._buses.get(request.bus)
        admitted: list[Proposed | ServiceError] = []
        for envelope in request.envelopes:
            try:
                asked, _ = admit_proposal(envelope, request.bus or BUS_DEFAULT, len(data))
                await _inherit_trace(sequencer, asked)
                admitted.append(asked)
            except ServiceError as error:
                admitted.append(refused(f"{SERVICE}/BatchPreflight", error))
        known = await _citations(sequencer, [item for item in admitted if isinstance(item, Proposed)])
        state = await sequencer.settled()
        now_ms = sequencer.now_ms()
        response = BatchPreflightResponse()
        for item in admitted:
            if isinstance(item, ServiceError):
                response.results.append(PreflightResult(error=item.status()))
                continue
            try:
                response.results.append(PreflightResult(decision=would_decide(state, item, known, now_ms, None)))
            except Exception as error:  # noqa: BLE001  # a bug or a broken engine costs one proposal, not those that are asked with it
                response.results.append(PreflightResult(error=refused(f"{SERVICE}/BatchPreflight", error).status()))
        return response.SerializeToString()


def _propose_all(sequencer: Sequencer, envelopes: list[Envelope], size_bytes: int, heard: _Heard) -> None:
    """Queue a batch; `heard` hears all answers together."""
    answers = BatchAnswers(f"{SERVICE}/BatchSubmitProposals", len(envelopes), heard)
    # Measuring takes a while: only where one proposal of the batch could be over the limit.
    share_bytes = size_bytes // len(envelopes) if size_bytes * GROWTH_MAX <= limits.MESSAGE_BYTES_MAX else None
    sequencer.propose_all(answers.waiting(envelopes, share_bytes))


def _decision_bytes(result: Completed) -> bytes:
    return envelope_bytes(record_of(result))


def would_decide(state: State, asked: Proposed, known: Mapping[int, Cited], now_ms: int, governing: Governing | None) -> Decision:
    """Return the decision as of now, with timers that are due taken into account, and leave the state as it was."""
    version = asked.projection_version
    if version is not None and version > state.head:
        problem = f"is {version}, ahead of the log, whose head is {state.head}"
        raise invalid([("envelope.proposal.projection_version", problem)])
    head = state.head
    next_timer_ms = state.next_timer_ms()
    mark = state.mark() if next_timer_ms is not None and next_timer_ms <= now_ms else None
    try:
        while mark is not None and handle(state, Tick(TIMERS_PER_COMMIT), now_ms=now_ms).events:
            pass
        decision = arbitrate(state, asked, known, now_ms, judge(state, head + 2, ENGINE_RETE), governing)
    finally:
        if mark is not None:
            state.undo(mark)
    decision.state_version = head
    return decision


async def _citations(sequencer: Sequencer, proposals: Sequence[Proposed]) -> dict[int, Cited]:
    """Return what the proposals cite, by sequence number, from memory or, where that has it no more, from the log.

    Where they speak of events that this server has not seen yet, it first reads on, as it does before it decides. It is a copy:
    memory forgets while the caller waits for the state.
    """
    lookup = sequencer.lookup
    cited = [number for asked in proposals for number, _ in asked.citations]
    if max([*cited, *(asked.projection_version or 0 for asked in proposals)], default=0) > sequencer.head.sequence_number:
        await sequencer.read_on()
    found = {number: lookup.cited[number] for number in cited if number in lookup.cited}
    forgotten = [number for number in cited if number not in found]
    return {**found, **await lookup.fetch_cited(forgotten)} if forgotten else found


async def _inherit_trace(sequencer: Sequencer, asked: Proposed) -> None:
    header = asked.header
    if not header.causation_id:
        return
    known = await sequencer.lookup.find(header.causation_id, sequencer.now_ms())
    if known is None:
        message = f"causation_id {header.causation_id} names no event of bus {sequencer.bus} within the idempotency window"
        raise ServiceError(error_pb2.ERROR_REASON_EVENT_NOT_FOUND, message)
    if not header.trace_id:
        header.trace_id = asked.envelope.trace_id = known.trace_id


def _governing_with(state: State, override: CompiledRuleSet, envelope: Envelope) -> Governing:
    in_force = {policy_id: active.rule_set for policy_id, active in state.active.items()}
    found = disagreements(override, in_force.values())
    if found:
        raise ServiceError(error_pb2.ERROR_REASON_RULE_SETS_DISAGREE, described(found))
    return governing_actions({**in_force, override.policy_id: override}.values()).get(envelope.proposal.action_type, ())


def _check_size(data: bytes, bytes_max: int = limits.MESSAGE_BYTES_MAX) -> None:
    if len(data) > bytes_max:
        raise invalid([("request", f"is larger than {bytes_max} bytes")])


def _parse(message: type[_Request], data: bytes) -> _Request:
    try:
        return message.FromString(data)
    except DecodeError as error:
        raise invalid([("request", "is not a message of the contract")]) from error


def _total(name: str, method: Callable[[bytes, _Heard], None]) -> Method:
    """Return the method with whatever it raises turned into an answer of the error table."""

    def total(data: bytes, answer: Answer) -> None:
        def heard(result: bytes | Exception) -> None:
            answer(fitted(refused(f"{SERVICE}/{name}", result)) if isinstance(result, Exception) else result)

        try:
            method(data, heard)
        except Exception as error:  # noqa: BLE001  # a bug is answered as INTERNAL with an id, and logged under it
            heard(error)

    return total


async def _answered(coroutine: Awaitable[bytes], heard: _Heard) -> None:
    try:
        result: bytes | Exception = await coroutine
    except Exception as error:  # noqa: BLE001  # `heard` makes an answer of it
        result = error
    heard(result)


def _asked(method: Method) -> Ask:
    """Return the method as streams ask it."""

    async def ask(request: bytes) -> bytes | Status:
        result = await _result(method, request)
        return result.status() if isinstance(result, ServiceError) else result

    return ask


async def _result(method: Method, request: bytes) -> bytes | ServiceError:
    future: asyncio.Future[bytes | ServiceError] = asyncio.get_running_loop().create_future()

    def answer(result: bytes | ServiceError) -> None:
        if not future.done():
            future.set_result(result)

    method(request, answer)
    return await future


def _awaited(method: Method) -> Callable[[Any, Context], Awaitable[bytes]]:
    """Return the method as grpc.aio calls one."""

    async def call(request: Any, context: Context) -> bytes:
        result = await _result(method, request)
        if isinstance(result, ServiceError):
            await abort(context, result)
        return result

    return call
