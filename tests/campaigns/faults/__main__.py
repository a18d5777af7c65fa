"""Faults of servers, logs, disks, memory, clocks and links under load: `python -m tests.campaigns.faults`, or `make faults`.

Two servers serve a bus, clients call both, and one process or machine after the other fails. The campaign ends with 1 if a client saw what
one log without failures could not have shown, if something acknowledged is missing or twice, if a budget is exceeded, if the log does not
replay, or if a server ends, does not recover, or reports a bug. At last the log loses events, which all servers must find out.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from gavel_server.process.build import build

from tests.campaigns.faults.campaign import Campaign, Report
from tests.campaigns.faults.kinds import FAULTS, KILLS, Fault
from tests.campaigns.faults.losses import LOSSES, lose
from tests.campaigns.faults.worlds import WORLDS
from tests.e2e.languages.toolchains import build_go_module

CYCLES_PER_BUS = 12


async def run_campaign(log: str, directory: Path, checker: Path, faults: Sequence[Fault], cycles: int, seed: int) -> Report:
    """Run a campaign on one kind of log and return what it saw. Raises AssertionError if it found a fault."""
    async with WORLDS[log](directory) as world:
        campaign = Campaign(world, directory, checker, faults, seed)
        try:
            # In threads: this loop runs the proxy to the log.
            await asyncio.gather(*(asyncio.to_thread(server.start) for server in world.servers))
            await campaign.run(cycles, CYCLES_PER_BUS)
            for loss in LOSSES[log]:
                await lose(world, loss, directory)
                campaign.report.losses[loss.__name__] += 1
        finally:
            for server in world.servers:
                server.kill()
    return campaign.report


def checker_program() -> Path:
    """Build the checker and return its path."""
    return build_go_module(Path(__file__).parent / "go") / "linearizability"


def main() -> int:
    """Run the campaigns, print what they saw, and return the exit status."""
    names = {fault.__name__: fault for fault in FAULTS}
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--log", nargs="+", choices=[*WORLDS], default=[*WORLDS], help="kinds of logs (default all)")
    parser.add_argument("--cycles", type=int, default=100, help="faults on each log (default 100)")
    parser.add_argument("--kills", action="store_true", help="only kill -9")
    parser.add_argument("--faults", nargs="+", choices=[*names], help="only these faults")
    parser.add_argument("--seed", type=int, default=1, help="of every choice (default 1)")
    options = parser.parse_args()
    faults = KILLS if options.kills else [names[name] for name in options.faults or names]
    print(f"the {build()} build, seed {options.seed}", file=sys.stderr)
    checker = checker_program()
    status = 0
    for log in options.log:
        directory = Path(tempfile.mkdtemp(prefix=f"gavel-faults-{log}-"))
        begin = time.monotonic()
        try:
            report = asyncio.run(run_campaign(log, directory, checker, faults, options.cycles, options.seed))
        except AssertionError as error:
            print(f"{log}: FAILED: {error}\nits files: {directory}", flush=True)
            status = 1
        else:
            print_report(log, report, time.monotonic() - begin)
    return status


def print_report(log: str, report: Report, seconds: float) -> None:
    """Print what a campaign saw."""
    recoveries = sorted(report.recoveries_seconds)
    (median, _), (longest, fault) = recoveries[len(recoveries) // 2], recoveries[-1]
    print(f"{log}: {sum(report.cycles.values())} faults in {seconds:.0f} s: {dict(report.cycles)}")
    print(f"  {report.buses} buses, {report.events} events, replayed; {report.operations} operations, linearizable")
    print(f"  losses of acknowledged events, detected by all servers: {dict(report.losses)}")
    print(f"  {report.unanswered} writes without an answer; calls by status: {dict(report.calls)}")
    print(f"  writes again {median:.1f} s after a fault (median), at most {longest:.1f} s, after {fault}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
