"""AdministrationService: who a caller is, grants, and buses. Deployed grants live in the log and never change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from gavel.v1 import error_pb2
from gavel.v1.administration_service_pb2 import (
    Bus,
    CreateBusRequest,
    CreateBusResponse,
    DeployGrantsRequest,
    DeployGrantsResponse,
    GetGrantsRequest,
    GetGrantsResponse,
    Grants,
    ListBusesRequest,
    ListBusesResponse,
    ListGrantsRequest,
    ListGrantsResponse,
    UpgradeBusRequest,
    UpgradeBusResponse,
    ValidateGrantsRequest,
    ValidateGrantsResponse,
    WhoAmIRequest,
    WhoAmIResponse,
)
from gavel.v1.identity_pb2 import Principal as PrincipalMessage
from gavel.v1.rule_set_service_pb2 import DocumentMessage
from gavel_rules.authoring.grants.lint import lint_grants
from gavel_rules.commands import DeployGrants, GrantsPosition
from gavel_rules.events.timestamps import set_timestamp
from gavel_rules.identity.grants import CompiledGrants, check_grants
from gavel_rules.identity.principal import Principal
from gavel_rules.language.document import diagnostics
from gavel_rules.limits import MESSAGE_BYTES_MAX
from gavel_rules.state.records import DeployedGrants
from gavel_rules.state.state import State

from gavel_server.bus.registry import BUS_DEFAULT
from gavel_server.errors import ServiceError, invalid
from gavel_server.fairness.places import Places
from gavel_server.intake.event_ids import new_event_id
from gavel_server.intake.human_commands import bus_upgrade, reason_violations
from gavel_server.rpc.call_context import CallContext
from gavel_server.rpc.identity.access import AccessControl
from gavel_server.services.reads.log_reader import committed_envelope
from gavel_server.services.reads.paging import fill, page_of

if TYPE_CHECKING:
    from gavel_rules.language.rule_set import CompiledRuleSet

    from gavel_server.bus.registry import BusRegistry

# For the other fields of the event that holds a document.
ENVELOPE_ROOM_BYTES: Final = 16 * 1024
# Documents that are compiled at once, and that wait. Reading YAML takes up to two seconds of a processor.
GRANTS_COMPILES_MAX: Final = 1
GRANTS_WAITING_MAX: Final = 16
RETRY_AFTER_MS: Final = 2_000


class AdministrationServicer:
    """Serves AdministrationService on the buses of this server."""

    def __init__(self, buses: BusRegistry, access: AccessControl) -> None:
        self._buses = buses
        self._access = access
        self._places = Places(
            "documents of grants wait to be compiled", GRANTS_COMPILES_MAX, waiting_max=GRANTS_WAITING_MAX, retry_after_ms=RETRY_AFTER_MS
        )

    async def WhoAmI(self, request: WhoAmIRequest, context: CallContext) -> WhoAmIResponse:
        """Return the caller and its rights on a bus; on a bus that does not exist, the rights that it would have there.

        A caller without rights gets the same answer whether the bus exists or not.
        """
        self._buses.check_name(request.bus)
        principal = context.principal
        response = WhoAmIResponse(
            principal=PrincipalMessage(
                name=principal.name,
                method=principal.method,
                issuer=principal.issuer,
                groups=sorted({*principal.groups}),
                actors=principal.actors,
            ),
            admin=self._access.is_admin(principal),
        )
        state, incarnation = State(request.bus or BUS_DEFAULT), ""
        if await self._access.may_open(request.bus or BUS_DEFAULT, principal):
            try:
                replica = (await self._buses.existing(request.bus)).replica
                state, incarnation = replica.state, replica.incarnation
            except ServiceError as error:
                if error.reason != error_pb2.ERROR_REASON_BUS_NOT_FOUND:
                    raise
        response.rights.extend(sorted(self._access.rights(principal, state)))
        if response.rights or response.admin:
            response.bus_incarnation = incarnation
            if state.grants_in_force is not None:
                response.grants_digest = state.grants_in_force.deployed.digest
        return response

    async def ValidateGrants(self, request: ValidateGrantsRequest, context: CallContext) -> ValidateGrantsResponse:
        """Compile a document and report every mistake. Warnings compare it with the rule sets in force. The bus need not exist yet."""
        self._buses.check_name(request.bus)
        return (await self._check(request.document, context.caller, request.bus or BUS_DEFAULT, await self._active_rule_sets(request.bus)))[
            1
        ]

    async def DeployGrants(self, request: DeployGrantsRequest, context: CallContext) -> DeployGrantsResponse:
        """Record grants, which are in force from their event on."""
        violations = reason_violations(request.reason)
        if request.expected_version < 0:
            violations.append(("expected_version", "is negative"))
        if violations:
            raise invalid(violations)
        self._buses.check_name(request.bus)
        grants, report = await self._check(request.document, context.caller, request.bus or BUS_DEFAULT)
        if grants is None:
            document_errors = [(f"document:{error.line}:{error.column}", _sentence(error)) for error in report.errors]
            more = f" (and {len(document_errors) - 1} more)" if len(document_errors) > 1 else ""
            raise ServiceError(
                error_pb2.ERROR_REASON_INVALID_GRANTS, f"{document_errors[0][0]}: {document_errors[0][1]}{more}", document_errors
            )
        expected = request.expected_version if request.HasField("expected_version") else None
        command = DeployGrants(new_event_id(), grants, request.document, request.reason, expected, context.traceparent)
        sequencer = await self._buses.open(request.bus, context.bus_incarnation)
        answer = (await sequencer.execute(command, caller=context.caller, principal=context.principal)).answer
        if not isinstance(answer, GrantsPosition):
            raise TypeError(f"DeployGrants was answered with {type(answer).__name__}")
        return DeployGrantsResponse(name=answer.name, version=answer.version, digest=answer.digest, sequence_number=answer.sequence_number)

    async def GetGrants(self, request: GetGrantsRequest, context: CallContext) -> GetGrantsResponse:
        """Read a deployed version; if the request names none, the one in force."""
        if request.version < 0:
            raise invalid([("version", "is negative")])
        state = await (await self._buses.existing(request.bus, context.bus_incarnation)).confirmed_state()
        in_force = state.grants_in_force
        version = request.version or (0 if in_force is None else in_force.deployed.version)
        deployed = state.grants_versions.get(version)
        if deployed is None:
            which = f"has no version {version} of the grants" if version else "has no grants"
            raise ServiceError(error_pb2.ERROR_REASON_GRANTS_NOT_FOUND, f"bus {state.bus} {which}")
        return GetGrantsResponse(grants=_view(state, deployed), document=deployed.document, canonical_json=deployed.canonical_json)

    async def ListGrants(self, request: ListGrantsRequest, context: CallContext) -> ListGrantsResponse:
        """Read a page of the deployed versions, newest first."""
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        page = page_of(request.page_size, request.page_token, ("grants", sequencer.bus), (int,))
        before = None if page.after is None else int(page.after[0])
        state = await sequencer.confirmed_state()
        newest_first = sorted(state.grants_versions.values(), key=lambda deployed: -deployed.sequence_number)
        candidates = (_view(state, deployed) for deployed in newest_first if before is None or deployed.sequence_number < before)
        grants, token = await fill(
            page, list(islice(candidates, page.size + 1)), lambda one: (one.deployed_at_sequence_number,), context.caller
        )
        return ListGrantsResponse(grants=grants, next_page_token=token)

    async def CreateBus(self, request: CreateBusRequest, context: CallContext) -> CreateBusResponse:
        """Open a new bus."""
        if not request.bus:
            raise invalid([("bus", "is required: 1 to 63 characters of a-z, 0-9 and -")])
        sequencer = await self._buses.create(request.bus, context.caller, context.principal)
        return CreateBusResponse(bus_incarnation=sequencer.replica.incarnation)

    async def UpgradeBus(self, request: UpgradeBusRequest, context: CallContext) -> UpgradeBusResponse:
        """Change the arbiter version of a bus to a later one."""
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        command = bus_upgrade(request, context.principal)
        completed = await sequencer.execute(command, size_bytes=request.ByteSize(), caller=context.caller, principal=context.principal)
        return UpgradeBusResponse(envelope=committed_envelope(completed))

    async def ListBuses(self, request: ListBusesRequest, context: CallContext) -> ListBusesResponse:
        """Read a page of the buses that the caller may read, by name. Opens none whose grants the log store tells."""
        page = page_of(request.page_size, request.page_token, ("buses",), (str,))
        after = "" if page.after is None else str(page.after[0])
        buses: list[Bus] = []
        for name in await self._buses.names():
            if name <= after or not await self._may_read(name, context.principal):
                continue
            if len(buses) == page.size:
                return ListBusesResponse(buses=buses, next_page_token=page.token((buses[-1].name,)))
            head = await self._buses.head_number(name)
            if head is not None:  # else it has just gone
                buses.append(Bus(name=name, head_sequence_number=head))
        return ListBusesResponse(buses=buses)

    async def _may_read(self, bus: str, principal: Principal) -> bool:
        """Return whether a caller may read an existing bus. Opens a bus only if the log store does not tell its grants."""
        rights = await self._access.rights_on(bus, principal)
        if rights is None and await self._access.may_open(bus, principal):
            try:
                rights = self._access.rights(principal, (await self._buses.existing(bus)).replica.state)
            except ServiceError as error:
                if error.reason != error_pb2.ERROR_REASON_BUS_NOT_FOUND:
                    raise
        return rights is not None and "read" in rights

    async def _active_rule_sets(self, bus: str) -> list[CompiledRuleSet]:
        """Return the rule sets in force on a bus; none if it does not exist."""
        try:
            state = await (await self._buses.existing(bus)).confirmed_state()
        except ServiceError as error:
            if error.reason != error_pb2.ERROR_REASON_BUS_NOT_FOUND:
                raise
            return []
        return [active.rule_set for active in state.active_rule_sets.values()]

    async def _check(
        self, document: str, caller: str, bus: str, rule_sets: Sequence[CompiledRuleSet] = ()
    ) -> tuple[CompiledGrants | None, ValidateGrantsResponse]:
        """Compile a caller's document for a bus in a thread.

        Raises ServiceError: INVALID_REQUEST if it is missing or too large, QUEUE_FULL.
        """
        if not document:
            raise invalid([("document", "is required: grants in YAML or JSON")])
        if len(document.encode()) > MESSAGE_BYTES_MAX:
            raise invalid([("document", f"is larger than {MESSAGE_BYTES_MAX} bytes")])
        return await self._places.run(caller, asyncio.to_thread(report_on, document, bus, rule_sets))


def report_on(document: str, bus: str, rule_sets: Sequence[CompiledRuleSet] = ()) -> tuple[CompiledGrants | None, ValidateGrantsResponse]:
    """Return the compiled grants of a document for a bus, None if it has mistakes, with all errors and warnings.

    The warnings compare the grants with `rule_sets`.
    """
    grants, messages = check_grants(document)
    if grants is not None:
        size_bytes = len(document.encode()) + len(grants.canonical_json.encode()) + ENVELOPE_ROOM_BYTES
        if size_bytes > MESSAGE_BYTES_MAX:
            problem = f"the document and its canonical form take {size_bytes} bytes of an event; the limit is {MESSAGE_BYTES_MAX}"
            messages.add((1, 1), "too-large", problem, "use patterns and groups in place of single names")
    errors = messages.sorted()
    if grants is None or errors:
        return None, ValidateGrantsResponse(errors=map(_message, errors))
    warnings = lint_grants(document, grants, rule_sets, bus)
    return grants, ValidateGrantsResponse(valid=True, warnings=map(_message, warnings), digest=grants.digest)


def _message(message: diagnostics.DocumentMessage) -> DocumentMessage:
    return DocumentMessage(
        line=message.line, column=message.column, code=message.code, message=message.message, suggestion=message.suggestion
    )


def _sentence(error: DocumentMessage) -> str:
    return f"{error.code}: {error.message}" + (f" ({error.suggestion})" if error.suggestion else "")


def _view(state: State, deployed: DeployedGrants) -> Grants:
    in_force = state.grants_in_force
    view = Grants(
        name=deployed.name,
        version=deployed.version,
        digest=deployed.digest,
        deployed_at_sequence_number=deployed.sequence_number,
        principal=deployed.principal,
        in_force=in_force is not None and in_force.deployed.sequence_number == deployed.sequence_number,
    )
    set_timestamp(view.deployed_at, deployed.recorded_at_ms)
    return view
