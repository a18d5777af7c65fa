"""Answers to repeated requests: a command whose event_id is in the log gets the answer that the log holds (constitution §3).

The same request gets its first answer, however old and whichever server gave it. Another request under the same event_id is an
error. A proposal that waits in a contest has no answer yet; its caller waits too.

Only the log itself is trusted. Memory holds events that this server has committed or read: if the log has another event at such a number,
the log has lost events, and the bus is blocked. The log's index of event_ids is only a hint: if the event that it names has another id,
only the request is refused.
"""

from __future__ import annotations

from typing import Final

import structlog
from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.arbitration.first_decision import first_decision_id
from gavel_rules.authorization import is_allowed
from gavel_rules.commands import BeginExecution, EventAnswer, LeasedAttempt, RecordRefusals, RenewExecution, command_envelope
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.identity.access import Access
from gavel_rules.identity.principal import Principal

from gavel_server.bus.idempotency.same_request import is_same_request, is_same_start
from gavel_server.bus.recent_events import EventLocation
from gavel_server.bus.replica import Replica
from gavel_server.bus.request import CommittedAnswer, Request
from gavel_server.errors import ServiceError
from gavel_server.log import ArchiveUnavailableError, Record

# The verdicts of people, which a decision answers.
_VERDICTS: Final = frozenset({"review_resolved", "revocation_requested"})
# docs/performance.md#isinstance-tuples
_STARTS: Final = (BeginExecution, RenewExecution)

_LOG: Final = structlog.get_logger(__name__)


class RepeatedRequests:
    """Answers the repeated requests of one bus from its log."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def answer(self, request: Request, location: EventLocation) -> None:
        """Answer a request whose event_id this server knows: with its first answer, or EVENT_ID_REUSED. Raises LogError.

        An event whose archive cannot be read costs this request alone: it is LOG_UNAVAILABLE.
        """
        number = location.sequence_number
        if not await self._answer_at(request, number):
            problem = f"event {number} had event_id {request.idempotency_key}, but this event is no longer in the log"
            request.answer(await self._replica.note_missing(problem))

    async def answer_known(self, request: Request) -> bool:
        """Answer a request if the log's index knows its event_id; return whether it does. Raises LogError."""
        key = request.idempotency_key
        entry = (await self._replica.log.find([key], self._replica.now_ms())).get(key) if key else None
        if entry is not None:
            await self._answer_hint(request, entry.sequence_number)
        return entry is not None

    async def _answer_hint(self, request: Request, number: int) -> None:
        """Answer a request whose event_id is event `number` according to the index."""
        if await self._answer_at(request, number):
            return
        key, bus = request.idempotency_key, self._replica.bus
        _LOG.error("index.damaged", bus=bus, event_id=key, sequence_number=number)
        message = (
            f"the index of bus {bus} says that event_id {key} is event {number}, but that event is missing or has another id. "
            "Restore the index or remove the entry, or send another event_id"
        )
        request.answer(ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, message))

    async def _answer_at(self, request: Request, number: int) -> bool:
        """Answer a request from the event with its event_id; return False if event `number` is not that event."""
        try:
            return await self._answer_from_log(request, number)
        except ArchiveUnavailableError as error:
            request.answer(ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, str(error)))
            return True

    async def _answer_from_log(self, request: Request, number: int) -> bool:
        sent = command_envelope(request.command)
        replica = self._replica
        records = await replica.log.read_many([number, number + 1])
        record = records.get(number)
        recorded = Envelope() if record is None else Envelope.FromString(record.envelope)
        if record is None or recorded.event_id != request.idempotency_key:
            return False
        command = request.command
        if isinstance(command, _STARTS):
            self._answer_start(request, command, recorded, record)
            return True
        if isinstance(command, RecordRefusals):  # the server's own; it repeats one whose outcome it does not know
            replica.answers.answer(request, CommittedAnswer(EventAnswer(recorded), record), number)
            return True
        if sent is None:
            return False
        if not is_same_request(recorded, sent) or not self._is_same_caller(recorded, request.principal):
            request.answer(self._reused(request, recorded, "event_id"))
        elif recorded.proposal.HasField("contest"):
            await self._answer_from_contest(request, recorded)
        elif recorded.HasField("proposal") or recorded.fact.WhichOneof("system") in _VERDICTS:
            # The decision on a proposal or a verdict is the next event.
            following = records.get(number + 1)
            decision = Envelope() if following is None else Envelope.FromString(following.envelope)
            if following is None or not decision.HasField("decision") or decision.causation_id != recorded.event_id:
                problem = f"event {number + 1}, the decision that answers event {number}, is missing"
                request.answer(await replica.note_missing(problem))
            else:
                replica.answers.answer(request, CommittedAnswer(EventAnswer(decision), following), number + 1)
        else:
            replica.answers.answer(request, CommittedAnswer(EventAnswer(recorded), record), number)
        return True

    def _reused(self, request: Request, recorded: Envelope, field: str) -> ServiceError:
        """Return the refusal of a request whose id is that of another request. Only its caller and readers of the bus learn its number."""
        what = "taken"
        if self._is_same_caller(recorded, request.principal) or self._may_read(request.principal):
            what = f"event {recorded.sequence_number}, which has other content or another caller"
        message = f"{field} {request.idempotency_key} is {what}; choose a new {field}"
        return ServiceError(error_pb2.ERROR_REASON_EVENT_ID_REUSED, message)

    def _may_read(self, principal: Principal) -> bool:
        state = self._replica.state
        return is_allowed(state.grants_in_force, Access("read", state.bus), principal)

    def _is_same_caller(self, recorded: Envelope, principal: Principal) -> bool:
        """Return whether a principal caused an event of the log. Events of callers without authentication may have no attestation."""
        attestation = recorded.attestation
        if principal.is_anonymous or not self._replica.state.semantics.attests:
            return attestation.method in ("", principal.method)
        return (attestation.principal, attestation.method, attestation.issuer) == (principal.name, principal.method, principal.issuer)

    def _answer_start(self, request: Request, command: BeginExecution | RenewExecution, recorded: Envelope, record: Record) -> None:
        """Answer a repeated start or renewal of an attempt, while the attempt runs under a lease as long as the recorded one.

        Later, or after a renewal that ends earlier, the first answer would let an executor act beside another attempt.
        """
        replica = self._replica
        execution = recorded.execution
        live = replica.state.live_decision(command.decision_id)
        decision_id = command.decision_id if live is None else live.decision_id  # a grant stands for the approval
        if not is_same_start(recorded, command, decision_id) or not self._is_same_caller(recorded, request.principal):
            request.answer(self._reused(request, recorded, "request_id"))
        elif (
            live is None
            or live.execution_id != execution.execution_id
            or not live.is_running
            or replica.now_ms() >= live.lease_until_ms
            or milliseconds(execution.lease_until) > live.lease_until_ms
        ):
            problem = f"{execution.execution_id}, which request_id {request.idempotency_key} leased, no longer runs under its lease"
            request.answer(
                ServiceError(error_pb2.ERROR_REASON_WRONG_STATE, f"{problem}; stop acting on it, and begin again with a new request_id")
            )
        else:
            answer = LeasedAttempt(recorded, live.decision) if isinstance(command, BeginExecution) else EventAnswer(recorded)
            replica.answers.answer(request, CommittedAnswer(answer, record), recorded.sequence_number)

    async def _answer_from_contest(self, request: Request, proposal: Envelope) -> None:
        """Answer with the decision on a proposal that entered a contest, or let the caller wait for it."""
        replica = self._replica
        location = await replica.recent_events.find_location(first_decision_id(proposal), replica.now_ms())
        records = {} if location is None else await replica.log.read_many([location.sequence_number])
        # A later decision is committed or read by the task that runs this, and thus finds the caller waiting.
        replica.contest_waiters.add(proposal.event_id, request)
        for record in records.values():
            replica.contest_waiters.notify(Envelope.FromString(record.envelope), record)
