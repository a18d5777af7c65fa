"""A program of a user of gavel-client: `python installed_client.py ADDRESS RULE_SET`. It prints what it saw as JSON.

It runs in an environment that has gavel-client alone, on every version of Python that the client supports. It therefore imports nothing
of the tests.
"""

import asyncio
import importlib
import json
import pkgutil
import sys
import uuid
from pathlib import Path

import gavel_client
from gavel.v1.arbitration_service_pb2 import DECISION_PHASE_CLOSED
from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, PRODUCER_TYPE_DATABASE_SNAPSHOT, Producer
from gavel.v1.decision_pb2 import Outcome
from gavel.v1.execution_pb2 import ExecutionStatus
from gavel_client import GavelClient, GavelError, SyncGavelClient, fact_envelope, proposal_envelope, reference
from gavel_client.executor import Executor
from gavel_client.handlers import ExecutionContext, HandlerResult, Handlers

AGENT = Producer(type=PRODUCER_TYPE_AGENT, id="support-agent")
DATABASE = Producer(type=PRODUCER_TYPE_DATABASE_SNAPSHOT, id="orders-db")
ORDER = f"order/{uuid.uuid4().hex}"
FACTS = {"order.status": "delivered", "order.customer_id": "customer-7", "order.total": 80.0}


def not_importable() -> list[str]:
    """Import every module; return what could not be imported, with the package that it lacks."""
    lacking = []
    for module in pkgutil.walk_packages(gavel_client.__path__, "gavel_client."):
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            lacking.append(f"{module.name} {error.name}")
    return lacking


async def govern(address: str, rule_set: str) -> dict[str, str]:
    """Deploy rules, propose a refund that they approve, and carry it out."""
    handlers = Handlers()

    @handlers.action("refund.create")
    async def refund(context: ExecutionContext) -> HandlerResult:
        return HandlerResult.success({"refund_id": f"r-{context.params['amount']}"})

    async with GavelClient(address) as client:
        deployed = await client.deploy_rule_set(rule_set)
        await client.activate_rule_set(deployed.policy_id, deployed.version)
        facts = [
            (await client.publish_event(fact_envelope(ORDER, DATABASE, key=key, value=value))).envelope for key, value in FACTS.items()
        ]
        proposal = proposal_envelope(
            ORDER,
            AGENT,
            action_type="refund.create",
            params={"amount": 42.5, "currency": "EUR", "customer_id": "customer-7"},
            max_fact_age_ms=60_000,
            confidence=0.9,
            based_on_events=[reference(fact) for fact in facts],
        )
        decision = (await client.submit_proposal(proposal)).decision
        executor = Executor(client, handlers, producer_id="payments")
        running = asyncio.ensure_future(executor.run())
        closed = await client.wait_decision(decision.event_id, phase=DECISION_PHASE_CLOSED, timeout_ms=30_000)
        executor.stop()
        await running
        return {
            "outcome": Outcome.Name(decision.decision.outcome),
            "execution": ExecutionStatus.Name(closed.execution.execution.status),
            "result": str(closed.execution.execution.result["refund_id"]),
            "trace": decision.trace_id,
        }


def read(address: str, trace: str) -> dict[str, object]:
    """Read the trace back with the synchronous client, and meet an error."""
    with SyncGavelClient(address) as client:
        events = len(client.get_trace(trace).envelopes)
        try:
            client.get_status(bus="absent")
        except GavelError as error:
            return {"events": events, "error": error.reason}
    raise AssertionError("a bus that does not exist was found")


def main(address: str, rule_set: Path) -> None:
    """Make all calls and print their results as JSON."""
    told: dict[str, object] = {**asyncio.run(govern(address, rule_set.read_text(encoding="utf-8")))}
    told.update(read(address, str(told.pop("trace"))), lacking=not_importable())
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
