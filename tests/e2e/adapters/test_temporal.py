"""The arguments of an activity of Temporal, as its action sees them.

Tests import the framework themselves: processes that only collect them are spared the seconds.
"""

from __future__ import annotations

from gavel_client import GavelClient

from tests.e2e.adapters.agents.agent import TOOL, Depot
from tests.e2e.adapters.test_leases import gate, statuses


async def test_an_action_sees_the_defaults_of_an_activity(client: GavelClient) -> None:
    """An argument that the workflow leaves to its default is among those of the call."""
    from dataclasses import replace

    from gavel_client.adapters.temporal import GavelInterceptor
    from temporalio.testing import ActivityEnvironment
    from temporalio.worker import ExecuteActivityInput

    from tests.e2e.adapters.agents.temporal import Invocation

    depot = Depot()

    async def send(parcel: str, weight: float = 2.0) -> str:
        return await depot.act(parcel)

    environment = ActivityEnvironment()
    environment.info = replace(environment.info, activity_type=TOOL, workflow_id="task-1", workflow_run_id="run-1")
    inbound = GavelInterceptor(gate(client)).intercept_activity(Invocation())
    assert "sent 1" == await environment.run(inbound.execute_activity, ExecuteActivityInput(send, ["1"], None, {}))
    assert ["STARTED", "SUCCESS"] == await statuses(client)
