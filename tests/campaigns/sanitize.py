"""The compiled core under Python's checking allocator: `make sanitize`.

Programs with random input run in child processes, one after the other, until the time is over: a simulated world with faults, mutated
requests, and random rule sets on both engines. The allocator ends a child that writes beside an object or frees it wrongly. The exit status
is 1 if a child fails; the command that repeats the failure is printed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from gavel_server.process.build import build

from tests.support.machine.checking_allocator import CHECKING
from tests.support.paths import ROOT

CHILD_SECONDS_MAX: Final = 600
PROGRAMS: Final = (
    ("tests.simulation.run", "{seed}"),
    ("tests.campaigns.mutations", "{seed}", "2000"),
    ("tests.fuzz.run", "--portion", "--seed", "{seed}", "--evaluations", "2000"),
)


def run_child(program: tuple[str, ...], seed: int) -> str:
    """Run a program; return its fault, or ""."""
    command = [sys.executable, "-m", *(argument.format(seed=seed) for argument in program)]
    environment = {**os.environ, **CHECKING}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=CHILD_SECONDS_MAX)
    output = done.stdout + done.stderr
    failed = done.returncode != 0 or ('"find"' in output and '"find": ""' not in output)
    return f"{' '.join(command)} ends with {done.returncode}:\n{output[-4000:]}" if failed else ""


def main() -> int:
    """Run children until the time is over, print how many, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default 10)")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default 1)")
    options = parser.parse_args()
    print(f"the {build()} build", file=sys.stderr)
    (ROOT / "build/fuzz").mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.minutes * 60
    runs: Counter[str] = Counter()
    problems: list[str] = []

    def work(first: int) -> None:
        for number in itertools.count(first, os.cpu_count() or 1):
            if time.monotonic() > end or problems:
                return
            program = PROGRAMS[number % len(PROGRAMS)]
            if problem := run_child(program, options.seed + number):
                problems.append(problem)
            runs[program[0]] += 1

    with ThreadPoolExecutor() as executor:
        list(executor.map(work, range(os.cpu_count() or 1)))
    print(f"children run: {dict(runs)}; failures: {len(problems)}")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
