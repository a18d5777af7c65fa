"""How long a server's event loop is held: `make compiled front`, then `python -m tests.load.loop_holds [SCENARIO …]`.

It starts a server whose loop measures the processor time of each callback, runs greedy but legal calls against it, and prints for each
scenario the longest callback and what it ran. The time is that of the loop's own thread, so that other load does not count. The server
runs on asyncio's loop in place of uvloop, whose callbacks cannot be measured one by one.
"""

from __future__ import annotations

import argparse
import asyncio
import asyncio.events
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from gavel.v1.diagnostic_pb2 import LlmInvocation
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import (
    GavelClient,
    GavelError,
    content_hash,
    diagnostic_envelope,
    fact_envelope,
    proposal_envelope,
    tool_call_envelope,
    tool_result_envelope,
)
from gavel_client.rpc.paging import pages, whole_projection
from gavel_rules.limits import BATCH_ITEMS_MAX
from gavel_server.process.allocator import TUNABLES, TUNABLES_VARIABLE

from tests.e2e.world import ACTION, AGENT, DAY_MS, DEPOT, POLICY, proposal, publish_status, rule_set

HOLDS_FILE: Final = "LOOP_HOLDS_FILE"
# Shorter callbacks are not written down.
SHORTEST_SECONDS: Final = 0.001
CALL_MS: Final = 120_000

Scenario = Callable[["World"], Awaitable[None]]
_SCENARIOS: Final[dict[str, Scenario]] = {}


def serve(arguments: Sequence[str]) -> None:
    """Run `gavel serve` with a loop that writes each long callback to the file that HOLDS_FILE names."""
    import uvloop  # only the measured process needs it
    from gavel_server.cli.main import main as gavel

    output = os.open(os.environ.pop(HOLDS_FILE), os.O_WRONLY | os.O_APPEND)
    collected = [0.0, 0.0]  # processor time at the start of a collection; of the collections of the callback under way

    def watch_collector(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            collected[0] = time.thread_time()
        else:
            collected[1] += time.thread_time() - collected[0]

    gc.callbacks.append(watch_collector)
    handle_class: Any = asyncio.events.Handle
    run = handle_class._run

    def measured(handle: Any) -> None:
        collected[1] = 0.0
        what, began = handle._callback, time.thread_time()
        run(handle)
        seconds = time.thread_time() - began
        if seconds >= SHORTEST_SECONDS:
            owner = getattr(what, "__self__", None)
            name = owner.get_coro() if isinstance(owner, asyncio.Task) else what
            os.write(output, json.dumps([seconds, collected[1], str(getattr(name, "__qualname__", name))[:90]]).encode() + b"\n")

    handle_class._run = measured
    uvloop.run = asyncio.run  # type: ignore[assignment]
    sys.argv = ["gavel", "serve", *arguments]
    sys.exit(gavel())


class World:
    """A measured server and its client. `holds` reads what was measured since the last call."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = ""
        self._file = directory / "holds"
        self._file.touch()
        self._position = 0
        self._running: list[subprocess.Popen[str]] = []

    def start(self, *options: str) -> str:
        """Start a server and return its address."""
        # With tunables the server does not start itself again.
        environment = {TUNABLES_VARIABLE: TUNABLES, **os.environ, HOLDS_FILE: str(self._file)}
        with (self.directory / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.load.loop_holds", "--serve", "--listen", "127.0.0.1:0", *options],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._running.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("gavel: ready on "):
            raise RuntimeError(f"the server did not start: {(self.directory / 'log').read_text()[-2000:]}")
        return line.removeprefix("gavel: ready on ").strip()

    def stop(self) -> None:
        """Stop the servers, the last one first."""
        for process in reversed(self._running):
            process.terminate()
            process.wait(60)

    def holds(self) -> list[tuple[float, float, str]]:
        """Return (seconds, of these in the garbage collector, what) of the long callbacks since the last call."""
        with self._file.open(encoding="utf-8") as file:
            file.seek(self._position)
            lines = file.readlines()
            self._position = file.tell()
        return [(line[0], line[1], line[2]) for line in map(json.loads, lines)]

    @asynccontextmanager
    async def client(self, bus: str) -> AsyncIterator[GavelClient]:
        """Yield a client of `bus`."""
        async with GavelClient(self.address, bus=bus) as client:
            yield client


def scenario(function: Scenario) -> Scenario:
    """Register a scenario under its function's name."""
    _SCENARIOS[function.__name__.replace("_", "-")] = function
    return function


@contextmanager
def _preparation(world: World) -> Iterator[None]:
    """Do not count what happens inside."""
    yield
    world.holds()


async def _ready_bus(client: GavelClient, document: str = "", policy: str = POLICY) -> None:
    await client.deploy_rule_set(document or rule_set())
    await client.activate_rule_set(policy, 1)


async def _proposals(client: GavelClient, count: int, name: str = "p") -> list[Envelope]:
    facts = await publish_status(client, [f"parcel/{name}{number}" for number in range(count)])
    return [proposal(fact) for fact in facts.values()]


@scenario
async def batches_of_proposals(world: World) -> None:
    """Submit batches of 50 and of 500 proposals."""
    async with world.client("batches") as client:
        with _preparation(world):
            await _ready_bus(client)
            proposals = await _proposals(client, 3_000)
        for first in range(0, 1_000, 50):
            await client.batch_submit_proposals(proposals[first : first + 50])
        for first in range(1_000, 3_000, BATCH_ITEMS_MAX):
            await client.batch_submit_proposals(proposals[first : first + BATCH_ITEMS_MAX])


@scenario
async def heavy_batches_of_proposals(world: World) -> None:
    """Submit 500 proposals of 8 kB with 500 fields each, which the params schema refuses."""
    async with world.client("heavy-batches") as client:
        with _preparation(world):
            await _ready_bus(client)
        heavy = [
            proposal_envelope(
                f"parcel/{number}",
                AGENT,
                action_type=ACTION,
                max_fact_age_ms=DAY_MS,
                params={"weight": 1.0, "more": ["text"] * 240},
            )
            for number in range(BATCH_ITEMS_MAX)
        ]
        await client.batch_submit_proposals(heavy)


@scenario
async def largest_proposal(world: World) -> None:
    """Submit and preflight a proposal with 16,000 items in its params."""
    async with world.client("largest-proposal") as client:
        with _preparation(world):
            await _ready_bus(client)
        heavy = proposal_envelope(
            "parcel/1",
            AGENT,
            action_type=ACTION,
            max_fact_age_ms=DAY_MS,
            params={"weight": 1.0, "more": ["x" * 55] * 15_000},
        )
        await client.submit_proposal(heavy)


@scenario
async def batches_of_events(world: World) -> None:
    """Publish batches of 500 facts: small ones, 8 kB of text, and 500 values each."""
    async with world.client("events") as client:
        for value in (1.0, "x" * 7_000, [float(number) for number in range(240)]):
            for _ in range(3):
                facts = [fact_envelope(f"parcel/{number}", DEPOT, key="parcel.status", value=value) for number in range(BATCH_ITEMS_MAX)]
                await client.batch_publish_events(facts)


@scenario
async def batch_preflight(world: World) -> None:
    """Ask for 500 decisions by costly rules, and for 500 plain ones."""
    async with world.client("preflights") as client:
        with _preparation(world):
            await _ready_bus(client, costly_rule_set())
            fact = (await publish_status(client, ["parcel/1"], "a" * 60_000))["parcel/1"]
        await client.batch_preflight([proposal(fact) for _ in range(BATCH_ITEMS_MAX)])
        await client.batch_submit_proposals([proposal(fact) for _ in range(BATCH_ITEMS_MAX)])


@scenario
async def projection(world: World) -> None:
    """Read all pages of a subject of 50,000 facts, in pages of 1,000 and of 2 MiB."""
    async with world.client("projection") as client:
        with _preparation(world):
            for first in range(0, 50_000, BATCH_ITEMS_MAX):
                await client.batch_publish_events(
                    [fact_envelope("parcel/1", DEPOT, key=f"parcel.k{number}", value="x" * 40) for number in range(first, first + 500)]
                )
            await client.batch_publish_events(
                [fact_envelope("parcel/1", DEPOT, key=f"parcel.z{number}", value="x" * 60_000) for number in range(60)]
            )
            await client.publish_event(
                fact_envelope("parcel/2", DEPOT, key="parcel.status", value=[float(number) for number in range(15_000)])
            )
        await whole_projection(client.get_projection, subject="parcel/1", timeout_ms=CALL_MS)
        await client.get_projection("parcel/2")
        await client.get_status(include_projection_digest=True, timeout_ms=CALL_MS)


@scenario
async def trace(world: World) -> None:
    """Read a trace of 10,000 events among 20,000."""
    async with world.client("trace") as client:
        with _preparation(world):
            for first in range(0, 20_000, BATCH_ITEMS_MAX):
                await client.batch_publish_events(
                    [
                        fact_envelope(f"parcel/{number}", DEPOT, key="parcel.status", value="x", trace_id=f"trace-{number % 2}")
                        for number in range(first, first + BATCH_ITEMS_MAX)
                    ]
                )
        await client.get_trace("trace-1")
        [_ async for _ in pages(client.list_events, trace_id="trace-0", page_size=1000)]


@scenario
async def large_events(world: World) -> None:
    """List, read and subscribe to 60 events of almost 1 MB."""
    async with world.client("large-events") as client:
        with _preparation(world):
            for number in range(60):
                value = ["x" * 60_000] * 16
                await client.publish_event(fact_envelope(f"parcel/{number}", DEPOT, key="parcel.status", value=value, trace_id="t"))
        [_ async for _ in pages(client.list_events)]
        [_ async for _ in pages(client.list_events, trace_id="t")]
        await client.get_trace("t")
        await client.get_projection("parcel/1")


@scenario
async def replay(world: World) -> None:
    """Replay a bus of 5,000 events and 1,500 decisions."""
    async with world.client("replay") as client:
        with _preparation(world):
            await _ready_bus(client)
            proposals = await _proposals(client, 1_500)
            for first in range(0, 1_500, 50):
                await client.batch_submit_proposals(proposals[first : first + 50])
        [_ async for _ in client.verify_replay()]


@scenario
async def audits(world: World) -> None:
    """Audit a trace of 9,000 events with 4,000 tool calls, other models and 100 decisions, after the rule set has changed."""
    async with world.client("audits") as client:
        with _preparation(world):
            await _ready_bus(client)
            for first in range(0, 4_000, BATCH_ITEMS_MAX // 2):
                batch: list[Envelope] = []
                for number in range(first, first + BATCH_ITEMS_MAX // 2):
                    schema = content_hash(number)
                    call = tool_call_envelope(
                        "parcel/1", AGENT, tool_name=f"tool-{number}", arguments={}, request_schema_hash=schema, trace_id="t"
                    )
                    batch += [call, tool_result_envelope(call, result={"number": number})]
                await client.batch_publish_events(batch)
            models = [
                LlmInvocation(requested_model="m", llm_model=f"m-{number}", llm_provider="p", prompt_hash=content_hash(number))
                for number in range(400)
            ]
            await client.batch_publish_events(
                [diagnostic_envelope("parcel/1", AGENT, kind="LlmInvocationCommitted", llm_invocation=one, trace_id="t") for one in models]
            )
            proposals = await _proposals(client, 200, "a")
            for envelope in proposals:
                envelope.trace_id = "t"
            await client.batch_submit_proposals(proposals)
            await client.deploy_rule_set(rule_set(version=2))
            await client.activate_rule_set(POLICY, 2)
        response = await client.audit_trace("t", timeout_ms=CALL_MS)
        await client.audit_decision(response.audit.decisions[0].decision_id, timeout_ms=CALL_MS)
        await client.get_trace("t", timeout_ms=CALL_MS)


@scenario
async def largest_rule_set(world: World) -> None:
    """Deploy, activate and use a rule set of 180 rules."""
    async with world.client("rule-sets") as client:
        await _ready_bus(client, large_rule_set())
        with_fact = await _proposals(client, 50)
        await client.batch_submit_proposals(with_fact)


@scenario
async def contests(world: World) -> None:
    """Close a contest of 64 candidates, by plain rules and by costly ones."""
    for bus, document in (("contest", rule_set(contest_window_ms=2_000)), ("costly-contest", costly_rule_set(contest_window_ms=3_000))):
        async with world.client(bus) as client:
            with _preparation(world):
                await _ready_bus(client, document)
                fact = (await publish_status(client, ["parcel/1"], "a" * 60_000 if "costly" in bus else "ready"))["parcel/1"]
            candidates = [proposal(fact) for _ in range(64)]
            for number, candidate in enumerate(candidates):
                candidate.producer.id = f"agent-{number // 16}"
            await client.batch_submit_proposals(candidates)
            await asyncio.sleep(4)


@scenario
async def counters(world: World) -> None:
    """Activate three counters with 10,000 approvals each, which the log of 40,000 events gives them, and drop them again."""
    async with world.client("counters") as client:
        with _preparation(world):
            await _ready_bus(client)
            proposals = await _proposals(client, 10_000)
            for first in range(0, 10_000, BATCH_ITEMS_MAX):
                await client.batch_submit_proposals(proposals[first : first + BATCH_ITEMS_MAX])
            await client.deploy_rule_set(counting_rule_set(2))
            await client.deploy_rule_set(rule_set(version=3))
        await client.activate_rule_set(POLICY, 2)
        await client.activate_rule_set(POLICY, 3)
        await _proposals(client, 200, "last")


@scenario
async def leases(world: World) -> None:
    """Let 10,000 approvals expire at the same time."""
    async with world.client("leases") as client:
        with _preparation(world):
            await _ready_bus(client, rule_set(decision_ttl_ms=60_000))
            proposals = await _proposals(client, 10_000)
        for first in range(0, 10_000, BATCH_ITEMS_MAX):
            await client.batch_submit_proposals(proposals[first : first + BATCH_ITEMS_MAX])
        world.holds()
        await asyncio.sleep(65)
        await client.submit_proposal((await _proposals(client, 1, "last"))[0])


@scenario
async def second_server(world: World) -> None:
    """Start another server, which reads the logs of the scenarios before."""
    from gavel_server.log.redis.data_directory import last_url

    url = last_url(world.directory / "data")
    assert url
    address = await asyncio.to_thread(world.start, "--redis", url, "--data", str(world.directory / "second"))
    for bus in ("batches", "leases", "projection", "large-events", "trace", "preflights"):
        async with GavelClient(address, bus=bus) as client:
            with suppress(GavelError):  # of a scenario that did not run
                await client.get_status()


def costly_rule_set(contest_window_ms: int = 0) -> str:
    """Return the tests' rule set with rules that search a long fact in many ways."""
    document = rule_set(contest_window_ms=contest_window_ms)
    rules = [
        f"  - {{id: costly-{number}, action: {ACTION}, priority: {100 + number}, "
        f"when: 'facts.status.contains(\"{'a' * 30}{number}\")', effect: approve}}\n"
        for number in range(7)
    ]
    return document + "".join(rules)


def counting_rule_set(version: int) -> str:
    """Return the tests' rule set with three counters of approvals."""
    counters = [f"  sent_{day}: {{of: approvals, action: {ACTION}, by: subject, window_ms: {day * DAY_MS}}}\n" for day in (1, 7, 30)]
    reads = " || ".join(f"history.sent_{day}(subject) > 1000" for day in (1, 7, 30))
    rule = f"  - {{id: often, action: {ACTION}, priority: 900, when: '{reads}', effect: reject, reason_code: OFTEN}}\n"
    text = rule_set(version=version).replace("gavel: v1", "gavel: v2")
    return text.replace("rules:\n", f"counters:\n{''.join(counters)}rules:\n{rule}", 1)


def large_rule_set() -> str:
    """Return the tests' rule set with 180 rules more, which read its fact and its param."""
    document = rule_set()
    rules = [
        f"  - {{id: more-{number}, action: {ACTION}, priority: {100 + number}, "
        f"when: 'facts.status == \"s{number}\" && params.weight > {number}.5', effect: reject, reason_code: MORE_{number}}}\n"
        for number in range(180)
    ]
    return document + "".join(rules)


async def run(names: Sequence[str], top: int) -> None:
    """Run the scenarios and print their longest holds."""
    with tempfile.TemporaryDirectory(prefix="loop-holds-") as directory:
        world = World(Path(directory))
        world.address = world.start("--data", str(world.directory / "data"))
        try:
            for name in names:
                world.holds()
                try:
                    await _SCENARIOS[name](world)
                except Exception as error:  # noqa: BLE001  # the other scenarios still run
                    print(f"{name}: {type(error).__name__}: {error}")
                await asyncio.sleep(0.2)
                longest = sorted(world.holds(), reverse=True)[:top]
                print(f"{name}:", flush=True)
                for seconds, collected, what in longest:
                    print(f"  {1000 * seconds:7.1f} ms ({1000 * collected:.1f} ms of it collecting garbage)  {what}", flush=True)
        finally:
            world.stop()


def main() -> int:
    """Measure, and return the exit status."""
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("scenarios", nargs="*", default=list(_SCENARIOS), help=f"some of {', '.join(_SCENARIOS)}")
    parser.add_argument("--top", type=int, default=3, help="how many of the longest callbacks to print (default 3)")
    arguments = parser.parse_args()
    asyncio.run(run(arguments.scenarios, arguments.top))
    return 0


if __name__ == "__main__":
    sys.exit(main())
