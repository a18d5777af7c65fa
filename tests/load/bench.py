"""The benchmark (`make bench`): Gavel's throughput and latency, relative to those of an empty gRPC handler in the same run.

Absolute rates depend on the machine. So each of four calls runs on real servers and on an empty handler of the same messages
(empty_server.py). The real servers use the embedded Redis, an fsync before every answer and both rule engines, one with the shipped
refund rule set and one with twenty rules. They are the compiled build unless --interpreted is given.

Targets take turns, several rounds with fresh servers, and medians count. A measurement begins when all servers are idle: the events of the
one before are indexed, and snapshots are written. ghz generates the load, on the same machine for all targets.
The rule engines (engines.py) and rules on past events (counters/past_events.py) are measured first, without server and log. Outcomes are
counted from the log afterwards: a decision that did not come from a rule fails the run. Callers with and without credentials are compared
on servers of their own (authentication.py). Telemetry is off. The benchmark is not part of the tests, because timings are not
deterministic.
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
from contextlib import ExitStack
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
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set
from gavel_server.front.programs import FrontSetting, select_program
from gavel_server.process.build import COMPILED, INTERPRETED
from google.protobuf import descriptor_pb2
from rich.console import Console
from rich.progress import Progress

from tests.load import authentication, engines, workload
from tests.load.counters import past_events
from tests.load.measurements import Cell, Sample, gates, rows_of, table
from tests.load.targets import GAVEL, BenchError, Target, cpu_seconds, running_empty, running_gavel, wait_until_idle
from tests.support.paths import ROOT

COMPILED_TREE: Final = ROOT / "build/compiled"
PAGE_SIZE: Final = 1000
PROPOSALS_REUSED: Final = 1000
WARM_UP_DECISIONS: Final = 500
# Facts of the shipped rule set are valid for 60 s; a longer measurement would measure refusals.
SECONDS_MAX: Final = 5.0


@dataclass(frozen=True)
class Call:
    """A call to measure, with its number of decisions per request."""

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
class Settings:
    """The build and front to measure, and the load."""

    build: str
    front: str
    ghz: Path
    seconds: float
    rounds: int
    turns: int
    concurrency: int
    batch_concurrency: int
    connections: int

    @property
    def measurements(self) -> int:
        """The number of measurements."""
        return self.rounds * len(CALLS) * TARGETS + self.turns * len(authentication.TARGETS)


# What is measured without server and log.
CORE_PARTS: Final = {"engines": engines, "past_events": past_events}
# The empty handler, and servers with one rule set and the other.
TARGETS: Final = 3


class Bench:
    """One run. `cells` holds its measurements by (call, target)."""

    def __init__(self, settings: Settings, directory: Path, progress: Progress) -> None:
        self.cells: dict[tuple[str, str], Cell] = {}
        self._settings = settings
        self._directory = directory
        self._progress = progress
        self._documents = {"refunds": shipped_rule_set("refunds")}
        self._documents["twenty rules"] = workload.large_rule_set(self._documents["refunds"])
        self._environment = {**environment_of(settings.build), "GAVEL_FRONT": settings.front}
        self._proposals: list[envelope_pb2.Envelope] = []
        _write_protoset(directory / "gavel.protoset")
        self._task = progress.add_task("measuring", total=settings.measurements)

    def run(self) -> None:
        """Run all rounds. One empty handler, which answers with a decision of a real server, serves all of them."""
        with ExitStack() as run_stack:
            empty: Target | None = None
            for number in range(self._settings.rounds):
                with ExitStack() as stack:
                    real = [
                        stack.enter_context(
                            running_gavel(name, document, self._directory / f"round-{number}" / f"rules-{place}", self._environment)
                        )
                        for place, (name, document) in enumerate(self._documents.items())
                    ]
                    empty = empty or run_stack.enter_context(running_empty(self._canned_answer(real[0])))
                    for call in CALLS:
                        self._measure(call, empty, source=real[0])
                        for target in real:
                            self._measure(call, target, source=target)

    def run_authentication(self) -> dict[str, Cell]:
        """Measure SubmitProposal by callers with and without credentials; return the samples by kind of caller."""
        (call,) = [one for one in CALLS if one.name == "SubmitProposal"]

        def measure(target: Target, cell: Cell) -> None:
            self.measure(call, target, target, cell)
            self._progress.advance(self._task)

        directory = self._directory / "authentication"
        return authentication.run(measure, self._documents["refunds"], directory, self._environment, self._settings.turns)

    def _canned_answer(self, target: Target) -> Path:
        """Return a file with a real server's answer to one proposal."""
        path = self._directory / "answer"
        with target.channel() as channel:
            (proposal,) = workload.proposals(channel, 1)
            answer = arbitration_grpc.ArbitrationServiceStub(channel).SubmitProposal(arbitration.SubmitProposalRequest(envelope=proposal))
        path.write_bytes(answer.SerializeToString())
        return path

    def _measure(self, call: Call, target: Target, source: Target) -> None:
        """Measure one call on one target. Facts are published to `source`."""
        self.measure(call, target, source, self.cells.setdefault((call.name, target.name), Cell()))
        self._progress.advance(self._task)

    def measure(self, call: Call, target: Target, source: Target, cell: Cell) -> None:
        """Add a sample to `cell`, after a short warm-up that also estimates the rate."""
        warm_up = self._load(call, target, source, WARM_UP_DECISIONS // call.decisions)
        requests = max(1, int(warm_up.decisions_per_second * self._settings.seconds / call.decisions))
        head = _head(source)
        cell.samples.append(self._load(call, target, source, requests))
        if target is source:
            decisions = requests * call.decisions
            cell.outcomes += self._preflight_outcomes(target) if call.preflight else _recorded_outcomes(target, head, decisions)

    def _load(self, call: Call, target: Target, source: Target, requests: int) -> Sample:
        """Send requests and return the sample. Requests that write have proposals of their own; the others reuse a few."""
        writes = target is source and not call.preflight
        file = self._directory / "requests"
        with source.channel() as channel:
            count = requests * call.decisions if writes else min(requests * call.decisions, PROPOSALS_REUSED)
            self._proposals = workload.proposals(channel, count)
        workload.write_requests(file, self._proposals, batch=call.batch, preflight=call.preflight)
        wait_until_idle()
        server_before, redis_before = cpu_seconds(target.process), cpu_seconds(target.redis)
        report = self._ghz(call, target, file, requests)
        server_seconds = cpu_seconds(target.process) - server_before
        redis_seconds = cpu_seconds(target.redis) - redis_before
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
        """Run ghz and return its report. Raises BenchError unless every request is OK."""
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
        command = [str(settings.ghz), *target.ghz_options(), *(f"--{name}={value}" for name, value in options.items()), target.address]
        report: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
        if report["statusCodeDistribution"] != {"OK": requests}:
            raise BenchError(f"{call.name} on {target.name} failed: {report['statusCodeDistribution']} {report['errorDistribution']}")
        return report

    def _preflight_outcomes(self, target: Target) -> Counter[str]:
        """Return the outcomes of the last proposals by another Preflight, because a Preflight is not in the log."""
        with target.channel() as channel:
            request = arbitration.BatchPreflightRequest(envelopes=self._proposals[: workload.BATCH_PROPOSALS])
            results = arbitration_grpc.ArbitrationServiceStub(channel).BatchPreflight(request).results
        return Counter(_outcome(result.decision) for result in results)


def _head(target: Target) -> int:
    """Return the sequence number of the target's newest event."""
    with target.channel() as channel:
        return projection_grpc.ProjectionServiceStub(channel).GetStatus(projection.GetStatusRequest()).head_sequence_number


def _recorded_outcomes(target: Target, head: int, decisions: int) -> Counter[str]:
    """Return the outcomes of the first decisions after `head`, from the log. Raises BenchError if their number is wrong."""
    outcomes: Counter[str] = Counter()
    with target.channel() as channel:
        stub = event_grpc.EventServiceStub(channel)
        request = event.ListEventsRequest(
            categories=[common_pb2.EVENT_CATEGORY_DECISION_EVENT], from_sequence_number=head + 1, page_size=PAGE_SIZE
        )
        while True:
            page = stub.ListEvents(request)
            # Other decisions follow an earlier one, e.g. the expiry of an approval.
            first = [envelope.decision for envelope in page.envelopes if not envelope.decision.previous_decision_id]
            outcomes.update(map(_outcome, first))
            request.page_token = page.next_page_token
            if not page.next_page_token:
                break
    if outcomes.total() != decisions:
        raise BenchError(f"{target.name}: {decisions} proposals were answered, and {outcomes.total()} decisions are in the log")
    return outcomes


def _outcome(decision: decision_pb2.Decision) -> str:
    """Return outcome and reason code. Raises BenchError if no rule decided, because such a decision costs less."""
    name = decision_pb2.Outcome.Name(decision.outcome).removeprefix("OUTCOME_")
    if not decision.rule_id:
        raise BenchError(f"a decision did not come from a rule: {name} {decision.reason_code}")
    return f"{name} {decision.reason_code}".strip()


def environment_of(build: str) -> dict[str, str]:
    """Return the environment in which `gavel` is this build and exports no telemetry. Raises BenchError if it is the other one."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    if build == COMPILED:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(COMPILED_TREE), os.environ.get("PYTHONPATH"))))
    version = subprocess.run([GAVEL, "--version"], env=environment, check=True, capture_output=True, text=True).stdout.strip()
    if not version.endswith(f"({build})"):
        raise BenchError(f"the {build} build is to be measured, and this is {version!r}; use make bench")
    return environment


def _write_protoset(path: Path) -> None:
    """Write the service's descriptor for ghz with every nested message as bytes, which is the same on the wire.

    ghz handles messages by reflection, at several times the cost of the server.
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


def _core_figures(program: str, build: str) -> dict[str, float]:
    """Run a program that measures the core of a build, in a process of its own because this one may be the other build."""
    command = [sys.executable, "-m", program, "--json"]
    figures: dict[str, float] = json.loads(
        subprocess.run(command, cwd=ROOT, env=environment_of(build), check=True, capture_output=True, text=True).stdout
    )
    return figures


def main() -> int:
    """Run the benchmark and print it; return 1 if it failed, or with --gate if a gate was missed."""
    arguments = _arguments()
    # Wide enough for the table if the output is a file.
    console = Console(width=None if sys.stdout.isatty() else 120)
    if not 0 < arguments.seconds <= SECONDS_MAX:
        console.print(f"bench: --seconds must be above 0 and at most {SECONDS_MAX}: facts would grow stale while they are measured")
        return 2
    began = time.monotonic()
    (ROOT / "build").mkdir(exist_ok=True)
    # Not in /tmp, which may be in memory: an fsync must reach the disk.
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=ROOT / "build"))
    settings = Settings(
        build=INTERPRETED if arguments.interpreted else COMPILED,
        front="none" if select_program(arguments.front) is None else "native",
        **{
            name: getattr(arguments, name)
            for name in ("ghz", "seconds", "rounds", "turns", "concurrency", "batch_concurrency", "connections")
        },
    )
    figures: dict[str, dict[str, float]] = {}
    cells: dict[str, Cell] = {}
    try:
        with Progress(console=console, transient=True) as progress:
            bench = Bench(settings, directory, progress)
            if settings.rounds:
                figures = {name: _core_figures(part.__name__, settings.build) for name, part in CORE_PARTS.items()}
                bench.run()
            if settings.turns:
                cells = bench.run_authentication()
    except (BenchError, grpc.RpcError, OSError, subprocess.SubprocessError) as error:
        console.print(f"bench: {error}; the servers' logs and data stay in {directory}", markup=False)
        return 1
    shutil.rmtree(directory)
    if settings.front != "native":
        console.print("gate: these figures are without the native front, which the gates are meant for; see make front")
    document: dict[str, Any] = {}
    are_reached = True
    if figures:
        document, are_reached = _show_calls(bench, figures, console)
    if cells:
        authentication.show(cells, console)
        document["authentication"] = authentication.document_of(cells)
        are_reached = are_reached and all(verdict.passed for verdict in authentication.verdicts(cells))
    seconds = round(time.monotonic() - began, 1)
    machine = {"cpus": os.cpu_count(), "machine": platform.platform(), "python": platform.python_version()}
    console.print(f"the {settings.build} build, front {settings.front}, telemetry off, {seconds} s, {machine}", highlight=False)
    if arguments.json:
        used = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(settings).items()}
        document = {"machine": machine, "settings": used, "seconds": seconds, **document}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 1 if arguments.gate and not are_reached else 0


def _show_calls(bench: Bench, figures: dict[str, dict[str, float]], console: Console) -> tuple[dict[str, Any], bool]:
    """Print what was measured of the calls and of the core. Return it, and whether all gates are reached."""
    rows = rows_of(bench.cells)
    verdicts = gates(rows)
    console.print(table(rows))
    for row in rows:
        if row["outcomes"]:
            console.print(f"{row['call']} on {row['target']} came to {row['outcomes']}", highlight=False)
    for verdict in verdicts:
        word = "ok" if verdict["passed"] else "MISSED"
        console.print(
            f"gate: {verdict['call']} on {verdict['target']}: {verdict['reached']} times the empty unary SubmitProposal,"
            f" wanted {verdict['wanted']}: {word}",
            highlight=False,
        )
    for name, part in CORE_PARTS.items():
        part.show(figures[name], console)
        verdicts += part.gates(figures[name])
    are_reached = all(verdict["passed"] for verdict in verdicts)
    return {"rows": rows, "gates": verdicts, **figures}, are_reached


def _arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="make bench", description="Measures Gavel beside an empty handler of the same messages.")
    parser.add_argument("--ghz", type=Path, required=True, help="the load generator")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one measurement (default 2)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each call on each server (default 3; 0: none)")
    parser.add_argument("--turns", type=int, default=5, help="measurements with each kind of credentials (default 5; 0: none)")
    parser.add_argument("--concurrency", type=int, default=64, help="unary requests under way at once (default 64)")
    parser.add_argument("--batch-concurrency", type=int, default=8, help="batches under way at once (default 8)")
    parser.add_argument("--connections", type=int, default=4, help="connections that they share (default 4)")
    parser.add_argument("--interpreted", action="store_true", help="measure the build of Python alone (default: the compiled one)")
    parser.add_argument("--front", default="auto", choices=get_args(FrontSetting), help="what speaks gRPC (default: auto)")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.add_argument("--gate", action="store_true", help="exit 1 if a gate is missed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
