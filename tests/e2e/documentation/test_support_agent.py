"""The example of an agent with a model, run as a program on a real server, with the providers' SDKs on transcripts."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from gavel.v1.decision_pb2 import OUTCOME_APPROVED
from gavel_client import GavelClient
from gavel_client.evidence import EvidenceStore

from tests.e2e.cli.programs import gavel
from tests.e2e.world import WAIT_SECONDS_MAX, Server, prove
from tests.support.llm.transcripts import Reply, TranscriptServer
from tests.support.paths import ROOT

EXAMPLE = ROOT / "client/python/examples/support"
OVERLOADED = Reply(status=529, body={"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})


@pytest.mark.long
async def test_the_support_agent_is_governed_and_auditable(
    pair: tuple[Server, Server], new_bus_clients: tuple[GavelClient, GavelClient], bus: str, tmp_path: Path
) -> None:
    """A complaint wakes the agent: it is read, looked up, refunded and answered, across a failover; the log and the evidence tell all."""
    client = new_bus_clients[0]
    at = ("--server", pair[0].address, "--bus", bus)
    for command in (("rules", "deploy", str(EXAMPLE / "rules.yaml"), "--activate"), ("tools", "register", str(EXAMPLE / "tools.yaml"))):
        assert 0 == gavel(*command, *at).returncode
    with TranscriptServer() as models:
        models.replies.extend([OVERLOADED, OVERLOADED, *map(Reply, ("json_output", "parallel_tools", "refund", "final_answer", "text"))])
        environment = {**os.environ, "ANTHROPIC_BASE_URL": models.url, "OPENAI_BASE_URL": f"{models.url}/v1"}
        environment |= {"ANTHROPIC_API_KEY": "test-key", "OPENAI_API_KEY": "test-key"}
        options = {"server": pair[1].address, "bus": bus, "evidence": str(tmp_path / "evidence"), "position": str(tmp_path / "position")}
        arguments = [str(EXAMPLE / "agent.py"), "--once", *(f"--{name}={value}" for name, value in options.items())]
        agent = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        assert agent.stdout is not None
        assert b"waiting for complaints\n" == await asyncio.wait_for(agent.stdout.readline(), WAIT_SECONDS_MAX)
        signal = await asyncio.to_thread(
            gavel, "signal", "order/7", "order.complaint", "It is broken", "--user", "--source", "chat", "--json=snake", *at
        )
        output, _ = await asyncio.wait_for(agent.communicate(), WAIT_SECONDS_MAX)
    lines = output.decode().splitlines()
    assert 0 == agent.returncode, lines
    assert [
        'order/7: orders_status ok: {"order": "order/7", "status": "delivered"}',
        'order/7: orders_total ok: {"order": "order/7", "total": 80}',
        "order/7: refund_create ok: refund.create on order/7: approved.",
        "order/7: final_answer ok: The refund of 40 EUR is approved.",
        "Damaged goods are refunded within 30 days. ✅",
    ] == lines
    trace = (await client.get_trace(json.loads(signal.stdout)["envelope"]["trace_id"])).envelopes
    calls = [event.agent_diagnostic.llm_invocation for event in trace if event.agent_diagnostic.HasField("llm_invocation")]
    # The first call failed over to OpenAI; the others reached Anthropic.
    assert ["openai", "anthropic", "anthropic", "anthropic", "anthropic"] == [call.llm_provider for call in calls]
    assert [("anthropic", "OVERLOADED"), ("anthropic", "OVERLOADED"), ("openai", "")] == [
        (attempt.llm_provider, attempt.error_code) for attempt in calls[0].attempts
    ]
    store = EvidenceStore(str(tmp_path / "evidence"))
    texts = [json.loads(store.get(call.evidence_hash)) for call in calls]
    assert '{"order":"order/7","amount":40}' == texts[0]["output"]["text"]
    assert {"role": "user", "text": "order/7: It is broken"} in texts[0]["prompt"]["messages"]
    decision = next(event for event in trace if event.HasField("decision"))
    assert OUTCOME_APPROVED == decision.decision.outcome
    assert {"order.status", "order.total"} == {fact.key for fact in decision.decision.pinned_facts}
    await prove(client)
