"""The examples of the frameworks in docs/clients.md, run as they are shown, with the scripted models of the contract suite.

Tests import the frameworks themselves: processes that only collect them are spared the seconds.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from gavel.v1.common_pb2 import PRODUCER_TYPE_DATABASE_SNAPSHOT, Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import EXECUTION_STATUS_SUCCESS
from gavel_client import GavelClient, SyncGavelClient, fact_envelope
from gavel_client.gate import Call
from gavel_client.values import from_struct
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set

from tests.e2e.adapters.crewai.environment import INSTALL_SECONDS_MAX
from tests.e2e.adapters.crewai.process import CrewProcess
from tests.e2e.languages.toolchains import BUILD_SECONDS_MAX
from tests.e2e.world import Server, wait_for_events
from tests.support.paths import ROOT

ORDERS_DB = Producer(type=PRODUCER_TYPE_DATABASE_SNAPSHOT, id="orders-db")
PAGE = ROOT / "docs/clients.md"
CALL = {"order": "1001", "customer": "c-77", "amount": 40.0}
ORDER = {"order.status": "delivered", "order.total": 80, "order.customer_id": "c-77"}
TITLES = ("LangGraph and LangChain", "OpenAI Agents SDK", "Google ADK", "Pydantic AI", "Temporal", "CrewAI")


def blocks(section: str) -> list[str]:
    """Return the Python blocks of a part of a page."""
    return re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)


def chapter() -> str:
    """Return the chapter on frameworks. The example of CrewAI is its last."""
    return PAGE.read_text(encoding="utf-8").partition("### Frameworks\n")[2].partition("\n### ")[0]


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names that all examples of the chapter define, executed in their order; that of CrewAI runs in a process of its own."""
    assert [re.search(rf"^#### {title}$", chapter(), flags=re.MULTILINE) is not None for title in TITLES] == [True] * len(TITLES)
    names: dict[str, Any] = {}
    for block in blocks(chapter().partition("#### CrewAI\n")[0]):
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102  # the page's own examples
    return names


@pytest.fixture
async def orders(new_bus_clients: tuple[GavelClient, GavelClient]) -> GavelClient:
    """A client of a bus with the shipped refund rules and the facts of an order."""
    client = new_bus_clients[0]
    deployed = await client.deploy_rule_set(shipped_rule_set("refunds"))
    await client.activate_rule_set(deployed.policy_id, deployed.version)
    for key, value in ORDER.items():
        await client.publish_event(fact_envelope("order/1001", ORDERS_DB, key=key, value=value))
    return client


async def assert_refunded(client: GavelClient) -> None:
    """Assert that the refund was executed, and that the fact which the rule set derives from it follows."""

    def is_end(event: Envelope) -> bool:
        return event.HasField("execution") and event.execution.status == EXECUTION_STATUS_SUCCESS

    (report,) = await wait_for_events(client, is_end)
    assert {"refunded": 40} == from_struct(report.execution.result)
    await wait_for_events(client, lambda event: event.HasField("fact") and event.fact.key == "order.refunded")


@pytest.mark.long
async def test_langgraph(page: dict[str, Any], orders: GavelClient) -> None:
    """The example of LangGraph refunds an order."""
    from langchain_core.messages import AIMessage

    from tests.e2e.adapters.agents.langgraph import ScriptedModel

    calls = [{"name": "refund", "args": CALL, "id": "call-1"}]
    model = ScriptedModel(messages=iter([AIMessage("", tool_calls=calls), AIMessage("done")]))
    assert "done" == await page["ask_langgraph"](page["support_gate"](orders), model)
    await assert_refunded(orders)


def test_recorded_graphs(page: dict[str, Any]) -> None:
    """The example of the exporter makes the configuration of a graph."""
    with SyncGavelClient("127.0.0.1:1") as client:
        assert {"callbacks", "configurable"} == page["recorded"](client).keys()


async def test_openai_agents(page: dict[str, Any], orders: GavelClient) -> None:
    """The example of the OpenAI Agents SDK refunds an order."""
    from tests.e2e.adapters.agents.openai_agents import ScriptedModel

    assert "done" == await page["ask_openai_agents"](page["support_gate"](orders), ScriptedModel("refund", [CALL]))
    await assert_refunded(orders)


async def test_google_adk(page: dict[str, Any], orders: GavelClient) -> None:
    """The example of Google ADK refunds an order."""
    from tests.e2e.adapters.agents.google_adk import ScriptedModel

    model = ScriptedModel(model="scripted", tool="refund", calls=[dict(CALL)])
    assert "done" == await page["ask_adk"](page["support_gate"](orders), model)
    await assert_refunded(orders)


async def test_pydantic_ai(page: dict[str, Any], orders: GavelClient) -> None:
    """The example of Pydantic AI refunds an order."""
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    def answer(messages: list[Any], info: Any) -> ModelResponse:
        has_called = any(isinstance(message, ModelResponse) for message in messages)
        return ModelResponse(parts=[TextPart("done") if has_called else ToolCallPart("refund", dict(CALL))])

    assert "done" == await page["ask_pydantic_ai"](page["support_gate"](orders), FunctionModel(answer))
    await assert_refunded(orders)


@pytest.mark.long
@pytest.mark.timeout(BUILD_SECONDS_MAX)
async def test_temporal(page: dict[str, Any], orders: GavelClient, temporal_server: str) -> None:
    """The worker of the example carries out the decision whose id the workflow has, and refuses other params than the approved ones."""
    from temporalio.client import Client, WorkflowFailureError
    from temporalio.exceptions import ActivityError

    from tests.e2e.adapters.agents.temporal import RefundWorkflow

    gate = page["support_gate"](orders)
    assert await gate.check(Call("refund", CALL, "ticket-17")) is None
    (decision,) = await wait_for_events(orders, lambda event: event.HasField("decision"))
    client = await Client.connect(temporal_server)
    async with page["refund_worker"](gate, client, [RefundWorkflow]):

        async def run(amount: float, **options: Any) -> Any:
            return await client.execute_workflow(
                RefundWorkflow.run, args=["1001", "c-77", amount], id=decision.event_id, task_queue="refunds", **options
            )

        with pytest.raises(WorkflowFailureError) as failed:
            await run(41.0)
        assert isinstance(failed.value.cause, ActivityError)
        assert "approves another params" in str(failed.value.cause.cause)
        assert {"refunded": 40} == await run(40.0)
        assert {"refunded": 40} == await run(40.0)  # a new run of the workflow gets the recorded output
    await assert_refunded(orders)


@pytest.mark.long
@pytest.mark.timeout(INSTALL_SECONDS_MAX)
async def test_crewai(orders: GavelClient, pair: tuple[Server, Server], crew_process: CrewProcess) -> None:
    """The example of CrewAI refunds an order."""
    common, _, _ = chapter().partition("#### ")
    examples = [*blocks(common), *blocks(chapter().partition("#### CrewAI\n")[2])]
    request = {"server": pair[0].address, "bus": orders.bus, "examples": examples, "refunds": [CALL]}
    assert "done" == await crew_process.run(request)
    await assert_refunded(orders)
