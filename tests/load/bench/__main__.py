"""The benchmark (`make bench`): Gavel's throughput and latency, relative to those of an empty gRPC handler in the same run.

Absolute rates depend on the machine. So each of four calls runs on real servers and on an empty handler of the same messages
(empty_server.py). The real servers use the embedded Redis, an fsync before every answer and both rule engines, one with the shipped
refund rule set and one with twenty rules. They are the compiled build unless --interpreted is given.

Targets take turns, several rounds with fresh servers, and medians count. A measurement begins when all servers are idle: the events of the
one before are indexed, and snapshots are written. ghz generates the load (load_generator.py), on the same machine for all targets.
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
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, get_args

import grpc
from gavel.v1 import arbitration_service_pb2 as arbitration
from gavel.v1 import arbitration_service_pb2_grpc as arbitration_grpc
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set
from gavel_server.front.programs import FrontSetting, select_program
from gavel_server.process.build import COMPILED, INTERPRETED
from rich.console import Console
from rich.progress import Progress

from tests.load import workload
from tests.load.bench import authentication, engines
from tests.load.bench.load_generator import CALLS, SECONDS_MAX, Call, LoadGenerator, LoadSettings
from tests.load.bench.measurements import Cell, gates, rows_of, table
from tests.load.counters import past_events
from tests.load.targets import BenchError, Target, environment_of, running_empty, running_gavel
from tests.support.paths import ROOT


@dataclass(frozen=True)
class Settings:
    """The build and front to measure, and the load."""

    build: str
    front: str
    rounds: int
    turns: int
    load: LoadSettings

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
        self._load = LoadGenerator(settings.load, directory)
        self._task = progress.add_task("measuring", total=settings.measurements)

    def run(self) -> None:
        """Run all rounds, each with fresh servers. The empty handler answers with a decision of a real server."""
        for number in range(self._settings.rounds):
            with ExitStack() as stack:
                real = [
                    stack.enter_context(
                        running_gavel(name, document, self._directory / f"round-{number}" / f"rules-{place}", self._environment)
                    )
                    for place, (name, document) in enumerate(self._documents.items())
                ]
                empty = stack.enter_context(running_empty(self._canned_answer(real[0])))
                for call in CALLS:
                    self._measure(call, empty, source=real[0])
                    for target in real:
                        self._measure(call, target, source=target)

    def run_authentication(self) -> dict[str, Cell]:
        """Measure SubmitProposal by callers with and without credentials; return the samples by kind of caller."""
        (call,) = [one for one in CALLS if one.name == "SubmitProposal"]

        def measure(target: Target, cell: Cell) -> None:
            self._load.measure(call, target, target, cell)
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
        self._load.measure(call, target, source, self.cells.setdefault((call.name, target.name), Cell()))
        self._progress.advance(self._task)


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
        rounds=arguments.rounds,
        turns=arguments.turns,
        load=LoadSettings(arguments.ghz, arguments.seconds, arguments.concurrency, arguments.batch_concurrency, arguments.connections),
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
        document = {"machine": machine, "settings": asdict(settings), "seconds": seconds, **document}
        arguments.json.write_text(json.dumps(document, indent=2, default=str) + "\n", encoding="utf-8")
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
