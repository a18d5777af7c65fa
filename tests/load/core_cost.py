"""What a decision costs in the core alone: no transport, sequencer or Redis.

    PYTHONPATH=build/compiled .venv/bin/python -m tests.load.core_cost --proposals 6000

prints the processor time per proposal. Under `valgrind --tool=callgrind`, the difference of two runs with different counts gives
instructions per proposal, which do not depend on other load.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import gavel_rules
from gavel.v1 import fact_pb2
from gavel.v1.decision_pb2 import Outcome
from gavel_rules.commands import EventAnswer
from gavel_rules.decider import handle
from gavel_server.process.garbage_collection import collect_less

from tests.support.driver import Core
from tests.support.paths import ROOT

CUSTOMER = "c-77"


def main() -> int:
    """Decide refund proposals, each on an order of its own, and print the cost of one."""
    parser = argparse.ArgumentParser(description="Measure the cost of a decision in the core.")
    parser.add_argument("--proposals", type=int, default=6_000, help="how many proposals to decide (default: 6,000)")
    parser.add_argument("--refused", action="store_true", help="propose refunds that the rules reject; otherwise all are approved")
    options = parser.parse_args()
    core = Core((ROOT / "rules/sets/refunds.yaml").read_text(encoding="utf-8"), mode=fact_pb2.CROSS_CHECK_MODE_SAMPLE)
    params = {"amount": 20.0, "currency": "EUR", "customer_id": "c-78" if options.refused else CUSTOMER}
    submissions = []
    for number in range(options.proposals):
        subject = f"order/{number}"
        facts = [
            core.fact("order.status", "delivered", subject=subject),
            core.fact("order.total", 80.0, subject=subject),
            core.fact("order.customer_id", CUSTOMER, subject=subject),
        ]
        command = core.proposal(facts, subject=subject, trace_id=f"trace-{number}", params=params)
        submissions.append((command, core.references(command)))
    outcomes: Counter[str] = Counter()
    collect_less()  # as a server does
    started_s = time.process_time()
    for command, references in submissions:
        answer = handle(core.state, command, references, core.now_ms).answer
        core.state.commit()
        assert isinstance(answer, EventAnswer)
        outcomes[Outcome.Name(answer.envelope.decision.outcome)] += 1
    cost_us = (time.process_time() - started_s) / options.proposals * 1_000_000
    print(f"{cost_us:.1f} µs per proposal, {dict(outcomes)}, {Path(gavel_rules.__file__).parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
