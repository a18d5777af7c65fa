"""Conditions on past events, as in Dogwood's published benchmark: `python -m tests.load.counters.past_events`, or part of `make bench`.

Every fifth event is a login to a server, the others ask to read a document on a server. Servers and sessions take turns. A *selective* rule
refuses a read if a certain user has logged in to the same server within an hour; only the first rule ever matches. A *broad* rule
counts all logins of the last hour against a number that is never reached. Rules are many or few, and the history is long or short.

The workload is that of `dogwood-performance`, written anew for counters. Each rule has a counter of its own, so that no rule shares a
number with another. The figures are processor time of the core and both rule engines for one decision, without server and log, the median
of several rounds. The gate is that a decision after a long history costs what it costs after a short one.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from statistics import median
from typing import Any, Final, NamedTuple

from gavel.v1.fact_pb2 import CROSS_CHECK_MODE_ALWAYS
from gavel_rules.commands import EventAnswer
from gavel_rules.decider import handle
from rich.console import Console

from tests.load.bench.core_part import run_part
from tests.support.driver import Core

ROUNDS: Final = 7
DECISIONS: Final = 60
# The numbers of that benchmark. With 49 servers, logins and reads meet on the same ones.
LOGIN_EVERY: Final = 5
SERVERS: Final = 49
SESSIONS: Final = 8
BLOCKED_EVERY: Final = 3
# The blocked user logs in to half of the servers, so that even after a long history some reads are approved.
BLOCKED_SERVERS: Final = 25
WINDOW_MS: Final = 3_600_000
POLICIES: Final = (10, 100)
HISTORIES: Final = (800, 20_000)
SHAPES: Final = ("selective", "broad")
RATIO_MAX: Final = 1.25

ACTION: Final = "document.read"
BLOCKED: Final = "BLOCKED"
DOCUMENT: Final = """gavel: v2
rule_set: documents
version: 1
actions:
  document.read:
    params:
      type: object
      required: [server]
      properties: {server: {type: string, maxLength: 16}}
    facts: {state: {key: document.state, type: string, max_length: 16, max_age_ms: 60000}}
    retry: {max_attempts: 1}
    decision_ttl_ms: 1000
"""


class Event(NamedTuple):
    """An event of the stream: a login, or a request to read."""

    is_login: bool
    user: str
    server: str


def stream(start: int, count: int) -> list[Event]:
    """Return `count` events of the stream, from number `start` on."""
    events = []
    for number in range(start, start + count):
        is_login = number % LOGIN_EVERY == 0
        is_blocked = is_login and number // LOGIN_EVERY % BLOCKED_EVERY == 0 and number % SERVERS < BLOCKED_SERVERS
        events.append(Event(is_login, "blocked0" if is_blocked else f"u{number % SESSIONS}", f"s{number % SERVERS}"))
    return events


def rule_set(shape: str, policies: int) -> str:
    """Return the rule set with `policies` rules of a shape."""
    counters = ""
    conditions = []
    for number in range(policies):
        counters += f"  logins{number}: {{of: facts, fact: session.login, window_ms: {WINDOW_MS + number}"
        if shape == "selective":
            counters += f', by: subject, where: value == "blocked{number}"}}\n'
            conditions.append(f'history.logins{number}("server/" + params.server) > 0')
        else:
            counters += "}\n"
            conditions.append(f"history.logins{number}() > 100000")
    refusal = f"effect: reject, reason_code: {BLOCKED}"
    rules = "".join(
        f"  - {{id: r{number}, action: {ACTION}, priority: {number + 2}, when: '{condition}', {refusal}}}\n"
        for number, condition in enumerate(conditions)
    )
    approval = f"  - {{id: others, action: {ACTION}, priority: 1, when: 'true', effect: approve}}\n"
    return f"{DOCUMENT}counters:\n{counters}rules:\n{rules}{approval}"


class Bus:
    """A core on which the stream plays."""

    def __init__(self, shape: str, policies: int, history: int) -> None:
        """Play `history` events. Requests to read among them are left out: they change no counter."""
        self._core: Final = Core(rule_set(shape, policies), mode=CROSS_CHECK_MODE_ALWAYS)
        self._position = 0
        self.outcomes: Final[Counter[str]] = Counter()
        for event in self._play(history):
            if event.is_login:
                self._log_in(event)

    def decide(self, count: int) -> float:
        """Play on until `count` decisions are made, and return the mean processor time of one in microseconds."""
        core = self._core
        spent_s = 0.0
        reads = 0
        while reads < count:
            (event,) = self._play(1)
            if event.is_login:
                self._log_in(event)
                continue
            reads += 1
            subject = f"document/{self._position}"
            state = core.fact("document.state", "open", subject=subject)
            command = core.proposal([state], subject=subject, trace_id=subject, action_type=ACTION, params={"server": event.server})
            references = core.references(command)
            started_s = time.process_time()
            answer = handle(core.state, command, references, core.now_ms).answer
            core.state.commit()
            spent_s += time.process_time() - started_s
            assert isinstance(answer, EventAnswer)
            self.outcomes[answer.envelope.decision.reason_code] += 1
        return spent_s / count * 1_000_000

    def _play(self, count: int) -> list[Event]:
        events = stream(self._position, count)
        self._position += count
        return events

    def _log_in(self, event: Event) -> None:
        self._core.fact("session.login", event.user, subject=f"server/{event.server}")


def measure() -> dict[str, float]:
    """Return the microseconds of a decision by shape, number of rules and length of the history: "selective 10 800".

    Raises RuntimeError if the selective rules do not refuse some reads and approve others, or a broad one refuses any.
    """
    figures: dict[str, float] = {}
    for shape in SHAPES:
        for policies in POLICIES:
            buses = [Bus(shape, policies, history) for history in HISTORIES]
            # The buses take turns, so that other load affects all of them.
            rounds = [[bus.decide(DECISIONS) for bus in buses] for _ in range(ROUNDS)]
            for bus, history, figure in zip(buses, HISTORIES, map(median, zip(*rounds, strict=True)), strict=True):
                if set(bus.outcomes) != ({"", BLOCKED} if shape == "selective" else {""}):
                    raise RuntimeError(f"{policies} {shape} rules after {history} events came to {dict(bus.outcomes)}")
                figures[f"{shape} {policies} {history}"] = figure
    return figures


def gates(figures: dict[str, float]) -> list[dict[str, Any]]:
    """Return each gate with its bound, its figure, and whether it passed."""
    ratios = {
        f"{policies} {shape} rules after {HISTORIES[-1]:,} events": figures[f"{shape} {policies} {HISTORIES[-1]}"]
        / figures[f"{shape} {policies} {HISTORIES[0]}"]
        for shape in SHAPES
        for policies in POLICIES
    }
    return [{"name": name, "reached": ratio, "wanted": RATIO_MAX, "passed": ratio <= RATIO_MAX} for name, ratio in ratios.items()]


def show(figures: dict[str, float], console: Console) -> None:
    """Print the figures and the gates."""
    for shape in SHAPES:
        for policies in POLICIES:
            costs = ", ".join(f"{figures[f'{shape} {policies} {history}']:.0f} µs after {history:,}" for history in HISTORIES)
            console.print(f"past events: a decision by {policies} {shape} rules: {costs}", highlight=False)
    for gate in gates(figures):
        word = "ok" if gate["passed"] else "MISSED"
        console.print(
            f"gate: {gate['name']}: {gate['reached']:.2f} times the cost after {HISTORIES[0]}, wanted {gate['wanted']} at most: {word}",
            highlight=False,
        )


if __name__ == "__main__":
    sys.exit(run_part("tests.load.counters.past_events", "Measures rules on past events.", measure, show, gates))
