"""Which calls open a bus: the first accepted write, no read and no refused write. Consumers wait for a bus that does not exist yet."""

from __future__ import annotations

import asyncio
import logging
import urllib.request
from collections.abc import AsyncGenerator, Awaitable
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis.asyncio
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import EXECUTION_STATUS_SUCCESS, Execution
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
from gavel_client import (
    Firing,
    GavelClient,
    GavelError,
    PositionFile,
    Trigger,
    TriggerSubscription,
    fact_envelope,
    new_event_id,
)
from gavel_client.consumers.fact_derivation import FactDerivationReactor
from gavel_client.executor.executor import Executor
from gavel_client.handlers import ExecutionContext, HandlerResult, Handlers

from tests.e2e.world import ACTION, AGENT, COURIER, DEPOT, Server, approve, open_bus, poll, proposal, rule_set, run_servers, wait_for_events
from tests.support.fronts import TRANSPORTS
from tests.support.ports import free_port

BUS = "nosuch"
EXECUTION_ID = "exec_000000000001"


async def first(stream: AsyncGenerator[Any, None]) -> Any:
    """Return the first response of a stream."""
    return await anext(stream)


def reads(client: GavelClient) -> dict[str, Awaitable[Any]]:
    """Return one call of every method that reads a bus."""
    draft = proposal(fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready"))
    draft.ClearField("causation_id")
    draft.proposal.ClearField("based_on_events")
    return {
        "GetStatus": client.get_status(),
        "GetProjection": client.get_projection("parcel/1"),
        "ListPendingDecisions": client.list_pending_decisions(),
        "ListPendingReviews": client.list_pending_reviews(),
        "GetEvent": client.get_event(event_id=new_event_id()),
        "ListEvents": client.list_events(),
        "SubscribeEvents": first(client.subscribe_events()),
        "GetTrace": client.get_trace(trace_id="a-trace"),
        "Preflight": client.preflight(draft),
        "BatchPreflight": client.batch_preflight([draft]),
        "GetRuleSet": client.get_rule_set("parcels"),
        "ListRuleSets": client.list_rule_sets(),
        "SimulateRuleSet": first(client.simulate_rule_set(rule_set())),
        "VerifyReplay": first(client.verify_replay()),
    }


@pytest.mark.parametrize("front", TRANSPORTS)
async def test_reads_open_no_bus(tmp_path: Path, front: str) -> None:
    """Every read of a bus that was never written to is BUS_NOT_FOUND and leaves nothing in Redis; the first write opens the bus."""
    server = Server(tmp_path / "gavel", options=["--front", front])
    with run_servers(server):
        async with server.client(BUS) as client, server.client() as default, redis.asyncio.Redis.from_url(server.redis_url) as store:
            for method, call in reads(client).items():
                with pytest.raises(GavelError) as failure:
                    await call
                assert (grpc.StatusCode.NOT_FOUND, "BUS_NOT_FOUND") == (failure.value.code, failure.value.reason), method
            # A document is validated by itself, before its bus exists.
            assert [] == list((await client.validate_rule_set(rule_set())).errors)
            assert [] == await store.keys(f"gavel:{{{BUS}}}:*")
            # The server opens its default bus when it starts.
            assert (await default.get_status()).writable
            await client.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready"))
            assert 2 == (await client.get_status()).head_sequence_number


def refused_writes(client: GavelClient) -> dict[str, tuple[Awaitable[Any], str]]:
    """Return calls of every method that writes to a bus, none of which a bus without events accepts, with the reason."""
    fact = fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")
    fact.sequence_number = 1
    unnamed = fact_envelope("", DEPOT, key="parcel.status", value="ready")
    effect = fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready", causation_id=new_event_id())
    draft = proposal(fact)
    draft.causation_id = new_event_id()
    execution = Execution(decision_id=new_event_id(), execution_id=EXECUTION_ID, status=EXECUTION_STATUS_SUCCESS)
    report = Envelope(subject="parcel/1", producer=COURIER, execution=execution)
    return {
        "PublishEvent, malformed": (client.publish_event(unnamed), "INVALID_REQUEST"),
        "PublishEvent": (client.publish_event(effect), "EVENT_NOT_FOUND"),
        "SubmitProposal": (client.submit_proposal(draft), "EVENT_NOT_FOUND"),
        "ResolveReview": (client.resolve_review(new_event_id(), REVIEW_VERDICT_APPROVE, reviewer="ada", reason="test"), "BUS_NOT_FOUND"),
        "RevokeDecision": (client.revoke_decision(new_event_id(), revoked_by="ada", reason="test"), "BUS_NOT_FOUND"),
        "AcceptClock": (client.accept_clock(accepted_by="ada", reason="test"), "BUS_NOT_FOUND"),
        "AcceptLoss": (client.accept_loss(head_sequence_number=1, accepted_by="ada", reason="test"), "BUS_NOT_FOUND"),
        "BeginExecution": (client.begin_execution(new_event_id(), producer=COURIER), "BUS_NOT_FOUND"),
        "RenewExecution": (client.renew_execution(new_event_id(), EXECUTION_ID, producer=COURIER), "BUS_NOT_FOUND"),
        "ReportExecution": (client.report_execution(report), "BUS_NOT_FOUND"),
        "DeployRuleSet": (client.deploy_rule_set("gavel: v1"), "INVALID_RULE_SET"),
        "ActivateRuleSet": (client.activate_rule_set("parcels", 1), "BUS_NOT_FOUND"),
        "DeactivateRuleSet": (client.deactivate_rule_set("parcels"), "BUS_NOT_FOUND"),
    }


@pytest.mark.parametrize("front", TRANSPORTS)
async def test_refused_writes_open_no_bus(tmp_path: Path, front: str) -> None:
    """A write that is refused on a bus without events leaves no key in Redis and no bus in the server; one that is accepted opens it."""
    port = free_port()
    server = Server(tmp_path / "gavel", options=["--front", front, "--metrics", f"127.0.0.1:{port}"])
    with run_servers(server):
        async with server.client(BUS) as client, redis.asyncio.Redis.from_url(server.redis_url) as store:
            for method, (call, reason) in refused_writes(client).items():
                with pytest.raises(GavelError) as caught:
                    await call
                assert reason == caught.value.reason, (method, caught.value)
            malformed = fact_envelope("", DEPOT, key="parcel.status", value="ready")
            effect = fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready", causation_id=new_event_id())
            for batch in ([malformed], [malformed, effect]):
                results = (await client.batch_publish_events(batch)).results
                assert ["error"] * len(batch) == [result.WhichOneof("result") for result in results]
            assert [] == await store.keys(f"gavel:{{{BUS}}}:*")
            # The server lets go of the bus once it has answered.
            for _ in range(100):
                if f'bus="{BUS}"' not in (metrics := await asyncio.to_thread(scrape, port)):
                    break
                await asyncio.sleep(0.1)
            assert f'bus="{BUS}"' not in metrics
            # The accepted command of a batch opens the bus; event 1 is the opening.
            accepted = fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")
            results = (await client.batch_publish_events([effect, accepted])).results
            assert ("error", 2) == (results[0].WhichOneof("result"), results[1].envelope.sequence_number)
            assert 2 == (await client.get_status()).head_sequence_number


def scrape(port: int) -> str:
    """Return the metrics of a server."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        return str(response.read().decode())


@pytest.mark.parametrize("front", TRANSPORTS)
async def test_writes_create_no_bus(tmp_path: Path, front: str) -> None:
    """With `--create-buses=false` a write to a bus that does not exist is BUS_NOT_FOUND; CreateBus creates it, and `default` exists."""
    server = Server(tmp_path / "gavel", options=["--front", front, "--create-buses=false"])
    with run_servers(server):
        ready = fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")
        async with server.client(BUS) as client, server.client() as default:
            effect = fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready")
            draft = proposal(effect)
            draft.ClearField("causation_id")
            draft.proposal.ClearField("based_on_events")
            for call in (client.publish_event(ready), client.submit_proposal(draft), client.deploy_rule_set(rule_set())):
                with pytest.raises(GavelError, match="gavel bus create") as caught:
                    await call
                assert "BUS_NOT_FOUND" == caught.value.reason
            assert ["default"] == [bus.name for bus in (await default.list_buses()).buses]
            await client.create_bus()
            await client.publish_event(ready)
            await default.publish_event(ready)


async def test_reads_find_a_bus_after_a_restart(tmp_path: Path) -> None:
    """A bus that only the log store holds is opened for reading."""
    server = Server(tmp_path / "gavel", options=["--front", "none"])
    with run_servers(server):
        async with server.client(BUS) as client:
            await client.publish_event(fact_envelope("parcel/1", DEPOT, key="parcel.status", value="ready"))
        assert 0 == server.terminate()
        server.start()
        async with server.client(BUS) as client:
            assert 2 == (await client.get_status()).head_sequence_number


async def test_consumers_wait_for_a_bus(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Executor, reactor and subscriptions that start before their bus exists work once it is opened, and log the wait once each."""
    caplog.set_level(logging.INFO, "gavel_client")
    handlers = Handlers()
    firings: list[Firing] = []

    @handlers.action(ACTION)
    async def send(context: ExecutionContext) -> HandlerResult:
        return HandlerResult.success({"weight": context.params["weight"]})

    async def wake(firing: Firing) -> None:
        firings.append(firing)

    def subscribe(client: GavelClient, start: int | None) -> TriggerSubscription:
        position = PositionFile(tmp_path / f"position-{start}")
        trigger = Trigger(f"from-{start or 0}", subjects=("parcel/*",))
        return TriggerSubscription(client, [trigger], wake, producer=AGENT, position=position, start=start)

    async def waits() -> list[str] | None:
        messages = [record.getMessage() for record in caplog.records if "does not exist yet" in record.getMessage()]
        return messages if len(messages) >= 4 else None

    async def both_woken() -> bool | None:
        return {firing.trigger.name for firing in firings} == {"from-0", "from-1"} or None

    server = Server(tmp_path / "gavel", options=["--front", "none", "--no-fdr"])
    with run_servers(server):
        async with server.client(BUS) as client:
            consumers: list[Executor | FactDerivationReactor | TriggerSubscription] = [
                Executor(client, handlers, redis_url=server.redis_url, producer_id="courier", scan_interval_ms=20),
                FactDerivationReactor(client, redis_url=server.redis_url, scan_interval_ms=20),
                subscribe(client, 1),
                subscribe(client, None),
            ]
            tasks = [asyncio.create_task(consumer.run()) for consumer in consumers]
            await poll(waits)
            # Several more scans log nothing.
            await asyncio.sleep(0.2)
            await open_bus(client)
            decision = await approve(client, "parcel/1")
            await wait_for_events(client, lambda event: event.fact.decision_id == decision.event_id)
            await poll(both_woken)
            for consumer in consumers:
                consumer.stop()
            await asyncio.gather(*tasks)
    assert [f"bus={BUS} does not exist yet; waiting for the first write to it"] * 4 == await waits()
    # Scans every 20 ms may take an entry for lost that is only late.
    problems = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    assert [] == [problem for problem in problems if "queue entry is lost" not in problem]
