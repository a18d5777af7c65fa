"""Calls with effects: made once if they are approved, refused with what is missing, resumed after a review."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import cast

import pytest
from gavel.v1 import common_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.decision_pb2 import OUTCOME_APPROVED
from gavel.v1.execution_pb2 import EXECUTION_STATUS_ABORTED, EXECUTION_STATUS_STARTED, EXECUTION_STATUS_SUCCESS
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE, REVIEW_VERDICT_REJECT
from gavel_client import fact_envelope
from gavel_client.mcp.effects import DECISION_MS_MAX
from gavel_client.values import from_struct, from_value
from mcp_types import RequestParamsMeta

from tests.e2e.mcp.world import LEDGER_RULES, World, text_of, until

OFFICE = Producer(type=common_pb2.PRODUCER_TYPE_API, id="office")
SUBJECT = "mcp-server/ledger"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_approved_call_is_made(world: World, mode: str) -> None:
    """An approved call is made once, within its execution, and facts follow; the same call later is another call."""
    world.configure_ledger({"fields": {"lines": "result.structured.lines"}})
    await world.deploy(LEDGER_RULES)

    async with world.connect(mode=mode) as client:
        results = [await client.call_tool("ledger__append", {"text": "one"}) for _ in range(2)]

    assert [("appended", {"lines": 1}), ("appended", {"lines": 2})] == [(text_of(result), result.structured_content) for result in results]
    assert ["one", "one"] == world.lines
    executions = [event.execution for event in await world.events("execution")]
    assert [EXECUTION_STATUS_STARTED, EXECUTION_STATUS_SUCCESS] * 2 == [execution.status for execution in executions]
    assert {"lines": 1} == from_struct(executions[1].result)["fields"]
    calls = [event.tool_call for event in await world.events("tool_call") if event.tool_call.tool_name == "ledger.append"]
    # The second call may have waited for the facts of the first one.
    approvals = [event.event_id for event in await world.events("decision") if event.decision.outcome == OUTCOME_APPROVED]
    assert approvals == [call.decision_id for call in calls]
    facts = [event.fact for event in await world.events("fact") if event.fact.key == "execution.ledger.append.status"]
    assert ["SUCCESS", "SUCCESS"] == [from_value(fact.value) for fact in facts]


async def test_a_refusal_teaches(world: World) -> None:
    """A refused call has no effect; its text names what is missing, and its structured content is the retry hint."""
    world.configure_ledger()
    await world.deploy(LEDGER_RULES.replace(", optional: true", "").replace("has(facts.open) && ", ""))

    async with world.connect() as client:
        refused = await client.call_tool("ledger__append", {"text": "one"})
        await world.client.publish_event(fact_envelope(SUBJECT, OFFICE, key="ledger.open", value=False))
        rejected = await client.call_tool("ledger__append", {"text": "one"})
        await world.client.publish_event(fact_envelope(SUBJECT, OFFICE, key="ledger.open", value=True))
        answer = await client.call_tool("ledger__append", {"text": "one"})

    assert refused.is_error
    assert "Needs ledger.open of mcp-server/ledger: missing" in text_of(refused)
    hint = refused.structured_content
    assert ("NEED_MORE_FACTS", ["ledger.open"]) == (hint["reason_code"], hint["missing_fact_keys"])
    assert "ledger.open" == hint["fact_requirements"][0]["key"]
    assert (True, "LEDGER_CLOSED") == (rejected.is_error, rejected.structured_content["reason_code"])
    assert ("appended", ["one"]) == (text_of(answer), world.lines)


@pytest.mark.long
async def test_a_review_resumes(world: World) -> None:
    """A call that needs a person is answered at once; approved, the same call passes once, and the next one needs a person again."""
    world.configure_ledger()
    await world.deploy(LEDGER_RULES)
    call = ("ledger__append", {"text": "careful"})

    async with world.connect() as client:
        pending = await client.call_tool(*call)
        again = await client.call_tool(*call)
        decision_id = pending.structured_content["decision_id"]
        waits = await client.call_tool("gavel_decision_status", {"decision_id": decision_id})
        assert [] == world.lines
        await world.client.resolve_review(decision_id, REVIEW_VERDICT_APPROVE, reviewer="ann", reason="fine")
        approved = await client.call_tool("gavel_decision_status", {"decision_id": decision_id})

    # Another run of the proxy, as an editor starts one for each session.
    async with world.connect() as client:
        answer = await client.call_tool(*call)
        done = await client.call_tool("gavel_decision_status", {"decision_id": decision_id})
        next_one = await client.call_tool(*call)

    assert ("PENDING", decision_id) == (pending.structured_content["status"], again.structured_content["decision_id"])
    assert pending.is_error
    assert "OUTCOME_NEEDS_HUMAN_REVIEW" == waits.structured_content["outcome"]
    assert "OUTCOME_APPROVED" == approved.structured_content["outcome"]
    assert ("appended", ["careful"]) == (text_of(answer), world.lines)
    assert "SUCCESS" == done.structured_content["execution"]
    assert "PENDING" == next_one.structured_content["status"]
    assert decision_id != next_one.structured_content["decision_id"]


@pytest.mark.long
async def test_a_review_holds_its_subject(world: World) -> None:
    """An open review holds other effects on its subject, and none on other subjects of the session; a named trace is held as a whole."""
    world.configure_ledger({"subject": '"ledger/" + (arguments.text.startsWith("careful") ? "a" : "b")'})
    await world.deploy(LEDGER_RULES)
    named = cast("RequestParamsMeta", {"dev.gavel/trace-id": "task-7"})

    async with world.connect() as client:
        pending = await client.call_tool("ledger__append", {"text": "careful"})
        held = await client.call_tool("ledger__append", {"text": "careful, too"})
        other = await client.call_tool("ledger__append", {"text": "other"})
        await client.call_tool("ledger__append", {"text": "careful, named"}, meta=named)
        also_held = await client.call_tool("ledger__append", {"text": "named"}, meta=named)

    assert "PENDING" == pending.structured_content["status"]
    assert ["UNDER_REVIEW"] * 2 == [result.structured_content["reason_code"] for result in (held, also_held)]
    assert ("appended", ["other"]) == (text_of(other), world.lines)


@pytest.mark.long
async def test_a_rejected_review(world: World) -> None:
    """A person's rejection is a refusal without effect, and proposing the same again does not help."""
    world.configure_ledger()
    await world.deploy(LEDGER_RULES)

    async with world.connect() as client:
        pending = await client.call_tool("ledger__append", {"text": "careful"})
        decision_id = pending.structured_content["decision_id"]
        await world.client.resolve_review(decision_id, REVIEW_VERDICT_REJECT, reviewer="ann", reason="no")
        rejected = await client.call_tool("ledger__append", {"text": "careful"})
        anew = await client.call_tool("ledger__append", {"text": "careful"})

    assert (True, "REVIEW_REJECTED") == (rejected.is_error, rejected.structured_content["reason_code"])
    assert "NO_FEASIBLE_PROPOSAL" == anew.structured_content["reason_code"]
    assert [] == world.lines


@pytest.mark.long
async def test_equal_calls_at_once(world: World) -> None:
    """Equal calls at the same time are one call; calls with an idempotency key are one call for ever."""
    world.configure_ledger()
    await world.deploy(LEDGER_RULES)
    keyed = cast("RequestParamsMeta", {"dev.gavel/idempotency-key": "order-7"})

    async with world.connect() as client:
        siblings = await asyncio.gather(*(client.call_tool("ledger__append", {"text": "twin"}) for _ in range(2)))
        first = await client.call_tool("ledger__append", {"text": "keyed"}, meta=keyed)
    async with world.connect() as client:
        second = await client.call_tool("ledger__append", {"text": "keyed"}, meta=keyed)
        other = await client.call_tool("ledger__append", {"text": "other"}, meta=keyed)

    assert ["appended"] * 4 == [text_of(result) for result in (*siblings, first, second)]
    assert other.is_error
    assert ["twin", "keyed"] == world.lines


@pytest.mark.long
async def test_different_calls_at_once(world: World) -> None:
    """Different calls on one subject at the same time are made one after the other, and none of them needs a person."""
    world.configure_ledger()
    await world.deploy(LEDGER_RULES)

    async with world.connect() as client:
        results = await asyncio.gather(*(client.call_tool("ledger__append", {"text": f"line {number}"}) for number in range(6)))

    assert ["appended"] * 6 == [text_of(result) for result in results]
    assert 6 == len(set(world.lines))


@pytest.mark.long
async def test_a_call_behind_a_slow_one(world: World) -> None:
    """A call waits once for its turn and its decision together; then it is refused, has no effect, and can be made again."""
    world.configure_ledger()
    await world.deploy(LEDGER_RULES)
    (world.folder / "hold").touch()

    async with world.connect() as client:
        slow = asyncio.create_task(client.call_tool("ledger__append", {"text": "slow"}))
        await until(lambda: world.lines == ["slow"], "the first call is made")
        began_at = time.monotonic()
        late = await client.call_tool("ledger__append", {"text": "late"})
        waited_ms = (time.monotonic() - began_at) * 1000
        lines = world.lines
        (world.folder / "hold").unlink()
        answer = await slow
        again = await client.call_tool("ledger__append", {"text": "late"})

    assert (True, ["slow"]) == (late.is_error, lines), text_of(late)
    # Two budgets would be twice the limit; the margin is for a busy machine.
    assert waited_ms < 1.8 * DECISION_MS_MAX
    assert ["appended"] * 2 == [text_of(answer), text_of(again)]
    assert ["slow", "late"] == world.lines


@pytest.mark.long
async def test_an_error_of_the_tool(world: World) -> None:
    """A tool's own error ends the attempt as aborted, and the next call is free to go."""
    world.configure_ledger()
    await world.deploy(LEDGER_RULES)
    (world.folder / "broken").touch()

    async with world.connect() as client:
        failed = await client.call_tool("ledger__append", {"text": "one"})
        (world.folder / "broken").unlink()
        answer = await client.call_tool("ledger__append", {"text": "one"})

    assert (True, "the ledger is full") == (failed.is_error, text_of(failed))
    assert ("appended", ["one"]) == (text_of(answer), world.lines)
    statuses = [event.execution.status for event in await world.events("execution")]
    assert [EXECUTION_STATUS_STARTED, EXECUTION_STATUS_ABORTED, EXECUTION_STATUS_STARTED, EXECUTION_STATUS_SUCCESS] == statuses


@pytest.mark.long
async def test_what_nobody_governs(world: World) -> None:
    """A tool that the configuration does not name is a call with effects, and one without a rule set is refused."""
    world.configure_ledger()
    document = json.loads((world.folder / "proxy.yaml").read_text())
    del document["servers"]["ledger"]["tools"]
    (world.folder / "proxy.yaml").write_text(json.dumps(document))

    async with world.connect() as client:
        refused = await client.call_tool("ledger__peek", {})
        unknown = await client.call_tool("ledger__nothing", {})

    assert (True, "NO_ACTIVE_POLICY") == (refused.is_error, refused.structured_content["reason_code"])
    assert (True, "The call was not made: the proxy has no such tool; list the tools again.") == (unknown.is_error, text_of(unknown))


async def test_a_file_server(world: World, npm_servers: Path) -> None:
    """The filesystem server from npm writes only what is approved, under the subject of the file."""
    world.configure(
        {
            "fs": {
                "command": ["node", str(npm_servers / "server-filesystem/dist/index.js"), str(world.folder)],
                "tools": {"write_file": {"subject": '"file/" + arguments.path'}},
            }
        }
    )
    await world.deploy(
        """
gavel: v1
rule_set: files
version: 1
actions:
  fs.write_file:
    params: {type: object, required: [path, content], properties: {path: {type: string}, content: {type: string}}}
rules:
  - {id: notes, action: fs.write_file, priority: 10, when: 'params.path.endsWith(".md")', effect: approve}
"""
    )

    async with world.connect() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        answer = await client.call_tool("fs__write_file", {"path": str(world.folder / "a.md"), "content": "a"})
        refused = await client.call_tool("fs__write_file", {"path": str(world.folder / "a.py"), "content": "a"})

    assert tools["fs__write_file"].output_schema is None, "refusals have structured content of their own"
    assert (False, True) == (answer.is_error, refused.is_error)
    assert ["a.md"] == sorted(path.name for path in world.folder.iterdir() if path.name.startswith("a."))
    assert "NO_RULE_MATCHED" == refused.structured_content["reason_code"]
    assert text_of(refused).startswith("The call was not made.\nfs.write_file on file/~/"), text_of(refused)


@pytest.mark.long
async def test_arguments_that_no_proposal_holds(world: World) -> None:
    """A number that would be rounded or a text that is too long is refused; the answer says so, and no call stays open."""
    world.configure_ledger()
    await world.deploy(LEDGER_RULES)

    async with world.connect() as client:
        result = await client.call_tool("ledger__append", {"text": 2**60})
        too_long = await client.call_tool("ledger__append", {"text": "x" * 100_000})

    assert (True, True, []) == (result.is_error, too_long.is_error, world.lines)
    assert "INVALID_REQUEST" in text_of(too_long)
    assert [] == list((world.folder / "gavel-mcp-state/open-calls").rglob("*.json"))
    assert text_of(result).startswith("The call was not made: arguments.text is 1152921504606846976, beyond ±2^53")
