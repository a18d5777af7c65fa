"""The proxy on a server with authentication: the tool runtime and the agent are two principals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gavel.v1.common_pb2 import TRUST_TIER_2_TOOL_OBSERVATION, TRUST_TIER_3_AGENT_INFERENCE
from gavel_client import GavelClient
from gavel_server.identity.tokens import add_token
from gavel_server.log.redis.embedded import EmbeddedRedis

from tests.e2e.documentation.sessions import blocks
from tests.e2e.mcp.world import LEDGER_RULES, World, text_of
from tests.e2e.world import Server, run_servers
from tests.support.paths import ROOT


@pytest.mark.parametrize("two_principals", [True, False])
@pytest.mark.long
async def test_a_witness_is_another_principal(redis_server: EmbeddedRedis, bus: str, tmp_path: Path, two_principals: bool) -> None:
    """With a token of its own, and the grants of docs/mcp.md, the agent's readings are of tier 2; with the proxy's they are inference."""
    for name in ("mcp-proxy", "coding-agent"):
        (tmp_path / name).write_text(add_token(tmp_path / "tokens.toml", name, (), None))
    settings = ['authentication = "required"', f'token_file = "{tmp_path}/tokens.toml"', 'admins = ["mcp-proxy", "coding-agent"]']
    (tmp_path / "gavel.toml").write_text("\n".join(settings))
    server = Server(tmp_path / "gavel", redis_url=redis_server.url, options=["--config", str(tmp_path / "gavel.toml"), "--no-front"])
    with run_servers(server):
        token = (tmp_path / "mcp-proxy").read_text()
        async with GavelClient(server.address, bus=bus, credentials=token) as client:
            await client.create_bus()
            world = World(tmp_path, server, bus, client)
            agent: dict[str, Any] = {"id": "coding-agent"}
            if two_principals:
                agent["gavel_token"] = {"from_file": "coding-agent"}
            world.configure_ledger()
            document = {**json.loads((tmp_path / "proxy.yaml").read_text()), "agent": agent}
            (tmp_path / "proxy.yaml").write_text(json.dumps(document))
            await world.deploy(LEDGER_RULES)
            if two_principals:
                (grants,) = [block for block in blocks(ROOT / "docs/mcp.md", "yaml") if "\ngrants:\n" in block]
                await client.deploy_grants(grants.replace("fs.*", "ledger.*"))

            async with world.connect("--token-file", str(tmp_path / "mcp-proxy")) as connected:
                read = await connected.call_tool("ledger__peek", {})
                effect = await connected.call_tool("ledger__append", {"text": "one"})
            observations = await world.events("observation")
            proposals = await world.events("proposal")

    assert not read.is_error
    tier = TRUST_TIER_2_TOOL_OBSERVATION if two_principals else TRUST_TIER_3_AGENT_INFERENCE
    assert {tier} == {event.observation.trust_tier for event in observations}
    principal = "coding-agent" if two_principals else "mcp-proxy"
    assert {principal} == {event.attestation.principal for event in proposals}
    if two_principals:
        assert ("appended", ["one"]) == (text_of(effect), world.lines)
    else:
        assert ("INSUFFICIENT_EVIDENCE_TIER", []) == (effect.structured_content["reason_code"], world.lines)
