"""Whether the caller of a call has the right that the call needs, and what is counted if it has not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any, Final

from gavel_rules.identity.rights import WRITING_RPCS

from gavel_server.errors import ServiceError, invalid
from gavel_server.rpc.call_context import CallContext
from gavel_server.rpc.callback_methods import CallbackMethod, Respond, Tasks
from gavel_server.rpc.identity.access import AccessControl
from gavel_server.rpc.identity.open_calls import OpenCall
from gavel_server.rpc.wire import last_text_field

# Calls that wait for a bus to be opened in this process before their rights are checked.
_TASKS: Final = Tasks()


def call_if_authorized(
    access: AccessControl, name: str, method: CallbackMethod, bus_number: int, data: bytes, context: CallContext, respond: Respond
) -> None:
    """Call a callback method if the caller has the right: at once if the bus is open, which it nearly always is. Raises ServiceError."""
    try:
        bus = last_text_field(data, bus_number)
    except ValueError as error:
        raise invalid([("request", f"is not a message of the contract: {error}")]) from error
    outcome = access.check_now(name, bus, context.principal)
    if isinstance(outcome, ServiceError):
        respond(outcome)
    elif outcome is None:
        method(data, context, respond)
    else:
        check = outcome

        async def proceed() -> None:
            try:
                await check()
                method(data, context, respond)
            except Exception as error:  # noqa: BLE001  # a bug is answered as INTERNAL with an id, and logged under it
                respond(error)

        _TASKS.serve(proceed(), context)


async def authorize(access: AccessControl | None, name: str, request: Any, context: CallContext) -> None:
    """Check that the caller has the right that the call needs, and that its credentials still last. Raises ServiceError."""
    if context.session is not None:
        context.session.check()  # the request may have been long in coming
    if access is not None and access.is_bound(name, context.principal):
        await access.check(name, getattr(request, "bus", ""), context.principal)


@asynccontextmanager
async def while_authorized(access: AccessControl | None, name: str, context: CallContext) -> AsyncIterator[OpenCall | None]:
    """Run a block, such as a stream's, no longer than the caller's credentials last and its right. Raises ServiceError.

    The right counts from the moment on at which the block has named the bus to the OpenCall. None: the call needs no right.
    """
    async with nullcontext() if context.session is None else context.session.scope():
        if access is None or not access.is_bound(name, context.principal):
            yield None
            return
        async with access.open_calls.watch(name, context.principal) as call:
            yield call


@asynccontextmanager
async def read_while_authorized(access: AccessControl | None, name: str, request: Any, context: CallContext) -> AsyncIterator[None]:
    """Run a block that answers an authorized call. A long read ends with the right; a call that writes is not ended half-way.

    Raises ServiceError.
    """
    if name in WRITING_RPCS:
        yield
        return
    async with while_authorized(access, name, context) as call:
        if call is not None:
            call.begin(getattr(request, "bus", ""))
        yield
    if context.session is not None:
        context.session.check()
    await authorize_again(access, name, request, context)


async def authorize_again(access: AccessControl | None, name: str, request: Any, context: CallContext) -> None:
    """Check that the caller of an open stream still has its right: grants may have changed since it began. Raises ServiceError."""
    if access is not None and access.is_bound(name, context.principal):
        outcome = access.check_now(name, getattr(request, "bus", ""), context.principal)
        if isinstance(outcome, ServiceError):
            raise outcome
        if outcome is not None:
            await outcome()


def note_refusal(access: AccessControl, name: str, bus_number: int, error: Exception, data: bytes, context: CallContext) -> None:
    """Count a call that was answered with an error, if the error denies access. The bytes of other calls are not read: they may be many."""
    if not access.refusals.counts(name, error):
        return
    try:
        bus = last_text_field(data, bus_number)
    except ValueError:
        return
    access.refusals.note(name, bus, context.principal, error, data)


@contextmanager
def record_refusals(access: AccessControl | None, name: str, request: Any, context: CallContext) -> Iterator[None]:
    """Count the call if the block raises an error that denies access."""
    try:
        yield
    except ServiceError as error:
        if access is not None:
            access.refusals.note(name, getattr(request, "bus", ""), context.principal, error, request)
        raise
