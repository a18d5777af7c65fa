"""The cost of a decision in the core alone: no transport, sequencer or Redis.

    PYTHONPATH=build/compiled .venv/bin/python -m tests.load.core_cost --proposals 6000

prints the processor time per proposal. Under `valgrind --tool=callgrind`, the difference of two runs with different counts gives
instructions per proposal, which do not depend on other load. `--counters 5` lets each decision read five counters, `--terms 5` compares
five times without reading any. With `--reports` the measured commands are reports of successful refunds, and a derivation makes the
comparisons. `--memory` prints what groups and entries of counters take.
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import gavel_rules
from gavel.v1 import execution_pb2, fact_pb2
from gavel_rules.commands import Command, EventAnswer, References
from gavel_rules.decider import handle
from gavel_rules.language.rule_set import compile_rule_set
from gavel_rules.state.counters import CounterEntry, CounterTable
from gavel_rules.state.state import State
from gavel_rules.state.transitions.counters import enter
from gavel_server.process.garbage_collection import collect_less

from tests.support.driver import Core, event_id
from tests.support.paths import ROOT

CUSTOMER = "c-77"
TERMS_PER_RULE_SET = 100
SHIPPED = (ROOT / "rules/sets/refunds.yaml").read_text(encoding="utf-8")
SECOND = """gavel: v2
rule_set: limits-{number}
version: 1
actions:
  refund.create:
    params:
      type: object
      required: [amount, customer_id]
      properties: {{amount: {{type: number}}, customer_id: {{type: string, maxLength: 128}}}}
    retry: {{max_attempts: 3, backoff_initial_ms: 500, backoff_multiplier: 2.0, backoff_max_ms: 30000, human_takeover_after_ms: 600000}}
rules:
"""


def with_limits(text: str, terms: int, first: int, *, are_counters: bool, window_ms: int = 86_400_000, is_derivation: bool = False) -> str:
    """Return a rule set with one more rule, which never matches and makes so many comparisons, each with a counter or with a param.

    With `is_derivation` it is a derivation from reports of success.

    The counters have different windows from `window_ms` on, so none counts for two; `first` is the number of the first.
    """
    numbers = range(first, first + terms)
    declared = "".join(
        f"  spent_{number}: {{of: approvals, action: refund.create, by: params.customer_id, sum: params.amount,"
        f" window_ms: {window_ms + number}, keep: reserved}}\n"
        for number in numbers
    )
    reads = [f"history.spent_{number}(params.customer_id)" if are_counters else f"{number}.0" for number in numbers]
    condition = " || ".join(f"{read} + params.amount > 1e9" for read in reads)
    rule = f"  - {{id: over, action: refund.create, priority: 1100, when: '{condition}', effect: reject, reason_code: OVER}}\n"
    if is_derivation:
        rule = f"  - {{id: over, version: 1, on: {{action: refund.create, status: SUCCESS}}, key: order.over, value: '{condition}'}}\n"
    counters = f"counters:\n{declared}" if are_counters else ""
    part = "\nderivations:\n" if is_derivation else "\nrules:\n"
    assert 1 == text.count(part)
    return text.replace("gavel: v1", "gavel: v2").replace(part, part + rule).replace("\nrules:\n", f"\n{counters}rules:\n")


def main() -> int:
    """Decide refund proposals, each on an order of its own, or record reports of refunds, and print the cost of one."""
    parser = argparse.ArgumentParser(description="Measure the cost of a decision in the core.")
    parser.add_argument("--proposals", type=int, default=6_000, help="how many proposals to decide (default: 6,000)")
    parser.add_argument("--refused", action="store_true", help="propose refunds that the rules reject; otherwise all are approved")
    parser.add_argument("--counters", type=int, default=0, help="how many counters each decision reads (default: none)")
    parser.add_argument("--terms", type=int, default=0, help="how many comparisons a rule makes without counters (default: none)")
    parser.add_argument("--reports", action="store_true", help="measure reports, and compare in a derivation")
    parser.add_argument("--memory", action="store_true", help="print what groups and entries of a counter take, and decide nothing")
    options = parser.parse_args()
    if options.memory:
        print_memory()
        return 0
    core = Core(SHIPPED, mode=fact_pb2.CROSS_CHECK_MODE_SAMPLE)
    terms = options.counters or options.terms
    for first in range(0, terms, TERMS_PER_RULE_SET):
        text = SECOND.format(number=first) if first else SHIPPED.replace("\nversion: 1\n", "\nversion: 2\n")
        count = min(terms - first, TERMS_PER_RULE_SET)
        core.activate(with_limits(text, count, first, are_counters=bool(options.counters), is_derivation=options.reports))
    commands = submissions(core, options.proposals, is_refused=options.refused)
    if options.reports:
        commands = reports(core, commands)
    events: Counter[str] = Counter()
    collect_less()  # as a server does
    started_s = time.process_time()
    for command, references in commands:
        answer = handle(core.state, command, references, core.now_ms).answer
        core.state.commit()
        assert isinstance(answer, EventAnswer)
        events[answer.envelope.event_name] += 1
    cost_us = (time.process_time() - started_s) / options.proposals * 1_000_000
    name = "report" if options.reports else "proposal"
    print(f"{cost_us:.1f} µs per {name}, {dict(events)}, {Path(gavel_rules.__file__).parent}")
    return 0


def submissions(core: Core, count: int, *, is_refused: bool) -> list[tuple[Command, References]]:
    """Return the commands that submit so many proposals, which the rules approve or refuse."""
    params = {"amount": 20.0, "currency": "EUR", "customer_id": "c-78" if is_refused else CUSTOMER}
    commands: list[tuple[Command, References]] = []
    for number in range(count):
        subject = f"order/{number}"
        facts = [
            core.fact("order.status", "delivered", subject=subject),
            core.fact("order.total", 80.0, subject=subject),
            core.fact("order.customer_id", CUSTOMER, subject=subject),
        ]
        command = core.proposal(facts, subject=subject, trace_id=f"trace-{number}", params=params)
        commands.append((command, core.references(command)))
    return commands


def reports(core: Core, commands: list[tuple[Command, References]]) -> list[tuple[Command, References]]:
    """Submit proposals that are approved, start their executions, and return the commands that report success."""
    reported: list[tuple[Command, References]] = []
    for submission, _ in commands:
        answer = core.run(submission)
        assert isinstance(answer, EventAnswer)
        command = core.report_command(core.start(answer.envelope), execution_pb2.EXECUTION_STATUS_SUCCESS)
        reported.append((command, core.references(command)))
    return reported


def print_memory() -> None:
    """Print the bytes that an entry and a group of a counter take in the state, counted by tracemalloc."""
    entries = 20_000
    sizes = []
    for groups in (1, entries):
        counter = compile_rule_set(with_limits(SHIPPED, 1, 0, are_counters=True)).counters["spent_0"]
        state = State("default")
        store = state.store
        store.put(store.counters, counter.digest, CounterTable(counter, 1))
        table = store.counters[counter.digest]
        tracemalloc.start()
        for number in range(entries):
            enter(store, table, CounterEntry(event_id(number), f"customer-{number % groups}", 2_000, 10**12 + number, number))
        state.commit()
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    in_one, in_many = sizes
    print(f"{in_one / entries:.0f} bytes per entry, {(in_many - in_one) / (entries - 1):.0f} bytes more per group")


if __name__ == "__main__":
    sys.exit(main())
