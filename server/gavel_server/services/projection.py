"""ProjectionService: reads of the present state (constitution §10). Every answer describes one committed state."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, TypeVar

from gavel.v1.projection_service_pb2 import (
    BackgroundTask,
    GetProjectionRequest,
    GetProjectionResponse,
    GetStatusRequest,
    GetStatusResponse,
    ListPendingDecisionsRequest,
    ListPendingDecisionsResponse,
    ListPendingReviewsRequest,
    ListPendingReviewsResponse,
    PendingDecision,
    PendingPhase,
    PendingReview,
    Projection,
    ThrottledCaller,
)
from gavel_rules.events.arbiter_versions import SEMANTICS
from gavel_rules.events.timestamps import set_timestamp
from gavel_rules.limits import PAGE_SIZE_MAX, PHASES_MAX

from gavel_server.errors import invalid
from gavel_server.fairness.quotas import Quotas, ThrottledAccount
from gavel_server.fairness.turns import call_slice
from gavel_server.fairness.work_slots import wide_subject_slots
from gavel_server.intake.formats import NOT_A_SUBJECT, is_subject
from gavel_server.log import LogError
from gavel_server.log.work.protocol import ConsumerGroup
from gavel_server.process.build import VERSION
from gavel_server.rpc.call_context import CallContext
from gavel_server.rpc.identity.access import AccessControl
from gavel_server.services.reads import views
from gavel_server.services.reads.log_reader import action_type_violations, enum_violations
from gavel_server.services.reads.paging import PAGE_BYTES_MAX, Page, fill, page_of, sort_in_turns
from gavel_server.services.reads.projection_digests import ProjectionDigests
from gavel_server.services.reads.subject_projection import START, Place, count_items, fill_projection, subject_items
from gavel_server.work.items import find_lost

if TYPE_CHECKING:
    from gavel_client.supervision import Supervisor

    from gavel_server.bus.registry import BusRegistry
    from gavel_server.bus.sequencer import Sequencer

WAIT_MS_MAX: Final = 5_000
# Work on a page before other tasks run, in units of about a microsecond.
SLICE_UNITS: Final = 2_000
# A subject with more keys, live decisions and open proposals is wide: finding the items of a page takes milliseconds.
NARROW_ITEMS_MAX: Final = 256

Result = TypeVar("Result")

_SERVER_VERSION: Final = f"gavel {VERSION}"


class ProjectionServicer:
    """Serves ProjectionService on the buses of this server."""

    def __init__(self, buses: BusRegistry, supervisor: Supervisor, quotas: Quotas, access: AccessControl | None = None) -> None:
        """`access` tells which other callers a caller may be told about; default: all of them, unless grants restrict it."""
        self._buses = buses
        self._access = access or AccessControl(buses)
        self._supervisor = supervisor
        self._quotas = quotas
        self._digests = ProjectionDigests()
        self._wide_subjects = wide_subject_slots()

    async def GetProjection(self, request: GetProjectionRequest, context: CallContext) -> GetProjectionResponse:
        """Read a page of the projection of one subject, once the state has reached the sequence number that the request names."""
        violations = []
        if not is_subject(request.subject):
            violations.append(("subject", NOT_A_SUBJECT))
        if request.min_sequence_number < 0:
            violations.append(("min_sequence_number", "is negative"))
        if violations:
            raise invalid(violations)
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        query = ("projection", sequencer.bus, request.subject)
        page = page_of(request.page_size, request.page_token, query, (int, str, int), PAGE_SIZE_MAX)
        after = START if page.after is None else Place(int(page.after[0]), str(page.after[1]), int(page.after[2]))
        await sequencer.wait_for(request.min_sequence_number, WAIT_MS_MAX)
        is_wide = count_items(sequencer.replica.state, request.subject) > NARROW_ITEMS_MAX
        async with self._wide_subjects.occupy(context.address) if is_wide else nullcontext():
            return await _projection(sequencer, request.subject, page, after, context.caller)

    async def ListPendingDecisions(self, request: ListPendingDecisionsRequest, context: CallContext) -> ListPendingDecisionsResponse:
        """Read a page of the approved decisions that are not finished and pass the filters, oldest first."""
        violations = enum_violations("phases", request.phases, PendingPhase.values(), PHASES_MAX, "a phase of decisions")
        violations += action_type_violations(request.action_types)
        if violations:
            raise invalid(violations)
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        phases, action_types = frozenset(request.phases), frozenset(request.action_types)
        query = ("pending decisions", sequencer.bus, sorted(phases), sorted(action_types), request.lost_work)
        page = page_of(request.page_size, request.page_token, query, (int,))
        state = await sequencer.confirmed_state()
        covered = state.head
        in_phase = (lambda one: one.phase in phases) if phases else None
        live = await sort_in_turns(state.decisions.values(), lambda one: one.sequence_number, _after(page), context.caller, in_phase)
        examined = 0
        if request.lost_work:
            lost, examined = await find_lost(sequencer.log.work, live, state.decisions, page.size, context.caller)
            live = iter(lost)
        passes = (lambda item: item.action_type in action_types) if action_types else None
        decisions, token = await fill(page, map(views.pending_decision, live), _place, context.caller, passes)
        if examined and not token:
            token = page.token((examined,))
        return ListPendingDecisionsResponse(decisions=decisions, next_page_token=token, projection_version=covered)

    async def ListPendingReviews(self, request: ListPendingReviewsRequest, context: CallContext) -> ListPendingReviewsResponse:
        """Read a page of the open reviews, oldest first."""
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        page = page_of(request.page_size, request.page_token, ("pending reviews", sequencer.bus), (int,))
        state = await sequencer.confirmed_state()
        covered, in_force, compensated = state.head, state.grants_in_force, views.compensated_decisions(state)
        ordered = await sort_in_turns(state.reviews.values(), lambda one: one.sequence_number, _after(page), context.caller)
        pending = views.pending_reviews(ordered, compensated, sequencer.bus, in_force, context.principal)
        reviews, token = await fill(page, pending, _place, context.caller)
        return ListPendingReviewsResponse(reviews=reviews, next_page_token=token, projection_version=covered)

    async def GetStatus(self, request: GetStatusRequest, context: CallContext) -> GetStatusResponse:
        """Read the state of the bus and of this server."""
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        consumers: list[ConsumerGroup] = []
        unreadable = ""
        try:
            consumers = await sequencer.log.work.groups()
            durability_warnings = await sequencer.log.durability()
        except LogError as error:
            # Callers ask for the status above all when the log is unavailable: answer from memory, with the reason.
            unreadable = str(error)
            durability_warnings = [f"the durability of the log is unknown: {unreadable}"]
        digest = await self._digests.read(sequencer, context.address) if request.include_projection_digest else ""
        # The digest is that of this state: nothing is awaited in between.
        state = sequencer.replica.state if digest else await sequencer.settled_state()
        head = sequencer.head
        write_error = sequencer.write_error()
        response = GetStatusResponse(
            head_sequence_number=head.sequence_number,
            head_chain_hash=head.chain_hash,
            active_rule_sets=views.active_rule_sets(state),
            shadow_rule_sets=views.shadow_rule_sets(state),
            consumers=[views.consumer(group) for group in consumers],
            throttled_callers=[
                _throttled(one)
                for one in self._quotas.throttled_accounts(lambda other: self._access.may_know(context.principal, other, state))
            ],
            arbiter_version=state.arbiter_version,
            implemented_arbiter_versions=sorted(SEMANTICS),
            cross_check=state.cross_check,
            server_version=_SERVER_VERSION,
            durable=not durability_warnings,
            durability_warnings=durability_warnings,
            projection_digest=digest,
            queued_commands=sequencer.queue_length,
            writable=write_error is None and not unreadable,
            bus_incarnation=sequencer.replica.incarnation,
            unwritable_reason=write_error.message if write_error is not None else unreadable,
            background_tasks=[
                BackgroundTask(name=task.name, problem=task.problem, failures=task.failures)
                for task in self._supervisor.tasks
                if task.bus in ("", sequencer.bus)
            ],
        )
        newest = sequencer.replica.snapshots.newest if sequencer.replica.snapshots is not None else None
        if newest is not None:
            response.newest_snapshot.sequence_number = newest.sequence_number
            response.newest_snapshot.size_bytes = newest.size_bytes
            set_timestamp(response.newest_snapshot.written_at, newest.written_at_ms)
        if state.recorded_at_ms:
            set_timestamp(response.head_recorded_at, state.recorded_at_ms)
        return response


async def _projection(sequencer: Sequencer, subject: str, page: Page, after: Place, caller: str) -> GetProjectionResponse:
    """Return a page of the projection of a subject."""
    state = await sequencer.confirmed_state()
    response = GetProjectionResponse(projection=Projection(subject=subject, projection_version=state.head))
    items = subject_items(state, subject, page.size + 1, after)
    count = await _exhaust(fill_projection(response.projection, items[: page.size], PAGE_BYTES_MAX), caller)
    if count < len(items):
        response.next_page_token = page.token(items[count - 1].place)
    return response


async def _exhaust(work: Generator[int, None, Result], caller: str) -> Result:
    """Do work that yields its units, with turns for other tasks; return its result."""
    time_slice = call_slice(SLICE_UNITS, caller)
    while True:
        try:
            units = next(work)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        await time_slice.spend(units)


def _after(page: Page) -> int:
    return 0 if page.after is None else int(page.after[0])


def _place(item: PendingDecision | PendingReview) -> tuple[int]:
    return (item.sequence_number,)


def _throttled(account: ThrottledAccount) -> ThrottledCaller:
    since_ms = int(account.since_seconds * 1000)
    caller = account.caller if account.principal.is_anonymous else account.principal.name
    return ThrottledCaller(caller=caller, quota=account.quota, refused=account.refused, since_ms=since_ms)
