"""How fast Gavel decides, measured against what the transport alone costs on the same machine in the same run: `make bench`.

Rates of one machine say little about another, so each of four calls runs on real servers (embedded Redis, fsync before every answer, both
rule engines; one with the shipped refund rule set, one with twenty rules) and on an empty handler of the same messages (empty_server.py).
The servers are the compiled build, as users run it, unless --interpreted asks for the other.
They take turns, several rounds with fresh servers, and medians count. ghz makes the load; it shares the machine with the servers in every
measurement alike. What the rule engines cost without server and log is measured first (engines.py). Outcomes are counted from the log
afterwards: a decision that did not come from the rules fails the run. Never part of the tests, since timings decide here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, get_args

import grpc
from gavel.v1 import arbitration_service_pb2 as arbitration
from gavel.v1 import arbitration_service_pb2_grpc as arbitration_grpc
from gavel.v1 import common_pb2, decision_pb2, envelope_pb2
from gavel.v1 import event_service_pb2 as event
from gavel.v1 import event_service_pb2_grpc as event_grpc
from gavel.v1 import projection_service_pb2 as projection
from gavel.v1 import projection_service_pb2_grpc as projection_grpc
from gavel.v1 import rule_set_service_pb2 as rule_set
from gavel.v1 import rule_set_service_pb2_grpc as rule_set_grpc
from gavel_rules.authoring.shipped import shipped_rule_set
from gavel_server.build import COMPILED, INTERPRETED
from gavel_server.front.programs import Choice, chosen
from google.protobuf import descriptor_pb2
from rich.console import Console
from rich.progress import Progress

from tests.load import engines, workload
from tests.load.measurements import EMPTY, Cell, Sample, gates, rows_of, table

ROOT: Final = Path(__file__).parents[2]
GAVEL: Final = Path(sys.executable).with_name("gavel")
COMPILED_TREE: Final = ROOT / "build/compiled"
READY: Final = "gavel: ready on "
EMPTY_SERVER: Final = Path(__file__).with_name("empty_server.py")
PAGE_SIZE: Final = 1000
PROPOSALS_REUSED: Final = 1000
WARM_UP_DECISIONS: Final = 500
# A round is shorter than the least age that the shipped rule set allows a fact (60 s); longer cells would measure refusals.
SECONDS_MAX: Final = 5.0


class BenchError(Exception):
    """The measurement cannot be made, or would not mean what it says."""


@dataclass(frozen=True)
class Call:
    """A call to measure; `decisions` per request."""

    name: str
    decisions: int
    preflight: bool

    @property
    def batch(self) -> bool:
        """Whether a request carries several proposals."""
        return self.decisions > 1


CALLS: Final = (
    Call("Preflight", 1, preflight=True),
    Call("SubmitProposal", 1, preflight=False),
    Call("BatchPreflight", workload.BATCH_PROPOSALS, preflight=True),
    Call("BatchSubmitProposals", workload.BATCH_PROPOSALS, preflight=False),
)


@dataclass(frozen=True)
class Target:
    """A server under load; `redis` is 0 where there is none."""

    name: str
    address: str
    process: int
    redis: int = 0


@dataclass(frozen=True)
class Settings:
    """Of which build and front, how much load, and for how long."""

    build: str
    front: str
    ghz: Path
    seconds: float
    rounds: int
    concurrency: int
    batch_concurrency: int
    connections: int


class Bench:
    """One run; `cells` fills up, by (call, target)."""

    def __init__(self, settings: Settings, directory: Path, progress: Progress) -> None:
        self.cells: dict[tuple[str, str], Cell] = {}
        self._settings = settings
        self._directory = directory
        self._progress = progress
        self._documents = {"refunds": shipped_rule_set("refunds")}
        self._documents["twenty rules"] = workload.large_rule_set(self._documents["refunds"])
        self._environment = {**environment_of(settings.build), "GAVEL_FRONT": settings.front}
        self._proposals: list[envelope_pb2.Envelope] = []
        self._task = progress.add_task("measuring", total=settings.rounds * len(CALLS) * (1 + len(self._documents)))

    def run(self) -> None:
        """All rounds. The empty handler answers a decision that a real server gave, and lives through all of them."""
        _write_protoset(self._directory / "gavel.protoset")
        with ExitStack() as lasting:
            empty: Target | None = None
            for number in range(self._settings.rounds):
                with ExitStack() as stack:
                    real = [
                        stack.enter_context(
                            _gavel(name, document, self._directory / f"round-{number}" / f"rules-{place}", self._environment)
                        )
                        for place, (name, document) in enumerate(self._documents.items())
                    ]
                    empty = empty or lasting.enter_context(_empty(self._canned_answer(real[0])))
                    for call in CALLS:
                        self._turn(call, empty, source=real[0])
                        for target in real:
                            self._turn(call, target, source=target)

    def _canned_answer(self, target: Target) -> Path:
        """A file with the answer to one proposal, given by a real server."""
        path = self._directory / "answer"
        with grpc.insecure_channel(target.address) as channel:
            (proposal,) = workload.proposals(channel, 1)
            answer = arbitration_grpc.ArbitrationServiceStub(channel).SubmitProposal(arbitration.SubmitProposalRequest(envelope=proposal))
        path.write_bytes(answer.SerializeToString())
        return path

    def _turn(self, call: Call, target: Target, source: Target) -> None:
        """One round of one call on one target: a short try, which also warms up, then the measurement. Facts are published to `source`."""
        tried = self._load(call, target, source, WARM_UP_DECISIONS // call.decisions)
        requests = max(1, int(tried.decisions_per_second * self._settings.seconds / call.decisions))
        head = _head(source)
        sample = self._load(call, target, source, requests)
        cell = self.cells.setdefault((call.name, target.name), Cell())
        cell.samples.append(sample)
        if target is source:
            decisions = requests * call.decisions
            cell.outcomes += self._preflight_outcomes(target) if call.preflight else _recorded_outcomes(target, head, decisions)
        self._progress.advance(self._task)

    def _load(self, call: Call, target: Target, source: Target, requests: int) -> Sample:
        """Sends `requests` requests. Those that write go with a proposal each of its own; the others take turns with a few."""
        once = target is source and not call.preflight
        file = self._directory / "requests"
        with grpc.insecure_channel(source.address) as channel:
            count = requests * call.decisions if once else min(requests * call.decisions, PROPOSALS_REUSED)
            self._proposals = workload.proposals(channel, count)
        workload.write_requests(file, self._proposals, batch=call.batch, preflight=call.preflight)
        server_before, redis_before = _cpu_seconds(target.process), _cpu_seconds(target.redis)
        report = self._ghz(call, target, file, requests)
        server_seconds = _cpu_seconds(target.process) - server_before
        redis_seconds = _cpu_seconds(target.redis) - redis_before
        latencies_ms = sorted(detail["latency"] / 1e6 for detail in report["details"])
        ends = [datetime.fromisoformat(detail["timestamp"]).timestamp() for detail in report["details"]]
        began = min(end - detail["latency"] / 1e9 for end, detail in zip(ends, report["details"], strict=True))
        decisions = requests * call.decisions
        return Sample(
            decisions_per_second=decisions / (max(ends) - began),
            p50_ms=latencies_ms[len(latencies_ms) // 2],
            p99_ms=latencies_ms[len(latencies_ms) * 99 // 100],
            server_cpu_us_per_decision=server_seconds / decisions * 1e6,
            redis_cpu_us_per_decision=redis_seconds / decisions * 1e6,
        )

    def _ghz(self, call: Call, target: Target, file: Path, requests: int) -> dict[str, Any]:
        """ghz's report; anything but OK for every request ends the benchmark."""
        settings = self._settings
        concurrency = min(requests, settings.batch_concurrency if call.batch else settings.concurrency)
        options = {
            "protoset": self._directory / "gavel.protoset",
            "call": f"gavel.v1.ArbitrationService/{call.name}",
            "binary-file": file,
            "total": requests,
            "concurrency": concurrency,
            "connections": min(concurrency, settings.connections),
            "timeout": "30s",
            "format": "json",
        }
        command = [str(settings.ghz), "--insecure", *(f"--{name}={value}" for name, value in options.items()), target.address]
        report: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
        if report["statusCodeDistribution"] != {"OK": requests}:
            raise BenchError(f"{call.name} on {target.name} failed: {report['statusCodeDistribution']} {report['errorDistribution']}")
        return report

    def _preflight_outcomes(self, target: Target) -> Counter[str]:
        """What the proposals sent last would come to; a Preflight leaves no trace to count afterwards."""
        with grpc.insecure_channel(target.address) as channel:
            request = arbitration.BatchPreflightRequest(envelopes=self._proposals[: workload.BATCH_PROPOSALS])
            results = arbitration_grpc.ArbitrationServiceStub(channel).BatchPreflight(request).results
        return Counter(_outcome(result.decision) for result in results)


def _head(target: Target) -> int:
    """The sequence number of the target's newest event."""
    with grpc.insecure_channel(target.address) as channel:
        return projection_grpc.ProjectionServiceStub(channel).GetStatus(projection.GetStatusRequest()).head_sequence_number


def _recorded_outcomes(target: Target, head: int, decisions: int) -> Counter[str]:
    """What the first decisions after `head` came to, read from the log; there must be as many as were asked for."""
    outcomes: Counter[str] = Counter()
    with grpc.insecure_channel(target.address) as channel:
        stub = event_grpc.EventServiceStub(channel)
        request = event.ListEventsRequest(
            categories=[common_pb2.EVENT_CATEGORY_DECISION_EVENT], from_sequence_number=head + 1, page_size=PAGE_SIZE
        )
        while True:
            page = stub.ListEvents(request)
            # A later decision ends an earlier one, e.g. an approval that expired: no proposal asked for it.
            first = [envelope.decision for envelope in page.envelopes if not envelope.decision.previous_decision_id]
            outcomes.update(map(_outcome, first))
            request.page_token = page.next_page_token
            if not page.next_page_token:
                break
    if outcomes.total() != decisions:
        raise BenchError(f"{target.name}: {decisions} proposals were answered, and {outcomes.total()} decisions are in the log")
    return outcomes


def _outcome(decision: decision_pb2.Decision) -> str:
    """Outcome and reason; BenchError if the rules were not asked, since then it cost too little."""
    name = decision_pb2.Outcome.Name(decision.outcome).removeprefix("OUTCOME_")
    if not decision.rule_id:
        raise BenchError(f"a decision did not come from a rule: {name} {decision.reason_code}")
    return f"{name} {decision.reason_code}".strip()


def environment_of(build: str) -> dict[str, str]:
    """The environment in which `gavel` is this build; BenchError where it is not."""
    environment = dict(os.environ)
    if build == COMPILED:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(COMPILED_TREE), os.environ.get("PYTHONPATH"))))
    said = subprocess.run([GAVEL, "--version"], env=environment, check=True, capture_output=True, text=True).stdout.strip()
    if not said.endswith(f"({build})"):
        raise BenchError(f"the {build} build is to be measured, and this is {said!r}; use make bench")
    return environment


@contextmanager
def _gavel(name: str, document: str, directory: Path, environment: dict[str, str]) -> Iterator[Target]:
    """A real server on the embedded Redis, with the rule set in force."""
    directory.mkdir(parents=True)
    with (directory / "server.log").open("w") as log:
        command = [str(GAVEL), "serve", "--listen", "127.0.0.1:0", "--data", str(directory / "data")]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process:
            try:
                assert process.stdout is not None
                address = next((line.removeprefix(READY).strip() for line in process.stdout if line.startswith(READY)), "")
                if not address:
                    raise BenchError(f"gavel serve ended; its log is {directory / 'server.log'}")
                with grpc.insecure_channel(address) as channel:
                    stub = rule_set_grpc.RuleSetServiceStub(channel)
                    deployed = stub.DeployRuleSet(rule_set.DeployRuleSetRequest(document=document))
                    stub.ActivateRuleSet(rule_set.ActivateRuleSetRequest(policy_id=deployed.policy_id, version=deployed.version))
                yield Target(name, address, process.pid, _redis_of(process.pid))
            finally:
                process.terminate()


@contextmanager
def _empty(answer: Path) -> Iterator[Target]:
    """The empty handler, answering what the file holds."""
    with subprocess.Popen([sys.executable, EMPTY_SERVER, answer], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Target(EMPTY, f"127.0.0.1:{process.stdout.readline().strip()}", process.pid)
        finally:
            process.terminate()


def _redis_of(server: int) -> int:
    """The process id of the Redis that the server started."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = status.read_text().rpartition(") ")
        except OSError:
            continue  # It ended meanwhile.
        if int(tail.split()[1]) == server and head.partition("(")[2].startswith(("redis-server", "valkey-server")):
            return int(status.parent.name)
    raise BenchError(f"the server (process {server}) has no Redis of its own")


def _cpu_seconds(process: int) -> float:
    """User and system time of the process so far, all its threads; 0 for no process."""
    if not process:
        return 0.0
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _write_protoset(path: Path) -> None:
    """Writes the service for ghz with every nested message as bytes, which is the same on the wire.

    ghz handles messages by reflection, at several times the cost of our server; it need not open what it only carries.
    """
    file = descriptor_pb2.FileDescriptorProto()
    arbitration.DESCRIPTOR.CopyToProto(file)
    del file.dependency[:]
    for message in file.message_type:
        for member in message.field:
            if member.type == descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE:
                member.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
            elif member.type == descriptor_pb2.FieldDescriptorProto.TYPE_ENUM:
                member.type = descriptor_pb2.FieldDescriptorProto.TYPE_INT32
            member.ClearField("type_name")
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


def _engine_figures(build: str) -> dict[str, float]:
    """What the engines cost on this build, measured in a process of its own: this one is another build, or may be."""
    command = [sys.executable, "-m", "tests.load.engines", "--json"]
    figures: dict[str, float] = json.loads(
        subprocess.run(command, cwd=ROOT, env=environment_of(build), check=True, capture_output=True, text=True).stdout
    )
    return figures


def main() -> int:
    """Runs the benchmark and prints it; 1 if it could not be made, or with --gate if a gate was missed."""
    arguments = _arguments()
    # Wide enough for the table where the output is no terminal, e.g. a file.
    console = Console(width=None if sys.stdout.isatty() else 120)
    if not 0 < arguments.seconds <= SECONDS_MAX:
        console.print(f"bench: --seconds must be above 0 and at most {SECONDS_MAX}: facts would grow stale while they are measured")
        return 2
    began = time.monotonic()
    (ROOT / "build").mkdir(exist_ok=True)
    # Beside the sources and not in /tmp, which may be memory: an fsync has to cost what it costs.
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=ROOT / "build"))
    settings = Settings(
        build=INTERPRETED if arguments.interpreted else COMPILED,
        front=chosen(arguments.front) or "none",
        **{name: getattr(arguments, name) for name in ("ghz", "seconds", "rounds", "concurrency", "batch_concurrency", "connections")},
    )
    try:
        figures = _engine_figures(settings.build)
        with Progress(console=console, transient=True) as progress:
            bench = Bench(settings, directory, progress)
            bench.run()
    except (BenchError, grpc.RpcError, OSError, subprocess.SubprocessError) as error:
        console.print(f"bench: {error}; the servers' logs and data stay in {directory}", markup=False)
        return 1
    shutil.rmtree(directory)
    rows = rows_of(bench.cells)
    verdicts = gates(rows)
    console.print(table(rows))
    for row in rows:
        if row["outcomes"]:
            console.print(f"{row['call']} on {row['target']} came to {row['outcomes']}", highlight=False)
    if settings.front != "native":
        console.print("gate: these figures are without the native front, which the gates are meant for; see make front")
    for verdict in verdicts:
        word = "ok" if verdict["passed"] else "MISSED"
        console.print(
            f"gate: {verdict['call']} on {verdict['target']}: {verdict['reached']} times the empty unary SubmitProposal,"
            f" wanted {verdict['wanted']}: {word}",
            highlight=False,
        )
    engines.show(figures, console)
    seconds = round(time.monotonic() - began, 1)
    machine = {"cpus": os.cpu_count(), "machine": platform.platform(), "python": platform.python_version()}
    console.print(f"the {settings.build} build, front {settings.front}, {seconds} s, {machine}", highlight=False)
    if arguments.json:
        used = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(settings).items()}
        document = {"machine": machine, "settings": used, "seconds": seconds, "rows": rows, "gates": verdicts, "engines": figures}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    missed = [verdict for verdict in (*verdicts, *engines.gates(figures)) if not verdict["passed"]]
    return 1 if arguments.gate and missed else 0


def _arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make bench", description="Measures Gavel beside an empty handler of the same messages.")
    parser.add_argument("--ghz", type=Path, required=True, help="the load generator")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one measurement (default 2)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each call on each server (default 3)")
    parser.add_argument("--concurrency", type=int, default=64, help="unary requests under way at once (default 64)")
    parser.add_argument("--batch-concurrency", type=int, default=8, help="batches under way at once (default 8)")
    parser.add_argument("--connections", type=int, default=4, help="connections that they share (default 4)")
    parser.add_argument("--interpreted", action="store_true", help="measure the build of Python alone (default: the compiled one)")
    parser.add_argument("--front", default="auto", choices=get_args(Choice), help="what speaks gRPC (default auto: the best there is)")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.add_argument("--gate", action="store_true", help="exit 1 if a gate is missed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
