"""Counters against a recount of the log, over random histories: `make recount`.

Histories of some hundred events each are played on the core until there are enough events. After every few steps each counter is
compared, in every group, with counting the whole log again. The exit status is 1 at the first difference; the seed that repeats its
history is printed.
"""

from __future__ import annotations

import argparse
import random
import sys

from gavel_server.process.build import build

from tests.support.counted_plays import AMOUNTS, CUSTOMERS, PAUSES_MS, STATUSES, VERDICTS, WITH, Step, compare, play
from tests.support.driver import Core

STEPS_PER_HISTORY = 120
STEPS_PER_COMPARISON = 10


def random_step(choice: random.Random) -> Step:
    """Return a step: mostly proposals and reports, and now and then an activation that fills the counters anew."""
    kinds = {"propose": 40, "report": 18, "start": 8, "late": 8, "undo": 5, "resolve": 6, "revoke": 4, "pass": 15, "reactivate": 2}
    kind = choice.choices([*kinds], [*kinds.values()])[0]
    match kind:
        case "propose":
            return kind, choice.choice(CUSTOMERS), choice.choice(AMOUNTS)
        case "report" | "undo" | "late":
            return kind, choice.randrange(100), choice.choice(STATUSES)
        case "resolve":
            return kind, choice.randrange(100), choice.choice(VERDICTS)
        case "pass":
            return kind, choice.choice(PAUSES_MS), None
        case "reactivate":
            return kind, choice.randrange(2), None
    return kind, choice.randrange(100), None


def run_history(seed: int) -> int:
    """Play one history and return the number of its events. Raises AssertionError at a difference."""
    choice = random.Random(seed)
    core = Core(WITH[0])
    for number in range(STEPS_PER_HISTORY):
        play(core, random_step(choice), number)
        if number % STEPS_PER_COMPARISON == 0:
            compare(core)
    compare(core)
    return len(core.events)


def main() -> int:
    """Play histories until there are enough events, print how many, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000, help="how many events (default 1,000,000)")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default 1)")
    options = parser.parse_args()
    print(f"the {build()} build", file=sys.stderr)
    events, seed = 0, options.seed
    while events < options.events:
        try:
            events += run_history(seed)
        except AssertionError as error:
            print(f"history {seed} differs (--seed {seed} --events 1): {error}")
            return 1
        seed += 1
    print(f"{seed - options.seed} histories, {events} events: no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
