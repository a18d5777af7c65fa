"""The second half of the interceptor: whether an authenticated caller has the right that its call needs (docs/security.md).

The table of rights is `gavel_rules.identity.rights`. A bus's own grants decide. While a bus has none, only administrators may call it. The
core checks the event that a call records once more, where the event gets its place in the log. Without authentication nothing is checked
here.

A bus that does not exist is not opened by a call of an authenticated caller: CreateBus does that. A bus that is not open in this process
is opened only for callers that have the right. A caller without rights on a bus gets the same refusal whether the bus exists or not, unless
it may create the bus.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from gavel.v1 import error_pb2
from gavel_rules.identity.grants import GROUP_PREFIX, CompiledGrants
from gavel_rules.identity.principal import Principal
from gavel_rules.identity.rights import RIGHT_OF_RPC, RIGHTS, RPCS_WITHOUT_RIGHT, Right
from gavel_rules.state.state import State

from gavel_server.bus.registry import BUS_DEFAULT, BusRegistry
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError
from gavel_server.log import LogError
from gavel_server.rpc.identity.access_refusals import CREATE_BUS, AccessRefusals
from gavel_server.rpc.identity.closed_grants import ClosedGrants, KnownGrants
from gavel_server.rpc.identity.open_calls import OpenCalls

_ALL_RIGHTS: Final = frozenset(RIGHTS)


class AccessControl:
    """Checks the rights of callers on the buses of this server. `admins` are names, or groups as "group:NAME".

    `refusals` counts the calls that are refused; `open_calls` ends those whose callers lose their right.
    """

    def __init__(
        self,
        buses: BusRegistry,
        admins: Sequence[str] = (),
        refusals: AccessRefusals | None = None,
        closed_grants: ClosedGrants | None = None,
    ) -> None:
        """`closed_grants` reads the grants of a bus without opening it in this process; None: the bus is opened to read them."""
        self._buses: Final = buses
        self._admins: Final = frozenset(admins)
        self._closed_grants: Final = closed_grants
        self.refusals: Final = AccessRefusals(buses) if refusals is None else refusals
        self.open_calls: Final = OpenCalls(buses, self.check_open)

    def is_bound(self, rpc: str, principal: Principal) -> bool:
        """Return whether a call needs a right: the caller is authenticated and not the server itself, and the RPC is not open to all."""
        return not principal.is_anonymous and not principal.is_server and rpc not in RPCS_WITHOUT_RIGHT

    def is_admin(self, principal: Principal) -> bool:
        """Return whether the settings make a caller an administrator."""
        if principal.is_anonymous:
            return False
        return principal.name in self._admins or any(f"{GROUP_PREFIX}{group}" in self._admins for group in principal.groups)

    def rights(self, principal: Principal, state: State) -> frozenset[Right]:
        """Return the rights of a caller on a bus."""
        in_force = state.grants_in_force
        if in_force is None:
            return self._rights_under(None, state.bus, principal)
        return self._rights_under(in_force.grants, state.bus, principal, binds_anonymous=in_force.binds_anonymous)

    async def rights_on(self, bus: str, principal: Principal) -> frozenset[Right] | None:
        """Return the rights of a caller on a bus without opening the bus; None: they are not known without that. Raises ServiceError."""
        sequencer = self._buses.peek(bus)
        if sequencer is not None:
            return self.rights(principal, sequencer.replica.state)
        known = await self._known_grants(bus)
        if known is None:
            return None
        return self._rights_under(known.grants, bus, principal, binds_anonymous=known.binds_anonymous)

    def _rights_under(
        self, grants: CompiledGrants | None, bus: str, principal: Principal, *, binds_anonymous: bool = False
    ) -> frozenset[Right]:
        if principal.is_server or (principal.is_anonymous and not binds_anonymous):
            return _ALL_RIGHTS
        if grants is None:
            return _ALL_RIGHTS if self.is_admin(principal) else frozenset()
        return grants.rights_of(principal, bus)

    def may_know(self, viewer: Principal, other: Principal, state: State) -> bool:
        """Return whether a reader of a bus may be told that another caller uses this server: the other must have rights on the same bus."""
        in_force = state.grants_in_force
        if in_force is None or viewer.is_anonymous or viewer.is_server or self.is_admin(viewer):
            return True
        is_own = (viewer.name, viewer.method, viewer.issuer) == (other.name, other.method, other.issuer)
        return is_own or bool(in_force.grants.rights_of(other, state.bus))

    async def may_open(self, bus: str, principal: Principal) -> bool:
        """Return whether this process opens a bus, or keeps it open, to tell a caller about the bus and the caller's rights there.

        The caller needs a right on the bus. If the grants are not known without opening the bus, a right on any open bus is enough.
        Raises ServiceError LOG_UNAVAILABLE.
        """
        if principal.is_anonymous or principal.is_server or self.is_admin(principal):
            return True
        sequencer = self._buses.peek(bus)
        if sequencer is not None:
            return bool(self.rights(principal, sequencer.replica.state))
        known = await self._known_grants(bus)
        if known is not None:
            return known.grants is not None and bool(known.grants.rights_of(principal, bus))
        return any(self.rights(principal, sequencer.replica.state) for sequencer in self._buses.all())

    def check_open(self, rpc: str, bus: str, principal: Principal, sequencer: Sequencer) -> ServiceError | None:
        """Return why a call is refused on a bus that is open, or None."""
        state = sequencer.replica.state
        in_force = state.grants_in_force
        grants = None if in_force is None else in_force.grants
        return self._denial(rpc, bus or BUS_DEFAULT, principal, self.rights(principal, state), grants)

    async def _known_grants(self, bus: str) -> KnownGrants | None:
        """Return the grants of a bus that is not open in this process, or None if they are not known. Raises ServiceError."""
        if self._closed_grants is None:
            return None
        try:
            return await self._closed_grants.of(bus)
        except LogError as error:
            raise ServiceError(error_pb2.ERROR_REASON_LOG_UNAVAILABLE, str(error)) from error

    def _denial(
        self, rpc: str, bus: str, principal: Principal, rights: frozenset[Right], grants: CompiledGrants | None
    ) -> ServiceError | None:
        """Return why a call is refused to a caller with `rights` under the grants in force, or None."""
        right = RIGHT_OF_RPC.get(rpc)
        if right is None:  # an RPC that the table has forgotten is open to nobody
            return ServiceError(error_pb2.ERROR_REASON_RIGHT_LACKING, f"no right opens {rpc}")
        if right in rights:
            return None
        if grants is None or not rights:
            return _without_rights(principal, right, bus)
        why = f"no grant of {grants.name} version {grants.version} gives it the right {right} there"
        return ServiceError(error_pb2.ERROR_REASON_RIGHT_LACKING, f"{principal.name!r} may not {right} on bus {bus}: {why}")

    def check_now(self, rpc: str, bus: str, principal: Principal) -> ServiceError | Callable[[], Awaitable[None]] | None:
        """Return why a call is refused, None if it is allowed, or what to call and await if the bus is not open here. Hot path."""
        sequencer = None if rpc == CREATE_BUS else self._buses.peek(bus)
        if sequencer is not None:
            return self.check_open(rpc, bus, principal, sequencer)
        return partial(self.check, rpc, bus, principal)

    def check_answer(self, rpc: str, bus: str, principal: Principal) -> ServiceError | None:
        """Return why a call that was allowed when it began is refused its answer now, or None."""
        sequencer = self._buses.peek(bus)
        if sequencer is None:  # it was closed meanwhile: its grants are not known any more
            return _without_rights(principal, RIGHT_OF_RPC[rpc], bus or BUS_DEFAULT)
        return self.check_open(rpc, bus, principal, sequencer)

    async def check(self, rpc: str, bus: str, principal: Principal) -> None:
        """Check that a call is allowed. Raises ServiceError RIGHT_LACKING, BUS_NOT_FOUND, and the errors of opening an existing bus."""
        self._buses.check_name(bus)
        if rpc == CREATE_BUS:
            await self._check_creation(bus, principal)
            return
        sequencer = self._buses.peek(bus)
        if sequencer is None:
            await self._check_closed(rpc, bus or BUS_DEFAULT, principal)
            sequencer = await self._open(rpc, bus, principal)
        error = self.check_open(rpc, bus, principal, sequencer)
        if error is not None:
            raise error

    async def _check_closed(self, rpc: str, bus: str, principal: Principal) -> None:
        """Raise ServiceError if a call is refused on a bus that is not open in this process, as far as its grants are known."""
        known = await self._known_grants(bus)
        if known is None:
            return
        rights = self._rights_under(known.grants, bus, principal, binds_anonymous=known.binds_anonymous)
        error = self._denial(rpc, bus, principal, rights, known.grants)
        if error is not None:
            raise error

    async def _open(self, rpc: str, bus: str, principal: Principal) -> Sequencer:
        """Open a bus in this process. Only callers that may create the bus learn that it does not exist. Raises ServiceError."""
        try:
            return await self._buses.existing(bus)
        except ServiceError as error:
            right = RIGHT_OF_RPC.get(rpc)
            if error.reason != error_pb2.ERROR_REASON_BUS_NOT_FOUND or right is None or await self._may_create(bus, principal):
                raise
        raise _without_rights(principal, right, bus)

    async def _may_create(self, bus: str, principal: Principal) -> bool:
        """Return whether a caller may create a bus of this name: the grants of the default bus say so."""
        if self.is_admin(principal):
            return True
        in_force = (await self._buses.existing(BUS_DEFAULT)).replica.state.grants_in_force
        return in_force is not None and "operate" in in_force.grants.rights_of(principal, bus)

    async def _check_creation(self, bus: str, principal: Principal) -> None:
        """Raise ServiceError if a caller may not create a bus."""
        if not await self._may_create(bus, principal):
            message = f"{principal.name!r} may not create bus {bus}: that needs the right operate for it in the grants of bus {BUS_DEFAULT}"
            raise ServiceError(error_pb2.ERROR_REASON_RIGHT_LACKING, message)


def _without_rights(principal: Principal, right: Right, bus: str) -> ServiceError:
    """Return the refusal of a caller that has no right on a bus. It does not tell whether the bus or its grants exist."""
    message = (
        f"{principal.name!r} may not {right} on bus {bus}: no grant gives it a right there; administrators of the server's settings create "
        "buses and deploy their first grants"
    )
    return ServiceError(error_pb2.ERROR_REASON_RIGHT_LACKING, message)
