"""The metrics of calls."""

from __future__ import annotations

import uuid

from gavel_rules.identity.principal import Principal
from gavel_server.identity.sessions import Session
from gavel_server.process.telemetry.instruments import LABEL_VALUES_MAX, OTHER
from gavel_server.rpc.call_context import CallContext, Caller
from gavel_server.rpc.telemetry.call_observer import CallObserver
from prometheus_client import REGISTRY


def refusals(principal: str, reason: str) -> float:
    """Return the counted refusals of a principal, 0 if it has no series."""
    return REGISTRY.get_sample_value("gavel_refusals_total", {"principal": principal, "reason": reason}) or 0.0


def context_of(name: str) -> CallContext:
    """Return the context of a call by an authenticated caller."""
    caller = Caller("grpc.aio", "unix:", (), None)
    return CallContext("gavel.v1.EventService/GetEvent", lambda: caller, session=Session(Principal(name, "jwt", "https://issuer")))


def test_principals_do_not_multiply_without_bound() -> None:
    """Refusals count by principal; principals beyond LABEL_VALUES_MAX share one series, so callers cannot fill the memory with names."""
    reason = f"REASON_{uuid.uuid4().hex}"
    observer = CallObserver()
    names = [f"caller-{number}" for number in range(LABEL_VALUES_MAX + 50)]
    for name in [*names, *names[:3]]:
        observer.count_refusal(context_of(name), reason)
    assert [2, 2, 2, 1] == [refusals(name, reason) for name in names[:4]]
    assert 1 == refusals(names[LABEL_VALUES_MAX - 1], reason)
    assert 0 == refusals(names[LABEL_VALUES_MAX], reason)
    assert 50 == refusals(OTHER, reason)
