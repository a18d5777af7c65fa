"""The registry of tools: every change is a fact of the log, what changes nothing is not recorded, and resolution goes by fixed steps."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import Fact
from gavel.v1.tool_pb2 import ToolBinding, ToolContract, ToolProvider, ToolUnbound
from gavel.v1.tool_service_pb2 import (
    TOOL_NAME_STEP_ALIAS,
    TOOL_NAME_STEP_CANONICAL,
    TOOL_PROVIDER_STEP_BUS,
    TOOL_PROVIDER_STEP_DEFAULT,
    TOOL_PROVIDER_STEP_SESSION,
    ResolveToolResponse,
)
from gavel_rules.commands import Answer, ChangeTools, EventAnswer, Fault, ToolsPosition
from gavel_rules.state.state import State
from gavel_rules.tools.guard import guard
from gavel_rules.tools.resolution import resolve
from google.protobuf.json_format import ParseDict

from tests.support.driver import Core

READ = "fs.read_text"


def change(**fact: Any) -> ChangeTools:
    """Return the command that records a change."""
    return ChangeTools(Envelope(fact=Fact(**fact)))


def run(core: Core, command: ChangeTools) -> Answer:
    """Run a change under a new event_id."""
    command.envelope.event_id = core.new_id()
    return core.run(command)


def contract(name: str = READ, version: str = "1", **fields: Any) -> ChangeTools:
    """Return the registration of a contract."""
    content = {"name": name, "version": version, "default_provider": "workspace", **fields}
    return change(tool_contract_registered=ParseDict(content, ToolContract()))


def provider(provider_id: str = "workspace", tools: tuple[str, ...] = (READ,)) -> ChangeTools:
    """Return the registration of a provider."""
    return change(tool_provider_registered=ToolProvider(provider_id=provider_id, version="1", tools=tools))


def binding(provider_id: str, session_id: str = "", tool_name: str = READ) -> ChangeTools:
    """Return a binding."""
    return change(tool_bound=ToolBinding(tool_name=tool_name, provider_id=provider_id, session_id=session_id))


def resolved(core: Core, name: str, session_id: str = "") -> ResolveToolResponse:
    """Resolve a name that must be known."""
    answer = resolve(core.state, name, session_id)
    assert isinstance(answer, ResolveToolResponse), answer
    return answer


@pytest.fixture
def core() -> Core:
    """Return a bus with a tool and two providers of it."""
    core = Core()
    for command in (contract(aliases=["read_file", "read"]), provider(), provider("bridge")):
        assert isinstance(run(core, command), EventAnswer)
    return core


def test_changes_are_facts(core: Core) -> None:
    """Each change is one system fact with a name and subject of its own, and a replay makes the same registry."""
    run(core, binding("bridge"))
    run(core, change(tool_unbound=ToolUnbound(tool_name=READ)))
    recorded = [(event.event_name, event.fact.key, event.subject) for event in core.events[-5:]]
    assert [
        ("ToolContractRegistered", "gavel.tool_contract_registered", "tool/fs.read_text"),
        ("ToolProviderRegistered", "gavel.tool_provider_registered", "tool-provider/workspace"),
        ("ToolProviderRegistered", "gavel.tool_provider_registered", "tool-provider/bridge"),
        ("ToolBound", "gavel.tool_bound", "tool/fs.read_text"),
        ("ToolUnbound", "gavel.tool_unbound", "tool/fs.read_text"),
    ] == recorded
    core.prove()


def test_what_changes_nothing_is_not_recorded(core: Core) -> None:
    """A registration or binding that holds already is answered with its event."""
    run(core, binding("bridge"))
    head = core.state.head
    for command, number in (
        (contract(aliases=["read_file", "read"]), head - 3),
        (provider("bridge"), head - 1),
        (binding("bridge"), head),
    ):
        assert ToolsPosition(number) == run(core, command)
    assert head == core.state.head


def test_steps_of_resolution(core: Core) -> None:
    """A name resolves as canonical name, then alias; the provider is that of the session, then of the bus, then the default."""
    default = resolved(core, READ)
    assert (TOOL_NAME_STEP_CANONICAL, TOOL_PROVIDER_STEP_DEFAULT, "workspace") == _steps(default)
    run(core, binding("bridge"))
    run(core, binding("workspace", "session-1"))
    assert (TOOL_NAME_STEP_ALIAS, TOOL_PROVIDER_STEP_BUS, "bridge") == _steps(resolved(core, "read"))
    assert (TOOL_NAME_STEP_CANONICAL, TOOL_PROVIDER_STEP_SESSION, "workspace") == _steps(resolved(core, READ, "session-1"))
    assert (TOOL_NAME_STEP_CANONICAL, TOOL_PROVIDER_STEP_BUS, "bridge") == _steps(resolved(core, READ, "session-2"))
    run(core, change(tool_unbound=ToolUnbound(tool_name=READ, session_id="session-1")))
    assert (TOOL_NAME_STEP_ALIAS, TOOL_PROVIDER_STEP_BUS, "bridge") == _steps(resolved(core, "read_file", "session-1"))
    core.prove()


def test_unknown_names(core: Core) -> None:
    """An unknown tool, an alias where aliases are off, and a tool without a provider are errors with the nearest names."""
    run(core, contract("fs.write_text", default_provider=""))
    assert "did you mean fs.read_text?" in _fault(resolve(core.state, "fs.read_txt", "")).message
    assert error_pb2.ERROR_REASON_TOOL_NOT_FOUND == _fault(resolve(core.state, "read", "", canonical_only=True)).reason
    assert "fs.write_text has no provider" in _fault(resolve(core.state, "fs.write_text", "")).message
    assert "is not bound in session s" in _fault(run(core, change(tool_unbound=ToolUnbound(tool_name=READ, session_id="s")))).message
    assert "is an alias" in _fault(run(core, binding("bridge", tool_name="read"))).message
    assert "did you mean bridge?" in _fault(run(core, binding("bridg"))).message
    assert "does not serve" in _fault(run(core, binding("bridge", tool_name="fs.write_text"))).message


def test_names_are_unique(core: Core) -> None:
    """No two tools share a name: not two aliases, nor an alias and a canonical name; a contract may give an alias up."""
    assert "is a name of the tool fs.read_text" in _fault(run(core, contract("fs.peek", aliases=["read"]))).message
    assert "is a name of the tool fs.read_text" in _fault(run(core, contract("fs.peek", aliases=[READ]))).message
    assert "is an alias of the tool fs.read_text" in _fault(run(core, contract("read"))).message
    run(core, contract(aliases=["read_file"]))
    assert isinstance(run(core, contract("read")), EventAnswer)
    assert "read" == resolved(core, "read").contract.name
    core.prove()


def test_a_version_keeps_its_promises(core: Core) -> None:
    """Schemas that break a registered version need a new one; another version, or a schema that breaks nothing, replaces it."""
    loose = {"type": "object", "additionalProperties": False, "properties": {"path": {"type": "string"}}}
    run(core, contract("fs.stat", argument_schema=loose))
    tight = {**loose, "required": ["path"]}
    refused = _fault(run(core, contract("fs.stat", argument_schema=tight)))
    assert (error_pb2.ERROR_REASON_VERSION_REUSED, True) == (refused.reason, "argument_schema.required" in refused.message)
    assert isinstance(run(core, contract("fs.stat", "2", argument_schema=tight)), EventAnswer)
    assert isinstance(run(core, contract("fs.stat", "2", argument_schema=loose)), EventAnswer)
    assert "2" == resolve_contract(core.state, "fs.stat").version
    core.prove()


def test_a_version_that_was_left_may_be_registered_anew(core: Core) -> None:
    """A contract is compared with the registered one alone: a former version may come back with other schemas, whose hash differs."""
    run(core, contract("fs.stat", argument_schema={"type": "object"}))
    first = core.state.tools.contracts["fs.stat"].argument_schema_hash
    run(core, contract("fs.stat", "2"))
    assert isinstance(run(core, contract("fs.stat", argument_schema={"type": "object", "required": ["path"]})), EventAnswer)
    assert first != core.state.tools.contracts["fs.stat"].argument_schema_hash
    core.prove()


def test_undo_restores_the_registry(core: Core) -> None:
    """A batch that is not appended leaves no trace in the registry."""
    before = core.state.digest()
    position = core.state.mark()
    shadow = Core()
    for command in (contract(aliases=["peek"]), binding("bridge"), contract("fs.stat")):
        command.envelope.event_id = shadow.new_id()
        core.state.apply(_event(core, command))
    assert before != core.state.digest()
    core.state.undo(position)
    assert before == core.state.digest()
    assert "read" in core.state.tools.aliases


@pytest.mark.parametrize(
    ("effects", "outside"),
    [
        ([], []),
        (["workspace.fs.read", "workspace.fs.write", "process", "crm.read"], []),
        (["external.write"], ["external.write"]),
        (["network", "workspace.fs.write", "what-is-this"], ["network", "what-is-this"]),
    ],
)
def test_the_guard(effects: list[str], outside: list[str]) -> None:
    """Agents may call tools that read or stay in the workspace; an effect that is not known counts as a write to the outside world."""
    answer = guard(ToolContract(name="t", side_effects=effects))
    assert (not outside, outside, bool(outside)) == (answer.agents_may_call, list(answer.outside_effects), bool(answer.reason))


def test_buses_of_version_2_have_no_registry() -> None:
    """A bus of an earlier arbiter version refuses every change."""
    core = Core(arbiter_version=2)
    assert error_pb2.ERROR_REASON_WRONG_STATE == _fault(run(core, contract())).reason


def resolve_contract(state: State, name: str) -> ToolContract:
    """Return the registered contract of a name."""
    return state.tools.contracts[name].contract


def _event(core: Core, command: ChangeTools) -> Envelope:
    envelope = command.envelope
    envelope.sequence_number = core.state.head + 1
    envelope.recorded_at.FromMilliseconds(core.now_ms)
    envelope.event_category = core.events[-1].event_category
    envelope.producer.CopyFrom(core.events[-1].producer)
    return envelope


def _steps(answer: ResolveToolResponse) -> tuple[int, int, str]:
    assert answer.resolved_by_alias == (answer.name_step == TOOL_NAME_STEP_ALIAS)
    return answer.name_step, answer.provider_step, answer.provider.provider_id


def _fault(answer: object) -> Fault:
    assert isinstance(answer, Fault), answer
    return answer
