"""Permissions to work on items of the work queues.

A caller gets an item only if one of its grants permits `execute` for the action and the subject of the decision that the item belongs to,
as for BeginExecution. The queue of executions is the fact derivation reactor's: its consumers must also be allowed to publish as producers
of type system. Parked items are for callers whose grant with `operate` permits their action and subject. The grants in force now decide.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gavel.v1 import common_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.authorization import is_allowed
from gavel_rules.events.kinds import FACT_DERIVATION_REACTOR
from gavel_rules.identity.access import Access
from gavel_rules.identity.grants import is_any
from gavel_rules.identity.principal import Principal
from gavel_rules.identity.rights import Right

from gavel_server.bus.sequencer import Sequencer
from gavel_server.fairness.turns import call_slice
from gavel_server.log.work.protocol import QueueName

# Events that are read at once to find out what they are about. Each may have 1 MiB.
READ_EVENTS_MAX: Final = 32


class Traits(NamedTuple):
    """The traits that decide who gets an item: consumers select by its label, and grants restrict its action and subject.

    `label` is the action type of a decision, or the kind of a request. `action_type` and `subject` are those of the decision that the item
    belongs to; `action_type` is "" if the bus has forgotten the decision: then only grants for every action permit the item.
    """

    label: str
    action_type: str
    subject: str


class WorkPermission:
    """Which items of a queue one caller may work on, by a right."""

    def __init__(self, sequencer: Sequencer, queue: QueueName, principal: Principal, right: Right) -> None:
        self._sequencer: Final = sequencer
        self._queue: Final = queue
        self._principal: Final = principal
        self._right: Final = right

    def permits(self, traits: Traits) -> bool:
        """Return whether the caller may work on an item."""
        access = Access(self._right, self._sequencer.bus, actions=(traits.action_type,), subject=traits.subject)
        return self._is_allowed(access) and self.permits_queue

    @property
    def permits_queue(self) -> bool:
        """Whether the queue is open to the caller, whatever the items."""
        if self._right != "execute" or self._queue != "executions":
            return True
        return self._is_allowed(Access("publish", self._sequencer.bus, common_pb2.PRODUCER_TYPE_SYSTEM, FACT_DERIVATION_REACTOR))

    async def select(self, numbers: list[int], caller: str) -> list[int]:
        """Return those items that the caller may work on. `caller` takes turns with others. Raises LogError."""
        if self.is_unrestricted:
            return numbers
        selected: list[int] = []
        time_slice = call_slice(1, caller)
        for start in range(0, len(numbers), READ_EVENTS_MAX):
            part = numbers[start : start + READ_EVENTS_MAX]
            records = await self._sequencer.log.read_many(part)
            for number in part:
                record = records.get(number)
                if record is not None:
                    await time_slice.spend(1)
                    traits = await traits_of(self._sequencer, self._queue, Envelope.FromString(record.envelope))
                    if self.permits(traits):
                        selected.append(number)
        return selected

    @property
    def is_unrestricted(self) -> bool:
        """Whether the caller may work on every item, so that none has to be read."""
        in_force = self._sequencer.replica.state.grants_in_force
        if self._principal.is_server or in_force is None or (self._principal.is_anonymous and not in_force.binds_anonymous):
            return True
        return any(
            self._right in grant.rights and grant.actions is None and grant.subjects is None and is_any(grant.buses, self._sequencer.bus)
            for grant in in_force.grants.of(self._principal)
        )

    def _is_allowed(self, access: Access) -> bool:
        in_force = self._sequencer.replica.state.grants_in_force
        return self._principal.is_server or is_allowed(in_force, access, self._principal)


async def traits_of(sequencer: Sequencer, queue: QueueName, envelope: Envelope) -> Traits:
    """Return the traits of an item, by its event. Raises LogError."""
    if queue == "decisions":
        action_type = envelope.decision.action_type
        return Traits(action_type, action_type, envelope.subject)
    label = envelope.agent_diagnostic.kind if queue == "requests" else ""
    if sequencer.replica.state.grants_in_force is None:
        return Traits(label, "", envelope.subject)  # nothing is restricted
    decision_id = envelope.execution.decision_id if queue == "executions" else envelope.causation_id
    return Traits(label, await _action_type(sequencer, decision_id), envelope.subject)


async def _action_type(sequencer: Sequencer, decision_id: str) -> str:
    """Return the action type of a decision, "" if the bus has forgotten it."""
    state = sequencer.replica.state
    live = state.decision_for_report(decision_id, 0) or state.reviews.get(decision_id)
    decision = live.decision if live is not None else await sequencer.recent_events.find_event(decision_id, sequencer.now_ms())
    return "" if decision is None else decision.decision.action_type
