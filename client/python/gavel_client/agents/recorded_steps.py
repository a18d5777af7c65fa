"""The steps of a run that are in the log already, because an earlier run made them or another process makes the same run.

A step follows a rejection under an event_id that derives from it (`run_ids`): the next proposal, or an AGENT_DIAGNOSTIC `ProposalAdopted`
that names a proposal of another run for the same work. A step that is in the log is used as it is and never made again.
"""

from __future__ import annotations

import time
from typing import Final

import grpc
from gavel.v1.arbitration_service_pb2 import DECISION_PHASE_CLOSED, DECISION_PHASE_UNSPECIFIED
from gavel.v1.envelope_pb2 import Envelope
from google.protobuf.struct_pb2 import Struct

from gavel_client.agents.deadline import LAST_RECORD_MS, Deadline
from gavel_client.agents.threaded_client import LoopClient
from gavel_client.envelopes import diagnostic_envelope
from gavel_client.rpc.calls import poll_ms
from gavel_client.rpc.deadlines import READ_TIMEOUT_MS, WRITE_TIMEOUT_MS
from gavel_client.rpc.errors import GavelError

EVENT_ID_REUSED: Final = "EVENT_ID_REUSED"
ADOPTION_KIND: Final = "ProposalAdopted"
_PROPOSAL_ID: Final = "proposal_id"
# The parts of `work`, for messages.
WORK: Final = ("subject", "action_type", "params")
# Set by the server; an envelope that is sent again leaves them empty.
_SERVER_FIELDS: Final = ("sequence_number", "recorded_at", "chain_hash", "attestation", "traceparent")


class RecordedSteps:
    """Reads and records the steps of one run."""

    def __init__(self, client: LoopClient, deadline: Deadline) -> None:
        self._client = client
        self._deadline = deadline

    async def proposal(self, event_id: str) -> Envelope | None:
        """Return a recorded proposal as it can be sent again; None if the bus does not know it."""
        recorded = await self._event(event_id)
        return without_server_fields(recorded) if recorded is not None and recorded.HasField("proposal") else None

    async def step(self, next_proposal: Envelope) -> Envelope | None:
        """Return the proposal of the step that has the event_id of `next_proposal`, or None if there is no such step.

        Raises GavelError EVENT_ID_REUSED if the event is not a step of this run.
        """
        recorded = await self._event(next_proposal.event_id)
        if recorded is None:
            return None
        if _origin(recorded) == _origin(next_proposal):
            if recorded.HasField("proposal"):
                return without_server_fields(recorded)
            if recorded.agent_diagnostic.kind == ADOPTION_KIND and _PROPOSAL_ID in recorded.agent_diagnostic.attributes:
                adopted = await self.proposal(str(recorded.agent_diagnostic.attributes[_PROPOSAL_ID]))
                if adopted is not None:
                    return adopted
        message = f"event {recorded.sequence_number} has the event_id of this run's next proposal but is not a step of the run"
        raise GavelError(grpc.StatusCode.ALREADY_EXISTS, EVENT_ID_REUSED, message)

    async def adopt(self, next_proposal: Envelope, proposal_id: str) -> bool:
        """Record that another proposal takes the place of `next_proposal`; return False if a process has recorded another step."""
        adoption = diagnostic_envelope(
            next_proposal.subject,
            next_proposal.producer,
            kind=ADOPTION_KIND,
            attributes={_PROPOSAL_ID: proposal_id},
            event_id=next_proposal.event_id,
            trace_id=next_proposal.trace_id,
            causation_id=next_proposal.causation_id,
        )
        try:
            await self._deadline.call(
                lambda: self._client.publish_event(adoption, timeout_ms=self._deadline.call_ms(WRITE_TIMEOUT_MS)), LAST_RECORD_MS
            )
        except GavelError as error:
            if error.reason != EVENT_ID_REUSED:
                raise
            return False
        return True

    async def verdict(self, decision: Envelope) -> Envelope:
        """Return the decision that followed from the verdict on a review, or the review's own while it is open."""
        response = await self._deadline.call(lambda: self._client.wait_decision(decision.event_id, timeout_ms=0))
        if response.phase == DECISION_PHASE_UNSPECIFIED:
            return decision
        # An approval may have expired since, or been reviewed again.
        latest: Envelope | None = response.decision
        while latest is not None and latest.decision.previous_decision_id != decision.event_id:
            previous_id = latest.decision.previous_decision_id
            latest = await self._event(previous_id) if previous_id else None
        return decision if latest is None else latest

    async def wait_for_end(self, proposal_id: str, at_most_ms: int) -> float:
        """Wait until the work of a proposal has ended and its conflict key is free. Return the time that it took, in milliseconds.

        Ends after `at_most_ms`, at the deadline, after the longest wait of the server, or at once if the bus no longer knows the proposal.
        """
        began_at = time.monotonic()
        ends_at = began_at + min(at_most_ms, self._deadline.ms_left()) / 1000
        try:
            await self._deadline.call(
                lambda: self._client.wait_decision(proposal_id, phase=DECISION_PHASE_CLOSED, timeout_ms=poll_ms(ends_at))
            )
        except GavelError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise
        return (time.monotonic() - began_at) * 1000

    async def _event(self, event_id: str) -> Envelope | None:
        """Return an event; None if the bus does not know its id, or no longer."""
        try:
            response = await self._deadline.call(
                lambda: self._client.get_event(event_id=event_id, timeout_ms=self._deadline.call_ms(READ_TIMEOUT_MS))
            )
        except GavelError as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise
            return None
        return response.envelope


def without_server_fields(recorded: Envelope) -> Envelope:
    """Return a recorded proposal without the server's fields. Sent again, it gets its decision or waits for it."""
    sent = Envelope()
    sent.CopyFrom(recorded)
    for field in _SERVER_FIELDS:
        sent.ClearField(field)
    sent.proposal.ClearField("contest")
    return sent


def work(proposal: Envelope) -> tuple[str, str, Struct]:
    """Return the work that a proposal is for: subject, action type and params."""
    return proposal.subject, proposal.proposal.action_type, proposal.proposal.params


def _origin(step: Envelope) -> tuple[object, ...]:
    """Return what all events of one step of a run have in common."""
    return step.producer.type, step.producer.id, step.trace_id, step.causation_id
