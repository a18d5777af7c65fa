"""Compares two servers: of two builds, or of one build in two environments.

    python -m tests.load.bench.pairs --ghz build/ghz --set GLIBC_TUNABLES=glibc.malloc.tcache_count=7
    python -m tests.load.bench.pairs --ghz build/ghz --tree ../earlier/build/compiled

Two equal servers may differ by a tenth for as long as they run, probably because of where their memory lies. One pair therefore shows
nothing, however long it is measured. Here each pair has fresh servers, which take turns, and the mean over the pairs counts. Its
standard error is printed beside it: a difference of less than twice the error is none.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, stdev
from typing import Final, NamedTuple

from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set
from gavel_server.process.build import COMPILED
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.load.bench.load_generator import CALLS, LoadGenerator, LoadSettings
from tests.load.bench.measurements import Cell
from tests.load.targets import environment_of, running_gavel
from tests.support.paths import ROOT

FIRST: Final = "first"
OTHER: Final = "other"


class Ratio(NamedTuple):
    """The geometric mean of ratios of the other server to the first, and its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.error:.3f}"


def ratio_of(ratios: list[float]) -> Ratio:
    """Return the mean of at least two ratios."""
    logarithms = [math.log(ratio) for ratio in ratios]
    return Ratio(math.exp(fmean(logarithms)), stdev(logarithms) / math.sqrt(len(logarithms)))


def main() -> int:
    """Measure all pairs and print the ratios."""
    arguments = _arguments()
    first = environment_of(COMPILED)
    other = {**first, **dict(setting.split("=", 1) for setting in arguments.set)}
    if arguments.tree is not None:
        other["PYTHONPATH"] = os.pathsep.join((str(arguments.tree.resolve()), first["PYTHONPATH"]))
    calls = [call for call in CALLS if call.name in arguments.calls]
    cells = {(call.name, name): Cell() for call in calls for name in (FIRST, OTHER)}
    document = shipped_rule_set("refunds")
    # Not in /tmp, which may be in memory: an fsync must reach the disk.
    with tempfile.TemporaryDirectory(prefix="pairs-", dir=ROOT / "build") as folder, Progress(transient=True) as progress:
        task = progress.add_task("measuring", total=arguments.pairs * len(cells))
        load = LoadGenerator(LoadSettings(arguments.ghz, arguments.seconds), Path(folder))
        for number in range(arguments.pairs):
            order = [(FIRST, first), (OTHER, other)]
            if number % 2:
                order.reverse()
            with ExitStack() as stack:
                targets = [
                    stack.enter_context(running_gavel(name, document, Path(folder, str(number), name), environment))
                    for name, environment in order
                ]
                for call in calls:
                    for target in targets:
                        load.measure(call, target, target, cells[call.name, target.name])
                        progress.advance(task)
    Console(width=None if sys.stdout.isatty() else 120).print(_table([call.name for call in calls], cells))
    return 0


def _table(calls: list[str], cells: dict[tuple[str, str], Cell]) -> Table:
    table = Table(title="The other server in multiples of the first: means over the pairs, and their standard errors")
    for column in ("call", "first: decisions/s", "decisions/s", "server's processor time"):
        table.add_column(column, justify="left" if column == "call" else "right")
    for call in calls:
        first, other = cells[call, FIRST], cells[call, OTHER]
        pairs = list(zip(first.samples, other.samples, strict=True))
        rate = ratio_of([two.decisions_per_second / one.decisions_per_second for one, two in pairs])
        time = ratio_of([two.server_cpu_us_per_decision / one.server_cpu_us_per_decision for one, two in pairs])
        table.add_row(call, f"{first.median('decisions_per_second'):,.0f}", str(rate), str(time))
    return table


def _arguments() -> argparse.Namespace:
    """Parse the command line."""
    names = [call.name for call in CALLS]
    parser = argparse.ArgumentParser(prog="python -m tests.load.bench.pairs", description="Compares two servers over pairs of fresh ones.")
    parser.add_argument("--ghz", type=Path, required=True, help="the load generator, from make build/ghz")
    parser.add_argument("--pairs", type=int, default=12, help="pairs of fresh servers (default 12, at least 2)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement (default 1)")
    parser.add_argument("--calls", nargs="+", choices=names, default=names, help="the calls to measure (default: all four)")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="variables of the other server's environment")
    parser.add_argument("--tree", type=Path, help="compiled tree of the other server, such as that of an earlier commit")
    arguments = parser.parse_args()
    if arguments.pairs < 2:
        parser.error("--pairs must be at least 2: one pair has no error")
    if not all("=" in setting for setting in arguments.set):
        parser.error("--set takes NAME=VALUE")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
