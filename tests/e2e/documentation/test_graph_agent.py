"""The example of a graph agent, run as a program on a real server."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from gavel.v1.decision_pb2 import OUTCOME_APPROVED
from gavel_client import GavelClient
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set

from tests.e2e.world import WAIT_SECONDS_MAX, Server, prove, wait_for_events
from tests.support.paths import ROOT

EXAMPLE = ROOT / "client/python/examples/refund_graph.py"


async def test_the_graph_agent_is_governed_and_auditable(
    pair: tuple[Server, Server], new_bus_clients: tuple[GavelClient, GavelClient], bus: str
) -> None:
    """A complaint wakes the graph; its proposal is rejected, completed and approved; the log has each step of the graph."""
    client = new_bus_clients[0]
    deployed = await client.deploy_rule_set(shipped_rule_set("refunds"))
    await client.activate_rule_set(deployed.policy_id, deployed.version)
    command = [sys.executable, str(EXAMPLE), "--server", pair[1].address, "--bus", bus]
    result = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=WAIT_SECONDS_MAX, check=False)
    assert (0, "") == (result.returncode, result.stderr)
    steps = await wait_for_events(client, lambda event: event.agent_diagnostic.HasField("graph_transition"), 6)
    transitions = [event.agent_diagnostic.graph_transition for event in steps]
    assert [
        ("triage", 1, "TRIGGERED"),
        ("plan", 2, "REFUND_WANTED"),
        ("propose", 3, "PLANNED"),
        ("conclude", 4, "APPROVED"),
        ("triage", 1, "TRIGGERED"),
        ("conclude", 2, "NOTHING_WANTED"),
    ] == [(one.graph_node, one.state_version, one.transition_reason_code) for one in transitions]
    trace = (await client.get_trace(steps[0].trace_id)).envelopes
    ids = {event.event_id for event in trace}
    assert ids.issuperset(event_id for one in transitions[:4] for event_id in (*one.input_event_ids, *one.output_event_ids))
    decisions = [event for event in trace if event.WhichOneof("payload") == "decision"]
    assert OUTCOME_APPROVED == decisions[-1].decision.outcome
    assert 2 == len(decisions)
    assert "TriggerFired" in [event.event_name for event in trace]
    for event in trace:
        assert f"{event.sequence_number:>5}  " in result.stdout
    await prove(client)
