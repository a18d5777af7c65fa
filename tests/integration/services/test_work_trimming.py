"""Work queues lose what has ended in the log, in a server of this process with a log in memory."""

from __future__ import annotations

from gavel.v1.arbitration_service_pb2 import RevokeDecisionRequest
from gavel.v1.execution_pb2 import EXECUTION_STATUS_SUCCESS
from gavel_server.work.trimming import trim

from tests.integration.services.world import World, report


async def test_entries_of_ended_decisions_are_removed(world_with_rules: World) -> None:
    """A decision leaves its queue when it was executed or revoked, its executions only when its facts are derived."""
    world = world_with_rules
    sequencer = await world.buses.open("")
    work = sequencer.log.work
    done, lost, live = [await world.approve(f"order/{name}") for name in ("done", "lost", "live")]
    await world.report(report(done, await world.begin(done), EXECUTION_STATUS_SUCCESS))
    await world.begin(live)
    await world.arbitration.RevokeDecision(RevokeDecisionRequest(decision_id=lost.event_id, revoked_by="ann", reason="no longer wanted"))
    assert 3 == len(await work.numbers("decisions", 0, 9))
    assert 3 == len(await work.numbers("executions", 0, 9))
    await trim(sequencer)
    assert [live.sequence_number] == await work.numbers("decisions", 0, 9)
    assert 3 == len(await work.numbers("executions", 0, 9))
