"""`gavel audit` on real servers: what led to a decision, what has drifted since, and whether it comes out the same."""

from __future__ import annotations

import json
from typing import Any

from gavel.v1.common_pb2 import VersionBinding
from gavel.v1.diagnostic_pb2 import LlmInvocation
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.tool_pb2 import ToolContract
from gavel_client import GavelClient, content_hash, diagnostic_envelope, tool_call_envelope, tool_result_envelope
from google.protobuf.json_format import ParseDict

from tests.e2e.cli.programs import gavel
from tests.e2e.world import AGENT, DEPOT, POLICY, Server, proposal, publish_status, rule_set

TRACE = "audited"
VERSIONS = VersionBinding(planner_version="planner-1")


def contract(version: str, *requires: str) -> ToolContract:
    """Return a version of the contract of the tool scan."""
    schema = {"type": "object", "required": list(requires)}
    return ParseDict({"name": "scan", "version": version, "argument_schema": schema}, ToolContract())


async def invoke(client: GavelClient, trace_id: str, model: str) -> None:
    """Record that a model answered the prompt."""
    invocation = LlmInvocation(
        requested_model=model,
        llm_model=model,
        llm_provider="provider-1",
        llm_temperature=0.5,
        prompt_hash=content_hash("prompt"),
        output_hash=content_hash("output"),
    )
    envelope = diagnostic_envelope("parcel/1", AGENT, kind="LlmInvocationCommitted", llm_invocation=invocation, trace_id=trace_id)
    await client.publish_event(envelope)


async def decide(client: GavelClient) -> Envelope:
    """Let an agent call a tool and a model, and propose; return the decision."""
    await client.register_contract(contract("1", "id"))
    call = tool_call_envelope(
        "parcel/1", AGENT, tool_name="scan", arguments={"id": "1"}, trace_id=TRACE, provider_id="depot-scanner", version_binding=VERSIONS
    )
    recorded = (await client.publish_event(call)).envelope
    await client.publish_event(tool_result_envelope(recorded, result={"weight": 1}))
    await invoke(client, TRACE, "model-1")
    fact = (await publish_status(client, ["parcel/1"]))["parcel/1"]
    envelope = proposal(fact)
    envelope.trace_id = TRACE
    return (await client.submit_proposal(envelope)).decision


def audit(server: Server, bus: str, *arguments: str) -> dict[str, Any]:
    """Return the audit that `gavel audit` prints as JSON."""
    result = gavel("audit", *arguments, "--bus", bus, "--json=snake", server=server)
    assert (0, "") == (result.returncode, result.stderr)
    printed: dict[str, Any] = json.loads(result.stdout)["audit"]
    return printed


async def test_an_unchanged_decision(pair: tuple[Server, Server], clients: tuple[GavelClient, GavelClient], bus: str) -> None:
    """An audit names models, tools, rule sets, facts with their age and the agent; nothing has drifted, and it comes out the same."""
    decision = await decide(clients[0])
    for server in pair:
        report = audit(server, bus, "decision", decision.event_id)
        assert ([], False) == (report["drifts"], report["truncated"])
        assert "planner-1" == report["version_binding"]["planner_version"]
        (model,) = report["models"]
        assert ("model-1", "provider-1", 0.5) == tuple(
            model["invocation"][name] for name in ("llm_model", "llm_provider", "llm_temperature")
        )
        (tool,) = report["tools"]
        assert ("scan", "1", "depot-scanner", "1", "0") == tuple(
            tool[name] for name in ("tool_name", "tool_version", "provider_id", "calls", "open")
        )
        (one,) = report["decisions"]
        assert ("OUTCOME_APPROVED", POLICY, AGENT.id) == (one["outcome"], one["policy_id"], one["proposer"]["id"])
        assert [(POLICY, "1")] == [(reference["policy_id"], reference["version"]) for reference in one["active_rule_sets"]]
        (fact,) = one["facts"]
        assert ("parcel.status", "ready", DEPOT.id) == (fact["key"], fact["value"], fact["producer"]["id"])
        assert 0 <= int(fact["age_ms"]) < 600_000
        assert (False, "OUTCOME_APPROVED") == (one["today"]["differs"], one["today"]["outcome"])
        assert "REPLAY_STATUS_PROVED" == one["recomputation"]["status"]


async def test_exactly_what_has_drifted(pair: tuple[Server, Server], clients: tuple[GavelClient, GavelClient], bus: str) -> None:
    """After a tool's schema, the model and the rule set have changed, an audit names these three drifts and how it would decide today."""
    client = clients[0]
    decision = await decide(client)
    await client.register_contract(contract("2", "id", "depot"))
    await invoke(client, "later", "model-2")
    stricter = rule_set(version=2).replace("params.weight", "100.0 * params.weight")
    await client.deploy_rule_set(stricter)
    await client.activate_rule_set(POLICY, 2)
    for server in pair:
        for arguments in (("decision", decision.event_id), ("trace", TRACE)):
            report = audit(server, bus, *arguments)
            assert [("SCHEMA_DRIFT", "scan"), ("MODEL_DRIFT", "model-1"), ("RULE_SET_DRIFT", POLICY)] == [
                (drift["code"], drift["name"]) for drift in report["drifts"]
            ]
            (one,) = report["decisions"]
            assert (True, "OUTCOME_REJECTED") == (one["today"]["differs"], one["today"]["outcome"])
            assert "REPLAY_STATUS_PROVED" == one["recomputation"]["status"]
    trace = await clients[1].get_trace(TRACE)
    assert ["SCHEMA_DRIFT", "MODEL_DRIFT", "RULE_SET_DRIFT"] == [drift.code for drift in trace.drifts]


async def test_one_screen(pair: tuple[Server, Server], clients: tuple[GavelClient, GavelClient], bus: str) -> None:
    """For people an audit answers the five questions in order; without recomputation it says so, and an unknown decision is exit 1."""
    decision = await decide(clients[0])
    shown = gavel("audit", "decision", decision.event_id, "--bus", bus, server=pair[0]).stdout
    headings = ("1. Models", "2. Tools", "3. Decisions", "4. Today", "5. Recomputation")
    places = [shown.index(heading) for heading in headings]
    assert sorted(places) == places
    assert "the rule sets that are active now decide alike: APPROVED" in shown
    assert len(shown.splitlines()) < 50
    short = gavel("audit", "decision", decision.event_id, "--without-recomputation", "--bus", bus, server=pair[1]).stdout
    assert "5. Recomputation: not asked for" in short
    by_number = gavel("audit", "decision", str(decision.sequence_number), "--without-recomputation", "--bus", bus, server=pair[1])
    assert short == by_number.stdout
    await invoke(clients[0], "bare", "model-1")
    bare = gavel("audit", "trace", "bare", "--bus", bus, server=pair[0]).stdout
    assert "5. Recomputation: there is no decision." in bare
    unknown = gavel("audit", "decision", "00000000-0000-4000-8000-000000000000", "--bus", bus, server=pair[0])
    assert (1, "") == (unknown.returncode, unknown.stdout)
    assert "DECISION_NOT_FOUND" in unknown.stderr
    proposal = gavel("audit", "decision", str(decision.sequence_number - 1), "--bus", bus, server=pair[0])
    assert (1, "") == (proposal.returncode, proposal.stdout)
    assert "is not a decision" in proposal.stderr
