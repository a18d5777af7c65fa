"""`gavel trace --follow`: the live timeline of a trace, each tool result with its call."""

from __future__ import annotations

import signal
import subprocess

from gavel.v1.envelope_pb2 import Envelope
from gavel_client import SyncGavelClient, tool_call_envelope, tool_result_envelope

from tests.e2e.runs import RUN_SECONDS_MAX, forker
from tests.e2e.world import AGENT, Server


def call_tool(client: SyncGavelClient, tool_name: str, execution_id: str = "") -> Envelope:
    """Record the call of a tool in the followed trace."""
    envelope = tool_call_envelope("parcel/1", AGENT, tool_name=tool_name, arguments={}, execution_id=execution_id, trace_id="followed")
    return client.publish_event(envelope).envelope


def test_following_a_trace(shop: Server, bus: str) -> None:
    """Events are printed as they come; a result names the call that it answers, whatever came between, and what is no pair is named so."""
    with SyncGavelClient(shop.address, bus=bus) as client:
        scan = call_tool(client, "scan")
        command = [*forker().command(), "trace", "followed", "--follow", "--server", shop.address, "--bus", bus]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follow:
            try:
                assert follow.stdout is not None
                assert "scan" in follow.stdout.readline()
                weigh = call_tool(client, "weigh")
                assert "weigh" in follow.stdout.readline()
                client.publish_event(tool_result_envelope(scan, result={}))
                assert "scan" in follow.stdout.readline()
                assert f"paired: answers #{scan.sequence_number} (scan) after" in follow.stdout.readline()
                other = tool_result_envelope(weigh, result={})
                other.tool_result.tool_name = "measure"
                client.publish_event(other)
                assert "measure" in follow.stdout.readline()
                assert f"tool mismatch: measure: answers #{weigh.sequence_number} (weigh)" in follow.stdout.readline()
                client.publish_event(tool_result_envelope(scan, result={}))
                follow.stdout.readline()
                assert "duplicate result: answers" in follow.stdout.readline()
                follow.send_signal(signal.SIGINT)
                assert 130 == follow.wait(RUN_SECONDS_MAX)
            finally:
                follow.kill()
