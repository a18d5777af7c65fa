"""Reads through the proxy: witnessed, kept as evidence, and observed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, PRODUCER_TYPE_TOOL_RUNTIME, TRUST_TIER_2_TOOL_OBSERVATION
from gavel_client.evidence import EvidenceStore
from gavel_client.values import from_value

from tests.e2e.mcp.world import AGENT, GIT_SERVER, World, text_of


@pytest.mark.long
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_reads_are_witnessed(world: World, npm_servers: Path, mode: str) -> None:
    """A read leaves its call, its result, the evidence and an observation of tier 2, for clients of both eras."""
    (world.folder / "a.txt").write_text("hello")
    world.configure(
        {
            "fs": {
                "command": ["node", str(npm_servers / "server-filesystem/dist/index.js"), str(world.folder)],
                "tools": {
                    "read_text_file": {
                        "mode": "read",
                        "subject": '"file/" + arguments.path',
                        "fields": {"file.greets": 'result.text.startsWith("hello")', "file.absent": "result.structured.nothing"},
                    }
                },
            }
        }
    )
    path = str(world.folder / "a.txt")

    async with world.connect(mode=mode) as client:
        result = await client.call_tool("fs__read_text_file", {"path": path})

    assert ("hello", False, {"content": "hello"}) == (text_of(result), result.is_error, result.structured_content)
    (call,), (answer,), (observation,) = [await world.events(payload) for payload in ("tool_call", "tool_result", "observation")]
    assert ("fs.read_text_file", PRODUCER_TYPE_TOOL_RUNTIME) == (call.tool_call.tool_name, call.producer.type)
    assert call.tool_call.execution_id == answer.tool_result.execution_id
    content = EvidenceStore(str(world.folder / "gavel-mcp-state/evidence")).get(answer.tool_result.evidence_hash)
    assert "hello" == json.loads(content)["content"][0]["text"]
    assert (PRODUCER_TYPE_AGENT, AGENT) == (observation.producer.type, observation.producer.id)
    assert observation.subject == call.subject == answer.subject
    assert observation.subject.startswith("file/~/")
    assert TRUST_TIER_2_TOOL_OBSERVATION == observation.observation.trust_tier
    fields = {key: from_value(value) for key, value in observation.observation.extracted_fields.items()}
    assert {"file.greets": True} == fields, "a field that cannot be read is left out"


@pytest.mark.long
async def test_git_status(world: World) -> None:
    """A server of the stateless revision is governed like the others: its reads give fields that rules can read."""
    git = await asyncio.create_subprocess_exec("git", "init", "-q", str(world.folder / "repository"))
    assert 0 == await git.wait()
    world.configure(
        {
            "git": {
                "command": [GIT_SERVER],
                "tools": {
                    "git_status": {
                        "mode": "read",
                        "subject": '"repository/main"',
                        "fields": {"git.commits": '!result.text.contains("No commits yet")'},
                    }
                },
            }
        }
    )

    async with world.connect() as client:
        result = await client.call_tool("git__git_status", {"repo_path": str(world.folder / "repository")})

    assert "No commits yet" in text_of(result)
    (observation,) = await world.events("observation")
    assert ("repository/main", False) == (observation.subject, from_value(observation.observation.extracted_fields["git.commits"]))


@pytest.mark.long
async def test_a_failed_read_is_recorded(world: World, npm_servers: Path) -> None:
    """A tool's own error reaches the client as it is, and the log as a failed result without observation."""
    world.configure(
        {
            "fs": {
                "command": ["node", str(npm_servers / "server-filesystem/dist/index.js"), str(world.folder)],
                "tools": {"read_text_file": {"mode": "read", "fields": {"file.text": "result.text"}}},
            }
        }
    )

    async with world.connect() as client:
        result = await client.call_tool("fs__read_text_file", {"path": "/etc/hostname"})
        invalid = await client.call_tool("fs__read_text_file", {"path": 7})

    assert result.is_error
    assert "Access denied" in text_of(result)
    assert text_of(invalid).startswith("E_ARGS: arguments/path")
    codes = [event.tool_result.error_code for event in await world.events("tool_result")]
    assert ["E_TOOL", "E_ARGS"] == codes
    assert [] == await world.events("observation")
