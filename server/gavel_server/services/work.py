"""WorkService: serves the work queues of a bus to groups of consumers, and shows and settles their parked items."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.work_service_pb2 import (
    WORK_QUEUE_DECISIONS,
    WORK_QUEUE_EXECUTIONS,
    WORK_QUEUE_REQUESTS,
    ConsumeRequest,
    ConsumeResponse,
    ConsumerOpened,
    DiscardParkedRequest,
    DiscardParkedResponse,
    ListConsumersRequest,
    ListConsumersResponse,
    ListParkedRequest,
    ListParkedResponse,
    OpenConsumer,
    ParkedWork,
    RetryParkedRequest,
    RetryParkedResponse,
    WorkItem,
    WorkNotHeld,
    WorkQueue,
)
from gavel_rules.events.timestamps import set_timestamp
from gavel_rules.limits import PRODUCER_ID

from gavel_server.bus.registry import BusRegistry
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import RETRY_AFTER_MS_DEFAULT, ServiceError, invalid
from gavel_server.log import LogError
from gavel_server.log.work.protocol import PARKED_MAX, ParkedEntry, QueueName
from gavel_server.rpc.call_context import CallContext
from gavel_server.rpc.identity.access_refusals import AccessRefusals
from gavel_server.rpc.service_descriptors import WORK
from gavel_server.services.reads import views
from gavel_server.services.reads.paging import fill, page_of
from gavel_server.work import limits
from gavel_server.work.groups import ConsumerSettings, WorkGroups
from gavel_server.work.permissions import WorkPermission
from gavel_server.work.stream import Item, UnheldItem, WorkStream

Violations = list[tuple[str, str]]

QUEUE_OF_NUMBER: Final[dict[int, QueueName]] = {
    WORK_QUEUE_DECISIONS: "decisions",
    WORK_QUEUE_EXECUTIONS: "executions",
    WORK_QUEUE_REQUESTS: "requests",
}
# Items named in one request.
ITEM_IDS_MAX: Final = 1_000
LABEL_LENGTH_MAX: Final = 128
# Groups that the error about an unknown one names.
GROUPS_SHOWN: Final = 10
_CONSUME: Final = f"{WORK.full_name}/Consume"
_GROUP: Final = re.compile(PRODUCER_ID)
_ITEM_ID: Final = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)


class WorkServicer:
    """Serves WorkService on the buses of this server."""

    def __init__(self, buses: BusRegistry, refusals: AccessRefusals | None = None) -> None:
        """`refusals` counts refused streams; default: a tally of its own."""
        self._buses = buses
        self._refusals = AccessRefusals(buses) if refusals is None else refusals
        self._groups = WorkGroups()

    async def Consume(self, requests: AsyncGenerator[ConsumeRequest, None], context: CallContext) -> AsyncGenerator[ConsumeResponse, None]:
        """Serve a queue to a consumer until either side ends the stream."""
        opening = await anext(requests)
        if opening.WhichOneof("action") != "open":
            raise invalid([("open", "is required: the first request of a stream opens it")])
        settings = _settings(opening.open)
        sequencer = await self._buses.existing(opening.open.bus, context.bus_incarnation)
        permission = WorkPermission(sequencer, settings.queue, context.principal, "execute")
        if not permission.permits_queue:
            message = (
                f"the queue EXECUTIONS is for fact derivation reactors: {context.principal.name!r} needs a grant on bus {sequencer.bus}"
                " with the right publish for producers of type system"
            )
            refusal = ServiceError(error_pb2.ERROR_REASON_RIGHT_LACKING, message)
            self._refusals.note(_CONSUME, sequencer.bus, context.principal, refusal)
            raise refusal
        try:
            is_own = context.principal.is_server
            async with self._groups.open(sequencer, settings, context.address, permission.permits, is_own=is_own) as stream:
                settling = asyncio.create_task(_settle_all(requests, stream, settings.silence_ms_max))
                try:
                    yield ConsumeResponse(opened=ConsumerOpened(consumer=stream.consumer))
                    while (item := await stream.next()) is not None:
                        yield _response(item)
                        del item  # may be large, and the next one may be long in coming
                finally:
                    settling.cancel()
                    await asyncio.gather(settling, return_exceptions=True)
        except LogError as error:
            raise ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, str(error)) from error

    async def ListParked(self, request: ListParkedRequest, context: CallContext) -> ListParkedResponse:
        """Read a page of the parked items of a group, oldest first."""
        queue = _checked_queue(request.queue, request.group)
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        await _check_group_exists(sequencer, queue, request.group)
        page = page_of(request.page_size, request.page_token, ("parked", sequencer.bus, queue, request.group), (int,))
        after = 0 if page.after is None else int(page.after[0])
        permission = WorkPermission(sequencer, queue, context.principal, "operate")
        # One more than the page: it tells whether there is a next page.
        entries = await _permitted_entries(sequencer, permission, queue, request.group, after, page.size + 1, context.caller)
        items, token = await fill(page, map(_parked_work, entries), lambda item: (item.sequence_number,), context.caller)
        return ListParkedResponse(items=items, next_page_token=token)

    async def RetryParked(self, request: RetryParkedRequest, context: CallContext) -> RetryParkedResponse:
        """Put parked items back into their queue."""
        violations: Violations = []
        numbers = _numbers(request.item_ids, violations)
        queue = _checked_queue(request.queue, request.group, violations)
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        await _check_group_exists(sequencer, queue, request.group)
        permission = WorkPermission(sequencer, queue, context.principal, "operate")
        work = sequencer.log.work
        if permission.is_unrestricted and not request.item_ids:
            return RetryParkedResponse(retried=await work.retry_parked(queue, request.group, None))
        if not request.item_ids:
            numbers = [entry.sequence_number for entry in await work.read_parked(queue, request.group, 0, PARKED_MAX)]
        retried = await work.retry_parked(queue, request.group, await permission.select(numbers, context.caller))
        return RetryParkedResponse(retried=retried)

    async def DiscardParked(self, request: DiscardParkedRequest, context: CallContext) -> DiscardParkedResponse:
        """Drop parked items."""
        violations: Violations = []
        numbers = _numbers(request.item_ids, violations)
        if not request.item_ids:
            violations.append(("item_ids", "is empty; name the items, as ListParked returns them"))
        queue = _checked_queue(request.queue, request.group, violations)
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        await _check_group_exists(sequencer, queue, request.group)
        permission = WorkPermission(sequencer, queue, context.principal, "operate")
        discarded = await sequencer.log.work.discard_parked(queue, request.group, await permission.select(numbers, context.caller))
        return DiscardParkedResponse(discarded=discarded)

    async def ListConsumers(self, request: ListConsumersRequest, context: CallContext) -> ListConsumersResponse:
        """Read the groups of a bus with their lags."""
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        return ListConsumersResponse(consumers=[views.consumer(group) for group in await sequencer.log.work.groups()])


async def _check_group_exists(sequencer: Sequencer, queue: QueueName, group: str) -> None:
    """Raise ServiceError CONSUMER_GROUP_NOT_FOUND if a queue has no such group."""
    names = [one.group for one in await sequencer.log.work.groups() if one.queue == queue]
    if group not in names:
        shown = [*names[:GROUPS_SHOWN], *(["…"] if len(names) > GROUPS_SHOWN else [])]
        known = f"its groups are {', '.join(shown)}" if names else "no group has consumed it yet"
        message = f"the queue {queue} of bus {sequencer.bus} has no group {group!r}; {known}"
        raise ServiceError(error_pb2.ERROR_REASON_CONSUMER_GROUP_NOT_FOUND, message)


async def _permitted_entries(
    sequencer: Sequencer, permission: WorkPermission, queue: QueueName, group: str, after: int, count: int, caller: str
) -> list[ParkedEntry]:
    """Return the first parked entries after a number that the caller may see, up to `count`."""
    permitted: list[ParkedEntry] = []
    while len(permitted) < count:
        entries = await sequencer.log.work.read_parked(queue, group, after, count)
        numbers = set(await permission.select([entry.sequence_number for entry in entries], caller))
        permitted += [entry for entry in entries if entry.sequence_number in numbers]
        if len(entries) < count:
            break
        after = entries[-1].sequence_number
    return permitted[:count]


async def _settle_all(requests: AsyncGenerator[ConsumeRequest, None], stream: WorkStream, silence_ms_max: int) -> None:
    """Settle items as the consumer asks; end the stream when it sends no more, something invalid, or nothing for too long."""
    limit = silence_ms_max / 1000 if silence_ms_max else None
    try:
        while True:
            async with asyncio.timeout(limit):
                request = await anext(requests, None)
            if request is None:
                break
            _settle(request, stream)
            await stream.wait_for_answers()
    except TimeoutError:
        message = f"the consumer sent nothing for {silence_ms_max} ms, its silence_ms_max; others get its items; open the stream again"
        stream.end(ServiceError(error_pb2.ERROR_REASON_CONSUMER_SILENT, message, retry_after_ms=RETRY_AFTER_MS_DEFAULT))
    except ServiceError as error:
        stream.end(error)
    else:
        stream.end()


def _settle(request: ConsumeRequest, stream: WorkStream) -> None:
    """Settle an item. Raises ServiceError INVALID_REQUEST."""
    action = request.WhichOneof("action")
    violations: Violations = []
    if action == "acknowledge":
        stream.settle(_number(request.acknowledge.item_id, "acknowledge.item_id", violations))
    elif action == "reject":
        reject = request.reject
        number = _number(reject.item_id, "reject.item_id", violations)
        if not 0 <= reject.delay_ms <= limits.REJECT_DELAY_MS_MAX:
            violations.append(("reject.delay_ms", f"is not between 0 and {limits.REJECT_DELAY_MS_MAX}"))
        reason = _reason(reject.reason, "reject.reason", violations)
        if not violations:
            stream.settle(number, reject.delay_ms, reason)
    elif action == "park":
        number = _number(request.park.item_id, "park.item_id", violations)
        reason = _reason(request.park.reason, "park.reason", violations)
        if not violations:
            stream.settle(number, reason=reason)
    elif action != "heartbeat":
        violations.append(("action", "is not acknowledge, reject, park or heartbeat; only the first request of a stream is open"))
    if violations:
        raise invalid(violations)


def _settings(opening: OpenConsumer) -> ConsumerSettings:
    """Return what a consumer asks for. Raises ServiceError INVALID_REQUEST."""
    violations: Violations = []
    queue = _queue(opening.queue, "open.queue", violations)
    _check_group(opening.group, "open.group", violations)
    if opening.action_types and queue != "decisions":
        violations.append(("open.action_types", "selects items of the queue DECISIONS only; leave it empty"))
    if opening.kinds and queue != "requests":
        violations.append(("open.kinds", "selects items of the queue REQUESTS only; leave it empty"))
    for field, values, count_max in (
        ("open.action_types", opening.action_types, limits.ACTION_TYPES_MAX),
        ("open.kinds", opening.kinds, limits.KINDS_MAX),
    ):
        if len(values) > count_max:
            violations.append((field, f"has {len(values)} values; at most {count_max} are allowed"))
        elif not all(0 < len(value) <= LABEL_LENGTH_MAX for value in values):
            violations.append((field, f"has a value that is not 1 to {LABEL_LENGTH_MAX} characters"))
    for field, value, maximum, default in (
        ("open.in_flight_max", opening.in_flight_max, limits.IN_FLIGHT_MAX, limits.IN_FLIGHT_DEFAULT),
        ("open.deliveries_max", opening.deliveries_max, limits.DELIVERIES_MAX, limits.DELIVERIES_DEFAULT),
    ):
        if not 0 <= value <= maximum:
            violations.append((field, f"is not between 1 and {maximum} (0: {default})"))
    shortest, longest = limits.CONSUMER_SILENCE_MS_MIN, limits.CONSUMER_SILENCE_MS_MAX
    if opening.silence_ms_max and not shortest <= opening.silence_ms_max <= longest:
        violations.append(("open.silence_ms_max", f"is not between {shortest} and {longest} (0: no limit)"))
    if violations:
        raise invalid(violations)
    return ConsumerSettings(
        queue,
        opening.group,
        [*opening.action_types, *opening.kinds],
        opening.in_flight_max or limits.IN_FLIGHT_DEFAULT,
        opening.deliveries_max or limits.DELIVERIES_DEFAULT,
        opening.silence_ms_max,
    )


def _checked_queue(number: int, group: str, violations: Violations | None = None) -> QueueName:
    """Return the queue of a request. Raises ServiceError INVALID_REQUEST for a wrong queue or group, or for earlier violations."""
    violations = violations if violations is not None else []
    queue = _queue(number, "queue", violations)
    _check_group(group, "group", violations)
    if violations:
        raise invalid(violations)
    return queue


def _queue(number: int, field: str, violations: Violations) -> QueueName:
    if number not in QUEUE_OF_NUMBER:
        names = ", ".join(WorkQueue.Name(one) for one in QUEUE_OF_NUMBER)  # type: ignore[arg-type]  # numbers of the enum
        violations.append((field, f"is not one of {names}"))
    return QUEUE_OF_NUMBER.get(number, "decisions")


def _check_group(group: str, field: str, violations: Violations) -> None:
    if not _GROUP.fullmatch(group):
        violations.append((field, "is not 1 to 128 characters of A-Z, a-z, 0-9 and . _ : @ / -"))


def _numbers(item_ids: Sequence[str], violations: Violations) -> list[int]:
    if len(item_ids) > ITEM_IDS_MAX:
        violations.append(("item_ids", f"has {len(item_ids)} items; at most {ITEM_IDS_MAX} are allowed"))
        return []
    return [_number(item_id, f"item_ids[{index}]", violations) for index, item_id in enumerate(item_ids)]


def _number(item_id: str, field: str, violations: Violations) -> int:
    if _ITEM_ID.fullmatch(item_id):
        return int(item_id)
    violations.append((field, "is not the id of an item, as WorkItem.item_id gives it"))
    return 0


def _reason(reason: str, field: str, violations: Violations) -> str:
    if len(reason) > limits.REASON_LENGTH_MAX:
        violations.append((field, f"has more than {limits.REASON_LENGTH_MAX} characters"))
    return reason


def _response(item: Item | UnheldItem) -> ConsumeResponse:
    if isinstance(item, UnheldItem):
        return ConsumeResponse(not_held=WorkNotHeld(item_id=str(item.number)))
    return ConsumeResponse(work=_work_item(item))


def _work_item(item: Item) -> WorkItem:
    envelope = Envelope.FromString(item.entry.envelope)
    envelope.chain_hash = item.entry.chain_hash
    return WorkItem(item_id=str(item.entry.sequence_number), envelope=envelope, delivery=item.entry.deliveries)


def _parked_work(entry: ParkedEntry) -> ParkedWork:
    parked = ParkedWork(
        item_id=str(entry.sequence_number),
        sequence_number=entry.sequence_number,
        event_id=entry.event_id,
        deliveries=entry.deliveries,
        reason=entry.reason,
    )
    set_timestamp(parked.parked_at, entry.parked_at_ms)
    return parked
