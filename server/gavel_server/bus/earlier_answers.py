"""Answers that need no decision: a command whose event_id the log has already is told what the log says (seeds 002 §3).

Asking for the same again gives the first answer, however long ago it was made and by whichever server; asking for something else
under the same event_id is an error. A proposal that competes has no answer yet: its caller waits with the others.
"""

from __future__ import annotations

from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import Recorded, command_envelope
from gavel_rules.first_decisions import first_decision_id

from gavel_server.bus.idempotency import same_content
from gavel_server.bus.lookup import Known
from gavel_server.bus.planning import Completed, Pending
from gavel_server.bus.replica import Replica
from gavel_server.errors import ServiceError
from gavel_server.log import EventIdTakenError, LogCorruptError


class EarlierAnswers:
    """What the log of one bus has answered already."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def give(self, pending: Pending, known: Known) -> None:
        """Answer a command whose event_id stands in the log: with the first answer if it asks for the same, else with an error."""
        envelope = command_envelope(pending.command)
        replica = self._replica
        numbers = [number for number in (known.sequence_number, known.decision_sequence_number) if number]
        found = await replica.log.read_many(numbers)
        record = found.get(known.sequence_number)
        if record is None or envelope is None:
            raise LogCorruptError(f"event {known.sequence_number} of bus {replica.bus} is indexed but not in the log")
        if not same_content(Envelope.FromString(record.envelope), envelope):
            message = f"event_id {pending.check_id} is event {known.sequence_number}, which has other content; choose a new event_id"
            pending.answer(ServiceError(error_pb2.ERROR_REASON_EVENT_ID_REUSED, message))
            return
        first = found.get(known.decision_sequence_number, record)
        answer = Envelope.FromString(first.envelope)
        if answer.proposal.HasField("contest"):
            await self._give_contested(pending, answer)
        else:
            pending.answer(Completed(Recorded(answer), first))

    async def give_taken(self, batch: list[Pending], error: EventIdTakenError) -> list[Pending]:
        """Answer those of a refused batch whose event_ids the log had taken; return the others."""
        left: list[Pending] = []
        for pending in batch:
            entry = error.taken.get(pending.check_id) if pending.check_id else None
            if entry is None:
                left.append(pending)
            else:
                await self.give(pending, Known(entry.sequence_number, entry.decision_sequence_number, ""))
        return left

    async def _give_contested(self, pending: Pending, proposal: Envelope) -> None:
        """Answer with the decision on a proposal that has competed, or let the caller wait for it."""
        replica = self._replica
        # First of all he waits: else the decision might be committed while the log is asked for it.
        replica.waiting.join(proposal.event_id, pending)
        known = await replica.lookup.find(first_decision_id(proposal), replica.now_ms())
        found = {} if known is None else await replica.log.read_many([known.sequence_number])
        for record in found.values():
            replica.waiting.hear(Envelope.FromString(record.envelope), record)
