"""Refused calls that would have written something, as events: `AccessRefused` in the log of the bus (docs/security.md#refusals).

Calls are counted for each bus, principal and reason. A count is recorded within ROUND_SECONDS of its first call, then once in
RECORD_SECONDS as long as there are more. A bus has room for PRINCIPALS_MAX counts; further callers share one for each reason. A caller that
is refused without end therefore adds a few events a minute to the log, whatever it sends.

The request of a caller without valid credentials is not read. Such calls are counted on the default bus, without a producer. A count that
cannot be recorded is kept and tried again, with the same event_id.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import structlog
from gavel.v1 import common_pb2, error_pb2
from gavel.v1.common_pb2 import EventCategory, Producer, ProducerType
from gavel.v1.diagnostic_pb2 import AccessRefused
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.commands import RecordRefusals
from gavel_rules.events.kinds import CATEGORY_OF_PAYLOAD
from gavel_rules.events.timestamps import timestamp
from gavel_rules.identity.principal import Principal
from gavel_rules.identity.rights import WRITING_RPCS
from gavel_rules.limits import PRODUCER_ID_LENGTH_MAX
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gavel_server.bus.registry import BUS_DEFAULT, BusRegistry
from gavel_server.errors import ServiceError, reason_name
from gavel_server.intake.event_ids import new_event_id
from gavel_server.intake.formats import is_plain, is_producer_id
from gavel_server.process import metrics
from gavel_server.rpc.decoding import RequestDecoder
from gavel_server.rpc.service_descriptors import SERVICES

# Between two events about one principal and reason.
RECORD_SECONDS: Final = 60.0
ROUND_SECONDS: Final = 1.0
# After a failure.
RETRY_SECONDS: Final = 10.0
# How long a stopping server tries.
STOP_SECONDS_MAX: Final = 5.0
# Of one bus, with their reasons.
PRINCIPALS_MAX: Final = 32
# In place of the principal of callers for whom there is no room. Its method is empty.
OTHERS: Final = "*"

CREATE_BUS: Final = "gavel.v1.AdministrationService/CreateBus"
_EXECUTIONS: Final = "gavel.v1.ExecutionService/"
_UNAUTHENTICATED: Final = error_pb2.ERROR_REASON_UNAUTHENTICATED
_DENIALS: Final = frozenset(
    {
        _UNAUTHENTICATED,
        error_pb2.ERROR_REASON_CATEGORY_NOT_ALLOWED,
        error_pb2.ERROR_REASON_FIELD_RESERVED,
        error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED,
        error_pb2.ERROR_REASON_RIGHT_LACKING,
    }
)

_LOG: Final = structlog.get_logger("gavel.access")


class _Key(NamedTuple):
    principal: str
    method: str
    reason: str


@dataclass(slots=True)
class _Tally:
    """The refused calls of one principal for one reason on one bus that are not recorded."""

    key: _Key
    rpc: str = ""
    producer: Producer = field(default_factory=Producer)
    category: EventCategory.ValueType = common_pb2.EVENT_CATEGORY_UNSPECIFIED
    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    # What is being recorded, or could not be.
    pending: RecordRefusals | None = None
    due_at: float = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether everything is recorded."""
        return not self.count and self.pending is None

    def take(self) -> RecordRefusals:
        """Return the command that records the calls, and count from 0."""
        if self.pending is None:
            refused = AccessRefused(
                principal=self.key.principal,
                method=self.key.method,
                producer=self.producer if self.producer.id else None,
                category=self.category,
                reason=self.key.reason,
                rpc=self.rpc,
                count=self.count,
                first_at=timestamp(self.first_ms),
                last_at=timestamp(self.last_ms),
            )
            self.pending = RecordRefusals(new_event_id(), refused)
            self.count = 0
        return self.pending


class AccessRefusals:
    """Counts refused calls, and records them. Call `record_forever` as a task, and `stop` before the buses stop."""

    def __init__(self, buses: BusRegistry, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`monotonic` (seconds) paces the events; their times are those of their bus."""
        self._buses: Final = buses
        self._monotonic: Final = monotonic
        self._tallies: Final[dict[str, dict[_Key, _Tally]]] = {}

    @staticmethod
    def counts(rpc: str, error: Exception) -> bool:
        """Return whether an error denies access to a writing RPC."""
        return isinstance(error, ServiceError) and error.reason in _DENIALS and rpc in WRITING_RPCS

    def note(self, rpc: str, bus: str, principal: Principal, error: Exception, request: Message | bytes | None = None) -> None:
        """Count a call, or an item of a batch or stream, that was answered with an error, if the error denies access to a writing RPC.

        `request` is the request, the item's envelope, or the request's bytes: it names the producer.
        """
        if not isinstance(error, ServiceError) or not self.counts(rpc, error):
            return
        is_known = error.reason != _UNAUTHENTICATED
        bus = BUS_DEFAULT if not is_known or rpc == CREATE_BUS else bus or BUS_DEFAULT
        sequencer = self._buses.peek(bus)
        if sequencer is None or (is_known and principal.is_anonymous and sequencer.replica.state.grants_in_force is None):
            return  # without authentication a refused call leaves no trace in the log
        reason = reason_name(error.reason)
        tally = self._tally(bus, _Key(principal.name if is_known else "", principal.method if is_known else "", reason))
        now_ms = sequencer.now_ms()
        if not tally.count:
            tally.first_ms, tally.rpc = now_ms, rpc
            tally.producer, tally.category = _claim(rpc, request if is_known else None)
        tally.count += 1
        tally.last_ms = max(now_ms, tally.first_ms)

    async def record_forever(self) -> None:
        """Record what is due, until cancelled."""
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            await self.record_due()

    async def record_due(self) -> None:
        """Record the counts that are due, and forget those without calls."""
        now = self._monotonic()
        for bus, tallies in list(self._tallies.items()):
            for tally in [one for one in tallies.values() if one.is_empty and now >= one.due_at]:
                del tallies[tally.key]
            if not tallies:
                del self._tallies[bus]
        await asyncio.gather(*(self._record(bus, tally) for bus, tally in self._all() if not tally.is_empty and now >= tally.due_at))

    async def stop(self) -> None:
        """Record what has been counted, also within the minute of the last event. Log what cannot be recorded."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await asyncio.gather(*(self._record_all(bus, tally) for bus, tally in self._all()))
        for bus, tally in self._all():
            if not tally.is_empty:
                _log_loss(bus, tally)

    async def _record_all(self, bus: str, tally: _Tally) -> None:
        while not tally.is_empty:
            if not await self._record(bus, tally):
                return

    async def _record(self, bus: str, tally: _Tally) -> bool:
        """Record a count; return whether it is in the log. Otherwise it is kept."""
        command = tally.take()
        try:
            sequencer = await self._buses.existing(bus)
            await sequencer.execute(command, command.event_id)
        except ServiceError as error:
            metrics.REFUSALS_NOT_RECORDED.inc()
            if error.reason == error_pb2.ERROR_REASON_BUS_NOT_FOUND:
                _log_loss(bus, tally)
                tally.pending = None
                return False
            tally.due_at = self._monotonic() + RETRY_SECONDS
            _LOG.warning(
                "refusals.not_recorded", bus=bus, reason=tally.key.reason, count=command.refused.count, problem=error.message, note="kept"
            )
            return False
        tally.pending = None
        tally.due_at = self._monotonic() + RECORD_SECONDS
        return True

    def _tally(self, bus: str, key: _Key) -> _Tally:
        tallies = self._tallies.setdefault(bus, {})
        tally = tallies.get(key)
        if tally is None:
            if sum(one.principal != OTHERS for one in tallies) >= PRINCIPALS_MAX:
                key = _Key(OTHERS, "", key.reason)
            tally = tallies.setdefault(key, _Tally(key))
        return tally

    def _all(self) -> Iterator[tuple[str, _Tally]]:
        return ((bus, tally) for bus, tallies in list(self._tallies.items()) for tally in list(tallies.values()))


def _log_loss(bus: str, tally: _Tally) -> None:
    count = tally.count + (0 if tally.pending is None else tally.pending.refused.count)
    _LOG.error("refusals.lost", bus=bus, reason=tally.key.reason, count=count, note="these refused calls are not in the log of the bus")


def _claim(rpc: str, request: Message | bytes | None) -> tuple[Producer, EventCategory.ValueType]:
    """Return the producer that a call names, if it has the form of one, and the category of the event that the call would record."""
    producer, category = Producer(), common_pb2.EVENT_CATEGORY_UNSPECIFIED
    message = _decode(rpc, request) if isinstance(request, bytes) else request
    if message is not None:
        envelope = _envelope(message)
        if envelope is not None:
            category = CATEGORY_OF_PAYLOAD.get(str(envelope.WhichOneof("payload")), category)
            producer.CopyFrom(envelope.producer)
        elif "producer" in message.DESCRIPTOR.fields_by_name:
            producer.CopyFrom(getattr(message, "producer"))  # noqa: B009  # requests differ in their fields
    if rpc.startswith(_EXECUTIONS):
        category = common_pb2.EVENT_CATEGORY_EXECUTION_EVENT
    return producer if _is_producer(producer) else Producer(), category


def _decode(rpc: str, request: bytes) -> Message | None:
    try:
        message: Message = _decoder(rpc).decode(request)
    except ServiceError:
        return None
    return message


def _envelope(request: Message) -> Envelope | None:
    """Return the envelope in a request, the first one of a batch."""
    if isinstance(request, Envelope):
        return request
    fields = request.DESCRIPTOR.fields_by_name
    if "envelope" in fields:
        envelope: Envelope = getattr(request, "envelope")  # noqa: B009
        return envelope
    batch: Iterable[Envelope] = getattr(request, "envelopes") if "envelopes" in fields else ()  # noqa: B009
    return next(iter(batch), None)


def _is_producer(producer: Producer) -> bool:
    """Return whether a producer may stand in the log."""
    return (
        producer.type in ProducerType.values()
        and len(producer.id) <= PRODUCER_ID_LENGTH_MAX
        and is_producer_id(producer.id)
        and is_plain(producer.version)
    )


@lru_cache(None)
def _decoder(rpc: str) -> RequestDecoder[Any]:
    service_name, _, name = rpc.partition("/")
    service = next(one for one in SERVICES if one.full_name == service_name)
    return RequestDecoder(rpc, GetMessageClass(service.methods_by_name[name].input_type))
