"""The world of the end-to-end tests: real `gavel serve` processes, and what a test asks of them and does to them.

A test starts servers on an embedded Redis of their own or on a shared one, calls them with `gavel_client`, and kills what it
likes. Nothing here reaches into a server: it has its command line, its signals and its gRPC port. What is in the log is read by
`ledger`, from Redis itself.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
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
from gavel_client.backoff import Backoff
from gavel_server.embedded import noted_url

from tests.e2e.runs import Run, run_to_its_end
from tests.fronts import is_front

GAVEL: Final = str(Path(sys.executable).with_name("gavel"))
# Bounds that only a hanging program meets.
START_SECONDS_MAX: Final = 60.0
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
    """Return the tests' rule set: a parcel that is ready and not too heavy may be sent, one that is lost may not."""
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
    """One `gavel serve` on `data`, started and ended as often as a test likes: by turns, like an operator's.

    Without `redis_url` it has its embedded Redis in `data`. `listen` is "HOST:PORT" or "unix:PATH"; with port 0 every start
    picks another port, which `address` names. `options` are further ones of `gavel serve`. With `installed` each start is one of the
    installed program, with hashes of its own; without, a fork of one that has imported it already (see `forking`).
    """

    def __init__(
        self, data: Path, *, redis_url: str = "", listen: str = "127.0.0.1:0", options: Sequence[str] = (), installed: bool = False
    ) -> None:
        self.data = data
        self.address = ""
        self._redis_url = redis_url
        self._listen = listen
        self._options = tuple(options)
        self._installed = installed
        self._process: Run | subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None

    @property
    def redis_url(self) -> str:
        """Where its Redis listens; of the embedded one only once it was started."""
        url = self._redis_url or noted_url(self.data)
        assert url
        return url

    @property
    def running(self) -> Run | subprocess.Popen[bytes]:
        """The process of the last start."""
        assert self._process is not None
        return self._process

    def launch(self) -> None:
        """Start the process and do not wait for it."""
        self.data.mkdir(parents=True, exist_ok=True)
        arguments = ["serve", "--listen", self._listen, "--data", str(self.data), *self._options]
        if self._redis_url:
            arguments += ["--redis", self._redis_url]
        read_end, write_end = os.pipe()
        self._said = open(read_end, "rb")  # noqa: SIM115  # as long as the process runs
        with open(os.devnull, "rb") as nothing, open(write_end, "wb") as ready, (self.data / "server.log").open("ab") as log:
            if self._installed:
                self._process = subprocess.Popen([GAVEL, *arguments], stdin=nothing, stdout=ready, stderr=log, env=_environment())
            else:
                self._process = Run(arguments, _environment(), (nothing, ready, log))

    def await_ready(self) -> None:
        """Return once the process says that it is ready."""
        assert self._said is not None
        readable, _, _ = select.select([self._said], [], [], START_SECONDS_MAX)
        line = self._said.readline().decode() if readable else ""
        if not line.startswith("gavel: ready on "):
            self.kill()
            raise AssertionError(f"gavel serve said {line!r} and not that it is ready; its log:\n{self.log()}")
        self.address = line.removeprefix("gavel: ready on ").strip()

    def start(self) -> None:
        """Start the process and return once it is ready."""
        self.launch()
        self.await_ready()

    def kill(self) -> None:
        """End the process with SIGKILL, if it still runs."""
        if self._process is not None:
            self._process.kill()
            self.wait()

    def terminate(self) -> int:
        """Send SIGTERM and return the exit status."""
        self.running.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Return the exit status once the process has ended."""
        status = self.running.wait(STOP_SECONDS_MAX)
        assert self._said is not None
        self._said.close()
        return status

    def redis_process_id(self) -> int:
        """Return the process id of its Redis, as Redis says it."""
        with redis.Redis.from_url(self.redis_url) as connection:
            info: Any = connection.info("server")
        return int(info["process_id"])

    def front_process_id(self) -> int:
        """Return the process id of its front."""
        (process_id,) = fronts_of(self.running.pid)
        return process_id

    def log(self) -> str:
        """Return what the process has written to stderr."""
        return (self.data / "server.log").read_text(errors="replace")

    def client(self, bus: str = "") -> GavelClient:
        """Return a client that repeats what may heal, with short pauses."""
        return GavelClient(self.address, bus=bus, backoff=Backoff(initial_ms=20, maximum_ms=500))


def fronts_of(process_id: int) -> list[int]:
    """Return the children of a process that speak gRPC for it."""
    children = Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()
    return [int(child) for child in children if is_front(int(child))]


@contextmanager
def serving(*servers: Server) -> Iterator[None]:
    """Start servers, side by side; whatever becomes of them in between, none is left running."""
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
    """Deploy and activate the tests' rule set, or `document`, its version 1."""
    await client.deploy_rule_set(document or rule_set())
    await client.activate_rule_set(POLICY, 1)


async def publish_status(client: GavelClient, subjects: Sequence[str], status: str = "ready") -> dict[str, Envelope]:
    """Publish the status of parcels as a fact of the depot; return the events by subject."""
    published: dict[str, Envelope] = {}
    for first in range(0, len(subjects), 500):
        facts = [fact_envelope(subject, DEPOT, key="parcel.status", value=status) for subject in subjects[first : first + 500]]
        response = await client.batch_publish_events(facts)
        for result in response.results:
            assert result.WhichOneof("result") == "envelope", GavelError.from_status(result.error)
            published[result.envelope.subject] = result.envelope
    return published


def proposal(fact: Envelope, weight: float = 1.0, *, priority: int = 0, event_id: str = "") -> Envelope:
    """Return a proposal to send the parcel that `fact` speaks of."""
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
    """Return the approval of sending a parcel that is ready."""
    fact = (await publish_status(client, [subject]))[subject]
    decision = (await client.submit_proposal(proposal(fact))).decision
    assert Outcome.Value("OUTCOME_APPROVED") == decision.decision.outcome, decision
    return decision


async def seen(client: GavelClient, wanted: Callable[[Envelope], bool], count: int = 1) -> list[Envelope]:
    """Return the first `count` events of the bus that are `wanted`, as soon as they are in the log."""
    found: list[Envelope] = []
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        stream = client.subscribe_events(from_sequence_number=1)
        async for item in stream:
            if item.WhichOneof("item") == "envelope" and wanted(item.envelope):
                found.append(item.envelope)
                if len(found) == count:
                    break
        await stream.aclose()
    return found


async def caught_up(clients: Iterable[GavelClient]) -> list[GetStatusResponse]:
    """Return the status of servers of one bus, with digests, once all of them are at one head that does not move."""
    statuses: list[GetStatusResponse] = []

    async def alike() -> list[GetStatusResponse] | None:
        statuses[:] = [await client.get_status(include_projection_digest=True, timeout_ms=PATIENT_MS) for client in clients]
        heads = {(status.head_sequence_number, status.head_chain_hash) for status in statuses}
        return statuses if len(heads) == 1 else None

    return await until(alike, lambda: f"the servers do not come to one head: {statuses}")


async def until(found: Callable[[], Awaitable[Result | None]], problem: Callable[[], str] = lambda: "waited in vain") -> Result:
    """Ask again and again until there is an answer; fail, with the problem, if there never is."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        result = await found()
        if result is not None:
            return result
        assert time.monotonic() < deadline, problem()
        await asyncio.sleep(0.01)


async def writable(client: GavelClient) -> None:
    """Return once the server takes writes (again)."""

    async def takes_writes() -> bool | None:
        try:
            return (await client.get_status()).writable or None
        except GavelError:
            return None

    await until(takes_writes)


async def prove(client: GavelClient) -> ReplayVerdict:
    """Let a server replay its log; return the verdict, which must be that it is proved."""
    verdict = ReplayVerdict()
    async for item in client.verify_replay():
        if item.WhichOneof("item") == "verdict":
            verdict = item.verdict
    assert replay_service_pb2.REPLAY_STATUS_PROVED == verdict.status, verdict
    return verdict


def replay(redis_url: str, bus: str) -> subprocess.CompletedProcess[str]:
    """Run `gavel replay`, which opens the log itself and needs no server."""
    return run_to_its_end(["replay", "--redis", redis_url, "--bus", bus], _environment())


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("GAVEL_")}
