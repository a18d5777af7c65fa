"""The cost of counters in a decision on a real server: `PYTHONPATH=build/compiled .venv/bin/python -m tests.load.counters.cost`.

Two servers with the shipped refund rules run side by side. One has a rule that reads five counters, by which each decision is also
counted; the other has the same rule with numbers in their place. They decide the same number of proposals in turns, in batches of 50.
Turns are short, so that other load of the machine falls on both alike.

It prints two ratios for each turn and for all turns together: of the processor time of a decision, in the server with its Redis, and of
the time on the clock. The exit status is 1 if the processor time of all turns exceeds 1.15 times the other.

The servers take no snapshots: one falls into some turns and not into others. GAVEL_SNAPSHOT_EVERY=100000 measures with them.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

import grpc
from gavel.v1.arbitration_service_pb2 import BatchSubmitProposalsRequest, BatchSubmitProposalsResponse
from gavel_rules.authoring.shipped_rule_sets import shipped_rule_set
from gavel_server.process.build import build

from tests.load.core_cost import with_limits
from tests.load.targets import Target, cpu_seconds, environment_of, running_gavel, wait_until_idle
from tests.load.workload import BATCH_PROPOSALS, proposals

METHOD: Final = "/gavel.v1.ArbitrationService/BatchSubmitProposals"
COUNTERS: Final = 5
CALLS_AT_ONCE: Final = 8
RATIO_MAX: Final = 1.15
WITH: Final = "with"
WITHOUT: Final = "without"


class Cost(NamedTuple):
    """The cost of a decision in µs: processor time, and time on the clock."""

    processor: float
    clock: float

    @classmethod
    def mean(cls, costs: Sequence[Cost]) -> Cost:
        """Return the mean of the costs of turns with equally many decisions."""
        return cls(*(fmean(values) for values in zip(*costs, strict=True)))

    def over(self, other: Cost) -> Cost:
        """Return the ratios to another cost."""
        return Cost(self.processor / other.processor, self.clock / other.clock)


def used_seconds(target: Target) -> float:
    """Return the processor time of a server and its Redis so far."""
    return cpu_seconds(target.process) + cpu_seconds(target.redis)


def measure(target: Target, count: int) -> Cost:
    """Decide proposals on a server. Raises AssertionError if one has no decision."""
    with target.channel() as channel:
        # Of bytes, to leave the processors to the server.
        submit: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
        envelopes = iter(proposals(channel, count))
        requests = []
        while batch := list(itertools.islice(envelopes, BATCH_PROPOSALS)):
            requests.append(BatchSubmitProposalsRequest(envelopes=batch).SerializeToString())
        wait_until_idle()
        began, used_before = time.monotonic(), used_seconds(target)
        with ThreadPoolExecutor(CALLS_AT_ONCE) as threads:
            answers = list(threads.map(submit, requests))
        seconds, used = time.monotonic() - began, used_seconds(target) - used_before
    results = [result for answer in answers for result in BatchSubmitProposalsResponse.FromString(answer).results]
    assert count == sum(result.HasField("decision") for result in results), "a proposal was not decided"
    return Cost(used / count * 1_000_000, seconds / count * 1_000_000)


def main() -> int:
    """Measure in turns, print each, and return the exit status."""
    parser = argparse.ArgumentParser(description="Measure the cost of five counters in a decision.")
    parser.add_argument("--proposals", type=int, default=1_000, help="how many in a turn (default 1,000)")
    parser.add_argument("--turns", type=int, default=60, help="how many turns (default 60)")
    options = parser.parse_args()
    print(f"the {build()} build", file=sys.stderr)
    environment = {"GAVEL_SNAPSHOT_EVERY": "0", **environment_of(build())}
    turns: dict[str, list[Cost]] = {WITH: [], WITHOUT: []}
    with tempfile.TemporaryDirectory(prefix="gavel-counter-cost-") as directory, ExitStack() as stack:
        targets = []
        for name in (WITH, WITHOUT):
            document = with_limits(shipped_rule_set("refunds"), COUNTERS, 0, are_counters=name == WITH)
            targets.append(stack.enter_context(running_gavel(name, document, Path(directory, name), environment)))
        for turn in range(1, options.turns + 1):
            for target in targets:
                turns[target.name].append(measure(target, options.proposals))
            targets.reverse()
            cost, other = turns[WITH][-1], turns[WITHOUT][-1]
            ratio = cost.over(other)
            processor = f"{cost.processor:.0f} and {other.processor:.0f} µs of processor time"
            print(f"turn {turn}: {processor}, {ratio.processor:.2f} times; on the clock {ratio.clock:.2f} times", flush=True)
    ratio = Cost.mean(turns[WITH]).over(Cost.mean(turns[WITHOUT]))
    print(f"a decision with {COUNTERS} counters takes {ratio.processor:.2f} times the processor time, {ratio.clock:.2f} times the time")
    return 1 if ratio.processor > RATIO_MAX else 0


if __name__ == "__main__":
    sys.exit(main())
