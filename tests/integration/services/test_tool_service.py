"""ToolService over real gRPC: the registry of tools (constitution 004)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from gavel.v1 import tool_service_pb2 as tools
from gavel.v1.replay_service_pb2 import VerifyReplayRequest
from gavel.v1.tool_pb2 import ToolBinding, ToolContract, ToolProvider
from gavel_rules.state.tools import ToolRegistry
from gavel_server.intake.event_ids import new_event_id
from gavel_server.services import tool as tool_service
from google.protobuf.json_format import ParseDict

from tests.integration.services.world import World, refusal

ARGUMENTS = {"type": "object", "required": ["path"], "properties": {"path": {"type": "string"}}}


def contract(name: str = "fs.read_text", **fields: Any) -> ToolContract:
    """Return a contract."""
    content = {"name": name, "version": "1", "argument_schema": ARGUMENTS, "default_provider": "workspace", **fields}
    return ParseDict(content, ToolContract())


async def register(world: World, *contracts: ToolContract) -> None:
    """Register contracts, and the provider of them all."""
    for one in contracts:
        await world.tools.RegisterContract(tools.RegisterContractRequest(contract=one))
    provider = ToolProvider(provider_id="workspace", version="1", tools=[one.name for one in contracts])
    await world.tools.RegisterProvider(tools.RegisterProviderRequest(provider=provider))


async def test_a_tool_is_registered_bound_and_resolved(world: World) -> None:
    """A contract gets the hash of its schemas; its tool resolves by name and alias, with what the guard says; the log replays."""
    send = contract("mail.send", aliases=["send_mail"], side_effects=["external.write"])
    await register(world, contract(), send)
    registered = await world.tools.RegisterContract(tools.RegisterContractRequest(contract=send))
    resolved = await world.tools.ResolveTool(tools.ResolveToolRequest(tool_name="send_mail"))
    send.schema_hash = registered.schema_hash
    assert (send, "workspace", True) == (resolved.contract, resolved.provider.provider_id, resolved.resolved_by_alias)
    assert (False, ["external.write"]) == (resolved.guard.agents_may_call, list(resolved.guard.outside_effects))
    assert (await world.tools.ResolveTool(tools.ResolveToolRequest(tool_name="fs.read_text"))).guard.agents_may_call

    mirror = ToolProvider(provider_id="mirror", version="1", tools=["fs.read_text"])
    await world.tools.RegisterProvider(tools.RegisterProviderRequest(provider=mirror))
    binding = ToolBinding(tool_name="fs.read_text", provider_id="mirror", session_id="s")
    await world.tools.BindTool(tools.BindToolRequest(binding=binding))
    request = tools.ResolveToolRequest(tool_name="fs.read_text", session_id="s")
    assert "mirror" == (await world.tools.ResolveTool(request)).provider.provider_id
    await world.tools.UnbindTool(tools.UnbindToolRequest(tool_name="fs.read_text", session_id="s"))
    assert "workspace" == (await world.tools.ResolveTool(request)).provider.provider_id

    *_, last = [response async for response in world.replays.VerifyReplay(VerifyReplayRequest())]
    assert last.verdict.proved, last.verdict.message


async def test_a_repeated_change_has_one_effect(world: World) -> None:
    """A change with the event_id of an earlier one is answered with its event; with other content it is refused."""
    await register(world, contract(), contract("fs.stat"))
    event_id = new_event_id()
    request = tools.BindToolRequest(binding=ToolBinding(tool_name="fs.stat", provider_id="workspace"), event_id=event_id)
    first = await world.tools.BindTool(request)
    await world.tools.UnbindTool(tools.UnbindToolRequest(tool_name="fs.stat"))
    assert first == await world.tools.BindTool(request)
    request.binding.tool_name = "fs.read_text"
    assert "EVENT_ID_REUSED" == (await refusal(world.tools.BindTool(request))).reason
    assert not (await world.tools.ListBindings(tools.ListBindingsRequest())).bindings


@pytest.mark.parametrize(
    ("fields", "places"),
    [
        ({"name": "", "version": ""}, ["contract.name", "contract.version"]),
        ({"aliases": ["a b", "x", "x"]}, ["contract.aliases[0]", "contract.aliases"]),
        ({"aliases": ["fs.read_text"]}, ["contract.aliases"]),
        ({"side_effects": ["e"] * 33}, ["contract.side_effects"]),
        ({"argument_schema": {"type": "strin"}}, ["contract.argument_schema"]),
        ({"result_schema": {"$ref": "https://example.org/schema"}}, ["contract.result_schema"]),
        ({"argument_schema": {"description": "x" * 50_000}}, ["contract"]),
        ({"schema_hash": "sha256:" + "0" * 32}, ["contract.schema_hash"]),
    ],
)
async def test_a_bad_contract_is_refused(world: World, fields: dict[str, Any], places: list[str]) -> None:
    """Every mistake of a contract is named at its place, and nothing is recorded."""
    head = await world.head()
    problem = await refusal(
        world.tools.RegisterContract(tools.RegisterContractRequest(contract=contract(**{"name": "fs.read_text", **fields})))
    )
    assert (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", places) == (problem.code, problem.reason, problem.fields)
    assert head == await world.head()


async def test_a_schema_reads_no_file_of_the_server(world: World, tmp_path: Path) -> None:
    """A schema that refers to a file, even one that holds a schema, is refused: callers learn nothing about the server's files."""
    file = tmp_path / "schema.json"
    file.write_text('{"type": "string"}')
    problems = [
        await refusal(world.tools.RegisterContract(tools.RegisterContractRequest(contract=contract(argument_schema={"$ref": reference}))))
        for reference in (file.as_uri(), (tmp_path / "missing.json").as_uri())
    ]
    assert [["contract.argument_schema"]] * 2 == [problem.fields for problem in problems]
    assert all("Retrieval is disabled" in problem.message for problem in problems)


async def test_unknown_tools_are_not_found(world: World) -> None:
    """An unknown tool is NOT_FOUND with the nearest names; a bus that does not exist is not opened."""
    await register(world, contract())
    problem = await refusal(world.tools.ResolveTool(tools.ResolveToolRequest(tool_name="fs.read")))
    assert (grpc.StatusCode.NOT_FOUND, "TOOL_NOT_FOUND") == (problem.code, problem.reason)
    assert problem.message.endswith("did you mean fs.read_text?")
    assert "BUS_NOT_FOUND" == (await refusal(world.tools.ResolveTool(tools.ResolveToolRequest(bus="nosuch", tool_name="x")))).reason


async def test_the_registry_is_listed_in_pages(world: World) -> None:
    """Contracts, providers and bindings are listed in order, each once, whatever the size of the pages."""
    names = [f"tool-{number:02}" for number in range(7)]
    await register(world, *map(contract, names))
    for session_id in ("", "s"):
        for name in names[:2]:
            binding = ToolBinding(tool_name=name, provider_id="workspace", session_id=session_id)
            await world.tools.BindTool(tools.BindToolRequest(binding=binding))
    listed, token = [], ""
    while True:
        page = await world.tools.ListContracts(tools.ListContractsRequest(page_size=3, page_token=token))
        listed += [one.name for one in page.contracts]
        token = page.next_page_token
        if not token:
            break
    assert names == listed
    providers = (await world.tools.ListProviders(tools.ListProvidersRequest())).providers
    assert ["workspace"] == [one.provider_id for one in providers]
    first = await world.tools.ListBindings(tools.ListBindingsRequest(page_size=3))
    rest = await world.tools.ListBindings(tools.ListBindingsRequest(page_size=3, page_token=first.next_page_token))
    bindings = [(one.session_id, one.tool_name) for one in (*first.bindings, *rest.bindings)]
    assert [("", names[0]), ("", names[1]), ("s", names[0]), ("s", names[1])] == bindings


async def test_a_page_of_bindings_makes_no_message_of_another_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the bindings of a page become messages, however many the bus has."""
    await register(world, contract("tool-1"))
    for number in range(20):
        binding = ToolBinding(tool_name="tool-1", provider_id="workspace", session_id=f"s-{number:02}")
        await world.tools.BindTool(tools.BindToolRequest(binding=binding))
    count = 0
    bind = tool_service._binding

    def counted(registry: ToolRegistry, session_id: str, tool_name: str) -> ToolBinding:
        nonlocal count
        count += 1
        return bind(registry, session_id, tool_name)

    monkeypatch.setattr(tool_service, "_binding", counted)
    page = await world.tools.ListBindings(tools.ListBindingsRequest(page_size=3))
    page = await world.tools.ListBindings(tools.ListBindingsRequest(page_size=3, page_token=page.next_page_token))
    assert ["s-03", "s-04", "s-05"] == [one.session_id for one in page.bindings]
    assert 8 == count  # one more than each page has tells that there is a next one
