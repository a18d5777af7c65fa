"""The world of the end-to-end tests: real `gavel serve` processes, and calls that tests share.

A test starts servers on an embedded or a shared Redis, calls them with `gavel_client`, and kills them at will. It reaches a server
only by its command line, its signals and its gRPC port. `ledger` reads the log from Redis.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import redis
from gavel.v1 import common_pb2, replay_service_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.decision_pb2 import Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.projection_service_pb2 import GetStatusResponse
from gavel.v1.replay_service_pb2 import ReplayVerdict
from gavel_client import GavelClient, GavelError, fact_envelope, new_event_id, proposal_envelope, reference
from gavel_client.rpc.backoff import Backoff
from gavel_server.log.redis.data_directory import last_url
from gavel_server.log.stores import is_postgresql

from tests.e2e.runs import REPLAY_SECONDS_MAX, Run, run_gavel
from tests.support.fronts import is_front
from tests.support.machine.checking_allocator import checks_of_build

GAVEL: Final = str(Path(sys.executable).with_name("gavel"))
# Only a hanging program takes longer.
START_SECONDS_MAX: Final = 240.0
STOP_SECONDS_MAX: Final = 60.0
WAIT_SECONDS_MAX: Final = 60.0
PATIENT_MS: Final = 60_000

POLICY: Final = "parcels"
ACTION: Final = "parcel.send"
DEPOT: Final = Producer(type=common_pb2.PRODUCER_TYPE_DATABASE_SNAPSHOT, id="depot")
AGENT: Final = Producer(type=common_pb2.PRODUCER_TYPE_AGENT, id="agent-1")
COURIER: Final = Producer(type=common_pb2.PRODUCER_TYPE_EXECUTOR, id="courier-1")
DAY_MS: Final = 24 * 60 * 60 * 1000

Result = TypeVar("Result")


def rule_set(
    *,
    version: int = 1,
    decision_ttl_ms: int = 600_000,
    max_attempts: int = 20,
    human_takeover_after_ms: int = 600_000,
    contest_window_ms: int = 0,
) -> str:
    """Return the tests' rule set: it approves sending a light parcel that is ready, and rejects sending a lost one."""
    return f"""
gavel: v1
rule_set: {POLICY}
version: {version}
actions:
  {ACTION}:
    params:
      type: object
      required: [weight]
      additionalProperties: false
      properties: {{weight: {{type: number, exclusiveMinimum: 0}}}}
    facts:
      status: {{key: parcel.status, type: string, min_trust: 1, max_age_ms: {DAY_MS}, sources: [{DEPOT.id}]}}
    decision_ttl_ms: {decision_ttl_ms}
    contest_window_ms: {contest_window_ms}
    retry:
      max_attempts: {max_attempts}
      backoff_initial_ms: 10
      backoff_multiplier: 1.0
      backoff_max_ms: 10
      human_takeover_after_ms: {human_takeover_after_ms}
rules:
  - {{id: lost, action: {ACTION}, priority: 20, when: facts.status == "lost", effect: reject, reason_code: PARCEL_LOST}}
  - {{id: light, action: {ACTION}, priority: 10, when: facts.status == "ready" && params.weight <= 30, effect: approve}}
"""


class Server:
    """One `gavel serve` on `data`, which a test can start and stop repeatedly.

    Without `redis_url`, which may be that of a PostgreSQL, it has an embedded Redis in `data`. `listen` is "HOST:PORT" or "unix:PATH"; with
    port 0 every start picks another port, which `address` names. `options` are more options of `gavel serve`. `installed` runs the
    installed program, with a hash seed of its own, in place of a fork of the imported one (see `forking`). `program` is another program to
    run; a test may change it between two starts. `environment` has variables besides those of the tests.
    """

    def __init__(
        self,
        data: Path,
        *,
        redis_url: str = "",
        listen: str = "127.0.0.1:0",
        options: Sequence[str] = (),
        installed: bool = False,
        program: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.data = data
        self.address = ""
        self._redis_url = redis_url
        self._listen = listen
        self._options = tuple(options)
        self.program = (GAVEL,) if installed else tuple(program)
        self._environment = dict(environment or {})
        self._process: Run | subprocess.Popen[bytes] | None = None
        self._stdout: IO[bytes] | None = None

    @property
    def redis_url(self) -> str:
        """The URL of its Redis; an embedded one has no URL before its first start."""
        url = self._redis_url or last_url(self.data)
        assert url
        return url

    @property
    def running(self) -> Run | subprocess.Popen[bytes]:
        """The process of the last start."""
        assert self._process is not None
        return self._process

    def launch(self) -> None:
        """Start the process without waiting until it is ready."""
        self.data.mkdir(parents=True, exist_ok=True)
        arguments = ["serve", "--listen", self._listen, "--data", str(self.data), *self._options]
        if self._redis_url:
            arguments += ["--log" if is_postgresql(self._redis_url) else "--redis", self._redis_url]
        environment = {**_environment(), **self._environment}
        read_end, write_end = os.pipe()
        self._stdout = open(read_end, "rb")  # noqa: SIM115  # open while the process runs
        with open(os.devnull, "rb") as nothing, open(write_end, "wb") as ready, (self.data / "server.log").open("ab") as log:
            if self.program:
                self._process = subprocess.Popen([*self.program, *arguments], stdin=nothing, stdout=ready, stderr=log, env=environment)
            else:
                self._process = Run(arguments, environment, (nothing, ready, log))

    def await_ready(self) -> None:
        """Return once the process is ready."""
        assert self._stdout is not None
        readable, _, _ = select.select([self._stdout], [], [], START_SECONDS_MAX)
        line = self._stdout.readline().decode() if readable else ""
        if not line.startswith("gavel: ready on "):
            self.kill()
            raise AssertionError(f"gavel serve printed {line!r} in place of its ready line; its log:\n{self.log()}")
        self.address = line.removeprefix("gavel: ready on ").strip()

    def start(self) -> None:
        """Start the process and return once it is ready."""
        self.launch()
        self.await_ready()

    def kill(self) -> None:
        """Kill the process if it still runs."""
        if self._process is not None:
            self._process.kill()
            self.wait()

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send SIGTERM, or another signal, and return the exit status."""
        self.running.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Return the exit status once the process has ended."""
        status = self.running.wait(STOP_SECONDS_MAX)
        assert self._stdout is not None
        self._stdout.close()
        return status

    def redis_process_id(self) -> int:
        """Return the process id of its Redis, as Redis reports it."""
        with redis.Redis.from_url(self.redis_url) as connection:
            info: Any = connection.info("server")
        return int(info["process_id"])

    def front_process_id(self) -> int:
        """Return the process id of its front."""
        (process_id,) = fronts_of(self.running.pid)
        return process_id

    def log(self) -> str:
        """Return the process's stderr so far."""
        return (self.data / "server.log").read_text(errors="replace")

    def client(self, bus: str = "", *, tries_max: int | None = 5) -> GavelClient:
        """Return a client that tries a call a few times after transient errors; with `tries_max` 1 it raises the first error."""
        return GavelClient(self.address, bus=bus, backoff=Backoff(initial_ms=20, maximum_ms=500), tries_max=tries_max)


def fronts_of(process_id: int) -> list[int]:
    """Return the process ids of a server's fronts."""
    children = Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()
    return [int(child) for child in children if is_front(int(child))]


@contextmanager
def run_servers(*servers: Server) -> Iterator[None]:
    """Start servers concurrently; kill those that still run at the end."""
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.await_ready()
        yield
    finally:
        for server in servers:
            server.kill()


async def open_bus(client: GavelClient, document: str = "") -> None:
    """Deploy and activate version 1 of the tests' rule set; `document` replaces the default one."""
    await client.deploy_rule_set(document or rule_set())
    await client.activate_rule_set(POLICY, 1)


async def publish_status(client: GavelClient, subjects: Sequence[str], status: str = "ready") -> dict[str, Envelope]:
    """Publish a status fact for each parcel; return the events by subject."""
    events: dict[str, Envelope] = {}
    for first in range(0, len(subjects), 500):
        facts = [fact_envelope(subject, DEPOT, key="parcel.status", value=status) for subject in subjects[first : first + 500]]
        response = await client.batch_publish_events(facts)
        for result in response.results:
            assert result.WhichOneof("result") == "envelope", GavelError.from_status(result.error)
            events[result.envelope.subject] = result.envelope
    return events


def proposal(fact: Envelope, weight: float = 1.0, *, priority: int = 0, event_id: str = "") -> Envelope:
    """Return a proposal to send the parcel of `fact`."""
    return proposal_envelope(
        fact.subject,
        AGENT,
        action_type=ACTION,
        params={"weight": weight},
        max_fact_age_ms=DAY_MS,
        based_on_events=[reference(fact)],
        confidence=0.9,
        priority=priority,
        event_id=event_id or new_event_id(),
    )


async def approve(client: GavelClient, subject: str) -> Envelope:
    """Propose to send a parcel that is ready; return the approval."""
    fact = (await publish_status(client, [subject]))[subject]
    decision = (await client.submit_proposal(proposal(fact))).decision
    assert Outcome.Value("OUTCOME_APPROVED") == decision.decision.outcome, decision
    return decision


async def wait_for_events(client: GavelClient, matches: Callable[[Envelope], bool], count: int = 1) -> list[Envelope]:
    """Return the first `count` events of the bus that match, as soon as they are recorded."""
    events: list[Envelope] = []
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        stream = client.subscribe_events(from_sequence_number=1)
        async for item in stream:
            if item.WhichOneof("item") == "envelope" and matches(item.envelope):
                events.append(item.envelope)
                if len(events) == count:
                    break
        await stream.aclose()
    return events


async def wait_for_same_head(clients: Iterable[GavelClient]) -> list[GetStatusResponse]:
    """Return the status of several servers of a bus, with digests, once all have the same head."""
    statuses: list[GetStatusResponse] = []

    async def same_head() -> list[GetStatusResponse] | None:
        statuses[:] = [await client.get_status(include_projection_digest=True, timeout_ms=PATIENT_MS) for client in clients]
        heads = {(status.head_sequence_number, status.head_chain_hash) for status in statuses}
        return statuses if len(heads) == 1 else None

    return await poll(same_head, lambda: f"the servers do not reach the same head: {statuses}")


async def poll(call: Callable[[], Awaitable[Result | None]], problem: Callable[[], str] = lambda: "timed out") -> Result:
    """Repeat a call until its result is not None; fail with `problem` after WAIT_SECONDS_MAX."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        result = await call()
        if result is not None:
            return result
        assert time.monotonic() < deadline, problem()
        await asyncio.sleep(0.01)


async def wait_until_writable(client: GavelClient) -> None:
    """Return once the server takes writes."""
    problems = ["it does not answer"]

    async def takes_writes() -> bool | None:
        try:
            status = await client.get_status()
        except GavelError as error:
            problems[:] = [str(error)]
            return None
        problems[:] = [status.unwritable_reason]
        return status.writable or None

    await poll(takes_writes, lambda: f"it takes no writes: {problems[0]}")


async def prove(client: GavelClient) -> ReplayVerdict:
    """Let a server replay its log; return the verdict, and assert that it is proved."""
    verdict = ReplayVerdict()
    async for item in client.verify_replay():
        if item.WhichOneof("item") == "verdict":
            verdict = item.verdict
    assert replay_service_pb2.REPLAY_STATUS_PROVED == verdict.status, verdict
    return verdict


def replay(log_url: str, bus: str) -> subprocess.CompletedProcess[str]:
    """Run `gavel replay` on a Redis or PostgreSQL."""
    return run_gavel(["replay", "--log", log_url, "--bus", bus], _environment(), seconds=REPLAY_SECONDS_MAX)


def _environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("GAVEL_", "OTEL_"))}
    return {**inherited, **checks_of_build()}
