"""Scans for pending work whose queue entry is lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gavel.v1.projection_service_pb2 import (
    PENDING_PHASE_APPROVED,
    ListPendingDecisionsRequest,
    ListPendingDecisionsResponse,
    PendingDecision,
)
from gavel_client import GavelClient
from gavel_client.consumers.pending_work import scan_pending

from tests.unit.client.fake_server import FakeServer


async def test_only_an_unchanged_decision_is_lost(server: FakeServer, client: GavelClient) -> None:
    """A decision without an entry is lost from the second scan on, but not while something happens to it between two scans."""
    head = 7

    def pending(request: ListPendingDecisionsRequest) -> ListPendingDecisionsResponse:
        nonlocal head
        if not request.lost_work:
            head += 1
        waiting = PendingDecision(decision_id="waiting", sequence_number=5, last_sequence_number=7)
        changing = PendingDecision(decision_id="changing", sequence_number=6, last_sequence_number=head)
        return ListPendingDecisionsResponse(decisions=[waiting, changing], projection_version=head)

    server.answers["ListPendingDecisions"] = pending
    drained: Any = SimpleNamespace(is_drained=True)
    scans = []
    async for scan in scan_pending(client, drained, PENDING_PHASE_APPROVED, interval_ms=1):
        scans.append((scan.first, [one.decision_id for one in scan.lost]))
        if len(scans) == 3:
            break
    assert [(5, []), (5, ["waiting"]), (5, ["waiting"])] == scans


async def test_nothing_is_scanned_without_pending_decisions(server: FakeServer, client: GavelClient) -> None:
    """While the owner of a consumer knows that nothing is pending, no call is made: a server closes a bus that nobody calls."""
    requests: list[ListPendingDecisionsRequest] = []

    def pending(request: ListPendingDecisionsRequest) -> ListPendingDecisionsResponse:
        requests.append(request)
        return ListPendingDecisionsResponse(projection_version=7)

    server.answers["ListPendingDecisions"] = pending
    busy: Any = SimpleNamespace(is_drained=False)
    looks = iter([False, False, True])
    async for _ in scan_pending(client, busy, PENDING_PHASE_APPROVED, interval_ms=1, has_pending=lambda: next(looks)):
        break
    assert 1 == len(requests)
    assert [] == list(looks)
