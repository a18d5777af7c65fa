"""Scaffolded rules, tests and configuration; and observing before enforcing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from gavel.v1.decision_pb2 import OUTCOME_NEEDS_HUMAN_REVIEW
from gavel_client.mcp.configuration import load_configuration

from tests.e2e.mcp.world import GIT_SERVER, LEDGER_RULES, World, text_of
from tests.e2e.runs import run_gavel


@pytest.mark.long
async def test_scaffolds_of_real_servers(world: World, npm_servers: Path) -> None:
    """A scaffold of three servers passes its tests and lint at once, and reads and effects follow the servers' hints."""
    rules, config = world.folder / "rules.yaml", world.folder / "proxy.yaml"
    servers = [
        f"git={GIT_SERVER}",
        f"fs=node {npm_servers}/server-filesystem/dist/index.js {world.folder}",
        f"all=node {npm_servers}/server-everything/dist/index.js",
    ]
    arguments = [
        "mcp",
        "scaffold",
        *(part for server in servers for part in ("--server", server)),
        "--rules",
        str(rules),
        "--config",
        str(config),
    ]

    scaffold = run_gavel(arguments, os.environ)
    rules.write_text(scaffold.stdout)
    tests = run_gavel(["rules", "test", world.folder], os.environ)
    lint = run_gavel(["rules", "lint", rules], os.environ)
    again = run_gavel(arguments, os.environ)

    assert 0 == scaffold.returncode, scaffold.stderr
    assert (0, True) == (tests.returncode, "26 of 26 passed" in tests.stdout), tests.stdout
    assert (0, False) == (lint.returncode, "warning" in lint.stdout), lint.stdout
    configuration = load_configuration(config)
    modes = {tool: configuration.settings("fs", tool).mode for tool in ("read_text_file", "write_file", "create_directory")}
    assert {"read_text_file": "read", "write_file": "propose", "create_directory": "propose"} == modes
    assert "action: fs.write_file, priority: 100, when: 'facts.definition != \"\"', effect: review" in scaffold.stdout
    assert "action: fs.create_directory, priority: 100, when: 'facts.definition != \"\"', effect: approve" in scaffold.stdout
    assert (2, True) == (again.returncode, "exist already" in again.stderr)


@pytest.mark.long
async def test_a_scaffolded_proxy(world: World) -> None:
    """A scaffolded proxy allows what a server calls read-only, and calls a person for what it does not know."""
    command = f"{sys.executable} {Path(__file__).with_name('ledger_server.py')} {world.folder}"
    paths = ["--rules", str(world.folder / "rules.yaml"), "--config", str(world.folder / "proxy.yaml")]
    scaffold = run_gavel(["mcp", "scaffold", "--server", f"ledger={command}", *paths], os.environ)
    await world.deploy(scaffold.stdout)

    async with world.connect() as client:
        read = await client.call_tool("ledger__peek", {})
        review = await client.call_tool("ledger__append", {"text": "one"})

    assert (False, "TOOL_NEEDS_A_PERSON", []) == (read.is_error, review.structured_content["reason_code"], world.lines)


@pytest.mark.long
async def test_scaffold_of_another_server(world: World) -> None:
    """A second server gets a rule set of its own name on the bus, and the configuration names the variables that servers get."""
    command = f"{sys.executable} {Path(__file__).with_name('ledger_server.py')} {world.folder}"
    await world.deploy(LEDGER_RULES)
    options = ["--rule-set", "more-tools", "--env", "HTTPS_PROXY", "--config", str(world.folder / "more.yaml")]
    environment = {**os.environ, "HTTPS_PROXY": "http://user:planted-secret@proxy:3128"}
    arguments = ["mcp", "scaffold", "--server", f"more={command}", "--rules", str(world.folder / "more-rules.yaml"), *options]

    scaffold = run_gavel(arguments, environment)
    unset = run_gavel([*arguments, "--env", "NO_SUCH_VARIABLE", "--force"], environment)
    wrong = run_gavel([*arguments, "--rule-set", "my tools", "--force"], environment)
    proxy = ["mcp", "proxy", "--config", str(world.folder / "more.yaml")]
    started = run_gavel(proxy, {name: value for name, value in os.environ.items() if name != "HTTPS_PROXY"})
    await world.deploy(scaffold.stdout)

    written = (world.folder / "more.yaml").read_text()
    assert (0, True) == (scaffold.returncode, "rule_set: more-tools\n" in scaffold.stdout), scaffold.stderr
    assert (True, False) == ("HTTPS_PROXY: {from_env: HTTPS_PROXY}" in written, "planted-secret" in written)
    assert (2, True) == (unset.returncode, "the environment variable NO_SUCH_VARIABLE is not set" in unset.stderr)
    assert (2, True) == (started.returncode, "gavel: the environment variable HTTPS_PROXY is not set\n" in started.stderr), started.stderr
    assert (2, True) == (wrong.returncode, "'my tools' is not a name" in wrong.stderr)


async def test_scaffold_without_effects(world: World) -> None:
    """A server that cannot be started is an error that names it; wrong servers and files are errors too."""
    environment = {**os.environ, "NODE_EXTRA_CA_CERTS": "/etc/planted.pem"}
    missing = run_gavel(["mcp", "scaffold", "--server", "no=/nonexistent/server", "--config", world.folder / "a.yaml"], environment)
    wrong = run_gavel(["mcp", "scaffold", "--server", "No Name"], os.environ)

    assert (1, True) == (missing.returncode, "the server no cannot be reached (FileNotFoundError); check its command" in missing.stderr)
    hint = "The server does not get these variables, which are set here: "
    assert (True, False) == (hint in missing.stderr and "NODE_EXTRA_CA_CERTS" in missing.stderr, "planted" in missing.stderr)
    assert (2, True) == (wrong.returncode, "'No Name' is not a server" in wrong.stderr)


@pytest.mark.long
async def test_observing(world: World) -> None:
    """With --observe refused calls and calls for a person are made and recorded, and a simulation shows what enforcing would block."""
    world.configure_ledger()
    await world.deploy(LEDGER_RULES)

    async with world.connect("--observe") as client:
        answers = [await client.call_tool("ledger__append", {"text": text}) for text in ("one", "careful", "careful")]
        read = await client.call_tool("ledger__peek", {})
    rules = world.folder / "rules.yaml"
    rules.write_text(LEDGER_RULES.replace("version: 1", "version: 2").replace('params.text.startsWith("careful")', "true"))
    simulation = run_gavel(["rules", "simulate", rules, "--server", world.server.address, "--bus", world.bus], os.environ)

    assert ["appended"] * 3 == [text_of(result) for result in answers]
    assert ["one", "careful", "careful"] == world.lines
    assert not read.is_error
    calls = [event for event in await world.events("tool_call") if event.tool_call.tool_name == "ledger.append"]
    decisions = {event.event_id: event.decision for event in await world.events("decision")}
    assert [True, False, False] == [bool(call.tool_call.decision_id) for call in calls]
    assert OUTCOME_NEEDS_HUMAN_REVIEW == decisions[calls[1].causation_id].outcome
    assert (1, True) == (simulation.returncode, "APPROVED->NEEDS_HUMAN_REVIEW: 1" in simulation.stdout), simulation.stdout
